"""Fair share over HTTP."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query

from flopwatch_server.database.text import Word
from flopwatch_server.house import HouseDep, PrincipalDep, SessionDep
from flopwatch_server.people import service
from flopwatch_server.people.schemas import FairShare, ShareHistory

router = APIRouter(prefix="/fair-share")


@router.get("")
def fair_share(session: SessionDep, principal: PrincipalDep, cluster: Word) -> FairShare:
    """Shares, usage and fair share of accounts and of their users, as told last."""
    return service.fair_share(session, principal, cluster)


@router.get("/history")
def history(
    session: SessionDep, principal: PrincipalDep, house: HouseDep, cluster: Word, account: Word,
    user: Annotated[Word | None, Query(description="The account itself, if not given.")] = None,
    partition: Word = "",
    days: Annotated[int, Query(ge=1, le=366)] = 30,
) -> ShareHistory:  # fmt: skip
    """The fair share of one account, or of one user in it, over the last days."""
    since = house.clock() - timedelta(days)
    return service.share_history(session, principal, cluster, account, user, since, partition)
