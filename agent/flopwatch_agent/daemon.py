"""The agent: every second a reading, every ten seconds a batch, and nothing that waits for others.

The main thread keeps the beat. Driver calls, /proc, the disk, the socket and the server each have
threads of their own, so that one that hangs costs its own figures only.
"""

import logging
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import uniform

from flopwatch.metrics import SAMPLE_PERIOD_SECONDS
from flopwatch.wire import Gap, HostUsage
from flopwatch_agent import collectors
from flopwatch_agent.assembly import BatchBuilder
from flopwatch_agent.collectors import host
from flopwatch_agent.collectors.driver import Driver
from flopwatch_agent.epoch import EpochCounter
from flopwatch_agent.inventory import Inventory, Key
from flopwatch_agent.lanes import Lane, ReadingLane
from flopwatch_agent.ownership import (
    ProcessEvidence,
    gres_conf,
    process,
    prolog,
    prolog_evidence,
    sight,
)
from flopwatch_agent.ownership.claims import Claims
from flopwatch_agent.ownership.local import LocalRuns, Sighting
from flopwatch_agent.reports import ReportBook, ReportSocket
from flopwatch_agent.sampler import Interval
from flopwatch_agent.shipper import MOST_AGE_SECONDS, Shipper
from flopwatch_agent.spool import DEFAULT_BYTES, MEMORY_BATCHES, Spool, SpooledBatch
from flopwatch_agent.states import Capabilities, MetricStates, SourceStates
from flopwatch_agent.ticker import Ticker, interval_end
from flopwatch_agent.transport import Connection

_log = logging.getLogger(__name__)

_LAST_SEND_SECONDS = 3.0
_LAST_WRITE_SECONDS = 8.0


@dataclass(frozen=True)
class Settings:
    """What the command line says."""

    server: str
    token_file: Path
    node: str
    spool: Path
    socket: Path
    proc: Path
    cgroup: Path
    prolog_dir: Path
    slurmd_name: str | None
    spool_bytes: int = DEFAULT_BYTES
    spool_age_seconds: float = MOST_AGE_SECONDS
    collectors: Mapping[str, str] = field(default_factory=dict)
    local_runs: bool = False


