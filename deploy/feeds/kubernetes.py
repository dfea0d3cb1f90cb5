#!/usr/bin/env python3
"""Feeds Flopwatch from Kubernetes: prints the pods that ask for GPUs, and the nodes.

A raw job id is 63 bits of the SHA-256 of the pod's uid. The namespace is the account; Kubernetes
knows no users, so say in USER_KEY where your site keeps them: `label:KEY` or `annotation:KEY`.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections import Counter
from datetime import datetime
from typing import Any

import feed

PODS = ("kubectl", "get", "pods", "--all-namespaces", "-o", "json")
NODES = ("kubectl", "get", "nodes", "-o", "json")

USER_KEY = os.environ.get("USER_KEY", "")
GPU = "nvidia.com/gpu"
MIG = "nvidia.com/mig-"
QUEUE = "kueue.x-k8s.io/queue-name"  # a label, where Kueue is used

RENAMED = ".shared"
"""Ends a resource that the device plugin hands out several times, if it renames such ones."""
PRODUCT, REPLICAS = ".product", ".replicas"
"""End labels by GPU feature discovery: a resource's model, and how often each is handed out."""
SHARED = "-SHARED"
"""Ends the model where a GPU is handed out several times under its own name."""

REASONS = {"Evicted": "PREEMPTED", "Preempting": "PREEMPTED", "DeadlineExceeded": "TIMEOUT",
           "NodeLost": "NODE_FAIL", "NodeShutdown": "NODE_FAIL", "Terminated": "NODE_FAIL",
           "OOMKilled": "OUT_OF_MEMORY"}  # fmt: skip
"""Why a pod or its container failed; any other reason is FAILED."""

UNKNOWN: dict[str, Any] = {"metadata": {}, "status": {}}
"""Stands for a node that has left since."""

_QUANTITY = re.compile(r"\+?([0-9]+)(?:([KMGTPE]i|[kMGTPE])|[eE]\+?([0-9]{1,2}))?")


def main() -> None:
    """Print the feed."""
    if USER_KEY and not re.fullmatch("(label|annotation):.+", USER_KEY):
        sys.exit(f"USER_KEY is {USER_KEY!r}, but has to be label:KEY or annotation:KEY")
    pods, asked_at = feed.ask("pods", PODS)
    nodes = feed.ask("nodes", NODES)[0]["items"]
    hosts = {node["metadata"]["name"]: node for node in nodes}
    runs = feed.lines("job", pods["items"], display_id, lambda pod: run(pod, hosts), holds_none)
    used = _used(runs)
    feed.print_feed(
        asked_at,
        runs,
        feed.lines("node", nodes, lambda one: one["metadata"]["name"], lambda one: node(one, used)),
    )


def run(pod: dict[str, Any], hosts: dict[str, dict[str, Any]]) -> feed.Line:
    """The run of a pod on one of these nodes; {} for one that asks for no GPU."""
    asked = requested(pod["spec"])
    if not asked:
        return {}
    meta, status, host = pod["metadata"], pod["status"], pod["spec"].get("nodeName")
    state, reason = _state(pod)
    started_at = None if state in feed.PENDING else _bound_at(status)
    is_over = state not in feed.PENDING | feed.RUNNING
    line = {
        "raw_job_id": raw_id(meta["uid"]),
        "display_id": display_id(pod),
        "submitted_at": _time(meta["creationTimestamp"]),
        "state": state,
        "name": meta["name"],
        "user": _user(meta),
        "account": meta["namespace"],
        "partition": meta.get("labels", {}).get(QUEUE),
        "qos": pod["spec"].get("priorityClassName"),
        "reason": reason,
        "started_at": started_at,
        "ended_at": _ended_at(status) if is_over else None,
        "time_limit_seconds": _whole(pod["spec"].get("activeDeadlineSeconds")),
        "exit_code": _exit_code(status) if is_over else None,
        "gpu_count": sum(asked.values()),
    }
    if started_at is None or host is None:
        return line
    record = hosts.get(host, UNKNOWN)
    return {**line, "gpus": [_held(host, *item, record) for item in asked.items()]}


def holds_none(pod: dict[str, Any]) -> bool:
    """Whether it is certain that a pod holds no GPUs now."""
    phase = pod["status"]["phase"]
    waits = phase == "Pending" and not pod["spec"].get("nodeName")
    return waits or phase in ("Succeeded", "Failed")


def node(record: dict[str, Any], used: Counter[str]) -> feed.Line:
    """A node, of whose GPUs `used` says how many pods hold."""
    name, total = record["metadata"]["name"], _total(record)
    ready = _condition(record["status"], "Ready")
    if ready.get("status") != "True":
        state = "DOWN"
    else:
        state = "IDLE" if not used[name] else "ALLOCATED" if used[name] == total else "MIXED"
        state += "+DRAIN" if record["spec"].get("unschedulable") else ""
    return {
        "name": name,
        "state": state,
        "reason": ready.get("message") if state == "DOWN" else None,
        "gpu_count": _cards(record),
        "gpu_type": _labels(record).get(GPU + PRODUCT, "").removesuffix(SHARED) or None,
    }


def requested(spec: dict[str, Any]) -> Counter[str]:
    """The GPUs that a pod gets, by resource: of all containers that run together, or of one that
    runs before them, whichever is more."""
    together: Counter[str] = Counter()
    before: Counter[str] = Counter()
    for container in spec.get("initContainers", ()):
        asked = _of_container(container)
        if container.get("restartPolicy") == "Always":  # it goes on beside the others
            together += asked
        else:
            before |= together + asked
    for container in spec["containers"]:
        together += _of_container(container)
    return together | before


def raw_id(uid: str) -> int:
    """63 bits that are the same for a pod at all times, and never 0."""
    return int.from_bytes(hashlib.sha256(uid.encode()).digest()[:8], "big") >> 1 or 1


