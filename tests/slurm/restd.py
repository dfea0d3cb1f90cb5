"""slurmrestd of a lab, run by an ordinary user: over its socket, and by URL with a token."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

from flopwatch_server.scheduler.slurm.rest import Client
from tests.lab.processes import free_port
from tests.lab.slurm import SlurmLab
from tests.lab.slurm.daemons import Daemon

USER = "fwbob"


@contextmanager
def by_socket(lab: SlurmLab) -> Iterator[Client]:
    """A client of one that knows by itself who asks."""
    at = lab.users[USER].home / "restd.socket"
    with _running(lab, "local", f"unix:{at}", at, {}):
        yield Client(f"unix:{at}")


@contextmanager
def by_url(lab: SlurmLab) -> Iterator[str]:
    """The URL of one that takes nothing but tokens, as SLURM_JWT=daemon tells it."""
    at = f"127.0.0.1:{free_port()}"
    with _running(lab, "jwt", at, None, {"SLURM_JWT": "daemon"}):
        yield f"http://{at}"


def write_token(lab: SlurmLab, user: str, path: Path) -> Path:
    """A token of this user in a file, as the user gets it from Slurm."""
    told = lab.run("scontrol", "token", "lifespan=600", user=user)
    path.write_text(told.strip().removeprefix("SLURM_JWT="))
    return path


@contextmanager
def _running(
    lab: SlurmLab, how: str, at: str, socket: Path | None, environment: Mapping[str, str]
) -> Iterator[None]:
    def answers() -> bool:
        url = "http://localhost" if socket else f"http://{at}"
        transport = httpx.HTTPTransport(uds=str(socket) if socket else None)
        try:
            with httpx.Client(transport=transport) as client:
                return client.get(f"{url}/openapi/v3").status_code < 500
        except httpx.TransportError:
            return False

    home = {"HOME": str(lab.users[USER].home)}
    daemon = Daemon(
        f"slurmrestd.{how}", ["slurmrestd", "-a", f"rest_auth/{how}", at],
        lab.root / f"slurmrestd.{how}.log", answers, user=USER,
        environment={**lab.environment, **home, **environment},
    )  # fmt: skip
    daemon.start()
    try:
        yield
    finally:
        daemon.stop()
