"""The newest samples of a run's GPUs."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from flopwatch_server.telemetry.models import samples
from flopwatch_server.telemetry.repository.holdings import (
    AnyRow,
    held_by_run,
    instant,
    of_run,
    sample_counts,
)


def newest_of_run(
    session: Session, run_id: int, not_before: datetime, now: datetime
) -> Sequence[AnyRow]:
    """The newest sample of each allocation of a run after `not_before`, with all columns."""
    holding = held_by_run()
    return session.execute(
        select(holding.c.id, samples)
        .join(samples, sample_counts(holding))
        .where(samples.c.ts > instant(not_before))
        .ext(distinct_on(holding.c.id))
        .order_by(holding.c.id, samples.c.ts.desc(), samples.c.epoch_id.desc()),
        of_run(run_id, now),
    ).all()
