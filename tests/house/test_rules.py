"""The house's own rules find what they are there to find."""

from pathlib import Path

import pytest

from tests.house.rules import violations

SERVER = "server/flopwatch_server/jobs/service.py"
PAGE = "dashboard/flopwatch_dashboard/pages/job/callbacks.py"

BROKEN = {
    "a statement outside a repository": (
        SERVER,
        "from sqlalchemy import select\n",
        "1: SQL stands in repositories: select",
    ),
    "a statement of a dialect": (
        SERVER,
        "from sqlalchemy.dialects.postgresql import insert\n",
        "1: SQL stands in repositories: insert",
    ),
    "all of sqlalchemy": (
        SERVER,
        "import sqlalchemy\n",
        "1: SQL stands in repositories: import single names of sqlalchemy",
    ),
    "a statement that is run": (
        SERVER,
        "def read(session):\n    return session.scalars(run_ids())\n",
        "2: SQL stands in repositories: .scalars()",
    ),
    "SQL on a page": (
        PAGE,
        "from sqlalchemy import text\n",
        "1: SQL stands in repositories: text",
    ),
    "a synchronous callback": (
        PAGE,
        "@app.callback(Output('a', 'b'))\ndef show(tick):\n    return tick\n",
        "2: the callback show is not async: it stops the event loop",
    ),
    "a service called in the event loop": (
        PAGE,
        "from flopwatch_server.efficiency import listing\n\n\n"
        "async def show(visit):\n    return listing.job_page(visit.session)\n",
        "5: listing reads in the event loop: `await call(listing, …)`",
    ),
    "a reader called in the event loop": (
        PAGE,
        "def read(visit: Visit):\n    return 1\n\n\nasync def show(v):\n    return read(v)\n",
        "6: read reads in the event loop: `await call(read, …)`",
    ),
    "a long file": ("agent/flopwatch/wire.py", "x = 1\n" * 401, "401: longer than 400 lines"),
}

KEPT = {
    "a repository": (
        "server/flopwatch_server/jobs/repository.py",
        "from sqlalchemy import select\n",
    ),
    "a module of a repository": (
        "server/flopwatch_server/efficiency/repository/present.py",
        "from sqlalchemy import select\n\n\ndef read(session):\n    session.execute(select(1))\n",
    ),
    "the session that a service is given": (SERVER, "from sqlalchemy.orm import Session\n"),
    "errors of the database": (SERVER, "from sqlalchemy.exc import OperationalError\n"),
    "a service behind call": (
        PAGE,
        "from flopwatch_server.efficiency import listing\n\n\n"
        "async def show():\n    return await call(listing.job_page)\n",
    ),
    "a service called by a reader": (
        PAGE,
        "from flopwatch_server.efficiency import listing\n\n\n"
        "def read(visit: Visit):\n    return listing.job_page(visit.session)\n",
    ),
    "400 lines": ("agent/flopwatch/wire.py", "x = 1\n" * 400),
}


def _house(root: Path, path: str, text: str) -> list[str]:
    file = root / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return list(violations(root))


@pytest.mark.parametrize(("path", "text", "expected"), BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_is_named_with_its_place(
    tmp_path: Path, path: str, text: str, expected: str
) -> None:
    [found] = _house(tmp_path, path, text)
    assert found.startswith(f"{path}:{expected}")


@pytest.mark.parametrize(("path", "text"), KEPT.values(), ids=KEPT)
def test_what_the_rules_allow_is_not_named(tmp_path: Path, path: str, text: str) -> None:
    assert _house(tmp_path, path, text) == []
