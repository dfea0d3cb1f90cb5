"""Which page an address means: in the browser by one callback, in HTTP by the status.

Own routing instead of Dash's pages, whose routing callback runs again at every change of the query.
"""

import logging
from collections.abc import Sequence
from typing import Any, TypedDict

from dash import ClientsideFunction, Dash, Input, Output, State
from dash.development.base_component import Component
from sqlalchemy.exc import SQLAlchemyError

from flopwatch_dashboard import shell
from flopwatch_dashboard.address import Address, Place, find_place
from flopwatch_dashboard.components import segment
from flopwatch_dashboard.freshness import Freshness
from flopwatch_dashboard.live.reading import Cursor
from flopwatch_dashboard.pages import Page, Shown
from flopwatch_dashboard.services import Visit, call
from flopwatch_server.access.principal import Principal
from flopwatch_server.house import NotFound, require_staff

_logger = logging.getLogger(__name__)
_Parts = list[Component]
_Screen = tuple[Component, _Parts, _Parts, "OnScreen | None"]


class OnScreen(TypedDict):
    """What the browser has to know of the page on its screen to follow it (assets/js/live.js)."""

    path: str
    search: str
    follows: bool
    shape: Any
    cursor: Cursor
    freshness: Freshness


class Router:
    """Finds the page of an address among `pages`."""

    def __init__(self, pages: Sequence[Page]) -> None:
        self._pages = pages

    def match(self, address: Address) -> tuple[Page, dict[str, str]]:
        """The page and the parts of its path. Raises NotFound."""
        for page in self._pages:
            parts = page.match(address.path)
            if parts is not None:
                return page, parts
        raise NotFound(f"no page {address.path}")

    def find(self, visit: Visit, address: Address) -> tuple[Page, Place]:
        """The page of an address, and its place, for who visits. Raises NotFound."""
        page, parts = self.match(address)
        if page.for_staff:
            require_staff(visit.principal)
        return page, find_place(visit, address, parts)

    async def exists(self, path: str, query: str) -> bool:
        """Whether the address names something that the person who asks may see."""
        address = Address.parse(path, query)
        try:
            await call(self._check, address)
        except NotFound:
            return False
        return True

    def connect(self, app: Dash) -> None:
        """Register the one callback that puts a page on the screen, and those of the pages."""

        @app.callback(  # type: ignore[untyped-decorator]
            Output("main", "children"),
            Output("context", "children"),
            Output("ranges", "children"),
            Output("on-screen", "data"),
            Output("visitor", "children"),
            Output("staff-pages", "children"),
            Input("url", "pathname"),
            Input("again", "data"),
            State("url", "search"),
        )
        async def show(
            pathname: str, _again: float | None, search: str | None
        ) -> tuple[Component | _Parts | OnScreen | None, ...]:
            principal, sign_in = await call(_who)
            screen = await self._show(pathname, search or "")
            for_them = shell.staff_links(self._pages, principal)
            return *screen, shell.visitor(principal, sign_in), for_them

        _connect_frame(app)
        for page in self._pages:
            page.connect(app)

    def _check(self, visit: Visit, address: Address) -> None:
        page, place = self.find(visit, address)
        if page.check is not None:
            page.check(visit, place)

    async def _show(self, pathname: str, search: str) -> _Screen:
        address = Address.parse(pathname, search)
        try:
            page, place = await call(self.find, address)
            shown = await page.show(place)
        except NotFound:
            cluster = shell.context(await call(find_place, Address("/"), {}))
            return shell.not_found(), cluster, [], None
        except SQLAlchemyError:
            _logger.exception("page %s could not be read", address.path)
            return shell.unreadable(), [], [], None
        on_screen = OnScreen(
            path=pathname,
            search=search,
            follows=page.live is not None,
            shape=shown.shape,
            cursor=Cursor(shown.freshness["now"], *shown.points),
            freshness=shown.freshness,
        )
        return shown.content, shell.context(place), _ranges(place, shown), on_screen


def _connect_frame(app: Dash) -> None:
    """What the browser does by itself after a change of page, address or data."""
    app.clientside_callback(
        ClientsideFunction("flopwatch", "arrived"),
        Input("url", "pathname"),
        Input("url", "search"),
        Input("main", "children"),
        Input("ranges", "children"),
    )
    app.clientside_callback(
        ClientsideFunction("flopwatch", "follow"),
        Input("on-screen", "data"),
        Input("url", "pathname"),
        Input("url", "search"),
    )
    app.clientside_callback(ClientsideFunction("flopwatch", "framed"), Input("visitor", "children"))


def _who(visit: Visit) -> tuple[Principal, str]:
    return visit.principal, visit.settings.sign_in


def _ranges(place: Place, shown: Shown) -> list[Component]:
    if not shown.ranges:
        return []
    chosen = place.address.query.get("range", shown.default_range)
    return [segment("Time range", "range", shown.ranges, chosen, shown.default_range)]
