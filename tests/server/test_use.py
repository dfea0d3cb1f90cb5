"""What is kept of how GPUs were used, beside the same added up in plain Python from its sources."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select

from flopwatch_server.database.engine import Database
from flopwatch_server.efficiency.models import (
    account_steps,
    allocation_hours,
    cluster_steps,
    run_figures,
)
from flopwatch_server.fleet.models import Device, Node
from flopwatch_server.jobs.models import Allocation, Run
from flopwatch_server.telemetry.models import STEP, device_minutes
from tests.server.world import T0, World, at

GPUS = 3
HOURS = 3
LATER = at(60 * HOURS + 30)
_WORDS = {"A": "active", "L": "low", "I": "idle"}
_moment = st.integers(0, 120 * HOURS).map(lambda half_minutes: at(0, 30 * half_minutes))
_which = st.integers(0, 3)
_gpu = st.integers(0, GPUS - 1)
_event = st.one_of(
    st.tuples(st.just("hold"), _gpu, _moment, st.none() | _moment, st.booleans(), st.booleans()),
    st.tuples(st.just("minutes"), st.integers(0, 2 * GPUS - 1), st.integers(0, 60 * HOURS - 1),
              st.text("ALIU ", min_size=1, max_size=90), st.integers(0, 16)),
    st.tuples(st.just("end"), _which, st.none() | _moment),
    st.tuples(st.just("start"), _which, _moment),
    st.tuples(st.just("resolve"), _which, st.sampled_from([None, 0, GPUS])),
    st.tuples(st.just("dispute"), _which),
    st.tuples(st.just("account"), _which, st.sampled_from(["nlp", "bio"])),
)  # fmt: skip

_AN_ORDINARY_DAY: list[tuple[Any, ...]] = [
    ("minutes", 0, 0, "AAAAALLLLLIIIII" * 12, 8),
    ("minutes", 1, 0, "I" * 150, 1),
    ("hold", 0, at(5, 30), at(80), False, True),
    ("hold", 0, at(80), None, False, True),
    ("hold", 1, at(20), at(140), False, True),
]


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    with database.session() as session:
        yield World(session)


@dataclass
class History:
    """What has been told so far, in any order: it goes to the database and is kept beside it."""

    world: World
    node: Node
    devices: list[Device]
    held: list[Allocation] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    minutes: dict[tuple[int, datetime], tuple[str, float]] = field(default_factory=dict)
    clock: datetime = T0

    def tell(self, event: tuple[Any, ...]) -> None:
        """Let one thing happen, not before its time. What it names may not be there."""
        name, *details = event
        for detail in details:
            if isinstance(detail, datetime):
                self.clock = max(self.clock, detail)
        if name in ("end", "start", "resolve", "dispute", "account"):
            if details[0] >= len(self.held):
                return
            details[0] = self.held[details[0]]
        getattr(self, f"_{name}")(*details)
        self.world.session.flush()

    def _hold(
        self, gpu: int, start: datetime, end: datetime | None, shared: bool, resolved: bool
    ) -> None:
        run = self.world.run(100 + len(self.runs), start=start, account=f"a{len(self.runs) % 2}")
        device = self.devices[gpu] if resolved else None
        self.runs.append(run)
        self.held.append(
            self.world.hold(run, self.node, device, gpu, end=end and max(start, end), shared=shared)
        )

    def _minutes(self, gpu: int, first: int, letters: str, sixteenths: int) -> None:
        device = self.devices[gpu]
        self.clock = max(self.clock, at(first + len(letters)))
        tensor = sixteenths / 16
        told = {
            at(first + number): letter for number, letter in enumerate(letters) if letter != " "
        }
        minute = device_minutes.c.minute
        earlier = delete(device_minutes).where(device_minutes.c.device_id == device.id)
        self.world.session.execute(earlier.where(minute.in_(told)))
        self.world.minutes_at_once(device, told, tensor_active=tensor, power_watts=1600 * tensor)
        self.minutes |= {(device.id, time): (letter, tensor) for time, letter in told.items()}

    def _end(self, held: Allocation, end: datetime | None) -> None:
        held.valid_to = end and max(held.valid_from, end)

    def _start(self, held: Allocation, start: datetime) -> None:
        held.valid_from = start if held.valid_to is None else min(start, held.valid_to)

    def _resolve(self, held: Allocation, spare: int | None) -> None:
        """The device at the ordinal is not known, the first one there, or its replacement."""
        assert held.gres_ordinal is not None
        known = None if spare is None else self.devices[held.gres_ordinal + spare].id
        held.device_id = known

    def _dispute(self, held: Allocation) -> None:
        held.confidence = "disputed"

    def _account(self, held: Allocation, account: str) -> None:
        self.run_of(held).account = account

    def run_of(self, held: Allocation) -> Run:
        return next(run for run in self.runs if run.id == held.run_id)

    def counted(self, held: Allocation) -> dict[datetime, tuple[str, float]]:
        """Minutes that lie wholly inside an allocation, and between its neighbours on the GPU."""
        if held.shared or held.confidence == "disputed" or held.device_id is None:
            return {}
        age = (held.valid_from, held.id)
        same = [other for other in self.held if other.device_id == held.device_id]
        older = sorted((o.valid_from, o.id, o.valid_to or LATER) for o in same)
        before = [end for start, id_, end in older if (start, id_) < age]
        after = [start for start, id_, _ in older if (start, id_) > age]
        begin = max([held.valid_from, *before[-1:]])
        end = min([held.valid_to or LATER, *after[:1]])
        return {
            minute: told
            for (device_id, minute), told in self.minutes.items()
            if device_id == held.device_id and begin <= minute <= end - timedelta(minutes=1)
        }

    def seconds(self, held: Allocation, begin: datetime, end: datetime) -> float:
        """How long an allocation was held within [begin, end)."""
        common = min(held.valid_to or LATER, end) - max(held.valid_from, begin)
        return max(common.total_seconds(), 0.0)


def expected_hours(history: History) -> dict[tuple[int, datetime], Counter[str]]:
    """By allocation and hour: seconds by state, minutes, and sum of tensor activity."""
    found: dict[tuple[int, datetime], Counter[str]] = defaultdict(Counter)
    for held in history.held:
        for minute, (letter, tensor) in history.counted(held).items():
            hour = found[held.id, minute.replace(minute=0)]
            hour[_WORDS.get(letter, "unknown")] += 60
            hour["minutes"] += 1
            hour["sixteenths"] += int(16 * tensor)
    return found


def expected_accounts(history: History, step: datetime) -> dict[str, Counter[str]]:
    """By account: seconds held in a step, seconds by state, minutes, and sum of tensor activity."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for held in history.held:
        if held.valid_from < step + STEP and (held.valid_to or LATER) > step:
            account = found[history.run_of(held).account]
            account["allocated"] += int(history.seconds(held, step, step + STEP))
            for minute, (letter, tensor) in history.counted(held).items():
                if step <= minute < step + STEP:
                    account[_WORDS.get(letter, "unknown")] += 60
                    account["minutes"] += 1
                    account["sixteenths"] += int(16 * tensor)
    return found


