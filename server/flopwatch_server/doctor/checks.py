"""What can be wrong with an installation, one function a check. Each finding says what to do.

The name of a check and its docstring are what the page lists of it: one plain sentence.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from sqlalchemy.orm import Session

from flopwatch_server.doctor import repository
from flopwatch_server.doctor.schemas import Severity
from flopwatch_server.efficiency.cluster_now import SILENT_AFTER
from flopwatch_server.fleet.models import Cluster
from flopwatch_server.scheduler.models import ASKED, OUTAGE_AFTER, TELL_HOLDINGS

LEAST_SKEW_SECONDS = 2.0
"""A clock this far off moves a fifth of a sample's 10 s into another job's time at a hand-over."""

OLDEST_SLURM = (21, 8)
NEWEST_SLURM = (26, 5)
"""From and to which version Slurm's answers are known: see docs/schedulers.md."""

_RELEASE = re.compile(r"(\d{2})\.(\d{2})\b")
_LATELY = timedelta(hours=1)
_REFUSALS_KEPT = timedelta(days=1)
_SETTLED = timedelta(minutes=10)  # by then a job's processes have been looked at many times
_MOST_NAMES = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, and what to do."""

    severity: Severity
    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Patient:
    """A cluster as it is at a moment."""

    session: Session
    cluster: Cluster
    now: datetime

    @property
    def heard(self) -> datetime:
        """Agents that reported since then are not silent."""
        return self.now - SILENT_AFTER


def scheduler_answers(patient: Patient) -> Iterator[Finding]:
    """Whether the scheduler is asked, and answers."""
    sources = repository.sources(patient.session, patient.cluster.id)
    for source in sources:
        if source.error is not None:
            yield _failing(source.kind, source.error, source.error_since)
    if not any(source.kind in TELL_HOLDINGS and source.last_success_at for source in sources):
        yield Finding(
            "fault",
            "no scheduler has ever told which jobs hold GPUs",
            "set FLOPWATCH_SLURM_CLUSTER for the server, and FLOPWATCH_SLURM_REST where Slurm's "
            "commands are missing, or post the feed",
        )
    asked = [source for source in sources if source.kind in ASKED]
    told = [source.last_success_at for source in asked if source.last_success_at]
    silent = bool(told) and max(told) < patient.now - OUTAGE_AFTER
    if silent and not any(source.error for source in asked):
        yield Finding(
            "fault",
            f"the scheduler has told nothing since {max(told):%Y-%m-%d %H:%M} UTC",
            "see whether the feed is still posted ('systemctl list-timers') or, with Slurm, "
            "whether the server, or 'flopwatch worker' and 'flopwatch beat', run",
        )


def _failing(kind: str, error: str, error_since: datetime | None) -> Finding:
    since = f"{error_since:%Y-%m-%d %H:%M} UTC" if error_since else "now"
    if kind == "feed":
        return Finding(
            "fault",
            f"the feed has been refused since {since}: {error}",
            "mend the line that the error names and post again: nothing of a refused body is kept",
        )
    return Finding(
        "fault",
        f"{kind} has not answered since {since}: {error}",
        "run the command that the error names, or call slurmrestd, as the server's user on its "
        "host",
    )


def version_is_known(patient: Patient) -> Iterator[Finding]:
    """Whether Slurm's version is one whose answers are known."""
    for source in repository.sources(patient.session, patient.cluster.id):
        release = _RELEASE.match(source.version or "")
        if release is None:
            continue
        found = int(release[1]), int(release[2])
        if found < OLDEST_SLURM:
            yield Finding(
                "fault",
                f"Slurm {source.version} is older than 21.08, the oldest that is read",
                "post the scheduler feed in place of it, or upgrade Slurm",
            )
        if found > NEWEST_SLURM:
            yield Finding(
                "note",
                f"Slurm {source.version} is newer than 26.05, the newest whose answers were tried",
                "nothing, as long as no records are left out; look for a newer Flopwatch",
            )


