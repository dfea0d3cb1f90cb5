"""The jobs list: which rows, in which order, with which figures, for whom."""

from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from flopwatch_server.access.principal import Principal
from flopwatch_server.database.engine import Database
from flopwatch_server.efficiency.listing import job_facets, job_page
from flopwatch_server.efficiency.schemas import SORTS, GpuCounts, JobPage, JobQuery
from flopwatch_server.jobs.models import Run
from tests.server.world import ADMIN, T0, World, at

MCHEN = Principal("mchen", "researcher")
NOW = at(60, 20)


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    with database.session() as session:
        yield World(session)


def page(world: World, principal: Principal = ADMIN, **query: object) -> JobPage:
    world.count_use(NOW)
    wanted = JobQuery.model_validate(query)
    return job_page(world.session, principal, wanted, NOW)


def ids(found: JobPage) -> list[str]:
    return [row.job_id for row in found.rows]


def busy(world: World, run: Run, states: str, **columns: float) -> None:
    """Give a run one GPU of its own, with these minutes from its start."""
    node = world.node(f"node-of-{run.display_id}")
    device = world.gpu(node, 0)
    world.hold(run, node, device, end=run.ended_at)
    world.minutes(device, run.started_at or T0, states, **columns)


def test_a_job_is_idle_only_as_long_as_all_of_its_idle_gpus(world: World) -> None:
    node = world.node()
    run = world.run(gpu_count=3)
    for ordinal, (device, idle) in enumerate(zip(world.gpus(node, 3), (45, 5, 0), strict=True)):
        world.hold(run, node, device, ordinal)
        world.minutes(device, T0, "A" * (60 - idle) + "I" * idle)
    [row] = page(world).rows
    assert (row.gpus_now.idle, row.idle_since) == (2, at(55))


def test_a_row_has_what_the_job_got_out_of_its_gpus(world: World) -> None:
    node = world.node()
    first, second = world.gpus(node, 2)
    run = world.run(gpu_count=2)
    world.hold(run, node, first, 0)
    world.hold(run, node, second, 1)
    world.minutes(first, T0, "A" * 60, tensor_active=0.5, sm_active=0.75, power_watts=600.0)
    world.minutes(second, T0, "A" * 15 + "I" * 45, tensor_active=0.0, sm_active=0.25,
                  power_watts=200.0)  # fmt: skip
    [row] = page(world).rows
    assert (row.job_id, row.gpus, row.nodes, row.gpu_model) == (
        "100", 2, ["g1"], "NVIDIA H100 80GB HBM3",
    )  # fmt: skip
    assert (row.tensor_active, row.sm_active, row.power_watts) == (0.25, 0.5, 400.0)
    assert row.dram_active is None
    assert row.idle_gpu_hours == 0.75
    assert (row.state_now, row.gpus_now) == ("idle", GpuCounts(active=1, idle=1))
    assert row.idle_since == at(15)
    assert row.spark == [0.25] * 30
    assert row.elapsed_seconds == 3620


def test_a_pending_job_has_no_figures_and_not_zeros(world: World) -> None:
    world.run(start=None, gpu_count=4)
    [row] = page(world).rows
    assert (row.state_now, row.gpus_now) == ("pending", GpuCounts())
    assert (row.idle_gpu_hours, row.idle_since, row.elapsed_seconds) == (None, None, None)
    assert (row.mfu, row.tensor_active) == (None, None)
    assert row.spark == [None] * 30


def test_a_job_without_known_minutes_has_unknown_idle_hours(world: World) -> None:
    run = world.run()
    busy(world, run, "U" * 60)
    [row] = page(world).rows
    assert (row.idle_gpu_hours, row.state_now) == (None, "unknown")


