#!/usr/bin/env python3
"""Feeds Flopwatch from a Flux instance: prints what `flux jobs` and `flux resource` tell.

A raw job id is Flux's own number; people know it in base 58, as ƒuZZybuNNy.
"""

from __future__ import annotations

import re
from typing import Any

import feed

JOBS = ("flux", "jobs", "-A", "-a", "--count=0", "--since=-1h", "--json")
RESOURCES = ("flux", "resource", "R", "-s")
ALLOCATION = ("flux", "job", "info")

STATES = {
    "DEPEND": "PENDING", "PRIORITY": "PENDING", "SCHED": "PENDING",
    "RUN": "RUNNING", "CLEANUP": "COMPLETING",
}  # fmt: skip
"""Flux's words (RFC 21). An INACTIVE job has a result."""

RESULTS = {"COMPLETED": "COMPLETED", "FAILED": "FAILED", "CANCELED": "CANCELLED",
           "TIMEOUT": "TIMEOUT"}  # fmt: skip

_DIGITS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_HOSTS = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")

Holdings = dict[str, list[int]]
"""The GPUs of each host, by their numbers on it."""


def main() -> None:
    """Print the feed."""
    jobs, asked_at = feed.ask("jobs", JOBS)
    hosts = holdings(feed.ask("resources", (*RESOURCES, "all"))[0])
    down = holdings(feed.ask("down", (*RESOURCES, "down"))[0])
    used = holdings(feed.ask("allocated", (*RESOURCES, "allocated"))[0])
    feed.print_feed(
        asked_at,
        feed.lines("job", jobs["jobs"], lambda job: f58(int(job["id"])), run, holds_none),
        feed.lines("node", hosts, str, lambda host: node(host, hosts[host], down, used)),
    )


def run(job: dict[str, Any]) -> feed.Line:
    """The run of a job."""
    state = RESULTS[job["result"]] if job["state"] == "INACTIVE" else STATES[job["state"]]
    is_over = state not in feed.PENDING | feed.RUNNING
    started_at = None if state in feed.PENDING else _time(job.get("t_run"))
    line = {
        "raw_job_id": int(job["id"]),
        "display_id": f58(int(job["id"])),
        "submitted_at": float(job["t_submit"]),
        "state": state,
        "name": job.get("name", ""),
        "user": job["username"],
        "account": job.get("bank") or "",
        "partition": job.get("queue"),
        "reason": _reason(job),
        "started_at": started_at,
        "ended_at": _time(job.get("t_inactive")) if is_over else None,
        "time_limit_seconds": int(float(job.get("duration") or 0)) or None,
        "exit_code": _exit_code(job) if is_over else None,
        "node_count": int(job["nnodes"]) if job.get("nnodes") else None,
        "nodes": expand(job.get("nodelist") or ""),
    }
    if state not in feed.RUNNING:
        return line
    r, _ = feed.ask(f"R-{job['id']}", (*ALLOCATION, job["id"], "R"))
    gpus = [
        {"node": host, "count": len(cards), "ordinals": cards}
        for host, cards in holdings(r).items()
        if cards
    ]
    return {**line, "gpus": gpus}


def holds_none(job: dict[str, Any]) -> bool:
    """Whether it is certain that a job holds no GPUs now."""
    return job["state"] == "INACTIVE" or STATES[job["state"]] not in feed.RUNNING


def node(name: str, gpus: list[int], down: Holdings, used: Holdings) -> feed.Line:
    """The node of a host. Flux counts one that is drained among those that are down."""
    state = "IDLE" if name not in used else "ALLOCATED" if used[name] == gpus else "MIXED"
    return {"name": name, "state": "DOWN" if name in down else state, "gpu_count": len(gpus)}


def holdings(r: dict[str, Any]) -> Holdings:
    """The GPUs of each host in an R (RFC 20), whose nodelist names the hosts in order of ranks."""
    execution = r["execution"]
    gpus_of = {
        rank: numbers(entry["children"].get("gpu", ""))
        for entry in execution["R_lite"]
        for rank in numbers(entry["rank"])
    }
    hosts = [host for part in execution.get("nodelist", ()) for host in expand(part)]
    if len(hosts) != len(gpus_of):
        raise ValueError(f"{len(hosts)} hosts for {len(gpus_of)} ranks")
    held: Holdings = {}
    for place, rank in enumerate(sorted(gpus_of)):
        held.setdefault(hosts[place], []).extend(gpus_of[rank])
    return held


def numbers(idset: str) -> list[int]:
    """Of "0,2-3" (RFC 22)."""
    found: list[int] = []
    for part in filter(None, idset.strip("[]").split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def expand(hosts: str) -> list[str]:
    """Of "login,node[08-10]" (RFC 29)."""
    names: list[str] = []
    for part in _HOSTS.findall(hosts):
        prefix, bracket, rest = part.partition("[")
        if not bracket:
            names.append(part)
            continue
        idset, _, suffix = rest.partition("]")
        for span in idset.split(","):
            first, _, last = span.partition("-")
            for number in range(int(first), int(last or first) + 1):
                names.append(f"{prefix}{number:0{len(first)}}{suffix}")
    return names


def f58(number: int) -> str:
    """A job id as people write it (RFC 19)."""
    digits = ""
    while number or not digits:
        number, digit = divmod(number, 58)
        digits = _DIGITS[digit] + digits
    return f"ƒ{digits}"


def _reason(job: dict[str, Any]) -> str | None:
    exception = job.get("exception") or {}
    if exception.get("occurred"):
        return f"{exception.get('type')}: {exception.get('note')}"
    reason: str | None = (job.get("annotations") or {}).get("sched", {}).get("reason_pending")
    return reason


def _exit_code(job: dict[str, Any]) -> str | None:
    """Flux's returncode is negative after a signal, and -128 where nothing was started."""
    code = int(job["returncode"]) if job.get("returncode") else -128
    if code == -128:
        return None
    return f"{code}:0" if code >= 0 else f"0:{-code}"


def _time(seconds: str | None) -> float | None:
    """0 stands for never."""
    return float(seconds) if seconds and float(seconds) else None


if __name__ == "__main__":
    main()
