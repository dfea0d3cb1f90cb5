"""Nodes, as slurmrestd writes them."""

import msgspec

from flopwatch_server.scheduler.records import NodeRecord
from flopwatch_server.scheduler.slurm import documents
from flopwatch_server.scheduler.slurm.nodes import node_record
from flopwatch_server.scheduler.slurm.table import Answer, read_each


class _Node(msgspec.Struct):
    name: str
    state: str | list[str]  # a list with the flags from 23.02 on
    gres: str | None
    reason: str | None
    partitions: list[str]
    state_flags: list[str] = []


def parse_nodes(text: str) -> Answer[NodeRecord]:
    """All nodes of an answer."""
    return read_each(documents.records(text, "nodes", "nodes"), _parse_node)


def _parse_node(raw: msgspec.Raw) -> NodeRecord:
    node = documents.read(raw, _Node)
    words = [node.state] if isinstance(node.state, str) else node.state
    state = "+".join(word.upper() for word in (*words, *node.state_flags))
    return node_record(node.name, state, node.reason or "", node.gres or "", node.partitions)