def test_the_spark_is_the_last_hour_of_the_job(world: World) -> None:
    node = world.node()
    device = world.gpu(node, 0)
    run = world.run(ended_at=at(10), state="COMPLETED")
    world.hold(run, node, device, end=at(10))
    for minute in range(10):
        world.minute(device, at(minute), "active", tensor_active=minute / 16)
    world.minutes(device, at(10), "A" * 20, tensor_active=1.0)
    [row] = page(world).rows
    assert row.spark == [None] * 25 + [(2 * n + 0.5) / 16 for n in range(5)]
    assert (row.state_now, row.idle_since) == ("ended", None)


def test_the_mfu_of_a_job_comes_from_its_reports(world: World) -> None:
    run = world.run()
    node = world.node()
    # 989.5 TFLOP/s is the dense bfloat16 peak of an H100 SXM by NVIDIA's data sheet.
    world.report(run, node, at(30), {"bfloat16": 989.5e12 * 30}, 100.0)
    [row] = page(world).rows
    assert row.mfu == pytest.approx(0.3, rel=1e-3)


_RISING = (["99", "100", "101", "102"], ["102", "101", "100", "99"])
_UNKNOWN_LAST = (["100", "101", "102", "99"], ["102", "101", "100", "99"])
_ORDERS = {
    **dict.fromkeys(("job_id", "name", "user", "account", "partition", "state", "submitted_at"),
                    _RISING),
    **dict.fromkeys(("started_at", "ended_at", "elapsed", "sm_active", "tensor_active",
                     "dram_active", "power_watts", "mfu"), _UNKNOWN_LAST),
    # Among equals the newest comes first, either way.
    "gpus": (["100", "99", "101", "102"], ["102", "101", "100", "99"]),
    "idle_gpu_hours": (["102", "100", "101", "99"], ["101", "100", "102", "99"]),
}  # fmt: skip


def test_every_column_sorts_both_ways_with_unknown_last(world: World) -> None:
    for number, letters in enumerate(("I" * 10, "I" * 30, "A" * 30)):
        run = world.run(
            100 + number, start=at(number), name=f"N{number}", user_name=f"u{number}",
            account=f"a{number}", partition=f"p{number}", gpu_count=1 + number,
            ended_at=at(50 + 5 * number), submitted_at=at(number - 9), state=f"S{number}",
        )  # fmt: skip
        level = number / 4
        busy(world, run, letters, sm_active=level, tensor_active=level, dram_active=level,
             power_watts=level)  # fmt: skip
        world.report(run, world.node(f"r{number}"), at(40), {"bfloat16": 1e15 * number}, 60.0)
    world.run(99, start=None, submitted_at=at(-10), name="m", user_name="t", account="A",
              partition="o", gpu_count=1)  # fmt: skip
    found = {
        column: (ids(page(world, sort=column)), ids(page(world, sort=f"-{column}")))
        for column in SORTS
    }
    assert found == _ORDERS


@pytest.mark.parametrize("sort", ["-idle_gpu_hours", "submitted_at", "-mfu"])
def test_pages_cut_the_same_order_into_blocks(world: World, sort: str) -> None:
    for number in range(5):
        busy(world, world.run(100 + number, submitted_at=at(number)), "I" * (50 - 10 * number))
    whole = ids(page(world, sort=sort))
    assert len(set(whole)) == 5
    blocks = [ids(page(world, sort=sort, offset=offset, limit=2)) for offset in (0, 2, 4, 6)]
    assert blocks == [whole[:2], whole[2:4], whole[4:], []]
    assert page(world, sort=sort, offset=4, limit=2).total == 5


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, {"100", "101_7", "102"}),
        ({"states": ["PENDING"]}, {"102"}),
        ({"states": ["PENDING", "RUNNING"]}, {"100", "102"}),
        ({"users": ["bo"]}, {"101_7"}),
        ({"accounts": ["bio"]}, {"101_7", "102"}),
        ({"partitions": ["debug"], "accounts": ["bio"]}, {"102"}),
        ({"gpus_min": 4}, {"102"}),
        ({"gpus_min": None}, {"100", "101_7", "102", "103"}),
        ({"text": "LLAMA"}, {"100"}),
        ({"text": "01_7"}, {"101_7"}),
        ({"text": "555"}, {"101_7"}),
        ({"text": "bo"}, {"101_7"}),
        ({"text": "100%"}, set()),
        ({"text": "a_a"}, set()),
        ({"cluster": "granite"}, {"100", "101_7", "102"}),
    ],
)
def test_a_query_gives_the_rows_that_match_all_of_it(
    world: World, query: dict[str, object], expected: set[str]
) -> None:
    world.run(100, name="llama")
    world.run(555, display_id="101_7", name="vit", user_name="bo", account="bio",
              state="COMPLETED", ended_at=at(30))  # fmt: skip
    world.run(102, start=None, name="gan", user_name="cy", account="bio", partition="debug",
              gpu_count=4)  # fmt: skip
    world.run(103, name="cpu", user_name="cy", account="chem", gpu_count=0)
    found = page(world, ADMIN, **query)
    assert set(ids(found)) == expected
    assert found.total == len(expected)


