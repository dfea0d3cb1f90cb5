"""The one predicate that decides which runs a person may see."""

from typing import Any

from sqlalchemy import ColumnElement, SQLColumnExpression, false, or_, true

from flopwatch_server.access.principal import Principal, Role

STAFF: frozenset[Role] = frozenset({"admin", "support"})
ALL_STAFF = Principal("", "admin")
"""Who sees what any of the staff see."""


def is_staff(principal: Principal) -> bool:
    """Whether they run the cluster, and so see everything there is."""
    return principal.role in STAFF


def may_see(
    principal: Principal, user_name: SQLColumnExpression[Any], account: SQLColumnExpression[Any]
) -> ColumnElement[bool]:
    """SQL that is true for a run which `principal` may see, given the run's columns.

    Staff see all runs, a researcher their own, a manager also those of the accounts they
    coordinate. Repositories apply it to API, pages, exports and sockets alike; what may not be
    seen does not exist.
    """
    if is_staff(principal):
        return true()
    own = user_name == principal.name
    if principal.role == "manager" and principal.accounts:
        return or_(own, account.in_(principal.accounts))
    return own if principal.name else false()


def same_sight(principal: Principal) -> Principal:
    """One principal for all who see the same runs: what is read for it is read for all of them."""
    return ALL_STAFF if is_staff(principal) else principal
