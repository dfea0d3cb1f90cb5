"""The queue on disk: what was put is sent, or its loss is known."""

import gzip
import os
import random
import resource
import shutil
import subprocess
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from flopwatch.wire import Batch, Epoch, Gap, Samples, encode_batch
from flopwatch_agent.spool import Spool, SpoolBusy, SpooledBatch
from tests.lab.spooled import waiting


def batch(
    gaps: list[Gap] | None = None,
    filler: int = 0,
    epoch: int = 1,
    rows: list[tuple[int, int]] | None = None,
) -> bytes:
    """A batch with a sample of (device, time) a row, whose one value is its time.

    `filler` values of noise make it large even when packed.
    """
    draw = random.Random(filler)
    values = array("f", (draw.random() for _ in range(filler)))
    values.extend(float(time) for _, time in rows or ())
    samples = Samples(
        ["power_watts"], [device for device, _ in rows or ()], [time for _, time in rows or ()]
    )
    header = Batch("n1", Epoch("boot", epoch, 0.0, "0"), samples=samples, gaps=gaps or [])
    return encode_batch(header, values)


def put(
    spool: Spool,
    end: int,
    filler: int = 0,
    gaps: list[Gap] | None = None,
    epoch: int = 1,
    rows: list[tuple[int, int]] | None = None,
) -> None:
    body = batch(gaps, filler, epoch, rows)
    spool.put([SpooledBatch(body, (end - 10, end), gaps or [])])


def drained(spool: Spool) -> list[bytes]:
    """Everything in the spool, oldest first, as a server that takes all would get it."""
    bodies = []
    while records := spool.oldest():
        body = spool.read(records[0])
        if body is not None:
            bodies.append(gzip.decompress(body))
        spool.done(records)
    return bodies


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.segment"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_batches_outlive_the_agent_and_keep_their_order(tmp_path: Path) -> None:
    first = Spool(tmp_path)
    for end in (10, 20, 30):
        put(first, end, filler=end)
    first.close()
    again = Spool(tmp_path)
    put(again, 40, filler=40)
    assert len(again.oldest(10)) == 3
    newest = again.newest()
    assert newest is not None
    assert gzip.decompress(again.read(newest) or b"") == batch(filler=40)
    assert drained(again) == [batch(filler=end) for end in (10, 20, 30, 40)]
    assert again.take_gaps() == []
    again.close()
    assert segments(tmp_path) == []


def test_a_batch_is_synced_when_put_returns_and_many_share_one_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    synced: list[tuple[str, int]] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append((path.suffix, len(waiting(tmp_path))))

    monkeypatch.setattr(os, "fsync", watched)
    put(spool, 10)
    assert synced == [(".segment", 1), (tmp_path.suffix, 1)]
    spool.put([SpooledBatch(batch(), (end - 10, end)) for end in (20, 30, 40)])
    assert synced[2:] == [(".segment", 4)]


def test_what_the_server_has_is_not_sent_again_after_a_crash(tmp_path: Path) -> None:
    crashed = tmp_path / "crashed"
    spool = Spool(tmp_path / "spool")
    for end in (10, 20, 30, 40):
        put(spool, end, filler=end)
    spool.done(spool.oldest(2))
    newest = spool.newest()
    assert newest is not None
    spool.done([newest])
    shutil.copytree(tmp_path / "spool", crashed)
    assert drained(Spool(crashed)) == [batch(filler=30)]


def test_a_segment_ends_at_its_size_and_goes_when_its_last_batch_is_done(tmp_path: Path) -> None:
    spool = Spool(tmp_path, most_bytes=4 * 16384)
    for end in range(10, 110, 10):
        put(spool, end, filler=1000)  # about 3.7 KiB each
    sizes = [path.stat().st_size for path in segments(tmp_path)]
    assert len(sizes) == 3
    assert max(sizes) <= 16384
    spool.done(spool.oldest(4))
    assert len(segments(tmp_path)) == 2


