"""Tables of few rows; long lists are grids."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dash import html
from dash.development.base_component import Component

Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column: its title, what stands in a cell, and the class of its cells.

    Classes: "number" right and tabular, "strong", "wide" takes what is left, "optional" goes on a
    narrow screen.
    """

    title: str
    cell: Callable[[Row], Any]
    name: str = ""


def table(columns: Sequence[Column[Row]], rows: Sequence[Row], label: str) -> Component:
    """A table that scrolls by itself when the screen is narrower."""
    head = html.Tr([html.Th(column.title, className=column.name) for column in columns])
    body = [
        html.Tr([html.Td(column.cell(row), className=column.name) for column in columns])
        for row in rows
    ]
    return html.Div(
        html.Table([html.Thead(head), html.Tbody(body)], className="table",
                   **{"aria-label": label}),
        className="scroll-x",
    )  # fmt: skip
