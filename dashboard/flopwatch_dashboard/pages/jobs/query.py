"""The filters of the jobs list, as they stand in the address.

`state`, `partition`, `account` and `user` are lists joined by commas, `q` is searched in name, user
and job id, `gpus=any` brings in jobs without GPUs, `sort` is a name of the service's list with a
"-" for highest first. Without `state` running and pending jobs are shown, or all if `q` is given.
"""

from typing import Any

from flopwatch_dashboard.address import Place
from flopwatch_server.efficiency.schemas import SORTS, JobQuery

DEFAULT_STATES = ("RUNNING", "PENDING")
DEFAULT_SORT = "-idle_gpu_hours"
ANY = "any"
STATE_LABELS = {
    "RUNNING": "Running",
    "PENDING": "Pending",
    "COMPLETED": "Completed",
    "FAILED": "Failed",
    "TIMEOUT": "Timed out",
    "OUT_OF_MEMORY": "Out of memory",
    "CANCELLED": "Cancelled",
    "NODE_FAIL": "Node failed",
    "UNKNOWN": "Unknown",
}
_MOST_VALUES = 50
_LONGEST_WORD = 256


def states_of(place: Place) -> tuple[str, ...]:
    """The states asked for; none means all."""
    asked = place.address.query.get("state")
    if asked is None:
        return () if text_of(place) else DEFAULT_STATES
    return () if asked == ANY else _words(place, "state")


def text_of(place: Place) -> str:
    """The text that is searched for."""
    return place.address.query.get("q", "").replace("\0", "").strip()[:_LONGEST_WORD]


def sort_of(place: Place) -> str:
    """The order asked for, or the default if that is none."""
    asked = place.address.query.get("sort", DEFAULT_SORT)
    return asked if asked.removeprefix("-") in SORTS else DEFAULT_SORT


def wants_gpus(place: Place) -> bool:
    """Whether jobs without GPUs stay out."""
    return place.address.query.get("gpus") != ANY


def job_query(place: Place, **block: Any) -> JobQuery:
    """What the service is asked for one block: `offset` and `limit`, and `sort` if it is other."""
    assert place.cluster is not None
    given = {"sort": sort_of(place)} | block
    return JobQuery(
        cluster=place.cluster.name,
        states=states_of(place),
        users=_words(place, "user"),
        accounts=_words(place, "account"),
        partitions=_words(place, "partition"),
        text=text_of(place) or None,
        gpus_min=1 if wants_gpus(place) else None,
        **given,
    )


def sort_of_model(model: list[dict[str, str]]) -> dict[str, str]:
    """The order that the grid asks for, by the name of its column; nothing without one."""
    if not model or model[0]["colId"] not in SORTS:
        return {}
    return {"sort": ("-" if model[0]["sort"] == "desc" else "") + model[0]["colId"]}


def _words(place: Place, key: str) -> tuple[str, ...]:
    return tuple(
        word[:_LONGEST_WORD] for word in place.address.words(key)[:_MOST_VALUES] if "\0" not in word
    )
