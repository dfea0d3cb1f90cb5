#!/bin/sh
# Everything real that the suites need: Slurm, MariaDB, PostgreSQL, Redis, Chromium, compilers,
# curl, and for the soak suite debootstrap.
# As root on Debian or Ubuntu it installs what is missing; else it says what is missing, and fails.
set -eu
PATH=$PATH:/usr/sbin:/sbin

# `prepare.sh slurm` is for the tests of Slurm alone, which need no more than its daemons and gcc.
slurm='slurm-wlm slurm-client slurmdbd slurmrestd slurm-wlm-mysql-plugin slurm-wlm-jwt-plugin munge
mariadb-server gcc libc6-dev util-linux procps iproute2 passwd'
rest='redis-server postgresql chromium debootstrap git g++ python3-dev curl'
slurm_probe='slurmctld slurmd slurmdbd slurmrestd squeue sacct munged mariadbd mariadb-install-db gcc
setpriv mknod ip useradd'
rest_probe='redis-server chromium debootstrap git g++ curl'
case ${1:-all} in
slurm) packages=$slurm probe=$slurm_probe ;;
*) packages="$slurm $rest" probe="$slurm_probe $rest_probe" ;;
esac

missing=''
for command in $probe; do
    command -v "$command" >/dev/null || missing="$missing $command"
done
ls /usr/lib/*/slurm-wlm/auth_jwt.so >/dev/null 2>&1 || missing="$missing slurm-wlm-jwt-plugin"
if [ "${1:-all}" != slurm ]; then
    ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="$missing postgresql"
    # torch compiles against the headers of the Python that runs it.
    python3 -c 'import os, sysconfig as at; os.stat(at.get_path("include") + "/Python.h")' 2>/dev/null ||
        missing="$missing Python.h"
fi
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
