"""Every route of the whole server, found by walking them: a new one is covered without an edit."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from flopwatch_dashboard.app import create
from flopwatch_server.access.guard import MACHINE_PATHS
from flopwatch_server.house import House

# What a browser needs before anybody has signed in, and nothing that tells of a job or a person.
OPEN = {
    ("GET", "/api/v1/health"), ("GET", "/sign-in"), ("POST", "/sign-in"), ("GET", "/_favicon.ico"),
}  # fmt: skip
SMALLEST_HOUSE = 20


@pytest.fixture
def client(house: House) -> Iterator[TestClient]:
    house.settings = house.settings.model_copy(update={"sign_in": "local"})
    base_url = "http://localhost:8260"
    with TestClient(create(house), base_url=base_url, follow_redirects=False) as found:
        yield found


def walk(routes: Iterable[BaseRoute], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(path, route) of all routes, those of included routers and mounted applications too."""
    for route in routes:
        nested = getattr(route, "original_router", None) or getattr(route, "app", None)
        if hasattr(route, "include_context"):
            yield from walk(nested.routes, prefix + route.include_context.prefix)
        elif hasattr(route, "methods") or isinstance(route, WebSocketRoute):
            yield prefix + route.path, route
        else:  # a mount: everything below it is one place
            yield f"{prefix}{route.path}/anything", route


def concrete(path: str) -> str:
    """A path without its placeholders."""
    return "/".join("x" if part.startswith("{") else part for part in path.split("/"))


def requests(client: TestClient) -> list[tuple[str, str]]:
    app: Any = client.app
    routed = {
        (method, concrete(path))
        for path, route in walk(app.routes)
        if not _is_websocket(route)
        for method in getattr(route, "methods", None) or {"GET"}
    }
    return sorted(routed | {("POST", path) for path in MACHINE_PATHS})  # one is no route


def _is_websocket(route: Any) -> bool:
    return not hasattr(route, "methods") and hasattr(route, "endpoint")


def test_nothing_answers_without_a_session_or_a_token(client: TestClient) -> None:
    found = requests(client)
    assert len(found) >= SMALLEST_HOUSE
    assert ("POST", "/_dash-update-component") in found
    assert ("GET", "/api/v1/jobs/x/x") in found
    assert ("GET", "/_live") in found
    let_in = []
    for method, path in found:
        answer = client.request(method, path)
        if answer.status_code not in (401, 303):
            let_in.append((method, path))
    assert {entry for entry in let_in if not entry[1].startswith("/assets/")} == OPEN


def test_a_page_leads_to_the_sign_in_and_shows_nothing_else(client: TestClient) -> None:
    for path in ("/", "/jobs", "/jobs/granite/5", "/no-such-page"):
        answer = client.get(path, headers={"accept": "text/html"})
        assert (answer.status_code, answer.text) == (303, "")
        assert answer.headers["location"].startswith("/sign-in?next=")


def test_no_websocket_opens_without_a_session(client: TestClient) -> None:
    app: Any = client.app
    paths = [concrete(path) for path, route in walk(app.routes) if _is_websocket(route)]
    assert "/_live" in paths
    headers = {"origin": "http://localhost:8260"}
    for path in paths:
        with (
            pytest.raises(WebSocketDisconnect) as closed,
            client.websocket_connect(f"ws://localhost:8260{path}", headers=headers),
        ):
            pass
        assert closed.value.code == 4401


def test_an_unknown_api_path_is_a_json_404_for_every_method(house: House) -> None:
    with TestClient(create(house), base_url="http://localhost:8260") as client:
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            answer = client.request(method, "/api/v1/typo")
            assert answer.status_code == 404
            assert answer.json() == {"detail": "there is no /api/v1/typo"}


def test_openapi_describes_every_path_of_the_api(client: TestClient) -> None:
    app: Any = client.app
    document = app.openapi()
    served = {
        path
        for path, route in walk(app.routes)
        if path.startswith("/api/v1/") and getattr(route, "include_in_schema", False)
    }
    described = set(document["paths"])
    assert served | MACHINE_PATHS == described
    assert {"Batch", "Samples", "Device"} <= set(document["components"]["schemas"])
