"""A time of day. The browser writes it (assets/js/time.js), in its own zone like the charts."""

from datetime import datetime

from dash import html
from dash.development.base_component import Component


def clock(moment: datetime) -> Component:
    """ "12:20" of today, "11 Mar 12:20" of another day, with the year of another year."""
    return html.Time(dateTime=moment.isoformat())


def full_time(moment: datetime) -> Component:
    """ "2026-03-12 12:20:07 CET"."""
    return html.Time(dateTime=moment.isoformat(), className="full")
