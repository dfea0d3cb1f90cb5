"""When the database fails, what was acknowledged is kept and the rest is asked for again."""

import asyncio
import gzip
import os
import signal
import subprocess
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from flopwatch import wire
from flopwatch_server.database import engine
from flopwatch_server.database.engine import Database
from flopwatch_server.house import House
from flopwatch_server.telemetry import ingest, writer
from flopwatch_server.telemetry.ingest import ValidatedBatch
from flopwatch_server.telemetry.store import Outcome
from flopwatch_server.telemetry.writer import IngestWriter, NotStorable, Unavailable
from tests.lab.ingest import (
    NOW,
    NOW_SECONDS,
    IngestClient,
    batch,
    cluster,
    device,
    ingest_client,
    query,
    sampled,
)
from tests.lab.postgres import DatabaseFactory, postgres, public_folder
from tests.lab.processes import wait_for

COUNT = "SELECT count(*) FROM samples"
DEADLINE_SECONDS = 60
SIZE_BYTES = 1000


def validated(
    cluster_id: int, node: str, job_id: int = 1, rows: int = 2, sm_active: float = 0.5
) -> ValidatedBatch:
    """A batch of a node with one GPU, which a job of this id is seen to hold."""
    ends = [NOW_SECONDS - 10 * back for back in range(rows)]
    message, values = sampled(
        [(0, end, {"sm_active": sm_active}) for end in ends],
        node=node,
        devices=[device(uuid=f"GPU-{node}")],
        evidence=[wire.Evidence("cgroup", job_id, 10.0, 20.0, 0, None, 1, 1)],
    )
    body = wire.encode_batch(message, values)
    return ingest.validate(*ingest.decode(body, wire.BATCH_TYPE), cluster_id, NOW)


def submit(ingest_writer: IngestWriter, batch: ValidatedBatch) -> asyncio.Future[Outcome]:
    """Let a batch, of SIZE_BYTES as it is said, wait for the writer."""
    return asyncio.ensure_future(ingest_writer.submit(batch, SIZE_BYTES))


def write_as_one_group(house: House, batches: list[ValidatedBatch]) -> list[Outcome | Exception]:
    """Let all batches wait before the writer starts, so that it takes them together."""

    async def run() -> list[Outcome | BaseException]:
        ingest_writer = IngestWriter(house)
        waiting = [submit(ingest_writer, batch) for batch in batches]
        await asyncio.sleep(0)
        ingest_writer.start()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.to_thread(ingest_writer.stop)
        return outcomes

    return [outcome for outcome in asyncio.run(run()) if isinstance(outcome, Outcome | Exception)]


def test_one_batch_that_the_database_refuses_fails_alone(still_house: House) -> None:
    cluster_id = cluster(still_house.database)
    with still_house.database.session() as session:
        session.execute(text("ALTER TABLE evidence ADD CHECK (raw_job_id <> 666)"))
    jobs = {"gpu01": 1, "gpu02": 666, "gpu03": 3}
    outcomes = write_as_one_group(
        still_house, [validated(cluster_id, node, job_id) for node, job_id in jobs.items()]
    )
    assert outcomes[0] == outcomes[2] == Outcome(accepted=2, duplicates=0, refused=0)
    assert isinstance(outcomes[1], NotStorable)
    assert query(still_house.database, "SELECT name FROM nodes ORDER BY name") == [
        ("gpu01",), ("gpu03",),
    ]  # fmt: skip
    assert query(still_house.database, COUNT) == [(4,)]


def test_a_group_with_a_batch_sent_again_counts_each_on_its_own(still_house: House) -> None:
    cluster_id = cluster(still_house.database)
    first = write_as_one_group(still_house, [validated(cluster_id, "gpu02")])
    assert first == [Outcome(2, 0, 0)]
    group = [validated(cluster_id, "gpu01"), validated(cluster_id, "gpu02", rows=5)]
    assert write_as_one_group(still_house, group) == [Outcome(2, 0, 0), Outcome(3, 2, 0)]
    assert query(still_house.database, COUNT) == [(7,)]


