"""The address of the browser: the only state of a page."""

from dataclasses import dataclass, field
from urllib.parse import parse_qs, quote, unquote, urlencode

from flopwatch_dashboard.services import Visit
from flopwatch_server.fleet import service as fleet
from flopwatch_server.fleet.schemas import ClusterView
from flopwatch_server.house import NotFound


@dataclass(frozen=True)
class Address:
    """A path, decoded, and the values of its query: each key once, lists joined by commas."""

    path: str
    query: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, path: str | None, search: str | None) -> "Address":
        """From what the browser tells: "/jobs", "?state=RUNNING,PENDING"."""
        values = parse_qs((search or "").lstrip("?"), keep_blank_values=True)
        return cls(unquote(path or "/"), {key: found[-1] for key, found in values.items()})

    def words(self, key: str) -> tuple[str, ...]:
        """The comma-separated values of `key`."""
        return tuple(word for word in self.query.get(key, "").split(",") if word)


@dataclass(frozen=True)
class Place:
    """An address on a cluster. `parts` are those of the page's path; no cluster, `cluster` None."""

    address: Address
    parts: dict[str, str]
    clusters: tuple[ClusterView, ...]
    cluster: ClusterView | None


def find_place(visit: Visit, address: Address, parts: dict[str, str]) -> Place:
    """The cluster that an address speaks of: its path, its query, else the first that is real.

    Raises NotFound for a name that no cluster has.
    """
    clusters = tuple(sorted(fleet.clusters(visit.session), key=lambda found: found.simulated))
    name = parts.get("cluster") or address.query.get("cluster")
    if name is None:
        return Place(address, parts, clusters, clusters[0] if clusters else None)
    for cluster in clusters:
        if cluster.name == name:
            return Place(address, parts, clusters, cluster)
    raise NotFound(f"no cluster {name}")


def job_path(cluster: str, job_id: str) -> str:
    """The address of a job's page."""
    return f"/jobs/{quote(cluster, safe='')}/{quote(job_id, safe='')}"


def jobs_path(**query: str) -> str:
    """The address of the jobs list with filters."""
    return f"/jobs?{urlencode(query, safe=',')}" if query else "/jobs"
