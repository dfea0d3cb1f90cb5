"""The whole agent in one process, its time moved by the test: what it puts into the spool."""

import json
import os
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flopwatch.wire import Gap, split_batch
from flopwatch_agent.daemon import Agent, Settings, Writer
from flopwatch_agent.shipper import Shipper
from flopwatch_agent.spool import MEMORY_BATCHES, Spool, SpooledBatch
from flopwatch_agent.transport import Connection
from tests.agent.conftest import START
from tests.agent.test_shipper import Server
from tests.lab.fake_nvml import FakeDriver
from tests.lab.processes import wait_for
from tests.lab.spooled import waiting


@dataclass
class Life:
    """One run of the agent, from START + 0.5 on; by default no server takes its batches."""

    driver: FakeDriver
    folder: Path
    jumps: dict[int, float] = field(default_factory=dict)
    events: dict[int, Callable[[], None]] = field(default_factory=dict)
    now: float = START + 0.5
    waits: int = 0
    server: str = "http://127.0.0.1:9"
    proc: Path = Path("/proc")
    agent: Agent = field(init=False)

    def run(self, waits: int) -> list[dict[str, Any]]:
        """Let the agent live for so many ticks; the headers of its batches, in order."""
        token = self.folder / "token"
        token.touch(mode=0o600)
        token.write_text("fpn_secret")
        settings = Settings(
            self.server, token, "n1", self.folder / "spool", self.folder / "hook.sock",
            self.proc, Path("/sys/fs/cgroup"), self.folder / "jobs", None,
            local_runs=self.proc != Path("/proc"),
        )  # fmt: skip

        def wait(seconds: float) -> bool:
            self.waits += 1
            self.now += seconds + self.jumps.get(self.waits, 0.0)
            self.events.get(self.waits, lambda: None)()
            self.driver.clock = self.now
            self.driver.write()
            return self.waits > waits

        self.agent = Agent(settings, lambda: self.now, wait)
        self.agent.run()
        return [_decoded(body) for body in waiting(self.folder / "spool")]


class SlowDisk(Spool):
    """A spool on a disk that takes a while for each batch."""

    def put(self, batches: Sequence[SpooledBatch]) -> None:
        time.sleep(0.2)
        super().put(batches)


def _decoded(body: bytes) -> dict[str, Any]:
    head, block = split_batch(body)
    header: dict[str, Any] = json.loads(head)
    samples = header["samples"]
    assert len(array("f", bytes(block))) == len(samples["time"]) * len(samples["columns"])
    return header


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def life(driver: FakeDriver, tmp_path: Path) -> Life:
    return Life(driver, tmp_path)


def times(batch: dict[str, Any]) -> list[int]:
    return [ts - START for ts in batch["samples"]["time"]]


def gaps(batches: list[dict[str, Any]]) -> list[tuple[float, float, str, int | None]]:
    return [
        (gap["start"] - START, gap["end"] - START, gap["cause"], gap["device"])
        for batch in batches
        for gap in batch["gaps"]
    ]


def test_a_batch_is_made_for_each_interval_and_one_more_at_the_end(life: Life) -> None:
    batches = life.run(35)
    assert [times(batch) for batch in batches] == [[], [20, 20], [30, 30], []]
    assert [len(batch["missing"]) for batch in batches] == [0, 48, 0, 0]
    assert gaps(batches) == []
    assert len({batch["epoch"]["number"] for batch in batches}) == 1


def test_the_nodes_minute_comes_with_the_minute(life: Life) -> None:
    minute = 60 - START % 60
    batches = life.run(minute + 65)
    usages = [usage for batch in batches for usage in batch["host"]]
    assert [usage["time"] for usage in usages if usage["job_id"] is None] == [START + minute + 60]


def test_a_stall_is_a_gap_and_never_idleness(life: Life) -> None:
    life.jumps = {23: 40.0}  # stands still from second 22 to second 63
    batches = life.run(35)
    assert sorted({ts for batch in batches for ts in times(batch)}) == [20, 70]
    stood_still = "no readings: the agent stood still, or the clock was put forward"
    assert gaps(batches) == [
        (30, 60, stood_still, None),
        (20, 30, "only 2 readings", 0),
        (20, 30, "only 2 readings", 1),
    ]


def test_a_stall_over_the_end_of_one_interval_leaves_no_empty_gap(life: Life) -> None:
    life.jumps = {23: 10.0}  # from second 22 to second 33
    batches = life.run(35)
    assert gaps(batches) == [
        (20, 30, "only 2 readings", 0),
        (20, 30, "only 2 readings", 1),
    ]


def test_what_was_read_late_stays_in_the_epoch_before_the_clock_was_turned_back(life: Life) -> None:
    def the_late_reading_is_there() -> None:
        members = life.agent._inventory._members.values()
        readings = [member.pending for member in members if member.pending is not None]
        wait_for(lambda: all(each.done() for each in readings), "no driver call is late", 30)

    life.events = {
        20: lambda: life.driver.set(0, delay_ms="200"),  # of each call: over a tick's deadline
        21: lambda: life.driver.set(0, delay_ms="0"),
        28: the_late_reading_is_there,
    }
    life.jumps = {29: -20.0}
    batches = life.run(60)
    assert batches[1]["samples"]["device"] == [1]  # the other is late
    first = min(batch["epoch"]["number"] for batch in batches)
    told = [
        (batch["epoch"]["number"] == first, ts)
        for batch in batches
        for ts, device in zip(times(batch), batch["samples"]["device"], strict=True)
        if device == 0
    ]
    assert told == [(True, 20), (False, 20), (False, 30), (False, 40)]