def test_over_its_bytes_the_oldest_segment_goes_and_its_time_becomes_one_gap(
    tmp_path: Path,
) -> None:
    spool = Spool(tmp_path, most_bytes=4 * 4096)
    for end in range(10, 70, 10):
        put(spool, end, filler=900)  # each its own segment
    assert sum(path.stat().st_size for path in segments(tmp_path)) <= 4 * 4096
    assert spool.take_gaps() == [Gap(0.0, 20.0, "the spool was full")]
    assert spool.take_gaps() == []
    assert drained(spool) == [batch(filler=900)] * 4


def test_a_spoilt_page_of_the_disk_costs_the_batches_on_it_and_their_time_is_told(
    tmp_path: Path,
) -> None:
    first = Spool(tmp_path)
    for end in range(10, 90, 10):
        put(first, end, epoch=end)
    records = first.oldest(8)
    first.close()
    (segment,) = segments(tmp_path)
    data = bytearray(segment.read_bytes())
    # From within the third batch into the sixth: of the fourth and fifth nothing is left.
    start, end = records[2].offset + 5, records[5].offset + 5
    data[start:end] = bytes(end - start)
    segment.write_bytes(data)
    again = Spool(tmp_path)
    assert drained(again) == [batch(epoch=end) for end in (10, 20, 70, 80)]
    lost = {time for gap in again.take_gaps() for time in range(int(gap.start), int(gap.end), 10)}
    assert lost == {20, 30, 40, 50}


def test_a_batch_that_cannot_be_read_for_a_moment_is_not_given_up(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    put(spool, 10)
    (record,) = spool.oldest()
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, usual[1]))  # no file can be opened
    try:
        with pytest.raises(OSError, match="Too many open files"):
            spool.read(record)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)
    assert drained(spool) == [batch()]
    assert spool.take_gaps() == []


