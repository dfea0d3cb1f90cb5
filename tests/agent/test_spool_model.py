"""Any sequence of puts, answers, crashes, flipped bytes and a spool that is too small."""

import gzip
import shutil
import tempfile
from pathlib import Path
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from flopwatch.wire import Gap
from flopwatch_agent.spool import Spool, SpooledBatch

MOST_BYTES = 8 * 4096


class SpoolMachine(RuleBasedStateMachine):
    """A spool beside what must be true of it: each batch is one interval of ten seconds.

    A crash is a copy of the folder as it was; the old life goes on to work on the old one in vain.
    """

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp())
        self.lives = 0
        self.put_so_far: dict[int, bytes] = {}  # body by the interval's end
        self.delivered: set[int] = set()
        self.told: list[Gap] = []
        self.gaps_of: dict[bytes, list[Gap]] = {}
        self.torn: set[int] = set()
        self.unremembered: set[int] = set()
        self.flipped: set[str] = set()
        self.spool = Spool(self.folder, MOST_BYTES)

    @property
    def folder(self) -> Path:
        return self.home / str(self.lives)

    def batch(self, size: int) -> SpooledBatch:
        end = 10 * (len(self.put_so_far) + 1)
        body = b"%d:" % end + Random(end).randbytes(size) + b"\n"
        gaps = self.spool.take_gaps()
        self.put_so_far[end] = body
        self.gaps_of[body] = gaps
        return SpooledBatch(body, (end - 10, end), gaps)

    def receive(self, body: bytes) -> None:
        end = int(body.split(b":")[0])
        assert self.put_so_far[end] == body
        self.delivered.add(end)
        self.told += self.gaps_of[body]

    def reopen(self) -> None:
        """Start a new life on a copy of the folder."""
        old = self.folder
        self.lives += 1
        if not self.folder.exists():
            shutil.copytree(old, self.folder)
        self.spool = Spool(self.folder, MOST_BYTES)

    @rule(sizes=st.lists(st.integers(0, 4000), min_size=1, max_size=4))
    def put(self, sizes: list[int]) -> None:
        self.spool.put([self.batch(size) for size in sizes])

    @rule(count=st.integers(1, 5))
    def answer_oldest(self, count: int) -> None:
        records = self.spool.oldest(count)
        bodies = {record: self.spool.read(record) for record in records}
        for body in bodies.values():
            if body is not None:
                self.receive(gzip.decompress(body))
        self.spool.done([record for record, body in bodies.items() if body is not None])

    @rule()
    def answer_newest(self) -> None:
        record = self.spool.newest()
        body = None if record is None else self.spool.read(record)
        if record is not None and body is not None:
            self.receive(gzip.decompress(body))
            self.spool.done([record])

    @rule()
    def send_and_crash_before_the_answer_is_remembered(self) -> None:
        record = self.spool.newest()
        body = None if record is None else self.spool.read(record)
        if record is not None and body is not None:
            self.receive(gzip.decompress(body))
            self.unremembered.add(record.end)
        self.reopen()

    @rule()
    def stop_and_start(self) -> None:
        self.spool.close()
        self.spool = Spool(self.folder, MOST_BYTES)

    @rule(share=st.floats(0, 1))
    def crash_while_a_batch_is_written(self, share: float) -> None:
        before = {path.name: path.stat().st_size for path in self.folder.glob("*.segment")}
        batch = self.batch(100)
        self.spool.put([batch])
        self.torn.add(batch.span[1])  # put has not returned: nobody was promised anything
        newest = max(self.folder.glob("*.segment"))
        old, new = before.get(newest.name, 0), newest.stat().st_size
        image = self.home / str(self.lives + 1)
        shutil.copytree(self.folder, image)
        with (image / newest.name).open("r+b") as file:
            file.truncate(old + int(share * (new - old)))
        self.reopen()

    @rule(place=st.integers(0, 1 << 20), bit=st.integers(0, 7))
    def crash_and_flip_a_bit(self, place: int, bit: int) -> None:
        self.reopen()
        self.spool.close()
        # A second bit in the same record may cost the knowledge of when it was.
        intact = [each for each in self.folder.glob("*.segment") if each.name not in self.flipped]
        if intact:
            victim = sorted(intact)[place % len(intact)]
            self.flipped.add(victim.name)
            data = bytearray(victim.read_bytes())
            where = place % (len(data) or 1)
            if b"done" not in data[max(0, where - 3) : where + 4]:  # that would only send it again
                data[where : where + 1] = bytes(byte ^ 1 << bit for byte in data[where : where + 1])
                victim.write_bytes(data)
        self.spool = Spool(self.folder, MOST_BYTES)

    @invariant()
    def its_bytes_are_bounded(self) -> None:
        sizes = [path.stat().st_size for path in self.folder.glob("*.segment")]
        assert sum(sizes) <= MOST_BYTES

    def teardown(self) -> None:
        """Let everything arrive, then account for every interval."""
        self.reopen()
        while records := self.spool.oldest():
            body = self.spool.read(records[0])
            if body is not None:
                self.receive(gzip.decompress(body))
                self.spool.done(records)
        while gaps := self.spool.take_gaps():
            self.told += gaps
        self.spool.close()
        shutil.rmtree(self.home)
        covered = {
            end for gap in self.told for end in range(int(gap.start) + 10, int(gap.end) + 10, 10)
        }
        missing = set(self.put_so_far) - self.delivered
        assert missing - self.torn <= covered
        # Sent in a life that crashed before it could remember that, then lost: both are true.
        assert covered <= missing | self.unremembered


TestSpool = SpoolMachine.TestCase
TestSpool.settings = settings(
    max_examples=settings().max_examples // 4, stateful_step_count=20, deadline=None
)
