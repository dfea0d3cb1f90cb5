#!/bin/sh
# Runs a command in a root of its own, as the first process of new mount and process namespaces:
# when it ends, or is killed, the kernel ends all that it started and unmounts all that it mounted.
#
#   unshare --mount --pid --fork --kill-child sh enter_root.sh ROOT "MOUNTS" DIRECTORY COMMAND...
#
# MOUNTS are files and folders of this machine, to be seen read-only in the root at the same place.
# What still runs there ten seconds after the command is written to ROOT/survivors.
set -eu
root=$1 mounts=$2 directory=$3
shift 3

mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
for path in $mounts; do
    if [ -d "$path" ]; then
        mkdir -p "$root$path"
    else
        mkdir -p "$root$(dirname "$path")"
        touch "$root$path"
    fi
    mount --bind "$path" "$root$path"
    mount -o remount,bind,ro "$root$path"
done

own=$(readlink "$root/proc/self/ns/mnt")
survivors() { # command lines of all processes in the mount namespace that was made for the command
    for process in "$root"/proc/[0-9]*; do
        case $(readlink "$process/ns/mnt") in '' | "$own") continue ;; esac
        tr '\0' ' ' <"$process/cmdline" && echo
    done 2>/dev/null || true # one may end while it is looked at
}

trap : INT # Ctrl-C is for the command, which gets it too
status=0
# Not a mere chroot: in one the kernel lets nobody make user namespaces, as tests of containers do.
# shellcheck disable=SC2016 # the words are for the shell inside
unshare --mount sh -c '
    mount --rbind "$0" "$0" && cd "$0" && pivot_root . . && umount -l . && cd "$1" && shift &&
        exec "$@"' "$root" "$directory" "$@" || status=$?
tries=0
while [ -n "$(survivors)" ] && [ $tries -lt 50 ]; do
    tries=$((tries + 1))
    sleep 0.2
done
survivors >"$root/survivors"
exit $status
