"""What several browsers follow together: read once for all, kept until the next reading."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from flopwatch_dashboard.live.reading import Ask, Cursor, Reading
from flopwatch_dashboard.services import Visit

Read = Callable[[Visit, Ask], Reading]
"""Reads a page; raises NotFound where there is nothing, or nothing that may be seen."""


@dataclass(frozen=True)
class Edition:
    """One reading as it is sent: `news` to those who have the edition before, else the `whole`."""

    number: int
    reading: Reading
    news: str

    @classmethod
    def after(cls, before: "Edition | None", reading: Reading) -> "Edition":
        """The next one. It encodes much, so it belongs into a thread."""
        message = reading.message(before.reading if before else None)
        return cls(before.number + 1 if before else 1, reading, _encoded(message))

    @cached_property
    def whole(self) -> str:
        return self.news if self.number == 1 else _encoded(self.reading.message(None))


@dataclass(eq=False)
class Topic:
    """What is followed, by whom, and its newest edition.

    `wanted` calls for a reading before the next tick. `pending` is the reading that a thread has
    in hands, perhaps for longer than anybody waits.
    """

    read: Read
    seats: set["Seat"] = field(default_factory=set)
    edition: Edition | None = None
    gone: bool = False
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    pending: Future[Edition] | None = None

    @property
    def rests(self) -> bool:
        """Whether nothing calls for another reading: what was read is final, and all have it."""
        final = self.edition is not None and self.edition.reading.is_final
        return final and not self.wanted.is_set()

    def ask(self) -> Ask:
        """What the next reading is for."""
        before = self.edition.reading if self.edition else None
        newcomers = [seat.cursor for seat in self.seats if seat.waits]
        return Ask(before, newcomers)

    def tell(self) -> None:
        """Let all who follow look for what is new."""
        for seat in self.seats:
            seat.news.set()


@dataclass(eq=False)
class Seat:
    """A browser's place at a topic: what it has got, by cursor and by number of the edition.

    This is its whole queue. What came while it was slow is not kept: it gets what it lacks from
    the newest edition. `waits` says that none has all that it lacks, so it must be read. `news` is
    set when there may be something to take.
    """

    topic: Topic
    news: asyncio.Event
    cursor: Cursor | None
    edition: int = 0
    waits: bool = True

    def take(self) -> str | None:
        """What is new for this browser, now taken; None if nothing is."""
        edition = self.topic.edition
        if edition is None or edition.number == self.edition:
            return None
        if self.cursor is not None and edition.reading.cursor.now < self.cursor.now:
            self.waits = False
            return None  # the page was read later than this; the next tick is for it too
        if self.edition and edition.number == self.edition + 1:
            text = edition.news
        elif edition.reading.follows(self.cursor):
            text = edition.whole
        else:
            self.waits = True
            self.topic.wanted.set()
            return None
        self.edition, self.cursor, self.waits = edition.number, edition.reading.cursor, False
        return text


def _encoded(message: object) -> str:
    return msgspec.json.encode(message).decode()
