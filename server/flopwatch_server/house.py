"""What one server process holds, and how an endpoint reaches it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends, HTTPException, Request
from sqlalchemy.orm import Session

from flopwatch.gpus import PeakTable
from flopwatch_server.access.principal import Principal
from flopwatch_server.access.tokens import MachineIdentity
from flopwatch_server.access.visibility import is_staff
from flopwatch_server.clock import Clock, utc_now
from flopwatch_server.database.engine import Database
from flopwatch_server.settings import Settings


@dataclass
class House:
    """The parts that live as long as the server: `app.state.house`."""

    database: Database
    settings: Settings
    peaks: PeakTable
    clock: Clock = field(default=utc_now)


class NotFound(Exception):
    """The thing does not exist, or may not be seen, which is the same: 404."""


# The first three are asynchronous since FastAPI gives every synchronous one a thread of its own.


async def get_house(request: Request) -> House:
    """What this server process holds."""
    return cast(House, request.app.state.house)


async def get_principal(request: Request) -> Principal:
    """The person who asks, as the guard found out; there is no other source."""
    return cast(Principal, request.scope["state"]["principal"])


async def get_staff(principal: "PrincipalDep") -> Principal:
    """The person who asks, who is of the staff; for all others there is no such thing."""
    require_staff(principal)
    return principal


async def get_machine(request: Request) -> MachineIdentity:
    """The machine whose token the guard has checked."""
    return cast(MachineIdentity, request.scope["state"]["machine"])


def require_kind(machine: MachineIdentity, kind: str) -> None:
    """Refuse a token of another kind with 403."""
    if machine.kind != kind:
        raise HTTPException(403, f"this is a {machine.kind} token; a {kind} token is needed here")


def require_staff(principal: Principal) -> None:
    """Raise NotFound for whoever is not of the staff: what is theirs alone does not exist."""
    if not is_staff(principal):
        raise NotFound("no such thing")


HouseDep = Annotated[House, Depends(get_house)]


def get_session(house: HouseDep) -> Iterator[Session]:
    """One transaction for one request."""
    with house.database.session() as session:
        yield session


# "function": the commit comes before the answer, so whoever has an answer can rely on it.
SessionDep = Annotated[Session, Depends(get_session, scope="function")]
PrincipalDep = Annotated[Principal, Depends(get_principal)]
StaffDep = Annotated[Principal, Depends(get_staff)]
MachineDep = Annotated[MachineIdentity, Depends(get_machine)]
