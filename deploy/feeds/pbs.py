#!/usr/bin/env python3
"""Feeds Flopwatch from OpenPBS or PBS Professional: prints what `qstat` and `pbsnodes` tell.

A raw job id is PBS's own number; for element I of an array it is (I + 1) * 2**40 more.
"""

from __future__ import annotations

import calendar
import re
import time
from collections import Counter
from typing import Any

import feed

JOBS = ("qstat", "-x", "-t", "-f", "-F", "json")
NODES = ("pbsnodes", "-a", "-F", "json")

STATES = {
    "Q": "PENDING", "H": "PENDING", "W": "PENDING", "T": "PENDING",
    "R": "RUNNING", "S": "SUSPENDED", "U": "SUSPENDED", "E": "COMPLETING",
}  # fmt: skip
"""PBS's letters (qstat(1B)). Of the others F and X are ends, M has moved, B is an array as such."""

KILLED = {"-29": "TIMEOUT", "-27": "OUT_OF_MEMORY", "-26": "OUT_OF_MEMORY"}
"""By Exit_status: for walltime, mem and vmem."""
_OVER = {"F", "X", "M"}
_DELETED = "91"  # substate of a job that qdel has ended
_UNUSABLE = {"down", "stale", "state-unknown", "unresolvable"}
_OFFERED_NO_MORE = {"offline", "maintenance"}
_FULL = {"job-busy", "job-exclusive", "resv-exclusive"}

_ID = re.compile(r"(\d{1,12})(?:\[(\d{1,7})\])?(?:\.|$)")


def main() -> None:
    """Print the feed."""
    jobs, asked_at = feed.ask("jobs", JOBS)
    hosts = Hosts(feed.ask("nodes", NODES)[0]["nodes"])
    feed.print_feed(
        asked_at,
        feed.lines(
            "job",
            jobs.get("Jobs", {}).items(),
            _name,
            lambda job: run(job[0], job[1], hosts),
            lambda job: holds_none(job[1]),
        ),
        feed.lines("node", hosts.vnodes.items(), _name, lambda host: hosts.line(host[0], host[1])),
    )


class Hosts:
    """The hosts, which PBS may have split into several vnodes, and what they have."""

    def __init__(self, vnodes: dict[str, Any]) -> None:
        self.host_of: dict[str, str] = {}
        self.vnodes: dict[str, list[dict[str, Any]]] = {}
        for name, vnode in vnodes.items():
            host = vnode.get("resources_available", {}).get("host", name)
            self.host_of[name] = host
            self.vnodes.setdefault(host, []).append(vnode)

    def gpu_count(self, host: str) -> int | None:
        """None where PBS does not count GPUs."""
        counts = [vnode.get("resources_available", {}).get("ngpus")
                  for vnode in self.vnodes.get(host, ())]  # fmt: skip
        told = [int(count) for count in counts if count is not None]
        return sum(told) if told else None

    def line(self, host: str, vnodes: list[dict[str, Any]]) -> feed.Line:
        """The node as the feed wants it."""
        words = {word for vnode in vnodes for word in vnode["state"].split(",")}
        busy = any(vnode.get("jobs") for vnode in vnodes)
        state = "ALLOCATED" if words & _FULL else "MIXED" if busy else "IDLE"
        if words & _UNUSABLE:
            state = "DOWN"
        elif words & _OFFERED_NO_MORE:
            state += "+DRAIN"
        queues = {vnode["queue"] for vnode in vnodes if "queue" in vnode}
        return {
            "name": host,
            "state": state,
            "reason": next((vnode["comment"] for vnode in vnodes if "comment" in vnode), None),
            "gpu_count": self.gpu_count(host),
            "partitions": sorted(queues),
        }


