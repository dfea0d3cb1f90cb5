"""How complete what is known of a run is: samples that came, and reasons for what is missing."""

from datetime import datetime
from typing import Any

from sqlalchemy import Integer, cast, func, or_, select
from sqlalchemy.orm import Session

from flopwatch_server.efficiency.repository.figures import newest_minute
from flopwatch_server.telemetry.models import MetricState, device_minutes
from flopwatch_server.telemetry.repository import (
    AnyRow,
    held_by_run,
    instant,
    minute_counts,
    of_run,
)


def samples_received(session: Session, run_id: int, now: datetime) -> int:
    """Samples inside the whole, complete minutes in which the run alone held the GPU."""
    holding = held_by_run()
    count: Any = func.coalesce(func.sum(device_minutes.c.samples_received), 0)
    return session.execute(
        select(cast(count, Integer))
        .join(holding, minute_counts(holding))
        .where(~holding.c.shared, device_minutes.c.minute <= instant(newest_minute(now))),
        of_run(run_id, now),
    ).scalar_one()


def missing_metrics(session: Session, run_id: int, now: datetime) -> list[AnyRow]:
    """(metric, reason, GPUs) of what GPUs of the run lacked as long as they were held, by metric.

    The reason is that at the end of the allocation, or now; most GPUs first.
    """
    holding = held_by_run()
    gpus = func.count(holding.c.id.distinct())
    return list(
        session.execute(
            select(MetricState.metric, MetricState.reason, gpus.label("gpus"))
            .join(holding, holding.c.device_id == MetricState.device_id)
            .where(
                MetricState.valid_from < holding.c.until,
                or_(MetricState.valid_to.is_(None), MetricState.valid_to >= holding.c.until),
            )
            .group_by(MetricState.metric, MetricState.reason)
            .order_by(MetricState.metric, gpus.desc(), MetricState.reason),
            of_run(run_id, now),
        ).all()
    )
