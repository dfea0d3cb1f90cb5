"""The jobs list: one block of rows with what each job got out of its GPUs, and the facets."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from sqlalchemy import Select
from sqlalchemy.orm import Session

from flopwatch.gpus import PeakTable
from flopwatch_server.access.principal import Principal
from flopwatch_server.efficiency import mfu
from flopwatch_server.efficiency.repository import listing, present
from flopwatch_server.efficiency.schemas import JobFacets, JobPage, JobQuery, JobRow
from flopwatch_server.efficiency.service import gpus_now, state_of_run
from flopwatch_server.fleet.repository.clusters import the_cluster
from flopwatch_server.jobs.repository import to_view
from flopwatch_server.telemetry.repository import AnyRow
from flopwatch_server.telemetry.repository.reports import newest_reports


def job_page(session: Session, principal: Principal, query: JobQuery, now: datetime) -> JobPage:
    """The rows that a query asks for, of the runs that `principal` may see.

    Raises NotFound for a name that is no cluster.
    """
    if query.cluster is not None:
        the_cluster(session, query.cluster)
    ids = listing.matching(principal, query, now)
    total, gpus = listing.totals(session, ids)
    rows = job_rows(session, principal, ids, query.sort, query.offset, query.limit, now)
    return JobPage(rows=rows, total=total, gpus=gpus)


def job_rows(
    session: Session, principal: Principal, ids: Select[int], sort: str, offset: int, limit: int,
    now: datetime,
) -> list[JobRow]:  # fmt: skip
    """One block of these runs in order, each with its figures and its GPUs now.

    Its figures lag behind the minutes by a minute at most, MFU behind the newest reports.
    """
    rows = listing.rows(session, principal, ids, sort, offset, limit, now)
    on_page = [row[0].id for row in rows]
    states: dict[int, list[str]] = {}
    idle_since: dict[int, datetime] = {}
    for _, run_id, state, since in present.states_of(session, on_page, now):
        states.setdefault(run_id, []).append(state)
        if since is not None:  # all of its GPUs that are idle now have been so, not only the first
            idle_since[run_id] = max(since, idle_since.get(run_id, since))
    sparks = listing.sparks(session, on_page, now)
    return [_job_row(row, states.get(row[0].id, []), idle_since, sparks, now) for row in rows]


def job_facets(
    session: Session, principal: Principal, cluster: str | None, now: datetime
) -> JobFacets:
    """How many of the visible jobs carry each value, over what the list shows unfiltered."""
    ids = listing.matching(principal, JobQuery(cluster=cluster), now)
    names = ("state", "user", "account", "partition")
    found: dict[str, dict[str, int]] = {name: {} for name in names}
    for row in listing.facets(session, ids):
        name, value = next((name, row[i]) for i, name in enumerate(names) if row[i] is not None)
        found[name][value] = row[-1]
    return JobFacets(**found)


def train_mfus(
    session: Session, run_ids: Collection[int], peaks: PeakTable, now: datetime
) -> dict[int, float | None]:
    """Train MFU by run, of the runs whose training processes report; None where it is not known."""
    newest = newest_reports(session, run_ids, now)
    return {run_id: mfu.of_run(group, None, peaks).train_mfu for run_id, group in newest.items()}


def _job_row(
    row: AnyRow,
    states: Iterable[str],
    idle_since: Mapping[int, datetime],
    sparks: Mapping[int, list[float | None]],
    now: datetime,
) -> JobRow:
    run = to_view(row, now)
    counts = gpus_now(run, states)
    return JobRow(
        **run.model_dump(),
        state_now=state_of_run(run, counts),
        gpus_now=counts,
        sm_active=row.sm_active,
        tensor_active=row.tensor_active,
        dram_active=row.dram_active,
        power_watts=row.power_watts,
        mfu=row.mfu,
        idle_gpu_hours=row.idle_gpu_hours,
        idle_since=idle_since.get(run.id),
        spark=sparks[run.id],
    )
