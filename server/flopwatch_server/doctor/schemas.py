"""What the doctor tells, as API and page show it."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel

from flopwatch_server.efficiency.schemas import SourceStatus

Severity = Literal["fault", "warning", "note"]
"""A fault makes figures missing or wrong, a warning may, a note says where a figure rests on an
assumption."""


class FindingView(BaseModel):
    """What is wrong, what to do, and which check found it."""

    check: str
    severity: Severity
    what: str
    remedy: str


class CheckView(BaseModel):
    """A check that was made: its name, what it looks for, and how much it found."""

    name: str
    looks_for: str
    findings: int


class Diagnosis(BaseModel):
    """A cluster as the checks found it at `examined_at`: findings with the worst first.

    `agents_reporting` of `agents` nodes with an agent are not silent. `version` is Slurm's, None
    where it did not tell. `cgroups` are the nodes that report by the form that their agents see.
    """

    cluster: str
    examined_at: datetime
    findings: list[FindingView]
    checks: list[CheckView]
    version: str | None
    sources: list[SourceStatus]
    agents: int
    agents_reporting: int
    cgroups: dict[str, int]
