"""The hub: one reading a tick for all who follow, none for nobody, and no one slows another."""

import asyncio
import json
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy.exc import OperationalError

from flopwatch.gpus import PeakTable
from flopwatch_dashboard.freshness import freshness
from flopwatch_dashboard.live.hub import Hub, Timing
from flopwatch_dashboard.live.reading import Ask, Cursor, Reading
from flopwatch_dashboard.live.viewer import Viewer
from flopwatch_dashboard.services import Visit
from flopwatch_server.access.principal import Principal
from flopwatch_server.fleet import service as fleet
from flopwatch_server.house import House, NotFound
from flopwatch_server.settings import Settings
from tests.lab.postgres import DatabaseFactory

QUICK = Timing(tick=0.02, check=0.02)
STAFF = Principal("ada", "admin")
NOW = datetime(2026, 3, 12, 15, 22, tzinfo=UTC)
Test = Callable[[Hub], Awaitable[None]]


@pytest.fixture(scope="module")
def house(databases: DatabaseFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with databases.database() as database:
        settings = Settings(data_dir=Path(tmp_path_factory.mktemp("data")))
        yield House(database, settings, PeakTable.load(), lambda: NOW)


class Source:
    """A page whose figure is how often it was read; a thread that reads waits for `door`."""

    def __init__(self) -> None:
        self.asked: list[Ask] = []
        self.readers: list[Principal] = []
        self.failures: list[Exception] = []
        self.door = threading.Event()
        self.door.set()

    @property
    def reads(self) -> int:
        return len(self.asked)

    def read(self, visit: Visit, ask: Ask) -> Reading:
        self.asked.append(ask)
        self.readers.append(visit.principal)
        fleet.clusters(visit.session)  # a real question to the database, as any page has
        assert self.door.wait(30)
        if self.failures:
            raise self.failures.pop()
        return _reading(self.reads)


def _reading(figure: int, padding: str = "") -> Reading:
    parts = {
        "figure": msgspec.Raw(f'{{"children":{figure}}}'),
        "fixed": msgspec.Raw(f'"{padding}"'),
    }
    return Reading("page", freshness(None, NOW), parts)


def run(house: House, test: Test, timing: Timing = QUICK) -> None:
    """Run a test with a hub at work."""

    async def main() -> None:
        hub = Hub(house, timing)
        async with hub.running():
            await asyncio.wait_for(test(hub), 60)

    asyncio.run(main())


@asynccontextmanager
async def following(
    hub: Hub, source: Source, principal: Principal = STAFF, cursor: Cursor | None = None
) -> AsyncIterator[Viewer]:
    """A viewer that follows the one page."""
    viewer = Viewer(principal, None)
    hub.enter(viewer)
    hub.follow(viewer, "page", source.read, cursor)
    yield viewer
    hub.leave(viewer)


async def frame(viewer: Viewer) -> dict[str, Any]:
    """The next frame of a viewer."""
    text = await viewer.next_frame()
    assert text is not None
    found: dict[str, Any] = json.loads(text)
    return found


async def figure(viewer: Viewer) -> int:
    """The figure of the next frame."""
    found: int = (await frame(viewer))["news"]["parts"]["figure"]["children"]
    return found


def test_many_viewers_cause_one_reading_a_tick(house: House) -> None:
    async def test(hub: Hub) -> None:
        source = Source()
        async with following(hub, source) as first:
            await frame(first)
            others = [Viewer(STAFF, None) for _ in range(30)]
            for other in others:
                hub.follow(other, "page", source.read, None)
            seen = [await figure(first) for _ in range(5)]
            assert seen == list(
                range(seen[0], seen[0] + 5)
            )  # each reading reached each viewer once
            assert source.reads <= seen[-1] + 1
            assert all([await figure(other) >= 1 for other in others])

    run(house, test)


def test_nobody_looks_and_nothing_is_read(house: House) -> None:
    async def test(hub: Hub) -> None:
        source = Source()
        async with following(hub, source) as viewer:
            await frame(viewer)
        await asyncio.sleep(0.1)  # five ticks: the reading that was in hands comes to its end
        reads = source.reads
        await asyncio.sleep(0.2)
        assert source.reads == reads

    run(house, test)


def test_a_slow_viewer_gets_the_newest_and_all_of_it_and_slows_nobody(house: House) -> None:
    async def test(hub: Hub) -> None:
        source = Source()
        async with following(hub, source) as slow, following(hub, source) as quick:
            first = await frame(slow)
            assert set(first["news"]["parts"]) == {"figure", "fixed"}
            for _ in range(20):
                news = (await frame(quick))["news"]
            assert set(news["parts"]) == {"figure"}  # what has not changed is not sent again
            late = (await frame(slow))["news"]
            assert set(late["parts"]) == {"figure", "fixed"}
            assert late["parts"]["figure"]["children"] >= 20

    run(house, test)


def test_nothing_is_kept_for_who_takes_nothing(house: House) -> None:
    kept: list[weakref.ref[Reading]] = []

    def read(visit: Visit, ask: Ask) -> Reading:
        found = _reading(len(kept), "x" * 100_000)
        kept.append(weakref.ref(found))
        return found

    async def test(hub: Hub) -> None:
        slow, quick = Viewer(STAFF, None), Viewer(STAFF, None)
        for viewer in (slow, quick):
            hub.follow(viewer, "page", read, None)
        for _ in range(50):
            await frame(quick)
        alive = [reference for reference in kept if reference() is not None]
        assert len(alive) <= 3  # the newest, the one in hands, and the one before it

    run(house, test)


def test_staff_share_a_reading_and_others_get_their_own(house: House) -> None:
    async def test(hub: Hub) -> None:
        source = Source()
        people = [STAFF, Principal("sam", "support"), Principal("mchen", "researcher"),
                  Principal("mchen", "manager", frozenset({"nlp"}))]  # fmt: skip
        viewers = [Viewer(person, None) for person in people]
        for viewer in viewers:
            hub.follow(viewer, "page", source.read, None)
        for viewer in viewers:
            await frame(viewer)
        assert {reader.name for reader in source.readers} == {"", "mchen"}
        assert len(set(source.readers)) == 3

    run(house, test)


@pytest.mark.parametrize("error", [OperationalError("", {}, Exception("gone")), KeyError("a bug")])
def test_a_reading_that_fails_costs_its_tick_only(house: House, error: Exception) -> None:
    async def test(hub: Hub) -> None:
        source, other = Source(), Source()
        async with following(hub, source) as viewer:
            first = await figure(viewer)
            source.failures.append(error)
            beside = Viewer(STAFF, None)
            hub.follow(beside, "other page", other.read, None)
            seen = [first, *[await figure(viewer) for _ in range(3)]]
            assert sorted(b - a for a, b in pairwise(seen)) == [1, 1, 2]
            assert await figure(beside)

    run(house, test)


def test_a_reading_that_hangs_is_not_waited_for_nor_started_twice(house: House) -> None:
    async def test(hub: Hub) -> None:
        stuck, well = Source(), Source()
        stuck.door.clear()
        async with following(hub, stuck) as viewer:
            beside = Viewer(STAFF, None)
            hub.follow(beside, "other page", well.read, None)
            for _ in range(10):
                await figure(beside)
            await asyncio.sleep(0.2)  # several deadlines
            assert stuck.reads == 1
            stuck.door.set()
            assert await figure(viewer) >= 1

    run(house, test, Timing(tick=0.02, deadline=0.05))


def test_what_is_not_there_is_told_to_be_gone_and_read_no_more(house: House) -> None:
    async def test(hub: Hub) -> None:
        source = Source()
        source.failures = [NotFound("no such page")]
        async with following(hub, source) as viewer:
            viewer.number = 7
            assert await frame(viewer) == {"number": 7, "gone": True}
            assert viewer.is_lost
            await asyncio.sleep(0.1)
            assert source.reads == 1

    run(house, test)


def test_who_comes_back_is_told_from_memory_and_who_lacks_more_is_read_for(house: House) -> None:
    start = NOW.timestamp()

    def read(visit: Visit, ask: Ask) -> Reading:
        asked.append(ask)
        lacking = [0 if cursor is None else cursor.last for cursor in ask.newcomers]
        found = _reading(len(asked))
        covers = min([500, *lacking])
        return Reading(found.shape, found.freshness, found.parts, points=(10, 600), covers=covers)

    asked: list[Ask] = []

    async def test(hub: Hub) -> None:
        first, second, third = (Viewer(STAFF, None) for _ in range(3))
        hub.follow(first, "page", read, Cursor(start, 10, 550))
        await frame(first)
        assert len(asked) == 1
        hub.follow(second, "page", read, Cursor(start, 10, 520))
        await frame(second)
        assert len(asked) == 1
        hub.follow(third, "page", read, Cursor(start, 10, 100))
        await frame(third)
        assert [cursor and cursor.last for cursor in asked[1].newcomers] == [100]

    run(house, test, Timing(tick=30))


def test_a_reading_that_fails_is_not_tried_again_before_the_next_tick(house: House) -> None:
    asked: list[Ask] = []

    def read(visit: Visit, ask: Ask) -> Reading:
        asked.append(ask)
        if len(asked) > 1:
            raise OperationalError("", {}, Exception("gone"))
        found = _reading(1)
        return Reading(found.shape, found.freshness, found.parts, points=(10, 600), covers=500)

    async def test(hub: Hub) -> None:
        first, second = Viewer(STAFF, None), Viewer(STAFF, None)
        hub.follow(first, "page", read, Cursor(NOW.timestamp(), 10, 550))
        await frame(first)
        hub.follow(second, "page", read, None)  # it lacks what was not read for the first one
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(second.next_frame(), 0.3)
        assert len(asked) == 2

    run(house, test, Timing(tick=30))


def test_who_has_read_the_page_later_than_the_hub_waits_for_the_next_tick(house: House) -> None:
    async def test(hub: Hub) -> None:
        source = Source()
        async with following(hub, source) as viewer:
            await frame(viewer)
            newer = Viewer(STAFF, None)
            hub.follow(newer, "page", source.read, Cursor(NOW.timestamp() + 1))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(newer.next_frame(), 0.2)
            assert source.reads == 1

    run(house, test, Timing(tick=30))
