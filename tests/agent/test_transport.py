"""What an admin gives the agent to reach the server: an address, and a token in a file."""

from pathlib import Path

import pytest

from flopwatch_agent.transport import Connection, TokenError, read_token


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("fpn_secret\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_token_that_others_may_read_is_refused(token: Path, mode: int) -> None:
    token.chmod(mode)
    with pytest.raises(TokenError, match="chmod 600"):
        read_token(token)


@pytest.mark.parametrize("text", ["", "a\nb", "a\x00b", "ä"])
def test_a_file_that_holds_no_token_is_refused(token: Path, text: str) -> None:
    token.write_text(text)
    with pytest.raises(TokenError, match="holds no token"):
        read_token(token)


@pytest.mark.parametrize(
    "url",
    [
        "server:8080",
        "ftp://server",
        "http://",
        "",
        "http://a..b:8260",
        f"http://{'long' * 16}:8260",
        "http://server:82600",
        "http://server:port",
        "http://server:0",
        "http://[::1",
        "http://server/größe",
    ],
)
def test_what_is_no_url_is_refused(url: str, token: Path) -> None:
    with pytest.raises(ValueError, match="no http or https URL"):
        Connection(url, token)


@pytest.mark.parametrize(
    "url", ["http://server", "https://grün.example:8260/flopwatch/", "http://[::1]:8260"]
)
def test_an_address_that_can_be_is_taken(url: str, token: Path) -> None:
    Connection(url, token)
