"""What a reader does in the jobs list: blocks of rows for the grid, its order, its filters."""

from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State
from dash.exceptions import PreventUpdate

from flopwatch_dashboard.address import Address, Place, find_place
from flopwatch_dashboard.pages.jobs.query import sort_of_model
from flopwatch_dashboard.pages.jobs.rows import read_rows
from flopwatch_dashboard.services import Visit, call


def connect(app: Dash) -> None:
    """Register the callbacks of the jobs list."""
    _connect_rows(app)
    app.clientside_callback(
        ClientsideFunction("flopwatch", "gridReady"),
        Output("jobs-ready", "data"),  # without an output nothing calls it when the grid appears
        Input("jobs-grid", "columnDefs"),
    )
    app.clientside_callback(
        ClientsideFunction("flopwatch", "filterJobs"),
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


def _block(visit: Visit, place: Place, request: dict[str, Any]) -> dict[str, Any]:
    start, end = int(request["startRow"]), int(request["endRow"])
    rows, total = read_rows(
        visit, place, start, end, **sort_of_model(request.get("sortModel") or [])
    )
    return {"rowData": rows, "rowCount": total}