def test_all_reasons_are_told_again_after_a_batch_was_lost(life: Life, server: Server) -> None:
    life.server = server.url
    server.answers = [(422, {})] * 2
    refused = life.folder / "spool/refused"

    def both_are_refused() -> None:
        wait_for(lambda: len(list(refused.glob("*"))) == 2, "two batches are refused", 20)

    life.events = {25: both_are_refused}
    life.run(35)
    bodies = [_decoded(body) for body in server.bodies]
    told = {tuple(times(batch)): len(batch["missing"]) for batch in bodies}
    assert told[20, 20] == told[30, 30] == 48


def test_a_clock_turned_back_begins_a_new_epoch_so_that_no_sample_has_a_twin(life: Life) -> None:
    life.jumps = {35: -20.0}
    batches = life.run(65)
    seen = [(batch["epoch"]["number"], ts) for batch in batches for ts in set(times(batch))]
    assert len(seen) == len(set(seen))
    first, second = sorted({number for number, _ in seen})
    assert [ts for number, ts in seen if number == first] == [20, 30]
    assert [ts for number, ts in seen if number == second] == [30, 40]


def test_a_lost_gpu_is_told_as_missing_and_the_other_goes_on(life: Life) -> None:
    def lose() -> None:
        life.driver.set(0, error="15", handle_error="15")

    life.events = {20: lose}
    batches = life.run(40)
    assert [times(batch) for batch in batches] == [[], [20, 20], [30], [40], []]
    changes = {(each["device"], each["reason"]) for each in batches[2]["missing"]}
    assert changes == {(0, "absent"), (0, "stale")}
    assert len(batches[2]["devices"]) == 2
    power = [each for each in batches[2]["missing"] if each["metric"] == "power_watts"]
    assert power == [
        {"device": 0, "metric": "power_watts", "reason": "absent", "since": START + 20}
    ]
    assert gaps(batches) == []


def test_a_process_that_does_not_answer_costs_no_reading(life: Life) -> None:
    life.proc = life.folder / "proc"
    process = life.proc / "4242"
    process.mkdir(parents=True)
    for name in ("stat", "meminfo", "sys"):
        (life.proc / name).symlink_to(f"/proc/{name}")
    (process / "stat").write_text(f"4242 (python) S 1 {'0 ' * 18}")
    os.mkfifo(process / "cmdline")  # whoever reads it waits for one who writes
    life.driver.processes(1, [4242])

    def answer() -> None:
        with (process / "cmdline").open("wb") as end:
            (process / "cmdline").unlink()
            (process / "cmdline").write_bytes(b"python\0train.py\0")
            end.write(b"python\0train.py\0")
        pending = life.agent._local_lane._pending
        assert pending is not None
        wait_for(pending.done, "the process answers", 20)

    life.events = {45: answer}
    batches = life.run(55)
    assert sorted({ts for batch in batches for ts in times(batch)}) == [20, 30, 40, 50]
    assert gaps(batches) == []
    [first, *_] = [run for batch in batches for run in batch["local_runs"]]
    assert (first["pid"], first["name"], first["devices"]) == (4242, "train.py", [1])


def test_the_end_waits_for_a_disk_that_is_still_writing(tmp_path: Path) -> None:
    spool = SlowDisk(tmp_path)
    connection = Connection("http://127.0.0.1:9", tmp_path / "token")
    writer = Writer(spool, Shipper(spool, connection, lambda least, most: least))
    for end in (10, 20):
        writer.write(SpooledBatch(b"{}\n", (end - 10, end)))
    writer.finish()
    assert len(waiting(tmp_path)) == 2


def test_a_disk_that_hangs_costs_its_own_batches_and_their_gaps_are_told(tmp_path: Path) -> None:
    hung, free = threading.Event(), threading.Event()

    class HungDisk(Spool):
        def put(self, batches: Sequence[SpooledBatch]) -> None:
            with self._lock:
                hung.set()
                free.wait(60)
            super().put(batches)

    spool = HungDisk(tmp_path)
    writer = Writer(spool, Shipper(spool, Connection("http://127.0.0.1:9", tmp_path), min))
    gap = Gap(0.0, 5.0, "the agent stood still")
    told = writer.write(SpooledBatch(b"{}\n", (0, 10)))
    assert hung.wait(20)
    for end in range(20, 10 * MEMORY_BATCHES + 30, 10):
        told += writer.write(SpooledBatch(b"{}\n", (end - 10, end), [gap] if end == 20 else []))
        assert spool.take_gaps() == []  # does not hang
    assert told == [gap, Gap(10, 20, "the disk did not answer")]
    spool.close()  # nor does the end
    free.set()
    writer.finish()
    assert len(waiting(tmp_path)) == MEMORY_BATCHES + 1


def test_a_defect_of_the_spool_is_logged_and_the_next_batch_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class DefectiveSpool(Spool):
        puts = 0

        def put(self, batches: Sequence[SpooledBatch]) -> None:
            self.puts += 1
            if self.puts == 1:
                raise RuntimeError("a defect")
            super().put(batches)

    spool = DefectiveSpool(tmp_path)
    writer = Writer(spool, Shipper(spool, Connection("http://127.0.0.1:9", tmp_path), min))
    writer.write(SpooledBatch(b"{}\n", (0, 10)))
    wait_for(lambda: caplog.records, "the defect is told", 20, 0.01)
    writer.write(SpooledBatch(b"{}\n", (10, 20)))
    writer.finish()
    assert len(waiting(tmp_path)) == 1
    (record,) = caplog.records
    assert record.getMessage() == "batches are lost: the spool is broken"
    assert record.exc_info
