#!/usr/bin/env python3
"""Feeds Flopwatch from IBM Spectrum LSF 10.1: prints what `bjobs` and `bhosts` tell.

A raw job id is LSF's own 64-bit one: the number, and for element I of an array I * 2**32 more.
"""

from __future__ import annotations

import calendar
import re
import time

import feed

FIELDS = (
    "jobid jobindex stat user queue job_name proj_name submit_time start_time finish_time"
    " runtimelimit exit_code exit_reason pend_reason exec_host gpu_num gpu_alloc"
)
JOBS = ("bjobs", "-u", "all", "-a", "-o", FIELDS, "-json")
HOSTS = ("bhosts", "-o", "host_name status njobs ngpus", "-json")

STATES = {
    "PEND": "PENDING", "PSUSP": "PENDING", "WAIT": "PENDING", "PROV": "CONFIGURING",
    "RUN": "RUNNING", "UNKWN": "RUNNING", "ZOMBI": "RUNNING",
    "USUSP": "SUSPENDED", "SSUSP": "SUSPENDED", "DONE": "COMPLETED",
}  # fmt: skip
"""LSF's words (bjobs(1)). Of a job that is UNKWN or ZOMBI its host has not been heard; it holds."""

ENDS = {
    "TERM_RUNLIMIT": "TIMEOUT", "TERM_DEADLINE": "DEADLINE", "TERM_MEMLIMIT": "OUT_OF_MEMORY",
    "TERM_SWAP": "OUT_OF_MEMORY", "TERM_PREEMPT": "PREEMPTED", "TERM_OWNER": "CANCELLED",
    "TERM_ADMIN": "CANCELLED", "TERM_FORCE_OWNER": "CANCELLED", "TERM_FORCE_ADMIN": "CANCELLED",
}  # fmt: skip
"""Of a job that is EXIT, by the word before the colon of exit_reason; any other is FAILED."""

_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_TIME = re.compile(r"(\w{3}) +(\d+) (\d+):(\d+)(?::(\d+) (\d{4}))?(?: [ELX])?$")
_DAY_SECONDS = 86400


def main() -> None:
    """Print the feed."""
    jobs, asked_at = feed.ask("jobs", JOBS)
    hosts = feed.ask("hosts", HOSTS)[0]["RECORDS"]
    totals = {host.get("HOST_NAME"): _number(host.get("NGPUS")) for host in hosts}
    feed.print_feed(
        asked_at,
        feed.lines(
            "job",
            jobs["RECORDS"],
            display_id,
            lambda job: run(job, asked_at, totals),
            holds_none,
        ),
        feed.lines("node", hosts, lambda host: host["HOST_NAME"], node),
    )


def run(job: dict[str, str], asked_at: float, totals: dict[str, int | None]) -> feed.Line:
    """The run of a job."""
    number, index = int(job["JOBID"]), int(job.get("JOBINDEX") or 0)
    state = _ended_as(job) if job["STAT"] == "EXIT" else STATES[job["STAT"]]
    is_over = state not in feed.PENDING | feed.RUNNING
    started_at = None if state in feed.PENDING else _time(job["START_TIME"], asked_at)
    return {
        "raw_job_id": (index << 32) + number,
        "display_id": display_id(job),
        "submitted_at": _time(job["SUBMIT_TIME"], asked_at),
        "state": state,
        "name": job["JOB_NAME"],
        "user": job["USER"],
        "account": job.get("PROJ_NAME", ""),
        "partition": job.get("QUEUE"),
        "reason": job.get("PEND_REASON") or job.get("EXIT_REASON"),
        "started_at": started_at,
        # Of a job that runs this is when it has to be over.
        "ended_at": _time(job["FINISH_TIME"], asked_at) if is_over else None,
        "time_limit_seconds": _limit(job.get("RUNTIMELIMIT")),
        "exit_code": _exit_code(job) if is_over else None,
        "array_job_id": number if index else None,
        "array_task_id": index or None,
        **(_holdings(job, totals) if started_at is not None else _request(job)),
    }


