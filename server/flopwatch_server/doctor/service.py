"""Examines a cluster: all that the checks find, the worst first."""

from collections import Counter
from datetime import datetime
from typing import get_args

from sqlalchemy.orm import Session

from flopwatch_server.access.principal import Principal
from flopwatch_server.doctor import repository
from flopwatch_server.doctor.checks import CHECKS, Check, Finding, Patient
from flopwatch_server.doctor.schemas import (
    CheckView,
    Diagnosis,
    FindingView,
    Severity,
)
from flopwatch_server.efficiency.schemas import SourceStatus
from flopwatch_server.fleet.repository.clusters import the_cluster
from flopwatch_server.house import require_staff

_ORDER: tuple[Severity, ...] = get_args(Severity)


def examine(session: Session, cluster: str, now: datetime) -> list[Finding]:
    """What is wrong with a cluster now; NotFound if there is no such cluster.

    For staff: it names nodes and what the scheduler answers, and asks for no principal.
    """
    return [finding for _, finding in _worst_first(_patient(session, cluster, now))]


def diagnosis(session: Session, principal: Principal, cluster: str, now: datetime) -> Diagnosis:
    """What is wrong with a cluster, which checks were made, and what they looked at.

    Raises NotFound if there is no such cluster, and for whoever is not of the staff.
    """
    require_staff(principal)
    patient = _patient(session, cluster, now)
    found = _worst_first(patient)
    checks = [check for check, _ in found]
    sources = repository.sources(session, patient.cluster.id)
    agents, reporting = repository.agents(session, patient.cluster.id, patient.heard)
    seen = repository.capabilities(session, patient.cluster.id, patient.heard)
    forms = [found["cgroup"] for _, found in seen if "cgroup" in found]
    return Diagnosis(
        cluster=patient.cluster.name,
        examined_at=now,
        findings=[
            FindingView(check=_name(check), severity=finding.severity, what=finding.what,
                        remedy=finding.remedy)
            for check, finding in found
        ],
        checks=[
            CheckView(name=_name(check), looks_for=check.__doc__ or "",
                      findings=checks.count(check))
            for check in CHECKS
        ],
        version=next((source.version for source in sources if source.version), None),
        sources=[SourceStatus.model_validate(one, from_attributes=True) for one in sources],
        agents=agents,
        agents_reporting=reporting,
        cgroups=Counter(forms),
    )  # fmt: skip


def _patient(session: Session, cluster: str, now: datetime) -> Patient:
    return Patient(session, the_cluster(session, cluster), now)


def _worst_first(patient: Patient) -> list[tuple[Check, Finding]]:
    found = [(check, finding) for check in CHECKS for finding in check(patient)]
    return sorted(found, key=lambda pair: _ORDER.index(pair[1].severity))


def _name(check: Check) -> str:
    name = check.__name__.replace("_", " ")
    return name.replace("gpus", "GPUs").replace("gres conf", "gres.conf")
