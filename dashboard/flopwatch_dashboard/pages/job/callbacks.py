"""What moves on a job's page: one callback, for the clock and for another time range."""

from typing import Any

from dash import Dash, Input, Output, State, no_update, set_props

from flopwatch_dashboard.address import Address, find_place
from flopwatch_dashboard.components.chart import connect_chart
from flopwatch_dashboard.freshness import freshness
from flopwatch_dashboard.pages.job import layout
from flopwatch_dashboard.pages.job.data import OVERLAP_STEPS, JobData, read, window_of
from flopwatch_dashboard.services import Visit, call

_PATH_PARTS = 4


def connect(app: Dash) -> None:
    """Register the callbacks of a job's page."""
    connect_chart(app, "job-instrument")
    connect_chart(app, "job-mfu")

    @app.callback(  # type: ignore[untyped-decorator]
        Output("job-cursor", "data"),
        Input("tick", "n_intervals"),
        Input("url", "search"),
        State("url", "pathname"),
        State("job-cursor", "data"),
        prevent_initial_call=True,
    )
    async def live(_tick: int, search: str | None, pathname: str, shown: dict[str, Any]) -> Any:
        address = Address.parse(pathname, search)
        parts = address.path.split("/")
        if len(parts) != _PATH_PARTS:  # the reader has gone back, and this page goes
            return no_update
        data = await call(_read_newer, address, {"cluster": parts[2], "job_id": parts[3]}, shown)
        cursor = layout.cursor(data)
        if not _fits(cursor, shown):
            set_props("again", {"data": data.now.timestamp()})
            return no_update
        for name, props in layout.moving_parts(data).items():
            set_props(name, props)
        set_props("freshness", {"data": freshness(data.fresh_at, data.now, live=data.is_live)})
        return cursor


def _read_newer(
    visit: Visit, address: Address, parts: dict[str, str], shown: dict[str, Any]
) -> JobData:
    """The job with the points that the browser has not, and a few that may have changed."""
    place = find_place(visit, address, parts)
    same_window = shown.get("window") == window_of(place)
    after = (
        shown["last"] - OVERLAP_STEPS * shown["step"] if same_window and "last" in shown else None
    )
    return read(visit, place, after)


def _fits(cursor: dict[str, Any], shown: dict[str, Any]) -> bool:
    """Whether the page on the screen still has the right parts for what is there now."""
    moving = {"last"}
    return {k: v for k, v in cursor.items() if k not in moving} == {
        k: v for k, v in shown.items() if k not in moving
    }