def node(host: dict[str, str]) -> feed.Line:
    """The node of a host."""
    status = host["STATUS"]
    if status in ("unavail", "unreach", "unlicensed"):
        state = "DOWN"
    else:
        full = status in ("closed_Full", "closed_Excl")
        state = "ALLOCATED" if full else "MIXED" if _number(host.get("NJOBS")) else "IDLE"
        if status.lower() in ("closed_adm", "closed_eadm", "closed_lock", "closed_wind"):
            state += "+DRAIN"
    return {"name": host["HOST_NAME"], "state": state, "gpu_count": _number(host.get("NGPUS"))}


def holds_none(job: dict[str, str]) -> bool:
    """Whether it is certain that a job holds no GPUs now."""
    return job["STAT"] == "EXIT" or STATES[job["STAT"]] not in feed.RUNNING


def display_id(job: dict[str, str]) -> str:
    """The id as bsub printed it, with the element of an array."""
    index = job.get("JOBINDEX") or "0"
    return job["JOBID"] if index == "0" else f"{job['JOBID']}[{index}]"


def _ended_as(job: dict[str, str]) -> str:
    return ENDS.get(job.get("EXIT_REASON", "").partition(":")[0], "FAILED")


def _holdings(job: dict[str, str], totals: dict[str, int | None]) -> feed.Line:
    """The job's hosts, and its GPUs: GPU_ALLOC names each for every task, "a:0,1,0,1;b:0".

    Slices of a MIG are named by their GPU and their sizes, "a:0:3/3": not even their number is
    certain then. GPU_NUM counts those of all hosts together.
    """
    hosts = [part.rpartition("*")[2] for part in job.get("EXEC_HOST", "").split(":") if part]
    nodes = list(dict.fromkeys(hosts))
    allocated, count = job.get("GPU_ALLOC", "").strip(), _number(job.get("GPU_NUM"))
    if allocated and "/" not in allocated:
        return {"nodes": nodes, "gpus": [_cards(part) for part in allocated.split(";")]}
    if count == 0:
        return {"nodes": nodes, "gpus": []}
    if count and len(nodes) == 1:
        return {"nodes": nodes, "gpus": [feed.held(nodes[0], count, totals.get(nodes[0]))]}
    return {"nodes": nodes, "gpu_count": count}


def _cards(part: str) -> feed.Line:
    """GPUs of one host; LSF names them by their minor numbers."""
    host, _, names = part.partition(":")
    minors = sorted({int(minor) for minor in names.split(",")})
    return {"node": host, "count": len(minors), "ordinals": minors}


def _request(job: dict[str, str]) -> feed.Line:
    return {"gpu_count": _number(job.get("GPU_NUM"))}


def _exit_code(job: dict[str, str]) -> str | None:
    if job["STAT"] == "DONE":
        return "0:0"
    return f"{job['EXIT_CODE']}:0" if job.get("EXIT_CODE") else None


def _limit(text: str | None) -> int | None:
    """Seconds, of minutes ("2400.0") or, where the site shows times by the clock, "00:10:00"."""
    if not text:
        return None
    if ":" not in text:
        return round(float(text.split("/")[0]) * 60)
    hours, minutes, seconds = text.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _time(text: str, asked_at: float) -> float | None:
    """Of "Sep 30 20:32:14 2026 L" in UTC (feed.ask) or, as older LSF prints it, "Sep 30 20:32".

    Without a year it is the newest such time that is not more than a day ahead.
    """
    if not text:
        return None
    found = _TIME.match(text)
    if found is None:
        raise ValueError(f"{text!r} is no time")
    month, day, hour, minute, second, year = found.groups()
    clock = (_MONTHS.index(month) + 1, int(day), int(hour), int(minute), int(second or 0))
    if year is not None:
        return calendar.timegm((int(year), *clock))
    this_year = time.gmtime(asked_at + _DAY_SECONDS).tm_year
    told = calendar.timegm((this_year, *clock))
    return told if told <= asked_at + _DAY_SECONDS else calendar.timegm((this_year - 1, *clock))


if __name__ == "__main__":
    main()