def answers_are_read(patient: Patient) -> Iterator[Finding]:
    """Whether all of the scheduler's records could be read."""
    since = patient.now - _REFUSALS_KEPT
    for refusal in repository.refusals(patient.session, patient.cluster.id, since):
        yield Finding(
            "fault",
            f"records of the call '{refusal.call}' were left out {refusal.count} "
            f"time{'' if refusal.count == 1 else 's'} since "
            f"{refusal.first_at:%Y-%m-%d %H:%M} UTC: {refusal.problem}",
            "report this line with the output of 'sinfo --version'; all other records are read",
        )


def agents_report(patient: Patient) -> Iterator[Finding]:
    """Whether every node with GPUs has an agent that reports."""
    session, cluster_id = patient.session, patient.cluster.id
    if names := repository.silent(session, cluster_id, patient.heard):
        yield Finding(
            "fault",
            f"agents are silent on {_listed(names)}",
            "look at 'systemctl status flopwatch-agent' there; nodes that are off are expected",
        )
    if names := repository.without_agent(session, cluster_id):
        yield Finding(
            "warning",
            f"nodes with GPUs whose agent has never reported: {_listed(names)}",
            "install the agent there; until then their jobs have no figures",
        )


def counters_may_be_read(patient: Patient) -> Iterator[Finding]:
    """Whether agents may read all counters of their GPUs."""
    rows = repository.metrics_refused(patient.session, patient.cluster.id, patient.heard)
    if rows:
        metrics = sorted({metric for _, refused in rows for metric in refused})
        yield Finding(
            "fault",
            f"agents may not read {_listed(metrics)} on {_listed(name for name, _ in rows)}",
            "run the agent as root with CAP_SYS_ADMIN, as deploy/systemd does, or let all users "
            "profile: 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' in /etc/modprobe.d",
        )


def names_agree(patient: Patient) -> Iterator[Finding]:
    """Whether agents call their nodes what the scheduler calls them."""
    if names := repository.strangers(patient.session, patient.cluster.id, patient.heard):
        yield Finding(
            "fault",
            f"agents report from {_listed(names)}, of which the scheduler does not tell",
            "start those agents with --node and Slurm's name of the node (scontrol show node)",
        )


def clocks_agree(patient: Patient) -> Iterator[Finding]:
    """Whether the nodes' clocks go with the server's."""
    rows = repository.skews(patient.session, patient.cluster.id, patient.heard, LEAST_SKEW_SECONDS)
    if rows:
        told = [f"{name} ({skew:+.1f} s)" for name, skew in rows]
        yield Finding(
            "warning",
            f"clocks are off on {_listed(told)}",
            "let chrony or ntpd keep them: at a hand-over seconds of one job count for the next",
        )


def counts_agree(patient: Patient) -> Iterator[Finding]:
    """Whether agents see as many GPUs as the scheduler gives out."""
    rows = repository.counts(patient.session, patient.cluster.id, patient.heard)
    if rows:
        told = [f"{name} ({seen} of {expected})" for name, expected, seen in rows]
        yield Finding(
            "warning",
            f"agents see another number of GPUs than the scheduler on {_listed(told)}",
            "see 'nvidia-smi -L' there: a GPU may have fallen off the bus, or MIG been set up anew",
        )


def positions_are_known(patient: Patient) -> Iterator[Finding]:
    """Whether it is known, or assumed, which GPU stands at which GRES position."""
    session, cluster_id = patient.session, patient.cluster.id
    if names := repository.assumed_order(session, cluster_id, patient.heard):
        yield Finding(
            "note",
            f"which GPU stands at which GRES position is assumed on {_listed(names)}",
            "let the agent read gres.conf; with AutoDetect the order of the minors is right as a "
            "rule, and processes that contradict it are shown as disputed",
        )
    if rows := repository.disputed(session, cluster_id):
        told = [f"{name} ({gpus})" for name, gpus in rows]
        yield Finding(
            "fault",
            f"processes of other jobs compute on allocated GPUs on {_listed(told)}",
            "compare 'scontrol show job -d' with 'nvidia-smi' there: gres.conf may name another "
            "order, or devices are not confined (ConstrainDevices in cgroup.conf)",
        )


