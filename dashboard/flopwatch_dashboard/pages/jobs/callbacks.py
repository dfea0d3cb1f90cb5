"""What moves in the jobs list: blocks of rows for the grid, and everything around it."""

from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, set_props
from dash.exceptions import PreventUpdate

from flopwatch_dashboard.address import Address, Place, find_place
from flopwatch_dashboard.freshness import freshness
from flopwatch_dashboard.pages.jobs import layout
from flopwatch_dashboard.pages.jobs.query import job_query, sort_of_model
from flopwatch_dashboard.pages.jobs.rows import grid_row
from flopwatch_dashboard.services import Visit, call
from flopwatch_server.efficiency import listing


def connect(app: Dash) -> None:
    """Register the callbacks of the jobs list."""
    _connect_rows(app)
    _connect_around(app)
    app.clientside_callback(
        ClientsideFunction("flopwatch", "gridReady"),
        Output("jobs-cursor", "data"),
        Input("jobs-grid", "columnDefs"),
    )
    app.clientside_callback(
        ClientsideFunction("flopwatch", "refreshJobs"),
        Output("jobs-cursor", "data", allow_duplicate=True),
        Input("tick", "n_intervals"),
        Input("url", "search"),
        prevent_initial_call=True,
    )


def _connect_rows(app: Dash) -> None:
    @app.callback(  # type: ignore[untyped-decorator]
        Output("jobs-grid", "getRowsResponse"),
        Input("jobs-grid", "getRowsRequest"),
        State("url", "search"),
        State("url", "pathname"),
        prevent_initial_call=True,
    )
    async def block(request: dict[str, Any], search: str | None, pathname: str) -> dict[str, Any]:
        place = await call(find_place, Address.parse(pathname, search), {})
        if place.cluster is None:
            raise PreventUpdate
        return await call(_block, place, request)


def _connect_around(app: Dash) -> None:
    @app.callback(  # type: ignore[untyped-decorator]
        Output("jobs-lead", "children"),
        Output("jobs-facets", "children"),
        Output("jobs-chips", "children"),
        Output("jobs-frame", "style"),
        Output("jobs-empty", "children"),
        Input("tick", "n_intervals"),
        Input("url", "search"),
        State("url", "pathname"),
        prevent_initial_call=True,
    )
    async def around(_tick: int, search: str | None, pathname: str) -> tuple[Any, ...]:
        place = await call(find_place, Address.parse(pathname, search), {})
        if place.cluster is None:
            raise PreventUpdate
        data = await call(layout.read, place)
        set_props("freshness", {"data": freshness(data.newest_sample_at, data.now)})
        return (
            layout.lead(data),
            layout.facets(place, data.facets),
            layout.chips(place, data.page),
            layout.frame_style(data.page.total),
            layout.nothing(data.page, data.facets),
        )


def _block(visit: Visit, place: Place, request: dict[str, Any]) -> dict[str, Any]:
    start, end = int(request["startRow"]), int(request["endRow"])
    query = job_query(
        place, offset=start, limit=end - start, **sort_of_model(request.get("sortModel") or [])
    )
    page = listing.job_page(visit.session, visit.principal, query, visit.peaks, visit.now)
    return {"rowData": [grid_row(row, visit.now) for row in page.rows], "rowCount": page.total}