def test_a_full_disk_keeps_batches_in_memory_and_then_writes_them(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(small_disk)
    filler = small_disk / "somebody-elses-log"
    filler.write_bytes(b"x" * 200 * 1024)
    for end in range(10, 110, 10):
        put(spool, end, filler=4000)  # about 14 KiB each
    assert 0 < len(waiting(small_disk)) < 10
    newest = spool.newest()
    assert newest is not None
    live = spool.read(newest)
    assert live is not None
    assert gzip.decompress(live) == batch(filler=4000)
    filler.unlink()
    put(spool, 110, filler=10)
    assert len(waiting(small_disk)) == 11
    assert [record.getMessage() for record in caplog.records] == [
        f"the spool {small_disk} takes no batch ([Errno 28] No space left on device);"
        " they wait in memory",
        "the spool takes batches again",
    ]
    spool.close()
    assert drained(Spool(small_disk)) == [batch(filler=4000)] * 10 + [batch(filler=10)]


def test_what_was_sent_from_memory_leaves_no_hole_on_disk(small_disk: Path) -> None:
    spool = Spool(small_disk)
    filler = small_disk / "somebody-elses-log"
    with pytest.raises(OSError, match="No space"):
        filler.write_bytes(b"x" * 512 * 1024)
    for end in (10, 20, 30):
        put(spool, end)
    spool.done(spool.oldest(2)[1:])
    filler.unlink()
    put(spool, 40)
    spool.close()
    again = Spool(small_disk)
    assert len(drained(again)) == 3
    assert again.take_gaps() == []


def test_memory_is_bounded_while_the_disk_is_full(small_disk: Path) -> None:
    spool = Spool(small_disk, memory_batches=4)
    with pytest.raises(OSError, match="No space"):
        (small_disk / "somebody-elses-log").write_bytes(b"x" * 512 * 1024)
    for end in range(10, 80, 10):
        put(spool, end)
    assert spool.take_gaps() == [Gap(0.0, 30.0, "the spool could not be written")]
    assert len(drained(spool)) == 4


def test_a_disk_that_turns_read_only_stops_nothing_and_is_used_again_after(
    small_disk: Path,
) -> None:
    spool = Spool(small_disk)
    put(spool, 10)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    put(spool, 20)
    assert len(drained(spool)) == 2
    put(spool, 30)
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    put(spool, 40)
    assert len(drained(spool)) == 2


def test_a_folder_that_comes_late_is_taken_over_with_what_it_holds(tmp_path: Path) -> None:
    earlier = Spool(tmp_path / "elsewhere")
    put(earlier, 10, filler=1)
    earlier.close()
    (tmp_path / "var").touch()  # not mounted yet
    spool = Spool(tmp_path / "var/spool")
    put(spool, 20, filler=2)
    (tmp_path / "var").unlink()
    (tmp_path / "var").mkdir()
    (tmp_path / "elsewhere").rename(tmp_path / "var/spool")
    put(spool, 30, filler=3)
    assert drained(spool) == [batch(filler=number) for number in (1, 2, 3)]


def test_two_agents_never_work_on_one_spool(tmp_path: Path) -> None:
    first = Spool(tmp_path)
    with pytest.raises(SpoolBusy, match=f"another agent works on the spool {tmp_path}"):
        Spool(tmp_path)
    first.close()
    put(Spool(tmp_path), 10)


def test_refused_batches_are_set_aside_and_their_bytes_are_bounded(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for end in range(10, 110, 10):
        put(spool, end, filler=150_000)  # about half a MiB each
        (record,) = spool.oldest()
        spool.refuse(record, "refused by server: 422 no such node")
    kept = list((tmp_path / "refused").iterdir())
    assert 3 * 2**20 < sum(path.stat().st_size for path in kept) <= 4 * 2**20
    assert {gzip.decompress(path.read_bytes()) for path in kept} == {batch(filler=150_000)}
    assert spool.oldest() == []
    assert spool.take_gaps() == [Gap(0.0, 100.0, "refused by server: 422 no such node")]


def test_folder_and_files_are_for_the_agents_eyes_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        spool = Spool(tmp_path / "spool")
        for end in (10, 20):
            put(spool, end)
        spool.refuse(spool.oldest()[0], "refused by server: 422")
    finally:
        os.umask(before)
    modes = {
        path.name if path.suffix != ".segment" else "segment": path.stat().st_mode & 0o777
        for path in [tmp_path / "spool", *(tmp_path / "spool").iterdir()]
    }
    assert modes == {
        "spool": 0o700, "refused": 0o700, "lock": 0o600, "segment": 0o600, "gaps.json": 0o600,
    }  # fmt: skip


def test_a_segment_that_can_not_be_read_for_a_while_is_neither_forgotten_nor_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Spool(tmp_path, most_bytes=4 * 4096)
    put(first, 10, filler=900)  # each its own segment
    put(first, 20, filler=900)
    first.close()
    hidden = segments(tmp_path)[0]
    os.chown(hidden, 12345, 12345)
    again = Spool(tmp_path, most_bytes=4 * 4096)
    assert [record.end for record in again.oldest(5)] == [20]
    for end in range(30, 70, 10):
        put(again, end, filler=900)
    assert again.take_gaps() == [Gap(10.0, 20.0, "the spool was full")]
    os.chown(hidden, os.geteuid(), os.getegid())
    assert [record.end for record in again.oldest()] == [10]
    assert len(drained(again)) == 5
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_what_is_not_ours_in_the_folder_is_neither_read_nor_removed(tmp_path: Path) -> None:
    source = Spool(tmp_path / "source")
    put(source, 10)
    source.close()
    (made,) = segments(tmp_path / "source")
    folder = tmp_path / "spool"
    folder.mkdir()
    linked, foreign, pipe = (folder / f"{number:020d}.segment" for number in (1, 2, 3))
    linked.symlink_to(made)
    foreign.write_bytes(made.read_bytes())
    os.chown(foreign, 12345, 12345)
    os.mkfifo(pipe)
    (folder / "notes.txt").write_text("a person's")
    spool = Spool(folder)
    put(spool, 20, filler=5)
    assert drained(spool) == [batch(filler=5)]
    assert made.exists()
    assert linked.is_symlink()
    assert foreign.exists()
    assert pipe.exists()