def gres_conf_is_read(patient: Patient) -> Iterator[Finding]:
    """Whether agents may read the gres.conf that is there."""
    rows = repository.capabilities(patient.session, patient.cluster.id, patient.heard)
    troubled = [f"{name} ({trouble})" for name, seen in rows if (trouble := seen.get("gres_conf"))]
    if troubled:
        yield Finding(
            "warning",
            f"agents can't read gres.conf on {_listed(troubled)}",
            "let the agent's user read it, and slurm.conf beside it: until then it is assumed "
            "which GPU stands at which position",
        )


def job_cgroups_are_seen(patient: Patient) -> Iterator[Finding]:
    """Whether agents see the cgroups of jobs, and by their names whose they are."""
    session, cluster_id = patient.session, patient.cluster.id
    rows = repository.capabilities(session, cluster_id, patient.heard)
    blind = [name for name, seen in rows if seen.get("cgroup") == "none"]
    nameless = [name for name, seen in rows if seen.get("job_cgroups") == "SLUID"]
    busy = set(repository.nodes_with_jobs(session, cluster_id, patient.now - _SETTLED))
    without = [
        name for name, seen in rows
        if seen.get("job_cgroups") == "none" and name in busy and name not in blind
    ]  # fmt: skip
    if blind:
        yield Finding(
            "warning",
            f"agents see no cgroups at all on {_listed(blind)}",
            "let the agent see the host's /sys/fs/cgroup, or start it with --cgroup and the place "
            "where that is; until then CPU and memory of jobs are unknown",
        )
    if nameless:
        yield Finding(
            "warning",
            f"the names of jobs' cgroups tell no job id on {_listed(nameless)}",
            "set CgroupJobIdPaths=yes in cgroup.conf (Slurm 26.05): until then only its "
            "environment says whose a process is, which proves nothing, and a job has MFU only "
            "where prolog files (deploy/slurm) say the same",
        )
    if without:
        yield Finding(
            "warning",
            f"jobs run on {_listed(without)}, and agents see no cgroup of a job there",
            "set ProctrackType=proctrack/cgroup in slurm.conf: until then, and under another "
            "scheduler, only its environment says whose a process is, which proves nothing, and a "
            "job has MFU only where files of a job-start hook say the same (docs/schedulers.md)",
        )


def gpus_are_counted(patient: Patient) -> Iterator[Finding]:
    """Whether Slurm keeps account of GPUs."""
    if runs := repository.uncounted_runs(patient.session, patient.cluster.id):
        yield Finding(
            "warning",
            f"{runs} running job{' holds' if runs == 1 else 's hold'} GPUs that Slurm does not "
            "count",
            "add gres/gpu to AccountingStorageTRES in slurm.conf: sacct can't tell GPU hours else",
        )


def processes_are_seen(patient: Patient) -> Iterator[Finding]:
    """Whether agents see any job at all, while the scheduler has some."""
    session, cluster_id, now = patient.session, patient.cluster.id, patient.now
    runs = repository.unseen_runs(session, cluster_id, now - _SETTLED, patient.heard)
    if runs and not repository.has_evidence(session, cluster_id, now - _LATELY):
        yield Finding(
            "warning",
            f"{runs} job{' runs' if runs == 1 else 's run'} on nodes whose agents see no process "
            "of any job",
            "agents need the host's /proc and PID namespace, and either cgroup paths with job ids "
            "(with Slurm 26.05 set CgroupJobIdPaths=yes) or root's right to read environments that "
            "name the job (docs/schedulers.md); prolog files (deploy/slurm) do as well",
        )


class Check(Protocol):
    """One of the functions above."""

    __name__: str

    def __call__(self, patient: Patient, /) -> Iterable[Finding]: ...


CHECKS: tuple[Check, ...] = (
    scheduler_answers,
    version_is_known,
    answers_are_read,
    agents_report,
    counters_may_be_read,
    names_agree,
    clocks_agree,
    counts_agree,
    positions_are_known,
    gres_conf_is_read,
    job_cgroups_are_seen,
    gpus_are_counted,
    processes_are_seen,
)


def _listed(names: Iterable[str]) -> str:
    """ "g1, g2 and 30 more"."""
    all_names = list(names)
    shown, rest = all_names[:_MOST_NAMES], len(all_names) - _MOST_NAMES
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")
