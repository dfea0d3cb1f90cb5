"""Examines a cluster: all that the checks find, the worst first."""

from datetime import datetime

from sqlalchemy.orm import Session

from flopwatch_server.doctor.checks import CHECKS, Finding, Patient, Severity
from flopwatch_server.fleet.repository.clusters import the_cluster

_ORDER: tuple[Severity, ...] = ("fault", "warning", "note")


def examine(session: Session, cluster: str, now: datetime) -> list[Finding]:
    """What is wrong with a cluster now; NotFound if there is no such cluster.

    For staff: it names nodes and what the scheduler answers, and asks for no principal.
    """
    patient = Patient(session, the_cluster(session, cluster), now)
    findings = [finding for check in CHECKS for finding in check(patient)]
    return sorted(findings, key=lambda finding: _ORDER.index(finding.severity))
