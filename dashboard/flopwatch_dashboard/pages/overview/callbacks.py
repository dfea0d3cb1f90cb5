"""What moves on the overview: one callback, for the clock and for another time range."""

from typing import Any

from dash import Dash, Input, Output, State, no_update, set_props

from flopwatch_dashboard.address import Address, find_place
from flopwatch_dashboard.components.chart import connect_chart
from flopwatch_dashboard.freshness import freshness
from flopwatch_dashboard.pages.overview import layout
from flopwatch_dashboard.pages.overview.data import read, window_of
from flopwatch_dashboard.services import call


def connect(app: Dash) -> None:
    """Register the callbacks of the overview."""
    connect_chart(app, "overview-states")

    @app.callback(  # type: ignore[untyped-decorator]
        Output("overview-cursor", "data"),
        Input("tick", "n_intervals"),
        Input("url", "search"),
        State("url", "pathname"),
        State("overview-cursor", "data"),
        prevent_initial_call=True,
    )
    async def live(_tick: int, search: str | None, pathname: str, shown: str) -> Any:
        place = await call(find_place, Address.parse(pathname, search), {})
        if place.cluster is None:
            return no_update
        data = await call(read, place.cluster.name, window_of(place))
        cursor = layout.cursor(data)
        if cursor != shown:
            set_props("again", {"data": data.now.timestamp()})
            return no_update
        if data.overview.newest_sample_at is not None:
            for name, props in layout.moving_parts(data).items():
                set_props(name, props)
            set_props("freshness", {"data": freshness(data.overview.newest_sample_at, data.now)})
        return no_update