def run(name: str, job: dict[str, Any], hosts: Hosts) -> feed.Line:
    """The run of a job; {} for an array as such, and where PBS does not tell how it ended."""
    if job.get("array") == "True":
        return {}
    found = _ID.match(name)
    if found is None:
        raise ValueError("no id of a job")
    number, index = int(found[1]), found[2]
    state = STATES.get(job["job_state"]) or _end(job)
    if state is None:
        return {}
    is_over = state not in feed.PENDING | feed.RUNNING
    request = job.get("Resource_List", {})
    started_at = None if state in feed.PENDING else _time(job.get("stime"))
    line = {
        "raw_job_id": number if index is None else number + (int(index) + 1) * 2**40,
        "display_id": str(number) if index is None else f"{number}[{index}]",
        "submitted_at": _time(job["ctime"]),
        "state": state,
        "name": job["Job_Name"],
        "user": job["Job_Owner"].rpartition("@")[0] or job["Job_Owner"],
        "account": _account(job),
        "partition": job["queue"],
        "reason": job.get("comment"),
        "started_at": started_at,
        "ended_at": _ended_at(job) if is_over else None,
        "time_limit_seconds": _seconds(request.get("walltime")),
        "exit_code": _exit_code(job) if is_over else None,
        "gpu_count": None if request.get("ngpus") is None else int(request["ngpus"]),
        "node_count": None if request.get("nodect") is None else int(request["nodect"]),
        "array_job_id": None if index is None else number,
        "array_task_id": None if index is None else int(index),
    }
    return {**line, **_holdings(job, hosts)} if started_at is not None else line


def holds_none(job: dict[str, Any]) -> bool:
    """Whether it is certain that a job holds no GPUs now."""
    letter = job["job_state"]
    return letter in _OVER or STATES[letter] not in feed.RUNNING


def _name(item: tuple[str, Any]) -> str:
    return item[0]


def _holdings(job: dict[str, Any], hosts: Hosts) -> feed.Line:
    """The nodes of a job and its GPUs there, from "(a:ncpus=1:ngpus=2)+(b:ncpus=1)".

    A job that asks for whole nodes by `place` need not name GPUs; then they are unknown.
    """
    counts: Counter[str] = Counter()
    names_gpus = False
    for part in re.findall(r"[^()+]+", job.get("exec_vnode", "")):
        vnode, *resources = part.split(":")
        amounts = dict(resource.split("=", 1) for resource in resources)
        names_gpus |= "ngpus" in amounts
        counts[hosts.host_of.get(vnode, vnode)] += int(amounts.get("ngpus", "0"))
    if not names_gpus and any(hosts.gpu_count(host) for host in counts):
        return {"nodes": list(counts)}
    gpus = [feed.held(host, count, hosts.gpu_count(host))
            for host, count in counts.items() if count]  # fmt: skip
    return {"nodes": list(counts), "gpus": gpus}


def _end(job: dict[str, Any]) -> str | None:
    """How a job ended, or None where PBS does not tell that."""
    if job["job_state"] == "M":
        return "REVOKED"
    if job["job_state"] not in _OVER:
        raise ValueError(f"job_state {job['job_state']!r} is unknown")
    status = job.get("Exit_status")
    if status in KILLED:
        return KILLED[status]
    if job.get("substate") == _DELETED or "stime" not in job:
        return "CANCELLED"
    if status is None:
        return None
    return "COMPLETED" if status == "0" else "FAILED"


def _ended_at(job: dict[str, Any]) -> float | None:
    if "obittime" not in job and "history_timestamp" in job:
        return float(job["history_timestamp"])
    return _time(job.get("obittime", job["mtime"]))


def _exit_code(job: dict[str, Any]) -> str | None:
    """Exit_status is 256 and more after a signal, and negative where PBS itself ended the job."""
    status = int(job.get("Exit_status", "-1"))
    if status < 0:
        return None
    return f"{status}:0" if status < 256 else f"0:{status - 256}"


def _account(job: dict[str, Any]) -> str:
    project = job.get("project", "")
    return job.get("Account_Name") or ("" if project == "_pbs_project_default" else project)


def _seconds(clock: str | None) -> int | None:
    """Of "26:00:00", "05:00" or "90"."""
    if clock is None:
        return None
    seconds = 0
    for part in clock.split(":"):
        seconds = 60 * seconds + int(part)
    return seconds


def _time(text: str | None) -> float | None:
    """Of "Wed Apr 26 13:40:10 2023", which qstat prints in its own time zone: UTC (feed.ask)."""
    return None if text is None else calendar.timegm(time.strptime(text, "%a %b %d %H:%M:%S %Y"))


if __name__ == "__main__":
    main()