class Agent:
    """One node's agent."""

    def __init__(
        self, settings: Settings, now: Callable[[], float], wait: Callable[[float], bool]
    ) -> None:
        """`now` is the wall clock; `wait` sleeps so many seconds, and says True to end it all."""
        self._settings = settings
        self._now = now
        self._spool = Spool(settings.spool, settings.spool_bytes)
        self._epoch = EpochCounter(settings.spool, settings.proc, now)
        connection = Connection(settings.server, settings.token_file)
        self._shipper = Shipper(
            self._spool, connection, uniform, most_age_seconds=settings.spool_age_seconds
        )
        self._writer = Writer(self._spool, self._shipper)
        self._ticker = Ticker(now, wait)
        self._inventory = Inventory(Driver(), collectors.start(settings.collectors))
        self._host = host.HostCollector(settings.proc, settings.cgroup, settings.slurmd_name)
        self._host_lane = ReadingLane[HostUsage]("the host")
        node = settings.slurmd_name or settings.node
        self._gres_conf = gres_conf.GresConf(os.environ, node, settings.proc)
        self._gres_lane = ReadingLane[gres_conf.Places]("gres.conf")
        self._places: gres_conf.Places = {}
        self._sight_lane = ReadingLane[dict[str, str]]("cgroups")
        self._seen: dict[str, str] = {}
        self._states = MetricStates()
        self._sources = SourceStates()
        self._capabilities = Capabilities()
        proc, slurmd_name = settings.proc, settings.slurmd_name
        self._processes = ProcessEvidence(lambda pid: process.owner_of(proc, pid, slurmd_name))
        self._booted_at = host.boot_time(proc)
        self._local: LocalRuns | None = None
        if settings.local_runs:
            in_a_job = partial(process.proven_job, proc, slurmd_name=slurmd_name)
            self._local = LocalRuns(proc, self._booted_at, in_a_job)
        self._local_lane = ReadingLane[Sighting]("local runs")
        local, claims = self._local, Claims(proc, settings.prolog_dir, self._booted_at, slurmd_name)
        self._reports = ReportBook(
            (lambda pid, _uid: local.job_of(pid)) if local else claims.job_of, now
        )
        self._closed: list[tuple[Key, Interval]] = []
        self._gaps: list[Gap] = []
        self._next_end: int | None = None

    def run(self) -> None:
        """Work until told to stop; then send what is there, for three seconds at most."""
        try:
            ReportSocket(self._settings.socket, self._reports).start()
        except OSError as error:
            _log.error("no reports of training processes: %s: %s", self._settings.socket, error)
        self._shipper.start()
        self._gres_lane.start(self._gres_conf.read)
        self._sight_lane.start(partial(sight.look, self._settings.cgroup))
        self._inventory.discover()
        begun = int(self._now())
        if begun % SAMPLE_PERIOD_SECONDS:  # the end of an interval would be read late
            self._inventory.tick(begun)
        while (tick := self._ticker.next()) is not None:
            if tick.stepped_back:
                _log.warning("the clock was turned back: a new epoch begins")
                self._assemble()
                self._epoch.advance()
                self._sources.forget()
                self._capabilities.forget()
                self._next_end = None
            self._tick(tick.second)
        self._inventory.close()
        self._assemble()
        self._writer.finish()
        self._shipper.finish(_LAST_SEND_SECONDS)
        self._spool.close()

    def _tick(self, second: int) -> None:
        end = interval_end(second)
        if second % host.PERIOD_SECONDS == 0:
            self._host_lane.start(partial(self._host.collect, second))
        if second % gres_conf.PERIOD_SECONDS == 0:
            self._gres_lane.start(self._gres_conf.read)
        if second % sight.PERIOD_SECONDS == 0:
            self._sight_lane.start(partial(sight.look, self._settings.cgroup))
        self._closed += self._inventory.tick(second)
        late = self._next_end is not None and end > self._next_end
        if self._next_end is not None and end - SAMPLE_PERIOD_SECONDS > self._next_end:
            cause = "no readings: the agent stood still, or the clock was put forward"
            self._gaps.append(Gap(self._next_end, end - SAMPLE_PERIOD_SECONDS, cause))
        self._next_end = end + SAMPLE_PERIOD_SECONDS if second == end else end
        if late or second == end:
            self._assemble()
            self._inventory.discover()
            self._reports.complain()

    def _assemble(self) -> None:
        """Put what was learnt since the last batch into the next one."""
        now = self._now()
        lost = self._spool.take_gaps()
        if lost:
            self._states.forget()
            self._sources.forget()
            self._capabilities.forget()
        gaps, self._gaps = self._gaps, []
        closed, self._closed = self._closed, []
        for places in self._gres_lane.take():
            self._places = places
        devices = gres_conf.numbered(self._inventory.devices, self._places)
        builder = BatchBuilder(self._settings.node, self._epoch.current, devices, gaps + lost)
        for key, interval in closed:
            since = interval.end - SAMPLE_PERIOD_SECONDS
            builder.add_interval(key, interval)
            builder.add_missing(self._states.of_interval(key, builder.index, interval, since))
            builder.add_sources(self._sources.of_interval(key, builder.index, interval, since))
        for key in self._inventory.stuck:
            builder.add_missing(self._states.of_stuck(key, builder.index, now))
        pids = {key: interval.pids for key, interval in closed}
        builder.add_evidence(self._processes.observe(now, pids, builder.index))
        if self._local is not None:
            self._local_lane.start(partial(self._local.observe, now, pids))
        builder.add_local_runs(each.told(builder.index) for each in self._local_lane.take())
        held = prolog.held(self._settings.prolog_dir, self._booted_at)
        builder.add_evidence(prolog_evidence(now, held, builder.index))
        builder.add_reports(self._reports.take())
        builder.add_host(self._host_lane.take())
        for seen in self._sight_lane.take():
            self._seen = {**seen, "gres_conf": self._gres_conf.trouble}
        builder.add_capabilities(self._capabilities.of_node(self._seen))
        self._gaps += self._writer.write(builder.finish())


class Writer:
    """Hands batches to the spool in a lane of its own: a disk may hang."""

    def __init__(self, spool: Spool, shipper: Shipper) -> None:
        self._spool = spool
        self._shipper = shipper
        self._lane = Lane("spool")
        self._lock = threading.Lock()
        self._waiting: list[SpooledBatch] = []
        self._under_way: Future[None] | None = None

    def write(self, batch: SpooledBatch) -> list[Gap]:
        """Write soon. Returns the gaps of a batch that has waited too long for the disk."""
        with self._lock:
            self._waiting.append(batch)
            dropped = self._waiting.pop(0) if len(self._waiting) > MEMORY_BATCHES else None
        self._under_way = self._start() or self._under_way
        if dropped is None:
            return []
        start, end = dropped.span
        own = [Gap(start, end, "the disk did not answer")] if end > start else []
        return dropped.gaps + own

    def finish(self) -> None:
        """Write what waits, for as long as a slow disk may take."""
        # The lane may still write an earlier batch, and may have looked before the last one came.
        if self._under_way is not None:
            wait([self._under_way], _LAST_WRITE_SECONDS)
        future = self._start()
        if future is not None:
            wait([future], _LAST_WRITE_SECONDS)

    def _start(self) -> Future[None] | None:
        future = self._lane.start(self._write_all)
        if future is not None:
            future.add_done_callback(_tell_failure)
        return future

    def _write_all(self) -> None:
        while True:
            with self._lock:
                batches, self._waiting = self._waiting, []
            if not batches:
                return
            self._spool.put(batches)
            self._shipper.notify()


def _tell_failure(writing: Future[None]) -> None:
    error = writing.exception()
    if error is not None:
        _log.error("batches are lost: the spool is broken", exc_info=error)
