"""What a sender's clock may be off, and how times from the future are brought to the present.

A clock that is ahead stamps today's facts with times to come. Kept so, a metric would begin to be
missing next year, and a gap lie where nothing has been lost yet; refused, the fact would be lost.
"""

from dataclasses import dataclass

from flopwatch import wire

MAX_TIME = 253_402_300_799
"""The last second of the year 9999, in seconds since 1970: what is later is no time."""

MAX_FUTURE_SECONDS = 300
"""How far ahead of the server's clock a time may be; times further ahead are not believed."""


@dataclass(frozen=True, slots=True)
class Present:
    """The server's time `now`, and how far the sender's clock is `ahead` of it, in seconds.

    `ahead` is 0 where the sender did not tell its clock.
    """

    now: float
    ahead: float

    @classmethod
    def seen_from(cls, now: float, sent_at: float | None) -> "Present":
        """The present for a batch that came at `now` and was sent when its clock said `sent_at`."""
        return cls(now, 0.0 if sent_at is None else max(0.0, sent_at - now))

    def settle(self, time: float) -> float:
        """`time`; one from the future as far back as the clock is ahead, and at most now."""
        return min(self.set_back(time), self.now) if self.is_future(time) else time

    def set_back(self, time: float) -> float:
        """`time` as far back as the clock is ahead, and not before 1970: the clock may have jumped
        to where it is after it had told the time."""
        return max(0.0, time - self.ahead)

    def is_future(self, time: float) -> bool:
        """Whether `time` is so far ahead that no clock could tell it rightly."""
        return time > self.now + MAX_FUTURE_SECONDS


def settle_times(batch: wire.Batch, present: Present) -> None:
    """Bring all times of a batch's header from the future to the present, in place.

    A gap that is left without length is dropped. The start of a local run stays: it names the run.
    """
    settle = present.settle
    batch.epoch.started_at = settle(batch.epoch.started_at)
    for missing in batch.missing:
        missing.since = settle(missing.since)
    for sign in batch.evidence:
        sign.first_seen, sign.last_seen = settle(sign.first_seen), settle(sign.last_seen)
    for report in batch.reports:
        report.received_at = settle(report.received_at)
    for usage in batch.host:
        usage.time = int(settle(usage.time))
    for source in batch.sources:
        source.since = settle(source.since)
    for event in batch.events:
        event.time = settle(event.time)
    for run in batch.local_runs:
        run.last_seen = settle(run.last_seen)
        run.ended_at = None if run.ended_at is None else settle(run.ended_at)
    for gap in batch.gaps:
        if present.is_future(gap.end):
            gap.start, gap.end = present.set_back(gap.start), settle(gap.end)
    batch.gaps = [gap for gap in batch.gaps if gap.start < gap.end]
