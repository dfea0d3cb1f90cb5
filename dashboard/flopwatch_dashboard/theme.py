"""Colour tokens for figures, and AG Grid's parameters. Values stand in tokens.css alone."""

STATE_TOKENS = {
    "active": "--active",
    "low": "--low",
    "idle": "--idle",
    "shared": "--shared",
    "unknown": "--unknown",
    "free": "--free",
    "reserved": "--free-line",
    "down": "--down",
}
RAMP: list[list[float | str]] = [[step / 5, f"--ramp-{step}"] for step in range(6)]
"""A colour scale from 0 to the top that is printed beside it."""

CHART_FONT = {"family": "Inter, system-ui, sans-serif", "size": 11.5, "color": "--text3"}
HOVER_LABEL = {
    "bgcolor": "--surface",
    "bordercolor": "--line2",
    "font": {**CHART_FONT, "size": 12.5, "color": "--text"},
}
TICK_FORMATS = [
    {"dtickrange": [None, 60_000], "value": "%H:%M:%S"},
    {"dtickrange": [60_000, 86_400_000], "value": "%H:%M"},
    {"dtickrange": [86_400_000, None], "value": "%-d %b"},
]

GRID_THEME = {
    "function": "themeQuartz.withParams({"
    "backgroundColor: 'var(--surface)', foregroundColor: 'var(--text)',"
    "headerBackgroundColor: 'var(--surface)', headerTextColor: 'var(--text3)',"
    "borderColor: 'var(--line)', accentColor: 'var(--accent)',"
    "rowHoverColor: 'var(--hover)', selectedRowBackgroundColor: 'var(--accentweak)',"
    "columnBorder: false, headerColumnBorder: false, headerColumnResizeHandleColor: 'transparent',"
    "wrapperBorder: false, wrapperBorderRadius: '0px', spacing: '6px',"
    "rowHeight: 'var(--grid-row)', headerHeight: '40px',"
    "cellHorizontalPadding: '8px', fontFamily: 'var(--sans)', fontSize: '13px',"
    "headerFontSize: '12.5px', headerFontWeight: 500,"
    "browserColorScheme: 'inherit', oddRowBackgroundColor: 'var(--surface)'})"
}
