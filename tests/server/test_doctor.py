"""The doctor: nothing to mend where all is well, and one finding for each thing that is not."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from flopwatch_server.clock import utc_now
from flopwatch_server.database.engine import Database
from flopwatch_server.doctor.service import examine
from flopwatch_server.fleet.models import AgentEpoch, Device, Node, Placement
from flopwatch_server.house import NotFound
from flopwatch_server.jobs.models import Allocation, Evidence, Run
from flopwatch_server.scheduler.models import SchedulerRefusal, SchedulerSource
from flopwatch_server.telemetry.models import MetricState
from tests.server.test_commands import call
from tests.server.world import T0, World, at

NOW = at(60)
NODES = ("g1", "g2")


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    """Two nodes of two GPUs that report, known by gres.conf, and a job on each for an hour."""
    with database.session() as session:
        world = World(session)
        for number, name in enumerate(NODES):
            node = world.node(name, scheduler_state="MIXED", gpu_count=2, last_batch_at=NOW)
            first, _ = world.gpus(node, 2)
            run = world.run(100 + number)
            world.hold(run, node, first, confidence="certain")
            world.add(Evidence(node_id=node.id, kind="cgroup", raw_job_id=run.raw_job_id,
                               device_id=first.id, pid=7, uid=1, first_seen_at=T0,
                               last_seen_at=NOW))  # fmt: skip
        session.execute(update(Placement).values(ordinal_source="gres.conf"))
        session.execute(update(AgentEpoch).values(clock_skew_seconds=0.4))
        for kind in ("slurm", "slurm accounting"):
            world.add(SchedulerSource(cluster_id=world.cluster.id, kind=kind, last_success_at=NOW))
        yield world


def findings(world: World) -> list[tuple[str, str]]:
    world.session.flush()
    return [(found.severity, found.what) for found in examine(world.session, "granite", NOW)]


def of(world: World, name: str) -> Node:
    return world.session.scalars(select(Node).where(Node.name == name)).one()


def test_where_all_is_well_there_is_nothing_to_mend(world: World) -> None:
    assert findings(world) == []


def refused_feed(world: World) -> None:
    world.add(SchedulerSource(cluster_id=world.cluster.id, kind="feed", last_success_at=at(10),
                              error="line 3, $.state: bad", error_since=at(20)))  # fmt: skip


def silent_scheduler(world: World) -> None:
    """It was told last 7 minutes ago: six are an outage."""
    slurm = SchedulerSource.kind == "slurm"
    world.session.execute(update(SchedulerSource).where(slurm).values(last_success_at=at(53)))


def failing_source(world: World) -> None:
    failing = {"error": "sacct: exit status 1", "error_since": at(20)}
    accounting = SchedulerSource.kind == "slurm accounting"
    world.session.execute(update(SchedulerSource).where(accounting).values(**failing))


def no_source(world: World) -> None:
    world.session.execute(update(SchedulerSource).values(last_success_at=None))


def version(told: str) -> Callable[[World], None]:
    def tell(world: World) -> None:
        queue = SchedulerSource.kind == "slurm"
        world.session.execute(update(SchedulerSource).where(queue).values(version=told))

    return tell


def refused_counters(world: World) -> None:
    for uuid, metric, since in (("GPU-g1-0", "sm_active", T0), ("GPU-g1-0", "dram_active", T0),
                                ("GPU-g1-1", "sm_active", T0)):  # fmt: skip
        device_id = world.session.scalars(select(Device.id).where(Device.uuid == uuid)).one()
        world.add(MetricState(device_id=device_id, metric=metric, valid_from=since,
                              reason="no permission"))  # fmt: skip


def refused_records(world: World) -> None:
    world.add(
        SchedulerRefusal(cluster_id=world.cluster.id, call="queue", field="State", count=12,
                         problem="State reads '5'", first_at=at(10), last_at=at(59))
    )  # fmt: skip


def silent_agent(world: World) -> None:
    of(world, "g1").last_batch_at = NOW - timedelta(seconds=31)


def node_without_agent(world: World) -> None:
    world.add(Node(cluster_id=world.cluster.id, name="g9", scheduler_state="IDLE", gpu_count=4))


def unknown_name(world: World) -> None:
    world.node("g1.example.org", last_batch_at=NOW)


def fast_clock(world: World) -> None:
    epoch = AgentEpoch.node_id == of(world, "g2").id
    world.session.execute(update(AgentEpoch).where(epoch).values(clock_skew_seconds=-7.25))


def lost_gpu(world: World) -> None:
    lost = select(Device.id).where(Device.uuid == "GPU-g1-1").scalar_subquery()
    placement = Placement.device_id == lost
    world.session.execute(update(Placement).where(placement).values(valid_to=at(30)))


def assumed_positions(world: World) -> None:
    placement = Placement.node_id == of(world, "g1").id
    assumed = {"ordinal_source": "minor order"}
    world.session.execute(update(Placement).where(placement).values(**assumed))


def disputed_gpu(world: World) -> None:
    on_node = Allocation.node_id == of(world, "g2").id
    world.session.execute(update(Allocation).where(on_node).values(confidence="disputed"))


def sees(name: str, **seen: str) -> Callable[[World], None]:
    def tell(world: World) -> None:
        epoch = AgentEpoch.node_id == of(world, name).id
        world.session.execute(update(AgentEpoch).where(epoch).values(capabilities=seen))

    return tell


def uncounted_gpus(world: World) -> None:
    world.session.execute(update(Run).where(Run.raw_job_id == 100).values(gpu_count=None))


def unseen_jobs(world: World) -> None:
    world.session.execute(update(Evidence).values(last_seen_at=at(-1)))


@pytest.mark.parametrize(
    ("damage", "severity", "what"),
    [
        (failing_source, "fault",
         "slurm accounting has not answered since 2026-03-12 09:20 UTC: sacct: exit status 1"),
        (refused_feed, "fault",
         "the feed has been refused since 2026-03-12 09:20 UTC: line 3, $.state: bad"),
        (silent_scheduler, "fault",
         "the scheduler has told nothing since 2026-03-12 09:53 UTC"),
        (no_source, "fault", "no scheduler has ever told which jobs hold GPUs"),
        (version("20.11.9"), "fault", "Slurm 20.11.9 is older than 21.08, the oldest that is read"),
        (version("27.02.0-0rc1"), "note",
         "Slurm 27.02.0-0rc1 is newer than 26.05, the newest whose answers were tried"),
        (refused_counters, "fault", "agents may not read dram_active, sm_active on g1"),
        (refused_records, "fault",
         "records of the call 'queue' were left out 12 times since 2026-03-12 09:10 UTC: "
         "State reads '5'"),
        (silent_agent, "fault", "agents are silent on g1"),
        (node_without_agent, "warning", "nodes with GPUs whose agent has never reported: g9"),
        (unknown_name, "fault",
         "agents report from g1.example.org, of which the scheduler does not tell"),
        (fast_clock, "warning", "clocks are off on g2 (-7.2 s)"),
        (lost_gpu, "warning",
         "agents see another number of GPUs than the scheduler on g1 (1 of 2)"),
        (assumed_positions, "note",
         "which GPU stands at which GRES position is assumed on g1"),
        (disputed_gpu, "fault",
         "processes of other jobs compute on allocated GPUs on g2 (1)"),
        (sees("g1", gres_conf="Permission denied"), "warning",
         "agents can't read gres.conf on g1 (Permission denied)"),
        (sees("g2", cgroup="none", job_cgroups="none"), "warning",
         "agents see no cgroups at all on g2"),
        (sees("g2", cgroup="v2", job_cgroups="SLUID"), "warning",
         "the names of jobs' cgroups tell no job id on g2"),
        (sees("g1", cgroup="v1", job_cgroups="none"), "warning",
         "jobs run on g1, and agents see no cgroup of a job there"),
        (uncounted_gpus, "warning", "1 running job holds GPUs that Slurm does not count"),
        (unseen_jobs, "warning",
         "2 jobs run on nodes whose agents see no process of any job"),
    ],
)  # fmt: skip
def test_each_damage_is_found_and_nothing_beside_it(
    world: World, damage: Callable[[World], None], severity: str, what: str
) -> None:
    damage(world)
    assert findings(world) == [(severity, what)]


def test_cgroups_that_are_seen_or_have_no_job_yet_are_no_finding(world: World) -> None:
    sees("g1", cgroup="v2", job_cgroups="job id", gres_conf="")(world)
    sees("g2", cgroup="v2", job_cgroups="none", gres_conf="")(world)
    on_node = Allocation.node_id == of(world, "g2").id
    fresh = NOW - timedelta(minutes=9)
    world.session.execute(update(Allocation).where(on_node).values(valid_from=fresh))
    assert findings(world) == []


def test_what_an_agent_saw_in_an_earlier_life_is_no_finding(world: World) -> None:
    sees("g1", cgroup="none")(world)
    world.add(AgentEpoch(node_id=of(world, "g1").id, boot_id="g1", number=2, started_at=NOW,
                         agent_version="0.1.0", clock_skew_seconds=0.0))  # fmt: skip
    assert findings(world) == []


@pytest.mark.parametrize("told", ["21.08.5", "26.05.0-0rc1", "odd"])
def test_a_version_that_is_read_or_none_at_all_is_no_finding(world: World, told: str) -> None:
    version(told)(world)
    assert findings(world) == []


def test_counters_that_are_missing_for_another_reason_or_were_once_are_no_finding(
    world: World,
) -> None:
    refused_counters(world)
    world.session.execute(
        update(MetricState).where(MetricState.metric == "sm_active").values(valid_to=at(5))
    )
    others = MetricState.metric == "dram_active"
    world.session.execute(update(MetricState).where(others).values(reason="unsupported"))
    assert findings(world) == []


def test_the_worst_comes_first(world: World) -> None:
    assumed_positions(world)
    node_without_agent(world)
    disputed_gpu(world)
    assert [severity for severity, _ in findings(world)] == ["fault", "warning", "note"]


def test_what_was_refused_long_ago_and_young_jobs_are_no_finding(world: World) -> None:
    refused_records(world)
    world.session.execute(update(SchedulerRefusal).values(last_at=NOW - timedelta(days=2)))
    unseen_jobs(world)
    world.session.execute(update(Allocation).values(valid_from=NOW - timedelta(minutes=9)))
    assert findings(world) == []


def test_many_names_are_cut_short(world: World) -> None:
    for number in range(13):
        world.add(Node(cluster_id=world.cluster.id, name=f"h{number:02}", gpu_count=1))
    [(_, what)] = findings(world)
    assert what.endswith("h08, h09 and 3 more")


def test_a_cluster_that_is_none_is_not_found(database: Database) -> None:
    with database.session() as session, pytest.raises(NotFound):
        examine(session, "marble", NOW)


def test_the_command_says_what_to_do_and_fails_on_a_fault(database: Database) -> None:
    with database.session() as session:
        _reporting_node(session)
    found = call(database, "doctor")
    assert found.returncode == 1
    first, second, third = found.stdout.splitlines()
    assert (first, second) == (
        "granite:", "  fault: no scheduler has ever told which jobs hold GPUs"
    )  # fmt: skip
    assert third.startswith("    -> set FLOPWATCH_SLURM_CLUSTER")
    with database.session() as session:
        cluster_id = session.scalars(select(Node.cluster_id)).one()
        now = datetime.now(UTC)
        session.add(SchedulerSource(cluster_id=cluster_id, kind="feed", last_success_at=now))
    found = call(database, "doctor", "--cluster", "granite")
    assert (found.returncode, found.stdout) == (0, "granite: nothing to mend\n")
    unknown = call(database, "doctor", "--cluster", "marble")
    assert unknown.returncode == 1
    assert unknown.stderr == "there is no cluster marble; known: granite\n"


def _reporting_node(session: Session) -> None:
    World(session).node("g1", last_batch_at=utc_now() + timedelta(minutes=5))
