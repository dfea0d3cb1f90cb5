"""Validation of a batch's header: all that an agent tells beside its samples.

Identities (a node's name, a UUID) are refused if they are malformed; free text, which only people
read, is cut to its length instead, since a long sentence must not cost the data beside it.
"""

import re
from collections.abc import Callable
from typing import Any, get_args

from flopwatch import wire
from flopwatch.metrics import BY_NAME, Reason
from flopwatch_server.telemetry.clocks import MAX_TIME

_WORD = re.compile(r"[A-Za-z0-9._:+/-]{0,64}")
_REASONS = frozenset(get_args(Reason))
_EVIDENCE_KINDS = frozenset({"prolog", "cgroup", "environ"})
_MAX_BIGINT = 2**63 - 1
_MAX_NUMBER = 1e30
_MAX_ALIASES = 16
_MAX_DEVICES = 1024
_MAX_GAPS_BY_DEVICE = 20_000
_MAX_ORDINALS = 1024
_MAX_TEXT = 300


class InvalidBatch(ValueError):
    """A batch breaks its contract: 422. `field` is the place, such as `$.samples.time[3]`."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


def check_header(batch: wire.Batch) -> None:
    """Raise InvalidBatch at the first field that is wrong; cut free text, in place.

    The devices have been checked by `check_devices` before.
    """
    if batch.version != wire.VERSION:
        raise InvalidBatch("$.version", f"is not {wire.VERSION}")
    _match(wire.NODE, batch.node, "$.node", "is not a node's name")
    _match(wire.ID, batch.epoch.boot_id, "$.epoch.boot_id", "is not an id")
    _count(batch.epoch.number, "$.epoch.number")
    _time(batch.epoch.started_at, "$.epoch.started_at")
    batch.epoch.agent_version = _cut(batch.epoch.agent_version)
    _limit(batch.aliases, _MAX_ALIASES, "$.aliases")
    for number, alias in enumerate(batch.aliases):
        _match(wire.NODE, alias, f"$.aliases[{number}]", "is not a node's name")
    _capabilities(batch)
    known = len(batch.devices)
    for name, check in _PARTS.items():
        entries = getattr(batch, name)
        if not entries:
            continue
        _limit(entries, wire.MAX_ENTRIES, f"$.{name}")
        for number, entry in enumerate(entries):
            check(entry, f"$.{name}[{number}]", known)
    of_all = sum(gap.device is None for gap in batch.gaps)
    if of_all * known > _MAX_GAPS_BY_DEVICE:
        raise InvalidBatch("$.gaps", f"has {of_all} gaps of all {known} devices")


def check_devices(devices: list[wire.Device]) -> None:
    """Raise InvalidBatch at the first device that is wrong; cut free text, in place."""
    _limit(devices, _MAX_DEVICES, "$.devices")
    seen: set[tuple[str, str, str]] = set()
    for number, device in enumerate(devices):
        place = f"$.devices[{number}]"
        _match(wire.UUID, device.uuid, f"{place}.uuid", "is not a GPU's UUID")
        _match(_WORD, device.instance, f"{place}.instance", "is not a MIG instance")
        _match(_WORD, device.profile, f"{place}.profile", "is not a MIG profile")
        if device.pci_bus_id is not None:
            _match(_WORD, device.pci_bus_id, f"{place}.pci_bus_id", "is not a PCI address")
        _optional_count(device.minor, f"{place}.minor")
        if device.gres_ordinal is not None and not 0 <= device.gres_ordinal < _MAX_ORDINALS:
            raise InvalidBatch(f"{place}.gres_ordinal", "is out of range")
        _optional_number(device.memory_mib, f"{place}.memory_mib")
        _optional_number(device.power_limit_watts, f"{place}.power_limit_watts")
        device.model = _cut(device.model)
        identity = device.uuid, device.instance, device.profile
        if identity in seen:
            raise InvalidBatch(place, "is listed twice")
        seen.add(identity)


def _missing(entry: wire.Missing, place: str, known: int) -> None:
    _index(entry.device, known, f"{place}.device")
    if entry.metric not in BY_NAME:
        raise InvalidBatch(f"{place}.metric", "is not in the table of metrics")
    if entry.reason is not None and entry.reason not in _REASONS:
        raise InvalidBatch(f"{place}.reason", f"is none of {', '.join(sorted(_REASONS))}")
    _time(entry.since, f"{place}.since")


def _evidence(entry: wire.Evidence, place: str, known: int) -> None:
    if entry.kind not in _EVIDENCE_KINDS:
        raise InvalidBatch(f"{place}.kind", f"is none of {', '.join(sorted(_EVIDENCE_KINDS))}")
    _count(entry.job_id, f"{place}.job_id")
    _time(entry.first_seen, f"{place}.first_seen")
    _time(entry.last_seen, f"{place}.last_seen")
    if entry.last_seen < entry.first_seen:
        raise InvalidBatch(f"{place}.last_seen", "is before first_seen")
    if entry.device is not None:
        _index(entry.device, known, f"{place}.device")
    _optional_count(entry.pid, f"{place}.pid")
    _optional_count(entry.uid, f"{place}.uid")
    _limit(entry.ordinals or [], _MAX_ORDINALS, f"{place}.ordinals")
    for number, ordinal in enumerate(entry.ordinals or []):
        _count(ordinal, f"{place}.ordinals[{number}]")


def _report(entry: wire.AttributedReport, place: str, known: int) -> None:
    _count(entry.pid, f"{place}.pid")
    _count(entry.uid, f"{place}.uid")
    _optional_count(entry.job_id, f"{place}.job_id")
    _time(entry.received_at, f"{place}.received_at")
    place = f"{place}.report"
    report = entry.report
    if report.version != wire.VERSION:
        raise InvalidBatch(f"{place}.version", f"is not {wire.VERSION}")
    _match(wire.ID, report.boot, f"{place}.boot", "is not an id")
    _match(wire.ID, report.convention, f"{place}.convention", "is not a convention's name")
    if report.device_uuid is not None:
        _match(wire.UUID, report.device_uuid, f"{place}.device_uuid", "is not a GPU's UUID")
    for name in ("sequence", "rank", "world_size", "steps", "dropped"):
        _count(getattr(report, name), f"{place}.{name}")
    for name in ("train_seconds", "elapsed_seconds"):
        _optional_number(getattr(report, name), f"{place}.{name}")
    for name in ("train_flops", "forward_only_flops", "phase_seconds"):
        _table(getattr(report, name), f"{place}.{name}")
    report.device_name = _cut(report.device_name)
    report.reason = None if report.reason is None else _cut(report.reason)


def _host(entry: wire.HostUsage, place: str, known: int) -> None:
    _time(entry.time, f"{place}.time")
    _optional_count(entry.job_id, f"{place}.job_id")
    _optional_count(entry.cpu_count, f"{place}.cpu_count")
    for name in ("cpu_seconds", "memory_used_mib", "memory_total_mib"):
        _optional_number(getattr(entry, name), f"{place}.{name}")


def _gap(entry: wire.Gap, place: str, known: int) -> None:
    _time(entry.start, f"{place}.start")
    _time(entry.end, f"{place}.end")
    if entry.end <= entry.start:
        raise InvalidBatch(f"{place}.end", "is not after start")
    if entry.device is not None:
        _index(entry.device, known, f"{place}.device")
    entry.cause = _cut(entry.cause)


def _source(entry: wire.Source, place: str, known: int) -> None:
    _index(entry.device, known, f"{place}.device")
    if entry.name is not None:
        _match(wire.ID, entry.name, f"{place}.name", "is not a collector's name")
    _optional_number(entry.period_seconds, f"{place}.period_seconds")
    _time(entry.since, f"{place}.since")
    if len(entry.passed_over) > wire.MAX_TABLE:
        raise InvalidBatch(f"{place}.passed_over", f"has more than {wire.MAX_TABLE} entries")
    for name in entry.passed_over:
        _match(wire.ID, name, f"{place}.passed_over", "is not a collector's name")
    entry.passed_over = {name: _cut(reason) for name, reason in entry.passed_over.items()}


def _capabilities(batch: wire.Batch) -> None:
    if len(batch.capabilities) > wire.MAX_TABLE:
        raise InvalidBatch("$.capabilities", f"has more than {wire.MAX_TABLE} entries")
    for name in batch.capabilities:
        _match(wire.ID, name, "$.capabilities", "is not a capability's name")
    batch.capabilities = {name: _cut(word) for name, word in batch.capabilities.items()}


def _event(entry: wire.Event, place: str, known: int) -> None:
    _index(entry.device, known, f"{place}.device")
    _time(entry.time, f"{place}.time")
    if entry.kind not in wire.EVENT_KINDS:
        raise InvalidBatch(f"{place}.kind", f"is none of {', '.join(wire.EVENT_KINDS)}")
    _count(entry.value, f"{place}.value")
    entry.detail = _cut(entry.detail)


def _local_run(entry: wire.LocalRun, place: str, known: int) -> None:
    for name in ("pid", "uid"):
        _count(getattr(entry, name), f"{place}.{name}")
    _time(entry.started_at, f"{place}.started_at")
    _time(entry.last_seen, f"{place}.last_seen")
    if entry.ended_at is not None:
        _time(entry.ended_at, f"{place}.ended_at")
    _limit(entry.devices, _MAX_DEVICES, f"{place}.devices")
    for number, index in enumerate(entry.devices):
        _index(index, known, f"{place}.devices[{number}]")
    entry.user, entry.name = _cut(entry.user), _cut(entry.name)


_PARTS: dict[str, Callable[[Any, str, int], None]] = {
    "missing": _missing,
    "evidence": _evidence,
    "reports": _report,
    "host": _host,
    "gaps": _gap,
    "sources": _source,
    "events": _event,
    "local_runs": _local_run,
}
"""How an entry of each list of a batch is checked: (entry, its place, number of devices)."""


def _limit(entries: list[Any], limit: int, place: str) -> None:
    if len(entries) > limit:
        raise InvalidBatch(place, f"has more than {limit} entries")


def _match(pattern: re.Pattern[str], text: str, place: str, problem: str) -> None:
    if not pattern.fullmatch(text):
        raise InvalidBatch(place, problem)


def _time(seconds: float, place: str) -> None:
    if not 0 <= seconds <= MAX_TIME:
        raise InvalidBatch(place, "is not a time")


def _index(index: int, known: int, place: str) -> None:
    if not 0 <= index < known:
        raise InvalidBatch(place, f"is not one of {known} devices")


def _count(number: int, place: str) -> None:
    if not 0 <= number <= _MAX_BIGINT:
        raise InvalidBatch(place, "is out of range")


def _optional_count(number: int | None, place: str) -> None:
    if number is not None:
        _count(number, place)


def _optional_number(number: float | None, place: str) -> None:
    if number is not None and not 0 <= number < _MAX_NUMBER:
        raise InvalidBatch(place, "is out of range")


def _table(table: dict[str, float], place: str) -> None:
    if len(table) > wire.MAX_TABLE:
        raise InvalidBatch(place, f"has more than {wire.MAX_TABLE} entries")
    for name, number in table.items():
        if not 0 < len(name) <= _MAX_TEXT or not name.isprintable():
            raise InvalidBatch(place, "has a name that is not short, printable text")
        _optional_number(number, f"{place}.{name}")


def _cut(text: str) -> str:
    """Free text without what PostgreSQL or a screen can't take."""
    if len(text) <= _MAX_TEXT and text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " for c in text[:_MAX_TEXT])
