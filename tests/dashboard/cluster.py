"""A small cluster for the browser: one of each kind of job, put in by hand."""

from datetime import datetime, timedelta

from sqlalchemy import select

from flopwatch_server.database.engine import Database
from flopwatch_server.database.partitions import ensure_days
from flopwatch_server.fleet.models import Cluster, Device, Node
from flopwatch_server.jobs.models import Allocation, Run
from flopwatch_server.scheduler.models import SchedulerSource
from tests.server.world import World

TRAINING = "481340"
IDLE = "481351"
WAITING = "481360"
UNWATCHED = "481401"
ENDED = "481000"
SAMPLES = 60
PEAK_BF16 = 989.4e12  # H100 SXM, dense, NVIDIA's data sheet


def fill(database: Database, now: datetime) -> list[int]:
    """Put the cluster in; ids of the devices of the job that trains."""
    with database.session() as session:
        ensure_days(session, [(now - timedelta(days=days)).date() for days in (0, 1, 2)])
        world = World(session)
        world.add(SchedulerSource(cluster_id=world.cluster.id, kind="slurm", last_success_at=now))
        node = world.node("g014", gpu_count=8, partitions=["h100"], last_batch_at=now)
        training = world.gpus(node, 4)
        idle = [world.gpu(node, ordinal) for ordinal in range(4, 8)]
        start = now - timedelta(hours=3)
        run = world.run(481340, start, name="llama3-8b-sft", gpu_count=4, partition="h100",
                        submitted_at=start, time_limit_seconds=86400)  # fmt: skip
        for ordinal, device in enumerate(training):
            world.hold(run, node, device, ordinal, confidence="certain")
            _minutes(world, device, start, 180, "A", tensor_active=0.30 + ordinal / 100,
                     sm_active=0.85, dram_active=0.30, power_watts=420.0)  # fmt: skip
            world.samples(device, _sample_times(now), tensor_active=0.33, sm_active=0.9,
                          dram_active=0.3, power_watts=450.0)  # fmt: skip
        for minute in range(2, 180):
            seconds = 60.0 * minute
            world.report(run, node, start + timedelta(minutes=minute),
                         {"bfloat16": 0.8 * seconds * PEAK_BF16 * 0.25}, 0.8 * seconds,
                         elapsed_seconds=seconds, steps=int(seconds))  # fmt: skip
        held = world.run(481351, now - timedelta(hours=2), name="code-eval", user_name="bnair",
                         account="systems", gpu_count=4, partition="h100",
                         submitted_at=start)  # fmt: skip
        for ordinal, device in enumerate(idle, start=4):
            world.hold(held, node, device, ordinal)
            _minutes(world, device, now - timedelta(hours=2), 120, "I", sm_active=0.0,
                     tensor_active=0.0, gpu_utilization=0.0, power_watts=70.0)  # fmt: skip
        world.run(481360, None, name="esm3-infer", gpu_count=32, reason="Resources",
                  submitted_at=now - timedelta(minutes=33))  # fmt: skip
        bare = world.node("x001", gpu_count=2)
        unwatched = world.run(481401, now - timedelta(minutes=25), gpu_count=2, name="no-agent",
                              submitted_at=start)  # fmt: skip
        world.hold(unwatched, bare, None, 0, confidence="unknown")
        world.run(481000, start, name="done", state="COMPLETED", submitted_at=start,
                  ended_at=now - timedelta(hours=1))  # fmt: skip
        world.count_use(now)
        return [device.id for device in training]


def add_samples(database: Database, device_ids: list[int], *moments: datetime) -> None:
    """One more sample of each GPU that trains, at each of these times."""
    with database.session() as session:
        world = object.__new__(World)
        world.session = session
        for device_id in device_ids:
            device = session.get_one(Device, device_id)
            world.samples(device, moments, tensor_active=0.5, sm_active=0.9, dram_active=0.3,
                          power_watts=450.0)  # fmt: skip


def report(database: Database, job_id: str, received_at: datetime) -> None:
    """Let the one process of a job report that it trains at 25 % of the peak."""
    with database.session() as session:
        world = object.__new__(World)
        world.session = session
        run = session.scalars(select(Run).where(Run.display_id == job_id)).one()
        world.cluster = session.get_one(Cluster, run.cluster_id)
        node = session.scalars(select(Node).limit(1)).one()
        world.report(run, node, received_at, {"bfloat16": 20 * PEAK_BF16 * 0.25}, 20.0, boot=job_id)


def end(database: Database, job_id: str, now: datetime) -> None:
    """Let a job end."""
    with database.session() as session:
        run = session.scalars(select(Run).where(Run.display_id == job_id)).one()
        run.state, run.ended_at = "COMPLETED", now
        for held in session.scalars(select(Allocation).where(Allocation.run_id == run.id)):
            held.valid_to = now


def _minutes(
    world: World, device: Device, start: datetime, number: int, letter: str, **means: float
) -> None:
    first = start.replace(second=0, microsecond=0)
    world.minutes(device, first, letter * number, memory_used_mib=47206.4,
                  memory_used_mib_max=47206.4, **means)  # fmt: skip


def _sample_times(now: datetime) -> list[datetime]:
    newest = now.replace(second=now.second // 10 * 10, microsecond=0)
    return [newest - timedelta(seconds=10 * back) for back in range(SAMPLES)]
