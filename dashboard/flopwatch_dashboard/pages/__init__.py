"""The pages. Each is one folder that exports `PAGE`; the router and the rail find it by itself."""

import importlib
import pkgutil
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dash import Dash
from dash.development.base_component import Component

from flopwatch_dashboard.address import Place
from flopwatch_dashboard.freshness import Freshness
from flopwatch_dashboard.live.reading import Ask, Reading
from flopwatch_dashboard.services import Visit

LiveRead = Callable[[Visit, Place, Ask], Reading]
"""Reads what a page shows now; raises NotFound where there is nothing any more."""


@dataclass(frozen=True)
class Shown:
    """What a page puts on the screen. `ranges` are (name in the address, label); none, no control.

    `default_range` is what an address without a range means. `shape` and `points` are those of the
    reading of this content, from which the page is then followed.
    """

    content: Component
    freshness: Freshness
    ranges: tuple[tuple[str, str], ...] = ()
    default_range: str = ""
    shape: Any = None
    points: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Page:
    """One page. `path` holds parts in braces; `icon` None keeps it out of the rail.

    `check` raises NotFound when what an address names does not exist or may not be seen. `live` is
    how the page is read while it is open; None: it does not change by itself. With `for_staff` it
    does not exist for anybody else.
    """

    name: str
    path: str
    show: Callable[[Place], Awaitable[Shown]]
    connect: Callable[[Dash], None]
    icon: str | None = None
    order: int = 0
    check: Callable[[Visit, Place], None] | None = None
    live: LiveRead | None = None
    for_staff: bool = False

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/\0]{1,128})", self.path))

    def match(self, path: str) -> dict[str, str] | None:
        """The parts of `path` by name; None if it is not an address of this page."""
        found = self._pattern.fullmatch(path)
        return found.groupdict() if found else None


def all_pages() -> tuple[Page, ...]:
    """Every page, in the order of the rail."""
    names = (module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
    pages = (importlib.import_module(f"{__name__}.{name}").PAGE for name in names)
    return tuple(sorted(pages, key=lambda page: page.order))
