"""The nodes: state with flags, the reason an admin gave, and the GPUs that the node should have."""

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
    """One row as a record; `gpu_type` is None on a node with GPUs of several types."""
    state = row["StateComplete"].upper()
    if not state:
        raise fields.FieldError("StateComplete", state)
    cards = [gres for gres in parse_gres(row, "Gres") if gres.name == CARDS]
    types = {gres.gres_type for gres in cards}
    return NodeRecord(
        name=row["NodeList"],
        state=state,
        reason="" if row["Reason"] == "none" else row["Reason"],
        gpu_count=sum(gres.count for gres in cards),
        gpu_type=types.pop() if len(types) == 1 else None,
        # The default partition is printed with a star.
        partitions=tuple(sorted(name.rstrip("*") for name in partitions)),
    )
