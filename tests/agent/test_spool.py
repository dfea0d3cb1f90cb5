"""The queue on disk: what was put is sent, or its loss is known."""

import gzip
import json
import os
import random
import subprocess
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flopwatch.wire import Batch, Epoch, Gap, Samples, encode_batch
from flopwatch_agent.spool import Spool

EPOCH = 1_700_000_000


def batch(gaps: list[Gap] | None = None, filler: int = 0) -> bytes:
    """A batch; `filler` values of noise make it large even when packed."""
    draw = random.Random(filler)
    noise = array("f", (draw.random() for _ in range(filler)))
    return encode_batch(
        Batch("n1", Epoch("boot", 1, 0.0, "0"), samples=Samples(), gaps=gaps or []), noise
    )


def put(spool: Spool, end: int, filler: int = 0, gaps: list[Gap] | None = None) -> None:
    spool.put(batch(gaps, filler), EPOCH, (end - 10, end))


def drained(spool: Spool) -> list[bytes]:
    """Everything in the spool, oldest first, as a server that takes all would get it."""
    bodies = []
    while (name := spool.oldest()) is not None:
        body = spool.read(name)
        if body is not None:
            bodies.append(gzip.decompress(body))
        spool.done(name)
    return bodies


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_batches_outlive_the_agent_and_keep_their_order(tmp_path: Path) -> None:
    first = Spool(tmp_path)
    for end in (10, 20, 30):
        first.put(batch(filler=end), EPOCH, (end - 10, end))
    again = Spool(tmp_path)
    again.put(batch(filler=40), EPOCH + 1, (30, 40))
    assert drained(again) == [batch(filler=end) for end in (10, 20, 30, 40)]
    assert again.take_gaps() == []
    assert list(tmp_path.glob("*.batch")) == []


def test_a_batch_is_synced_before_it_has_its_name_and_its_name_before_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    synced: list[tuple[str, list[str]]] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append((path.suffix, sorted(each.suffix for each in tmp_path.glob("*-*"))))

    monkeypatch.setattr(os, "fsync", watched)
    put(spool, 10)
    assert synced == [(".tmp", [".tmp"]), (tmp_path.suffix, [".batch"])]


def test_a_half_written_file_is_cleared_away(tmp_path: Path) -> None:
    put(Spool(tmp_path), 10)
    torn = tmp_path / f"{EPOCH:010d}-0000000002-0000000010-0000000020.batch.tmp"
    torn.write_bytes(b"half")
    assert len(Spool(tmp_path)) == 1
    assert not torn.exists()


@pytest.mark.parametrize(
    "spoil", [lambda body: body[: len(body) // 2], lambda body: b"", lambda body: body[:-9] + b"x"]
)
def test_a_spoilt_file_costs_one_batch_and_leaves_a_gap(
    tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    spool = Spool(tmp_path)
    for end in (10, 20, 30):
        put(spool, end, filler=50)
    victim = sorted(tmp_path.glob("*.batch"))[1]
    victim.write_bytes(spoil(victim.read_bytes()))
    survivor = Spool(tmp_path)
    assert drained(survivor) == [batch(filler=50)] * 2
    assert survivor.take_gaps() == [Gap(10.0, 20.0, "a spool file was spoilt")]


def test_over_its_bytes_the_oldest_goes_and_its_time_becomes_one_gap(tmp_path: Path) -> None:
    spool = Spool(tmp_path, most_bytes=5 * 4096)
    for end in range(10, 90, 10):
        put(spool, end)
    assert len(spool) == 5
    assert spool.take_gaps() == [Gap(0.0, 30.0, "the spool was full")]
    assert spool.take_gaps() == []


def test_a_gap_told_by_a_batch_that_is_lost_itself_is_not_forgotten(tmp_path: Path) -> None:
    spool = Spool(tmp_path, most_bytes=4096)
    put(spool, 50, gaps=[Gap(10.0, 30.0, "the spool was full"), Gap(35.0, 40.0, "3 readings", 2)])
    put(spool, 60)
    # The second was of one device within the time that is lost as a whole now.
    assert spool.take_gaps() == [
        Gap(10.0, 30.0, "the spool was full"),
        Gap(40.0, 50.0, "the spool was full"),
    ]


def test_an_outage_longer_than_the_spool_ends_with_its_whole_gap_known(tmp_path: Path) -> None:
    spool = Spool(tmp_path, most_bytes=3 * 4096)
    for end in range(10, 310, 10):
        put(spool, end, gaps=spool.take_gaps())
    gaps = spool.take_gaps()
    for name in sorted(tmp_path.glob("*.batch")):
        header = gzip.decompress(name.read_bytes()).split(b"\n")[0]
        gaps += [Gap(**gap) for gap in json.loads(header)["gaps"]]
    lost = {second for gap in gaps for second in range(int(gap.start), int(gap.end))}
    assert lost == set(range(270))


def test_a_full_disk_keeps_batches_in_memory_and_then_writes_them(small_disk: Path) -> None:
    spool = Spool(small_disk)
    filler = small_disk / "somebody-elses-log"
    filler.write_bytes(b"x" * 200 * 1024)
    for end in range(10, 110, 10):
        put(spool, end, filler=4000)  # about 14 KiB each
    on_disk = len(list(small_disk.glob("*.batch")))
    assert 0 < on_disk < 10
    assert len(spool) == 10
    assert list(small_disk.glob("*.tmp")) == []
    filler.unlink()
    put(spool, 110, filler=10)
    assert len(list(small_disk.glob("*.batch"))) == 11
    assert len(drained(Spool(small_disk))) == 11


def test_memory_is_bounded_while_the_disk_is_full(small_disk: Path) -> None:
    spool = Spool(small_disk, memory_batches=4)
    with pytest.raises(OSError, match="No space"):
        (small_disk / "somebody-elses-log").write_bytes(b"x" * 512 * 1024)
    for end in range(10, 80, 10):
        put(spool, end)
    assert len(spool) == 4
    assert spool.take_gaps() == [Gap(0.0, 30.0, "the spool could not be written")]
    assert len(drained(spool)) == 4


def test_a_disk_that_turns_read_only_stops_nothing(small_disk: Path) -> None:
    spool = Spool(small_disk)
    put(spool, 10)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    put(spool, 20)
    assert len(drained(spool)) == 2
    assert len(spool) == 0


def test_a_folder_that_cannot_be_made_leaves_the_queue_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    spool = Spool(tmp_path / "file/spool")
    put(spool, 10)
    assert len(drained(spool)) == 1


def test_a_refused_batch_is_set_aside_and_their_number_is_bounded(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for end in range(10, 1210, 10):
        put(spool, end)
        name = spool.newest()
        assert name is not None
        spool.refuse(name, "refused by server: 422 no such node")
    kept = sorted((tmp_path / "refused").iterdir())
    assert len(kept) == 100
    assert gzip.decompress(kept[-1].read_bytes()) == batch()
    assert len(spool) == 0
    assert spool.take_gaps() == [Gap(0.0, 1200.0, "refused by server: 422 no such node")]


def test_a_link_in_the_spool_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(gzip.compress(b"{}\n"))
    spool = Spool(tmp_path / "spool")
    put(spool, 10)
    name = spool.oldest()
    assert name is not None
    (tmp_path / "spool" / name).unlink()
    os.symlink(secret, tmp_path / "spool" / name)
    assert spool.read(name) is None
    assert len(Spool(tmp_path / "spool")) == 0
