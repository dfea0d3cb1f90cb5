"""The nodes: state with flags, the reason an admin gave, and the GPUs that the node should have."""

from collections.abc import Iterable

from flopwatch_server.scheduler.records import NodeRecord
from flopwatch_server.scheduler.slurm import fields
from flopwatch_server.scheduler.slurm.client import Client
from flopwatch_server.scheduler.slurm.gres import CARDS, parse_gres
from flopwatch_server.scheduler.slurm.table import (
    Answer,
    Row,
    long_format,
    new_mark,
    read_each,
    split_rows,
)

COLUMNS = ("NodeList", "StateComplete", "Partition", "Gres", "Reason")


def read_nodes(client: Client) -> Answer[NodeRecord]:
    """Every node once; sinfo prints a row for each of its partitions."""
    mark = new_mark()
    text = client.ask(
        "sinfo", "--noheader", "--Node", "--all", "--local", "-O", long_format(COLUMNS, mark)
    )
    rows: dict[str, Row] = {}
    partitions: dict[str, list[str]] = {}
    for row in split_rows(text, COLUMNS, mark):
        rows[row["NodeList"]] = row
        partitions.setdefault(row["NodeList"], []).append(row["Partition"])
    return read_each(rows.values(), lambda row: parse_node(row, tuple(partitions[row["NodeList"]])))


def parse_node(row: Row, partitions: tuple[str, ...]) -> NodeRecord:
    """One row as a record."""
    state = row["StateComplete"].upper()
    if not state:
        raise fields.FieldError("StateComplete", state)
    reason = "" if row["Reason"] == "none" else row["Reason"]
    # The default partition is printed with a star.
    names = [name.rstrip("*") for name in partitions]
    return node_record(row["NodeList"], state, reason, row["Gres"], names)


def node_record(
    name: str, state: str, reason: str, gres: str, partitions: Iterable[str]
) -> NodeRecord:
    """A node of these GRES; `gpu_type` is None on a node with GPUs of several types."""
    cards = [one for one in parse_gres({"Gres": gres}, "Gres") if one.name == CARDS]
    types = {one.gres_type for one in cards}
    return NodeRecord(
        name=name,
        state=state,
        reason=reason,
        gpu_count=sum(one.count for one in cards),
        gpu_type=types.pop() if len(types) == 1 else None,
        partitions=tuple(sorted(partitions)),
    )
