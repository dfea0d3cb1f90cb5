"""Reservations, as scontrol prints them: one line each, named by admins."""

import re
from collections.abc import Mapping

from flopwatch_server.scheduler.records import ReservationRecord
from flopwatch_server.scheduler.slurm import fields
from flopwatch_server.scheduler.slurm.client import Client
from flopwatch_server.scheduler.slurm.table import (
    Answer,
    Row,
    long_format,
    new_mark,
    read_each,
    split_rows,
)

_NONE = "No reservations in the system"
_LINE = re.compile(r"ReservationName=(?P<ReservationName>.*?) (?=StartTime=)(?P<rest>.*)")
_WORD = re.compile(r"(\w+)=(\S*)")
_NOTHING = frozenset({"", "(null)"})
_NODE_COLUMNS = ("NodeList", "CPUs")


def read_reservations(client: Client) -> Answer[ReservationRecord]:
    """All reservations of nodes, those of licenses alone left aside."""
    text = client.ask("scontrol", "show", "reservation", "--oneliner")
    rows = [_row(line) for line in text.splitlines() if line and not line.startswith(_NONE)]
    of_nodes = [row for row in rows if row.get("Nodes", "") not in _NOTHING]
    cpus = _cpus(client) if of_nodes else {}
    return read_each(of_nodes, lambda row: parse_reservation(row, cpus))


def parse_reservation(row: Row, cpus: Mapping[str, int]) -> ReservationRecord:
    """One line as a record; `cpus` are those of each node.

    A reservation of less than all cores leaves the rest of its nodes to everybody.
    """
    missing = {"ReservationName", "StartTime", "EndTime", "TRES"} - row.keys()
    if missing:
        raise fields.FieldError(min(missing), "")
    nodes = fields.node_names(row, "Nodes")
    kept = re.search(r"\bcpu=([0-9]{1,9})\b", row["TRES"])
    return ReservationRecord(
        name=row["ReservationName"],
        starts_at=fields.required_moment(row, "StartTime"),
        ends_at=fields.required_moment(row, "EndTime"),
        nodes=nodes,
        is_whole=kept is not None and int(kept[1]) >= sum(cpus.get(node, 0) for node in nodes),
        users=_listed(row.get("Users", "")),
        accounts=_listed(row.get("Accounts", "")),
        flags=_listed(row.get("Flags", "")),
    )


def _row(line: str) -> dict[str, str]:
    match = _LINE.match(line)
    if match is None:
        return {"Nodes": line}  # refused by the field that is missing
    return {"ReservationName": match["ReservationName"], **dict(_WORD.findall(match["rest"]))}


def _listed(text: str) -> tuple[str, ...]:
    return () if text in _NOTHING else tuple(text.split(","))


def _cpus(client: Client) -> dict[str, int]:
    mark = new_mark()
    layout = long_format(_NODE_COLUMNS, mark)
    text = client.ask("sinfo", "--noheader", "--Node", "--all", "--local", "-O", layout)
    return {
        row["NodeList"]: fields.whole_number(row, "CPUs")
        for row in split_rows(text, _NODE_COLUMNS, mark)
    }