def expected_cluster(history: History, step: datetime) -> tuple[float, float, bool]:
    """GPU-seconds allocated in a step, power, and whether any GPU reported."""
    allocated, power, is_seen = 0.0, 0.0, False
    for ordinal in range(GPUS):
        holders = [held for held in history.held if held.gres_ordinal == ordinal]
        allocated += min(sum(history.seconds(h, step, step + STEP) for h in holders), 600.0)
    for device in history.devices:
        told = [tensor for (device_id, minute), (_, tensor) in history.minutes.items()
                if device_id == device.id and step <= minute < step + STEP]  # fmt: skip
        if told:
            is_seen = True
            power += sum(1600.0 * tensor for tensor in told) / len(told)
    return allocated, power, is_seen


def expected_free(history: History, step: datetime) -> float:
    """Seconds of GPUs that nobody held. Where some are held and nobody knows which, so many fewer
    are free."""
    free, perhaps = 0, 0
    for begin in (step + number * timedelta(seconds=30) for number in range(20)):
        end = begin + timedelta(seconds=30)
        holders = [held for held in history.held if history.seconds(held, begin, end)]
        known = {held.device_id for held in holders if held.device_id is not None}
        loose = {held.gres_ordinal for held in holders if held.device_id is None}
        others = 30 * (len(history.devices) - len(known))
        if loose:
            perhaps += others - 30 * len(loose)
        else:
            free += others
    return float(free + max(perhaps, 0))


