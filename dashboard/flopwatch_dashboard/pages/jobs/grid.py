"""The grid of jobs: columns, their widths, and when the browser hides them (assets/js/jobs.js)."""

from typing import Any

import dash_ag_grid
from dash.development.base_component import Component

from flopwatch_dashboard.theme import GRID_THEME
from flopwatch_server.efficiency.schemas import SORTS

BLOCK_ROWS = 100
_NUMBER = {"cellClass": "number", "headerClass": "number", "cellRenderer": "JobsNumber"}


def grid(sort: str) -> Component:
    """The empty grid in its order; it asks for its rows by blocks."""
    columns = [_with_order(column, sort) for column in _COLUMNS]
    return dash_ag_grid.AgGrid(
        id="jobs-grid",
        className="jobs-grid",
        columnDefs=columns,
        rowModelType="infinite",
        getRowId="params.data.id",
        defaultColDef={
            "resizable": False,
            "sortable": True,
            "suppressMovable": True,
            "suppressHeaderMenuButton": True,
            "sortingOrder": ["desc", "asc"],
            "cellDataType": False,
        },
        dashGridOptions={
            "theme": GRID_THEME,
            "cacheBlockSize": BLOCK_ROWS,
            "maxBlocksInCache": 6,
            "infiniteInitialRowCount": 1,
            "animateRows": False,
            "suppressCellFocus": False,
            "suppressColumnVirtualisation": True,
            "suppressMultiSort": True,
            "suppressNoRowsOverlay": True,
            "enableBrowserTooltips": True,
        },
        style={"height": "100%", "width": "100%"},
    )


def _with_order(column: dict[str, Any], sort: str) -> dict[str, Any]:
    if column["colId"] not in SORTS:
        return {**column, "sortable": False}
    if column["colId"] != sort.removeprefix("-"):
        return column
    return {**column, "sort": "desc" if sort.startswith("-") else "asc"}


_COLUMNS: tuple[dict[str, Any], ...] = (
    {"colId": "state", "headerName": "", "width": 40, "cellRenderer": "JobsState"},
    {"colId": "job_id", "headerName": "Job", "width": 76, "cellRenderer": "JobsId"},
    {"colId": "name", "headerName": "Name", "flex": 2, "minWidth": 120, "cellRenderer": "JobsName"},
    {"colId": "user", "headerName": "User", "field": "user", "width": 80},
    {"colId": "account", "headerName": "Account", "field": "account", "width": 96},
    {"colId": "gpus", "headerName": "GPUs", "width": 84, "cellClass": "number",
     "headerClass": "number", "cellRenderer": "JobsGpus"},
    {"colId": "partition", "headerName": "Partition", "field": "partition", "width": 92},
    {"colId": "tensor_active", "headerName": "Tensor", "width": 126, "cellRenderer": "JobsTensor"},
    {"colId": "spark", "headerName": "Last 1 h", "width": 72, "cellRenderer": "JobsSpark"},
    {"colId": "sm_active", "headerName": "SM", "field": "sm_active", "width": 60, **_NUMBER},
    {"colId": "dram_active", "headerName": "DRAM", "field": "dram_active", "width": 66, **_NUMBER},
    {"colId": "mfu", "headerName": "MFU", "field": "mfu", "width": 60,
     "headerTooltip": "MFU while training, over the GPUs that report", **_NUMBER},
    {"colId": "idle_gpu_hours", "headerName": "Idle GPU\u2011h", "field": "idle_gpu_hours",
     "width": 84, "wrapHeaderText": True, **_NUMBER},
    {"colId": "power_watts", "headerName": "Power", "field": "power_watts", "width": 84, **_NUMBER},
    {"colId": "elapsed", "headerName": "Elapsed / limit", "width": 84,
     "wrapHeaderText": True,
     "cellRenderer": "JobsElapsed"},
    {"colId": "reason", "headerName": "State", "field": "reason", "width": 124,
     "cellRenderer": "JobsReason"},
)  # fmt: skip
