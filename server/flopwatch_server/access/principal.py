"""Who asks."""

from dataclasses import dataclass, field
from typing import Literal

Role = Literal["admin", "support", "manager", "researcher"]


@dataclass(frozen=True, slots=True)
class Principal:
    """A person who has signed in. `accounts` are those that a manager coordinates."""

    name: str
    role: Role
    accounts: frozenset[str] = field(default_factory=frozenset)
