#!/bin/sh
# Slurm prolog for Flopwatch: tells the node's agent which GPUs a job was given, before any process
# of it exists, and whose it is: where no cgroup tells the job of a process, that confirms what its
# environment claims. Hooks of other schedulers may call it too: see docs/schedulers.md. Under Slurm
# call it from your own prolog, or set in slurm.conf:
#     Prolog=/usr/share/flopwatch/prolog.sh
#     Epilog=/usr/share/flopwatch/epilog.sh
#     PrologFlags=Alloc
# Without PrologFlags=Alloc (or Contain) Slurm runs it only when the first step starts.
# Whatever goes wrong here, the job starts: this script always ends with 0. The folder must be local,
# for what hangs here holds the job back until Slurm's PrologEpilogTimeout.

folder="${FLOPWATCH_PROLOG_DIR:-/run/flopwatch/jobs}"

drop() {
    case "$SLURM_JOB_ID" in '' | *[!0-9]*) return 1 ;; esac
    umask 022
    /bin/mkdir -p "$folder" || return 1
    # Written under another name and renamed, so that the agent never reads half a file.
    {
        echo "SLURM_JOB_ID=$SLURM_JOB_ID"
        echo "SLURM_JOB_GPUS=$SLURM_JOB_GPUS"
        echo "SLURM_JOB_UID=$SLURM_JOB_UID"
        echo "SLURM_RESTART_COUNT=${SLURM_JOB_RESTART_COUNT:-${SLURM_RESTART_COUNT:-0}}"
    } > "$folder/.$SLURM_JOB_ID.new" || return 1
    /bin/mv -f "$folder/.$SLURM_JOB_ID.new" "$folder/$SLURM_JOB_ID"
}

drop 2> /dev/null
exit 0
