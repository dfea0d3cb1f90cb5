"""How slurmrestd is asked: over its socket or by URL, in the newest version that both speak."""

from collections.abc import Mapping
from pathlib import Path

import httpx
import msgspec

from flopwatch_server.scheduler.records import SchedulerError

VERSIONS = tuple(f"v0.0.{number}" for number in range(45, 37, -1))
"""Of the data parser, newest first: those of Slurm 26.05 down to 22.05."""

DEADLINE_SECONDS = 30.0
_SOCKET = "unix:"


class _Error(msgspec.Struct):
    description: str | None = None
    error: str | None = None


class _Failure(msgspec.Struct):
    errors: list[_Error]


class Client:
    """Asks one slurmrestd, at "unix:/run/slurmrestd.socket" or "http://host:6820".

    Over a socket slurmrestd knows by itself who asks. By URL it wants a user and a JWT, which is
    read anew for every call, since tokens expire and are replaced.
    """

    def __init__(
        self, address: str, user: str | None = None, token_file: Path | None = None
    ) -> None:
        path = address.removeprefix(_SOCKET) if address.startswith(_SOCKET) else None
        self._http = httpx.Client(
            base_url=address if path is None else "http://localhost",
            transport=httpx.HTTPTransport(uds=path),
            timeout=DEADLINE_SECONDS,
        )
        self._user = user
        self._token_file = token_file
        self._version: str | None = None

    def ask(self, part: str, what: str, **parameters: str) -> str:
        """The answer of `part` ("slurm" or "slurmdb"); raises SchedulerError naming the call."""
        version = self._version = self._version or self._newest()
        answer = self._get(f"/{part}/{version}/{what}", parameters)
        if answer.status_code != httpx.codes.OK:
            self._version = None  # it may have been replaced by another
            status = answer.status_code
            raise SchedulerError(f"slurmrestd: {part}/{what}: status {status}: {_reason(answer)}")
        return answer.text

    def _newest(self) -> str:
        """The newest version that slurmrestd knows, though the daemons behind it may be down."""
        for version in VERSIONS:
            status = self._get(f"/slurm/{version}/ping", {}).status_code
            if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
                raise SchedulerError(
                    f"slurmrestd: status {status}: the user or the token is refused"
                )
            if status != httpx.codes.NOT_FOUND:
                return version
        raise SchedulerError(f"slurmrestd: speaks none of {VERSIONS[-1]} to {VERSIONS[0]}")

    def _get(self, path: str, parameters: Mapping[str, str]) -> httpx.Response:
        try:
            return self._http.get(path, params=parameters, headers=self._who())
        except httpx.HTTPError as error:
            raise SchedulerError(f"slurmrestd: {error or type(error).__name__}") from error

    def _who(self) -> Mapping[str, str]:
        headers = {"X-SLURM-USER-NAME": self._user} if self._user else {}
        if self._token_file is not None:
            try:
                headers["X-SLURM-USER-TOKEN"] = self._token_file.read_text().strip()
            except OSError as error:
                raise SchedulerError(f"slurmrestd: {self._token_file}: {error.strerror}") from error
        return headers


def _reason(answer: httpx.Response) -> str:
    """What slurmrestd says is wrong, in one line."""
    try:
        errors = msgspec.json.decode(answer.content, type=_Failure).errors
    except msgspec.DecodeError:
        return " ".join(answer.text[:200].split())
    words = (": ".join(filter(None, (error.description, error.error))) for error in errors)
    return "; ".join(words)[:200]
