"""A small cluster for tests of what is read: rows put in by hand, from one time zero."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateTable

from flopwatch.gpus import PeakTable
from flopwatch_server.access.principal import Principal
from flopwatch_server.database.partitions import ensure_days
from flopwatch_server.efficiency.rollups import count_use, remember_mfus
from flopwatch_server.fleet.models import AgentEpoch, Cluster, Device, Node, Placement
from flopwatch_server.jobs.models import Allocation, Run
from flopwatch_server.jobs.schemas import RunView
from flopwatch_server.jobs.service import find_run
from flopwatch_server.scheduler.models import NodeState
from flopwatch_server.scheduler.records import service_of
from flopwatch_server.settings import Retention
from flopwatch_server.telemetry.models import (
    STATES,
    STEP,
    HookCounter,
    device_minutes,
    dirty_steps,
    samples,
)
from flopwatch_server.telemetry.repository.rollups import marked

T0 = datetime(2026, 3, 12, 9, 0, tzinfo=UTC)
H100 = "NVIDIA H100 80GB HBM3"
Thing = TypeVar("Thing")
ADMIN = Principal("ada", "admin")
_WORDS = {"A": "active", "L": "low", "I": "idle", "U": "unknown"}


def at(minutes: float, seconds: float = 0) -> datetime:
    """A time after time zero."""
    return T0 + timedelta(minutes=minutes, seconds=seconds)


@dataclass
class World:
    """One cluster in one database; every method puts one thing in and returns its row."""

    session: Session
    cluster: Cluster = field(init=False)

    def __post_init__(self) -> None:
        self.cluster = self.add(Cluster(name="granite", simulated=False, created_at=T0))
        ensure_days(self.session, [(T0 + timedelta(days)).date() for days in (0, 1)])

    def add(self, row: Thing) -> Thing:
        self.session.add(row)
        self.session.flush()
        return row

    def node(self, name: str = "g1", **columns: Any) -> Node:
        node = self.add(Node(cluster_id=self.cluster.id, name=name, **columns))
        if node.scheduler_state is not None:
            service = service_of(node.scheduler_state)
            since = T0 - timedelta(days=1)
            self.add(NodeState(node_id=node.id, valid_from=since, service=service))
        self.add(AgentEpoch(node_id=node.id, boot_id=name, number=1, started_at=T0,
                            agent_version="0.1.0"))  # fmt: skip
        return node

    def gpus(self, node: Node, count: int, model: str = H100) -> list[Device]:
        return [self.gpu(node, ordinal, model) for ordinal in range(count)]

    def gpu(self, node: Node, ordinal: int, model: str = H100) -> Device:
        device = self.add(
            Device(uuid=f"GPU-{node.name}-{ordinal}", instance="", profile="", valid_from=T0,
                   model=model, memory_mib=81559.0, power_limit_watts=700.0)
        )  # fmt: skip
        self.add(Placement(device_id=device.id, valid_from=T0, node_id=node.id, minor=ordinal,
                           gres_ordinal=ordinal, ordinal_source="minor order"))  # fmt: skip
        return device

    def run(self, raw_job_id: int = 100, start: datetime | None = T0, **columns: Any) -> Run:
        known = {
            "state": "PENDING" if start is None else "RUNNING", "submitted_at": T0,
            "display_id": str(raw_job_id), "name": "llama", "user_name": "mchen",
            "account": "nlp", "partition": "gpu", "qos": "normal", "reason": "",
            "suspended_seconds": 0, "restarts": 0, "gpu_count": 1,
        }  # fmt: skip
        return self.add(Run(cluster_id=self.cluster.id, raw_job_id=raw_job_id, started_at=start,
                            **known | columns))  # fmt: skip

    def hold(
        self, run: Run, node: Node, device: Device | None, ordinal: int | None = 0,
        start: datetime | None = None, end: datetime | None = None, **columns: Any,
    ) -> Allocation:  # fmt: skip
        known = {"place": ordinal or 0, "shared": False, "source": "slurm", "confidence": "likely"}
        return self.add(
            Allocation(
                run_id=run.id, node_id=node.id, gres_ordinal=ordinal,
                device_id=device.id if device else None,
                valid_from=start or run.started_at, valid_to=end, **known | columns,
            )
        )  # fmt: skip

    def minutes(
        self, device: Device, start: datetime, states: str, **columns: float | None
    ) -> None:
        """One device-minute a letter of `states`: A, L, I, U; a space leaves one out."""
        minutes = {
            start + timedelta(minutes=number): letter
            for number, letter in enumerate(states)
            if letter != " "
        }
        self.minutes_at_once(device, minutes, **columns)

    def minute(self, device: Device, minute: datetime, state: str, **columns: float | None) -> None:
        letter = next(letter for letter, word in _WORDS.items() if word == state)
        self.minutes_at_once(device, {minute: letter}, **columns)

    def minutes_at_once(
        self, device: Device, minutes: Mapping[datetime, str], **columns: float | None
    ) -> None:
        """Device-minutes by their start, with the marks that the task leaves which makes them."""
        if not minutes:
            return
        ensure_days(self.session, {minute.date() for minute in minutes})
        known = {"samples_received": 6, "samples_expected": 6, "samples_suspect": 0} | columns
        self.session.execute(
            insert(device_minutes),
            [
                {"device_id": device.id, "minute": minute,
                 "state": STATES.index(_WORDS[letter]), **known}
                for minute, letter in minutes.items()
            ],
        )  # fmt: skip
        steps = {minute - (minute - T0) % STEP for minute in minutes}
        self.session.execute(
            insert(dirty_steps), [{"device_id": device.id, "step": step} for step in sorted(steps)]
        )

    def count_use(self, now: datetime) -> None:
        """Do what the periodic tasks do for overview and jobs list."""
        self.session.execute(CreateTable(marked, if_not_exists=True))
        more = True
        while more:
            self.session.execute(delete(marked))  # which the end of each turn's transaction does
            more = count_use(self.session, now, Retention())
        remember_mfus(self.session, PeakTable.load(), now)

    def samples(
        self, device: Device, times: Iterable[datetime], epoch_id: int | None = None,
        **columns: float | None,
    ) -> None:  # fmt: skip
        epoch = epoch_id or self.session.scalars(select(func.min(AgentEpoch.id))).one()
        for ts in times:
            self.session.execute(
                insert(samples).values(device_id=device.id, epoch_id=epoch, ts=ts, **columns)
            )

    def report(
        self, run: Run, node: Node, received_at: datetime, flops: Mapping[str, float],
        train_seconds: float, rank: int = 0, boot: str = "b", **columns: Any,
    ) -> HookCounter:  # fmt: skip
        known = {
            "pid": 1, "uid": 1, "world_size": 1, "device_name": H100, "device_uuid": None,
            "forward_only_flops": {}, "elapsed_seconds": train_seconds, "steps": 1,
            "phase_seconds": {}, "convention": "palm", "reason": None, "dropped": 0,
        }  # fmt: skip
        return self.add(
            HookCounter(
                node_id=node.id, boot=boot, rank=rank, sequence=int(received_at.timestamp()),
                cluster_id=self.cluster.id, raw_job_id=run.raw_job_id, received_at=received_at,
                train_flops=dict(flops), train_seconds=train_seconds, **known | columns,
            )
        )  # fmt: skip

    def view(self, run: Run, now: datetime) -> RunView:
        return find_run(self.session, ADMIN, "granite", run.display_id, now)