@settings(max_examples=settings().max_examples // 4)
@given(events=st.lists(st.tuples(_event, st.booleans()), min_size=1, max_size=8))
def test_whatever_is_told_late_in_whatever_order_the_kept_figures_are_those_of_the_sources(
    world: World, events: list[tuple[tuple[Any, ...], bool]]
) -> None:
    with world.session.begin_nested() as example:
        node = world.node(scheduler_state="MIXED")
        history = History(world, node, world.gpus(node, 2 * GPUS))
        for event in _AN_ORDINARY_DAY:
            history.tell(event)
        world.count_use(history.clock)
        for event, is_counted in events:
            history.tell(event)
            if is_counted:
                world.count_use(history.clock)
        world.count_use(LATER)
        world.session.expire_all()
        check_hours(history)
        check_runs(history)
        check_steps(history)
        example.rollback()


def check_hours(history: History) -> None:
    found = {
        (row.allocation_id, row.hour): Counter(
            active=row.active_seconds, low=row.low_seconds, idle=row.idle_seconds,
            minutes=row.tensor_active_minutes, sixteenths=round(16 * row.tensor_active_sum),
        )
        for row in history.world.session.execute(select(allocation_hours))
    }  # fmt: skip
    expected = expected_hours(history)
    for hour in expected.values():
        del hour["unknown"]
    assert found == expected


def check_runs(history: History) -> None:
    """A run is all of its hours together."""
    rows = history.world.session.execute(select(run_figures)).all()
    figures = {row.run_id: row for row in rows}
    for held in history.held:
        told = history.counted(held).values()
        row = figures.get(held.run_id)
        known = [letter for letter, _ in told if letter in _WORDS]
        idle = known.count("I") / 60 if known else None
        assert (row and row.idle_gpu_hours) == (idle and pytest.approx(idle))
        mean = sum(tensor for _, tensor in told) / len(told) if told else None
        assert (row and row.tensor_active) == (mean and pytest.approx(mean))


def check_steps(history: History) -> None:
    session = history.world.session
    clusters = {row.step: row for row in session.execute(select(cluster_steps))}
    accounts: dict[datetime, dict[str, Counter[str]]] = defaultdict(dict)
    for row in session.execute(select(account_steps)):
        accounts[row.step][row.account] = Counter(
            allocated=round(row.allocated_seconds), active=row.active_seconds,
            low=row.low_seconds, idle=row.idle_seconds, minutes=row.tensor_active_minutes,
            sixteenths=round(16 * (row.tensor_active_sum or 0)),
        )  # fmt: skip
    for number in range(6 * HOURS + 2):
        step = T0 + number * STEP
        expected = expected_accounts(history, step)
        for account in expected.values():
            del account["unknown"]
        assert accounts[step] == expected
        row = clusters.get(step)
        found = (0.0, 0.0, False) if row is None else (
            row.allocated_seconds, row.power_watts or 0.0, row.is_seen
        )  # fmt: skip
        assert found == pytest.approx(expected_cluster(history, step))
        assert row is None or row.free_seconds == expected_free(history, step)
