"""What waits on a cluster, why, and for how many GPUs."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from flopwatch_server.access.principal import Principal
from flopwatch_server.fleet.repository.clusters import the_cluster
from flopwatch_server.jobs import repository
from flopwatch_server.jobs.identity import waiting_tasks
from flopwatch_server.jobs.pending import PendingClass, pending_class
from flopwatch_server.jobs.schemas import WaitingDemand, WaitingGroup
from flopwatch_server.scheduler.repository import sources


def waiting_demand(session: Session, principal: Principal, cluster: str) -> WaitingDemand:
    """The waiting runs that `principal` may see, by class and account; raises NotFound.

    The rest of an array that waits is one run and stands for as many tasks as its id lists.
    """
    found = the_cluster(session, cluster)
    groups: dict[tuple[PendingClass, str], WaitingGroup] = {}
    for reason, account, gpus, rest_of_array, runs in repository.waiting(
        session, principal, found.id
    ):
        key = pending_class(reason), account
        group = groups.setdefault(key, WaitingGroup(pending_class=key[0], account=account))
        tasks = 1 if rest_of_array is None else _number(waiting_tasks(rest_of_array))
        group.runs += runs
        if tasks is not None:
            group.tasks += runs * tasks
        if tasks is None or gpus is None:
            group.unknown_runs += runs
        else:
            group.gpus += runs * tasks * gpus
    return WaitingDemand(
        cluster=found.name,
        told_at=sources.jobs_told_at(session, found.id),
        groups=[groups[key] for key in sorted(groups)],
    )


def _number(tasks: Sequence[range] | None) -> int | None:
    return None if tasks is None else sum(map(len, tasks))