def test_what_cannot_be_in_one_batch_of_a_group_is_told_of_its_own_device(
    still_house: House,
) -> None:
    cluster_id = cluster(still_house.database)
    readings = {"gpu01": 0.5, "gpu02": 0.25, "gpu03": 7.0}
    write_as_one_group(
        still_house,
        [validated(cluster_id, node, sm_active=value) for node, value in readings.items()],
    )
    told = "SELECT uuid, metric FROM metric_states JOIN devices ON devices.id = device_id"
    assert query(still_house.database, told) == [("GPU-gpu03", "sm_active")]
    kept = "SELECT DISTINCT uuid, sm_active FROM samples JOIN devices ON devices.id = device_id"
    assert query(still_house.database, f"{kept} ORDER BY uuid") == [
        ("GPU-gpu01", 0.5), ("GPU-gpu02", 0.25), ("GPU-gpu03", None),
    ]  # fmt: skip


def test_what_is_more_than_can_wait_is_turned_away(
    still_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MAX_WAITING_BYTES", 2 * SIZE_BYTES)
    cluster_id = cluster(still_house.database)
    batches = [validated(cluster_id, f"gpu0{number}") for number in range(3)]
    outcomes = write_as_one_group(still_house, batches)
    assert outcomes[:2] == [Outcome(2, 0, 0)] * 2
    assert isinstance(outcomes[2], Unavailable)


def test_bodies_that_wait_are_weighed_as_they_are_unpacked(
    agent: IngestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header without samples takes memory as well, and is packed to next to nothing."""
    monkeypatch.setattr(writer, "MAX_WAITING_BYTES", 100_000)
    few, many = (
        batch(host=[wire.HostUsage(NOW_SECONDS, None, 1.0, 8, 100.0, 200.0)] * entries)
        for entries in (10, 2000)
    )
    packed = [gzip.compress(wire.encode_batch(each, array("f"))) for each in (few, many)]
    assert len(packed[1]) < 10_000
    answers = [agent.raw(body, wire.BATCH_TYPE, "gzip").status_code for body in packed]
    assert answers == [200, 503]


@pytest.mark.parametrize("limit", ["statement_timeout", "lock_timeout"])
def test_a_lock_that_is_held_too_long_is_waited_for_once_and_not_by_every_batch(
    still_house: House,
    limit: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database = still_house.database
    cluster_id = cluster(database)
    batches = [validated(cluster_id, f"gpu0{number}") for number in range(3)]
    if limit == "statement_timeout":
        monkeypatch.setattr(engine, "STATEMENT_TIMEOUT_SECONDS", 0.1)
    else:
        name = make_url(database.conninfo).database
        with database.session() as session:
            session.execute(text(f"ALTER DATABASE {name} SET lock_timeout = '100ms'"))
    with database.session() as other:
        other.execute(text("LOCK TABLE nodes"))
        outcomes = write_as_one_group(still_house, batches)
    assert [type(outcome) for outcome in outcomes] == [Unavailable] * 3
    tried = [told for told in caplog.messages if "batches were not written" in told]
    assert [told.split()[0] for told in tried] == ["3"]


def test_a_writer_that_stops_writes_what_waits_and_takes_no_more(still_house: House) -> None:
    cluster_id = cluster(still_house.database)

    async def run() -> Outcome:
        ingest_writer = IngestWriter(still_house)
        waiting = submit(ingest_writer, validated(cluster_id, "gpu01"))
        await asyncio.sleep(0)
        ingest_writer.start()
        await asyncio.to_thread(ingest_writer.stop)
        with pytest.raises(Unavailable):
            await submit(ingest_writer, validated(cluster_id, "gpu02"))
        return await waiting

    assert asyncio.run(run()) == Outcome(2, 0, 0)
    assert query(still_house.database, COUNT) == [(2,)]


def test_a_writer_that_is_stopped_while_it_writes_writes_what_came_meanwhile(
    still_house: House,
) -> None:
    database = still_house.database
    cluster_id = cluster(database)
    waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"

    async def run() -> list[Outcome]:
        ingest_writer = IngestWriter(still_house)
        with database.session() as other:
            other.execute(text("LOCK TABLE samples"))
            posts = [submit(ingest_writer, validated(cluster_id, "gpu01"))]
            await asyncio.sleep(0)
            ingest_writer.start()
            await asyncio.to_thread(wait_for, lambda: query(database, waiting), "it writes", 20)
            for name in ("gpu02", "gpu03"):
                posts.append(submit(ingest_writer, validated(cluster_id, name)))
            await asyncio.sleep(0)
            stop = asyncio.ensure_future(asyncio.to_thread(ingest_writer.stop))
            await asyncio.to_thread(wait_for, lambda: ingest_writer._stopped, "it stops", 20)
        await stop
        return await asyncio.gather(*posts)

    assert asyncio.run(run()) == [Outcome(2, 0, 0)] * 3
    assert query(database, COUNT) == [(6,)]


def test_nothing_that_was_acknowledged_is_lost_when_postgresql_is_killed(
    still_house: House,
) -> None:
    with (
        public_folder() as folder,
        postgres(folder) as server,
        DatabaseFactory(server.url).database() as database,
        ingest_client(replace(still_house, database=database)) as agent,
    ):
        acknowledged = _post_until_refused(agent, lambda: _kill(server.pid))
        assert acknowledged >= 20
        server.stop()  # reaps the killed process
        server.start()
        _post_when_back(agent, acknowledged)
        assert query(database, COUNT) == [(8 * (acknowledged + 1),)]


def _kill(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def _message(number: int) -> tuple[wire.Batch, "array[float]"]:
    end = NOW_SECONDS - 10 * number
    rows = [(index, end, {"sm_active": 0.5}) for index in range(8)]
    return sampled(rows, devices=[device(index) for index in range(8)])


def _post_until_refused(agent: IngestClient, kill: Callable[[], None]) -> int:
    """Post one batch after the other, kill the database in the midst; how many were kept."""
    number = 0
    while (answer := agent.post(*_message(number))).status_code == 200:
        number += 1
        if number == 20:
            threading.Thread(target=kill).start()
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert "the database does not answer" in answer.json()["detail"]
    return number


def _post_when_back(agent: IngestClient, number: int) -> None:
    """Send a refused batch, which may have been kept all the same, until it is acknowledged."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (answer := agent.post(*_message(number))).status_code == 503:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert answer.status_code == 200
    assert answer.json()["accepted"] + answer.json()["duplicates"] == 8


@contextmanager
def _small_disk(mebibytes: int) -> Iterator[Path]:
    with public_folder() as folder:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=0755", "flopwatch", folder],
            check=True,
        )
        try:
            yield folder
        finally:
            subprocess.run(["umount", folder], check=True)


def _leave_no_room(folder: Path, database: Database) -> Path:
    """Fill the disk up, save what the log of the database has set aside; the file to remove."""
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in ("SELECT pg_switch_wal()", "CHECKPOINT",
                          "CREATE TABLE to_begin_a_segment ()", "CHECKPOINT"):  # fmt: skip
            connection.execute(text(statement))
    ballast = folder / "ballast"
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    with ballast.open("wb") as file:
        file.write(bytes(free - 256 * 1024))
    return ballast


def test_a_full_disk_is_told_and_got_over_once_there_is_room(still_house: House) -> None:
    ends = [NOW_SECONDS - 10 * back for back in range(8640)]
    message, values = sampled([(0, end, {"sm_active": 0.5}) for end in ends])
    with (
        _small_disk(256) as folder,
        postgres(folder) as server,
        DatabaseFactory(server.url).database() as database,
        ingest_client(replace(still_house, database=database)) as agent,
    ):
        assert agent.post(*_message(0)).status_code == 200
        ballast = _leave_no_room(folder, database)
        answer = agent.post(message, values)
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
        assert "the database has no room left" in answer.json()["detail"]
        assert query(database, COUNT) == [(8,)]
        ballast.unlink()
        answer = agent.post(message, values)
        assert (answer.json()["accepted"], answer.json()["duplicates"]) == (8639, 1)
        assert query(database, COUNT) == [(8 + 8639,)]
