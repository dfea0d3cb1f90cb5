#!/bin/sh
# Prints the raw job id by which the feeds in this folder tell of a job, from what PBS, LSF or Flux
# puts into the environment of its processes. A job-start hook that has the id from elsewhere sets
# the variable itself: PBS_JOBID=$1 job_id.sh
set -eu

if [ -n "${PBS_JOBID:-}" ]; then # 1234.server, or 1234[7].server for an element of an array
    id=${PBS_JOBID%%[!0-9]*}
    case $PBS_JOBID in
        *"["*)
            index=${PBS_JOBID#*"["}
            id=$((id + (${index%%"]"*} + 1) * 1099511627776)) # 2^40
            ;;
    esac
elif [ -n "${LSB_JOBID:-}" ]; then
    id=$(((${LSB_JOBINDEX:-0} << 32) + LSB_JOBID))
else
    id=$(flux job id --to=dec "$FLUX_JOB_ID")
fi
echo "$id"
