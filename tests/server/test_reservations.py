"""Reservations over time: what is told again and again, and what was so in between."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

import pytest
from sqlalchemy import select

from flopwatch_server.database.engine import Database
from flopwatch_server.scheduler.models import Reservation
from flopwatch_server.scheduler.records import ReservationRecord
from flopwatch_server.scheduler.repository.reservations import apply_reservations
from tests.server.world import World, at

COURSE = ReservationRecord("course", at(60), at(120), ("g1", "g2"), users=("mchen", "anna"))


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    with database.session() as session:
        yield World(session)


def tell(world: World, now: datetime, *records: ReservationRecord) -> None:
    apply_reservations(world.session, world.cluster.id, records, now)


def kept(world: World) -> list[tuple[str, datetime, datetime, list[str]]]:
    rows = world.session.scalars(select(Reservation).order_by(Reservation.valid_from))
    return [(row.name, row.valid_from, row.valid_to, row.nodes) for row in rows]


def test_one_that_is_told_again_stays_as_it_is(world: World) -> None:
    for minute in (0, 70, 119):
        tell(world, at(minute), COURSE)
    assert kept(world) == [("course", at(60), at(120), ["g1", "g2"])]
    [row] = world.session.scalars(select(Reservation))
    assert (row.is_whole, row.users, row.accounts, row.flags) == (True, ["mchen", "anna"], [], [])


def test_one_that_is_given_up_before_it_began_never_was(world: World) -> None:
    tell(world, at(0), COURSE)
    tell(world, at(30))
    assert kept(world) == []


def test_one_that_is_given_up_ends_then(world: World) -> None:
    tell(world, at(0), COURSE)
    tell(world, at(90))
    tell(world, at(100))
    assert kept(world) == [("course", at(60), at(90), ["g1", "g2"])]


def test_one_that_is_over_stays_in_history(world: World) -> None:
    tell(world, at(0), COURSE)
    tell(world, at(200))
    assert kept(world) == [("course", at(60), at(120), ["g1", "g2"])]


def test_another_end_moves_it_and_other_nodes_make_a_new_stretch(world: World) -> None:
    tell(world, at(0), COURSE)
    tell(world, at(80), replace(COURSE, ends_at=at(150)))
    tell(world, at(100), replace(COURSE, ends_at=at(150), nodes=("g1", "g3")))
    assert kept(world) == [
        ("course", at(60), at(100), ["g1", "g2"]),
        ("course", at(100), at(150), ["g1", "g3"]),
    ]


def test_one_that_is_put_off_while_it_is_in_force_stops_until_then(world: World) -> None:
    tell(world, at(70), COURSE)
    later = replace(COURSE, starts_at=at(300), ends_at=at(360))
    tell(world, at(90), later)
    tell(world, at(95), later)
    assert kept(world) == [
        ("course", at(60), at(90), ["g1", "g2"]),
        ("course", at(300), at(360), ["g1", "g2"]),
    ]


def test_one_that_was_missing_from_an_answer_goes_on_from_when_it_is_told_again(
    world: World,
) -> None:
    tell(world, at(70), COURSE)
    tell(world, at(80))
    tell(world, at(90), COURSE)
    assert kept(world) == [
        ("course", at(60), at(80), ["g1", "g2"]),
        ("course", at(90), at(120), ["g1", "g2"]),
    ]


def test_one_of_every_day_has_a_stretch_a_day(world: World) -> None:
    tell(world, at(70), COURSE)
    tomorrow = replace(COURSE, starts_at=at(60 + 1440), ends_at=at(120 + 1440))
    tell(world, at(130), tomorrow)
    tell(world, at(1510), tomorrow)
    assert [(start, end) for _, start, end, _ in kept(world)] == [
        (at(60), at(120)),
        (at(1500), at(1560)),
    ]


def test_hostile_text_in_a_reservation_is_stored(world: World) -> None:
    tell(world, at(70), replace(COURSE, name="a\0b", users=("nul\0", "half \ud800")))
    [row] = world.session.scalars(select(Reservation))
    assert (row.name, row.users) == ("ab", ["nul", "half ?"])
    tell(world, at(80), replace(COURSE, name="a\0b", users=("nul\0", "half \ud800")))
    assert len(kept(world)) == 1
