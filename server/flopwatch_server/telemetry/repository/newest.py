"""The newest samples: of a run's GPUs, and of a whole cluster."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Row, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from flopwatch_server.fleet.models import AgentEpoch, Device, Node, Placement
from flopwatch_server.telemetry.models import samples
from flopwatch_server.telemetry.repository.holdings import (
    AnyRow,
    held,
    instant,
    of_run,
    sample_counts,
)


def newest_of_run(
    session: Session, run_id: int, not_before: datetime, now: datetime
) -> Sequence[AnyRow]:
    """The newest sample of each allocation of a run after `not_before`, with all columns."""
    holding = held(now, of_run(run_id))
    return session.execute(
        select(holding.c.id, samples)
        .join(samples, sample_counts(holding))
        .where(samples.c.ts > instant(not_before))
        .ext(distinct_on(holding.c.id))
        .order_by(holding.c.id, samples.c.ts.desc(), samples.c.epoch_id.desc())
    ).all()


def newest_power(
    session: Session, cluster_id: int, not_before: datetime, now: datetime
) -> Sequence[Row[int, datetime, float | None, float | None]]:
    """The newest sample of every device that sits in the cluster.

    Gives (device id, ts, power_watts, limit of the board in watts).
    """
    return session.execute(
        select(
            samples.c.device_id, samples.c.ts, samples.c.power_watts, Device.power_limit_watts
        )
        .join(Device, Device.id == samples.c.device_id)
        .join(Placement, Placement.device_id == Device.id)
        .join(Node, Node.id == Placement.node_id)
        # The epochs of the node let the primary key find the few newest rows.
        .join(
            AgentEpoch,
            (AgentEpoch.node_id == Node.id) & (AgentEpoch.id == samples.c.epoch_id),
        )
        .where(
            Node.cluster_id == cluster_id, Placement.valid_to.is_(None),
            samples.c.ts > instant(not_before), samples.c.ts <= instant(now),
        )
        .ext(distinct_on(samples.c.device_id))
        .order_by(samples.c.device_id, samples.c.ts.desc())
    ).all()  # fmt: skip
