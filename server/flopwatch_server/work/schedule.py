"""The list of everything that is done again and again."""

from flopwatch_server.database import partitions
from flopwatch_server.efficiency.cluster_now import KEEP_PERIOD_SECONDS, keep_clusters
from flopwatch_server.efficiency.rollups import recompute_mfus, recompute_use
from flopwatch_server.fleet.repository.clusters import every_cluster
from flopwatch_server.house import House
from flopwatch_server.jobs import service as jobs
from flopwatch_server.jobs.local import service as local
from flopwatch_server.people.service import thin_shares
from flopwatch_server.scheduler.records import Scheduler
from flopwatch_server.scheduler.slurm import Slurm
from flopwatch_server.scheduler.slurm.rest import Client, SlurmRest
from flopwatch_server.settings import Settings
from flopwatch_server.telemetry.minutes import recompute_hours, recompute_minutes
from flopwatch_server.telemetry.retention import drop_expired
from flopwatch_server.work.poll import SlurmPoll
from flopwatch_server.work.tasks import Task

_CLOSE_PERIOD_SECONDS = 60
_HISTORY_PERIOD_SECONDS = 120
_RESERVATIONS_PERIOD_SECONDS = 120
_SHARES_PERIOD_SECONDS = 300
_VERSION_PERIOD_SECONDS = 3600
_RULES_PERIOD_SECONDS = 600


def periodic_tasks(settings: Settings) -> list[Task]:
    """All periodic work that these settings call for."""
    tasks = [
        Task("partitions", 3600, make_partitions),
        Task("minutes", 2, recompute_minutes),
        Task("silent local runs", 60, close_silent_runs),
        Task("attribution", 10, attribute_devices),
        Task("clusters now", KEEP_PERIOD_SECONDS, keep_clusters),
        Task("hours", 300, recompute_hours),
        Task("use", 20, recompute_use),
        Task("mfu", 60, recompute_mfus),
        Task("retention", 3600, drop_expired),
        Task("old shares", 3600, thin_shares),
    ]
    if settings.slurm_cluster:
        poll = SlurmPoll(settings.slurm_cluster, _slurm(settings, settings.slurm_cluster))
        tasks += [
            Task("slurm queue", settings.slurm_poll_seconds, poll.read_queue),
            Task("slurm accounting", _CLOSE_PERIOD_SECONDS, poll.close_runs),
            Task("slurm history", _HISTORY_PERIOD_SECONDS, poll.import_history),
            Task("slurm reservations", _RESERVATIONS_PERIOD_SECONDS, poll.read_reservations),
            Task("slurm shares", _SHARES_PERIOD_SECONDS, poll.read_shares),
            Task("slurm version", _VERSION_PERIOD_SECONDS, poll.read_version),
            Task("slurm queue rules", _RULES_PERIOD_SECONDS, poll.read_queue_rules),
        ]
    return tasks


def _slurm(settings: Settings, cluster: str) -> Scheduler:
    """The cluster's Slurm, by its commands or by slurmrestd."""
    if settings.slurm_rest is None:
        return Slurm(cluster)
    client = Client(settings.slurm_rest, settings.slurm_rest_user, settings.slurm_rest_token_file)
    return SlurmRest(cluster, client)


def make_partitions(house: House) -> None:
    """Make the partitions of samples, minutes and hours ahead of time."""
    with house.database.session() as session:
        partitions.ensure(session, house.clock())


def attribute_devices(house: House) -> None:
    """Give allocations their devices; agents may tell of these after the scheduler told of runs."""
    with house.database.session() as session:
        clusters = [cluster.id for cluster in every_cluster(session)]
    for cluster_id in clusters:
        with house.database.session() as session:
            jobs.attribute(session, cluster_id, house.clock())


def close_silent_runs(house: House) -> None:
    """End, for all that is known, local runs of which no agent tells any more."""
    with house.database.session() as session:
        local.close_silent(session, house.clock())
