"""Fair share as API and pages show it. Ratios are fractions; None is unknown, or has no meaning."""

import math
from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, PlainSerializer

Spelt = float | Literal["Infinity"]
"""JSON has no number for it, and null would say that it is unknown."""


def _spelt(value: float) -> Spelt:
    return "Infinity" if math.isinf(value) else value


LevelFs = Annotated[float, PlainSerializer(_spelt, return_type=Spelt, when_used="json")]


class ShareValues(BaseModel):
    """What a scheduler tells of the fair share of an association; see `ShareRecord`."""

    norm_shares: float | None = None
    raw_usage: int | None = None
    effective_usage: float | None = None
    fair_share: float | None = None
    level_fs: LevelFs | None = None


class AssociationShare(ShareValues):
    """The fair share of a user in an account or, with `user` None, of the account itself.

    `parent` is the account above an account. `changed_at` is since when the figures are told as
    they are now; None while there are none.
    """

    account: str
    user: str | None
    partition: str
    parent: str | None
    raw_shares: int | None
    changed_at: datetime | None


class SharesTold(BaseModel):
    """Fair share was told last at `told_at`: None if no scheduler ever told of it.

    `error` says why it is not told any more, since `error_since`.
    """

    told_at: datetime | None
    error: str | None
    error_since: datetime | None


class FairShare(SharesTold):
    """The fair share of a cluster."""

    cluster: str
    shares: list[AssociationShare]


class SharePoint(ShareValues):
    """Figures that were told at a time, and held until the next."""

    at: datetime


class ShareHistory(BaseModel):
    """The fair share of one association over time, to the hour; `gone_at` is when it ended."""

    cluster: str
    account: str
    user: str | None
    partition: str
    gone_at: datetime | None
    points: list[SharePoint]