def test_what_ended_longer_ago_is_left_out(world: World) -> None:
    world.run(100, start=at(-1440 * 9), ended_at=at(-1440 * 8), state="COMPLETED")
    world.run(101, start=at(-1440 * 9))
    assert ids(page(world)) == ["101"]
    assert set(ids(page(world, days=9))) == {"100", "101"}


def test_what_was_last_seen_longer_ago_is_left_out_though_nobody_told_its_end(
    world: World,
) -> None:
    world.run(100, start=at(-1440 * 9), vanished_at=at(-1440 * 8))
    world.run(101, start=at(-1440 * 9), vanished_at=at(-1440 * 6))
    assert ids(page(world)) == ["101"]
    assert set(ids(page(world, days=9))) == {"100", "101"}


def test_the_totals_count_all_pages(world: World) -> None:
    for number in range(3):
        world.run(100 + number, gpu_count=4)
    found = page(world, limit=1)
    assert (len(found.rows), found.total, found.gpus) == (1, 3, 12)


def test_a_person_sees_and_counts_only_what_they_may_see(world: World) -> None:
    world.run(100, gpu_count=2)
    world.run(101, user_name="bo", gpu_count=4)
    world.run(102, user_name="cy", account="bio", gpu_count=8)
    found = page(world, MCHEN)
    assert (ids(found), found.total, found.gpus) == (["100"], 1, 2)
    assert page(world, MCHEN, users=["bo"]).rows == []
    manager = Principal("mchen", "manager", frozenset({"bio"}))
    assert set(ids(page(world, manager))) == {"100", "102"}
    assert page(world, Principal("", "researcher")).total == 0


def test_facets_count_the_visible_jobs_most_first(world: World) -> None:
    world.run(100)
    world.run(101, account="bio")
    world.run(102, user_name="bo", account="bio", start=None)
    world.run(103, user_name="bo", gpu_count=0)
    found = job_facets(world.session, ADMIN, "granite", NOW)
    assert list(found.user.items()) == [("mchen", 2), ("bo", 1)]
    assert list(found.account.items()) == [("bio", 2), ("nlp", 1)]
    assert found.state == {"RUNNING": 2, "PENDING": 1}
    assert found.partition == {"gpu": 3}
    assert job_facets(world.session, MCHEN, None, NOW).user == {"mchen": 2}
    assert job_facets(world.session, ADMIN, "basalt", NOW).user == {}


@pytest.mark.parametrize(
    "query",
    [{"sort": "user; drop table runs"}, {"sort": "--user"}, {"limit": 201}, {"limit": 0},
     {"offset": -1}, {"text": "a\0b"}, {"days": 0}, {"colour": "red"}],
    ids=str,
)  # fmt: skip
def test_a_query_outside_its_bounds_is_refused(query: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        JobQuery.model_validate(query)
