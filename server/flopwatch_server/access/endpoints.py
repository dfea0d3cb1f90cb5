"""Sign-in of the local admin: one plain form, no script."""

import re
from html import escape
from typing import Annotated

from fastapi import APIRouter, Form, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from flopwatch_server.access import guard, sessions
from flopwatch_server.access.throttle import Throttle
from flopwatch_server.house import HouseDep, SessionDep

router = APIRouter(include_in_schema=False)
# Browsers drop control characters and take a backslash for a slash: "/\t/host" is another host.
_LOCAL_PATH = re.compile(r"/(?![/\\])[^\\\x00-\x1f\x7f]*")
_throttle = Throttle(limit=5, window_seconds=15 * 60)

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sign in · Flopwatch</title>
<link rel="stylesheet" href="/assets/sign-in.css">
</head>
<body>
<main>
<h1>Flopwatch</h1>
<form method="post" action="/sign-in">
{problem}
<input type="hidden" name="next" value="{next}">
<label for="name">Name</label>
<input id="name" name="name" autocomplete="username" required autofocus>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" required>
<button type="submit">Sign in</button>
</form>
</main>
</body>
</html>"""
_CSP = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; " \
       "frame-ancestors 'none'"  # fmt: skip


@router.get("/sign-in")
def show(next: str = "/") -> Response:
    """The form."""
    return _page(next, "", 200)


@router.post("/sign-in")
def sign_in(
    request: Request,
    house: HouseDep,
    session: SessionDep,
    name: Annotated[str, Form(max_length=200, pattern="^[^\\x00]*$")],
    password: Annotated[str, Form(max_length=1000)],
    next: Annotated[str, Form()] = "/",
) -> Response:
    """Open a session and go on to where the visitor wanted to go."""
    address = request.client.host if request.client else ""
    if not _throttle.allows(address, name):
        return _page(next, "Too many tries: wait 15 minutes.", 429)
    session_id = sessions.sign_in(session, name, password, house.clock())
    if session_id is None:
        _throttle.count(address, name)
        return _page(next, "Name or password is wrong.", 401)
    answer = RedirectResponse(_local_path(next), 303)
    answer.set_cookie(
        guard.COOKIE, session_id, max_age=int(sessions.ABSOLUTE.total_seconds()),
        httponly=True, samesite="lax", secure=request.url.scheme == "https",
    )  # fmt: skip
    return answer


@router.post("/sign-out")
def sign_out(request: Request, session: SessionDep) -> Response:
    """End the session of this browser."""
    session_id = guard.cookie(request.headers)
    if session_id:
        sessions.sign_out(session, session_id)
    answer = RedirectResponse("/sign-in", 303)
    answer.delete_cookie(guard.COOKIE)
    return answer


def _local_path(target: str) -> str:
    """`target` if it is a path of this server, else the first page: no way to another site."""
    return target if _LOCAL_PATH.fullmatch(target) else "/"


def _page(target: str, problem: str, status: int) -> Response:
    shown = f'<p role="alert">{escape(problem)}</p>' if problem else ""
    page = _PAGE.format(problem=shown, next=escape(_local_path(target), quote=True))
    return HTMLResponse(page, status, {"content-security-policy": _CSP})
