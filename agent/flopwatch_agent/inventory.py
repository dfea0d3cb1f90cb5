"""The devices of this node, each read in its own lane so that one that wedges stops no other."""

import logging
from collections.abc import Sequence
from concurrent.futures import Future, wait
from functools import partial

from flopwatch.wire import Device
from flopwatch_agent.collectors import Active
from flopwatch_agent.collectors.driver import Discovery, Driver, Found
from flopwatch_agent.collectors.nvml import compute_pids
from flopwatch_agent.lanes import Lane
from flopwatch_agent.sampler import DeviceSampler, Interval, Worker

_log = logging.getLogger(__name__)

Key = tuple[str, str, str]
"""(UUID, instance, profile): what makes a device the same device."""

DEADLINE_SECONDS = 0.8
"""How long a tick waits for its devices; they are read at the same time."""

_SOURCES_SHARE = 0.25
"""Of the deadline, for sources of the whole node: what a page tells is newer then."""


class _Member:
    """A device, its lane, and what its readers accumulate."""

    def __init__(self, found: Found, active: Sequence[Active]) -> None:
        self.device = found.device
        self.sampler = DeviceSampler(
            [Worker(each.collector, each.source.open(found)) for each in active],
            partial(compute_pids, found),
        )
        self.lane = Lane(f"device {found.device.uuid} {found.device.instance}")
        self.pending: Future[list[Interval]] | None = None
        self.stuck = False
        self.lost = False

    def harvest(self) -> list[Interval]:
        """The intervals that a finished reading closed."""
        if self.pending is None or not self.pending.done():
            return []
        future, self.pending = self.pending, None
        error = future.exception()
        if error is not None:
            _log.error("%s can't be read", self.device.uuid, exc_info=error)
            return []
        intervals = future.result()
        for interval in intervals:
            self.lost = interval.readings == 0
        return intervals


class Inventory:
    """Reads all devices of the node at each tick and looks for new ones after each interval."""

    def __init__(
        self,
        driver: Driver,
        active: Sequence[Active],
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._driver = driver
        self._active = active
        self._deadline_seconds = deadline_seconds
        self._broken: dict[str, str] = {}
        self._members: dict[Key, _Member] = {}
        self._lane = Lane("discovery")
        self._discovery: Future[Discovery] | None = None

    @property
    def devices(self) -> dict[Key, Device]:
        """All devices known, lost ones too, in a steady order."""
        return {key: self._members[key].device for key in sorted(self._members)}

    @property
    def stuck(self) -> set[Key]:
        """Devices of which a driver call has not returned."""
        return {key for key, member in self._members.items() if member.stuck}

    def tick(self, second: int) -> list[tuple[Key, Interval]]:
        """Read every device whose last call has returned; return the intervals closed."""
        closed = self._harvest()
        self._tick_sources(second)
        started = []
        for member in self._members.values():
            if member.pending is None:
                member.pending = member.lane.start(partial(member.sampler.tick, second))
                started += [member.pending] if member.pending else []
        wait(started, timeout=self._deadline_seconds)
        closed += self._harvest()
        for member in self._members.values():
            self._note(member)
        return closed

    def close(self) -> None:
        """End what the sources began."""
        for each in self._active:
            each.source.close()

    def discover(self) -> None:
        """Look for devices, old and new, and wait for the answer no longer than for a tick."""
        if self._discovery is None:
            self._discovery = self._lane.start(self._driver.discover)
        if self._discovery is None:
            return
        wait([self._discovery], timeout=self._deadline_seconds)
        if not self._discovery.done():
            return
        future, self._discovery = self._discovery, None
        error = future.exception()
        if error is None:
            self._meet(future.result())
        else:
            _log.error("devices can't be listed", exc_info=error)

    def _tick_sources(self, second: int) -> None:
        """Let every source begin what is due, and wait a moment for it."""
        begun = []
        for each in self._active:
            try:
                future = each.source.tick(second)
            # Logged with its traceback: a defect in one source must not cost the others.
            except Exception as error:  # noqa: BLE001
                if repr(error) != self._broken.get(each.collector.name):
                    _log.error("collector %s is broken", each.collector.name, exc_info=error)
                self._broken[each.collector.name] = repr(error)
            else:
                begun += [future] if future else []
        wait(begun, self._deadline_seconds * _SOURCES_SHARE)

    def _harvest(self) -> list[tuple[Key, Interval]]:
        return [
            (key, interval)
            for key, member in self._members.items()
            for interval in member.harvest()
        ]

    def _note(self, member: _Member) -> None:
        """Remember and log, once, that a device wedged or came back."""
        stuck = member.pending is not None
        if stuck != member.stuck:
            member.stuck = stuck
            _log.warning(
                "%s %s: the driver %s", member.device.uuid, member.device.instance,
                "has not answered in time" if stuck else "answers again",
            )  # fmt: skip

    def _meet(self, discovery: Discovery) -> None:
        """Take in what was found. A GPU that is gone stays, with its figures absent."""
        seen = {_key(found): found for found in discovery.found}
        for key, found in seen.items():
            member = self._members.get(key)
            if member is None:
                self._members[key] = _Member(found, self._active)
            elif member.lost and not member.stuck:
                # It answers again, maybe under another handle.
                member.lane.start(member.sampler.close)
                self._members[key] = _Member(found, self._active)
            else:
                member.device = found.device
        if discovery.complete:
            self._forget_instances(seen)

    def _forget_instances(self, seen: dict[Key, Found]) -> None:
        """A GPU that was split or joined is another device now; the old one is no loss."""
        uuids = {key[0] for key in seen}
        for key in [key for key in self._members if key not in seen and key[0] in uuids]:
            member = self._members.pop(key)
            member.lane.start(member.sampler.close)


def _key(found: Found) -> Key:
    return (found.device.uuid, found.device.instance, found.device.profile)