def _of_container(container: dict[str, Any]) -> Counter[str]:
    resources = container.get("resources", {})
    return _gpus({**resources.get("limits", {}), **resources.get("requests", {})})


def _gpus(amounts: dict[str, str]) -> Counter[str]:
    return Counter({
        name: quantity(amount)
        for name, amount in amounts.items()
        if name in (GPU, GPU + RENAMED) or name.startswith(MIG)
    })  # fmt: skip


def quantity(text: str) -> int:
    """A whole number as Kubernetes writes it: "1000", "1k", "1Ki" or "1e3"."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no whole number")
    digits, suffix, exponent = found.groups()
    scale: int = 10 ** int(exponent or 0)
    if suffix:
        power = "KMGTPE".index(suffix[0].upper()) + 1
        scale = (1024 if suffix.endswith("i") else 1000) ** power
    return int(digits) * scale


def _held(host: str, resource: str, count: int, record: dict[str, Any]) -> feed.Line:
    own_name = resource.removesuffix(RENAMED)
    kind = {} if own_name == GPU else {"type": own_name.rpartition("/")[2]}
    if _shares(resource, _labels(record)) != 1:
        return {**feed.held(host, count), **kind, "shared": True}
    total = _total(record) if resource == GPU else None
    return {**feed.held(host, count, total), **kind}


def _shares(resource: str, labels: dict[str, str]) -> int | None:
    """How many pods a node hands each GPU of a resource to: 1 if none is shared, None if unknown.

    The labels are NVIDIA's: replicas are 0 or 1 where nothing is shared, and may be missing.
    """
    own_name = resource.removesuffix(RENAMED)
    replicas = quantity(labels.get(own_name + REPLICAS, "1"))
    if replicas > 1:
        return replicas
    is_shared = resource != own_name or labels.get(own_name + PRODUCT, "").endswith(SHARED)
    return None if is_shared else 1


def _cards(record: dict[str, Any]) -> int | None:
    """How many GPUs a node has, without those that are cut to slices of other names."""
    cards = None
    for resource, count in _capacity(record).items():
        if not resource.startswith(MIG):
            shares = _shares(resource, _labels(record))
            if shares is None:
                return None
            cards = (cards or 0) + count // shares
    return cards


def _used(runs: list[feed.Line | None]) -> Counter[str]:
    """How many GPUs the runs hold on each node."""
    used: Counter[str] = Counter()
    for run in filter(None, runs):
        if run["state"] in feed.RUNNING:
            for held in run.get("gpus", ()):
                used[held["node"]] += held["count"]
    return used


def _state(pod: dict[str, Any]) -> tuple[str, str | None]:
    status = pod["status"]
    phase, reason = status["phase"], status.get("reason")
    if phase == "Pending":
        if not pod["spec"].get("nodeName"):
            waits = _condition(status, "PodScheduled")
            return "PENDING", waits.get("message") or waits.get("reason")
        return "CONFIGURING", reason
    if phase in ("Running", "Unknown"):  # Unknown: its node has not been heard
        return ("COMPLETING" if "deletionTimestamp" in pod["metadata"] else "RUNNING"), reason
    if phase == "Succeeded":
        return "COMPLETED", reason
    if phase != "Failed":
        raise ValueError(f"phase {phase!r} is unknown")
    causes = [reason, *(end.get("reason") for end in _ends(status))]
    return next((REASONS[cause] for cause in causes if cause in REASONS), "FAILED"), next(
        filter(None, causes), None
    )


def _bound_at(status: dict[str, Any]) -> float | None:
    """From then on the pod holds its GPUs, before any container of it runs."""
    scheduled = _condition(status, "PodScheduled")
    is_bound = scheduled.get("status") == "True"
    return _time(scheduled["lastTransitionTime"] if is_bound else status.get("startTime"))


def _ended_at(status: dict[str, Any]) -> float | None:
    """When its last container ended; of one that was turned away, when its state last changed."""
    ends = [end["finishedAt"] for end in _ends(status) if end.get("finishedAt")]
    changes = [one["lastTransitionTime"] for one in status.get("conditions", ())]
    return _time(max(ends or changes, default=status.get("startTime")))


def _exit_code(status: dict[str, Any]) -> str | None:
    """Of the container that failed, else of any."""
    codes = [int(end["exitCode"]) for end in _ends(status) if "exitCode" in end]
    return f"{max(codes)}:0" if codes else None


def _ends(status: dict[str, Any]) -> list[dict[str, Any]]:
    containers = status.get("containerStatuses", ())
    return [one["state"]["terminated"] for one in containers if "terminated" in one["state"]]


def _condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    return next((one for one in status.get("conditions", ()) if one["type"] == kind), found)


def _capacity(record: dict[str, Any]) -> Counter[str]:
    return _gpus(record["status"].get("capacity", {}))


def _total(record: dict[str, Any]) -> int:
    """All that a node can hand out: GPUs, shares of them and slices."""
    return sum(_capacity(record).values())


def _labels(record: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = record["metadata"].get("labels", {})
    return labels


def _user(meta: dict[str, Any]) -> str:
    """From where USER_KEY says and nowhere else: whoever makes a pod may set the other."""
    kind, _, key = USER_KEY.partition(":")
    keys: dict[str, str] = meta.get(f"{kind}s", {})
    return keys.get(key, "")


def display_id(pod: dict[str, Any]) -> str:
    """Namespace and name: another pod may have had them before."""
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _whole(text: str | None) -> int | None:
    return None if text is None else int(text)


def _time(text: str | None) -> float | None:
    """Of "2026-03-12T08:00:00Z"."""
    return None if text is None else datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


if __name__ == "__main__":
    main()
