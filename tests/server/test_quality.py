"""How complete what is known of a run is: rows by hand, counts by hand."""

import pytest
from sqlalchemy.orm import Session

from flopwatch_server.database.engine import Database
from flopwatch_server.efficiency.quality import newest_sample_at, run_quality
from flopwatch_server.house import NotFound
from flopwatch_server.jobs.models import Run
from flopwatch_server.telemetry.models import MetricState
from tests.server.world import World, at


def test_samples_are_counted_over_whole_minutes_of_the_run_alone(database: Database) -> None:
    with database.session() as session:
        world = World(session)
        node = world.node()
        first, second = world.gpus(node, 2)
        run = world.run(start=at(0, 30), gpu_count=2)
        world.hold(run, node, first)
        world.hold(run, node, second, 1)
        for minute in range(10):
            received = 4 if minute == 3 else 6
            world.minute(first, at(minute), "active", samples_received=received)
        world.minutes(second, at(1), "AAA")

        found = run_quality(session, world.view(run, at(10, 30)), at(10, 30))

        # Minutes 1 to 9 are whole: 9 of two GPUs are due; 8 x 6 + 4 and 3 x 6 came.
        assert (found.samples_received, found.samples_expected) == (70, 108)


def test_a_missing_metric_has_the_reason_of_most_gpus(database: Database) -> None:
    with database.session() as session:
        world, run = _held_by_three(session)
        for ordinal, reason in enumerate(["no permission", "no permission", "unsupported"], 1):
            _missing(world, ordinal, "fp64_active", reason)
        view = world.view(run, at(5))
        assert run_quality(session, view, at(5)).missing == {"fp64_active": "no permission"}


def test_what_came_back_before_the_end_is_not_missing(database: Database) -> None:
    with database.session() as session:
        world, run = _held_by_three(session)
        world.add(MetricState(device_id=1, metric="sm_active", valid_from=at(0), valid_to=at(2),
                              reason="stale"))  # fmt: skip
        assert run_quality(session, world.view(run, at(5)), at(5)).missing == {}


def test_the_newest_sample_of_a_cluster_is_that_of_any_gpu(database: Database) -> None:
    with database.session() as session:
        world = World(session)
        first, second = world.gpus(world.node(), 2)
        assert newest_sample_at(session, "granite", at(5)) is None
        world.samples(first, [at(4, 10), at(4, 20)])
        world.samples(second, [at(4, 50)])
        assert newest_sample_at(session, "granite", at(5)) == at(4, 50)
        with pytest.raises(NotFound):
            newest_sample_at(session, "slate", at(5))


def _held_by_three(session: Session) -> tuple[World, Run]:
    world = World(session)
    node = world.node()
    run = world.run(gpu_count=3)
    for ordinal, device in enumerate(world.gpus(node, 3)):
        world.hold(run, node, device, ordinal)
    return world, run


def _missing(world: World, device_id: int, metric: str, reason: str) -> None:
    world.add(MetricState(device_id=device_id, metric=metric, valid_from=at(0), valid_to=None,
                          reason=reason))  # fmt: skip
