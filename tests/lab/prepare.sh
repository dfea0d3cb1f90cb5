#!/bin/sh
# Everything real that the suites need: Slurm, MariaDB, PostgreSQL, Redis, Chromium, compilers,
# curl, and for the soak suite debootstrap.
# As root on Debian or Ubuntu it installs what is missing; else it says what is missing, and fails.
set -eu
PATH=$PATH:/usr/sbin:/sbin

packages='slurm-wlm slurm-client slurmdbd slurmrestd slurm-wlm-mysql-plugin
slurm-wlm-jwt-plugin munge mariadb-server redis-server postgresql chromium debootstrap git gcc g++ libc6-dev python3-dev curl util-linux procps
iproute2 passwd'
probe='slurmctld slurmd slurmdbd slurmrestd squeue sacct munged mariadbd mariadb-install-db
redis-server chromium debootstrap git gcc g++ curl setpriv mknod ip useradd'

missing=''
for command in $probe; do
    command -v "$command" >/dev/null || missing="$missing $command"
done
ls /usr/lib/*/slurm-wlm/auth_jwt.so >/dev/null 2>&1 || missing="$missing slurm-wlm-jwt-plugin"
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="$missing postgresql"
# torch compiles against the headers of the Python that runs it.
python3 -c 'import os, sysconfig as at; os.stat(at.get_path("include") + "/Python.h")' 2>/dev/null ||
    missing="$missing Python.h"
[ -z "$missing" ] && exit 0

# shellcheck disable=SC2086 # a list of words
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing what the tests need:$missing"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >/dev/null
else
    echo "The tests need these, which are missing:$missing" >&2
    echo "As root on Debian or Ubuntu: apt-get install --no-install-recommends" $packages >&2
    exit 1
fi
