"""docker-compose.yml without Docker: every service's own command as a plain process.

A service gets the environment that it would have in its container and no more: that of the image
and that of the file. Names of services and ports become those of this machine's loopback.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.lab.postgres import system_binaries
from tests.lab.processes import free_port, wait_for

REPOSITORY = Path(__file__).parents[2]
FILE = REPOSITORY / "docker-compose.yml"
DOCKERFILE = REPOSITORY / "deploy/Dockerfile"
STOP_SECONDS = 10
"""What Docker gives a container between SIGTERM and SIGKILL."""

_PORTS = {"postgres": 5432, "redis": 6379, "server": 8260}
_VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+)(?::([-?])([^}]*))?\})")


class MissingVariable(ValueError):
    """The file asks for a variable that nobody has given."""


def services(variables: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The services of the file, with its ${variables} filled in as Compose does it."""
    document = yaml.safe_load(FILE.read_text())
    found: dict[str, dict[str, Any]] = _filled(document["services"], variables)
    return found


def _filled(part: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(part, dict):
        return {key: _filled(value, variables) for key, value in part.items()}
    if isinstance(part, list):
        return [_filled(value, variables) for value in part]
    if isinstance(part, str):
        return _VARIABLE.sub(lambda found: _value(found, variables), part)
    return part


def _value(found: re.Match[str], variables: Mapping[str, str]) -> str:
    escaped, name, kind, rest = found.groups()
    if escaped:
        return "$"
    if name in variables:
        return variables[name]
    if kind != "-":
        raise MissingVariable(f"{name}: {rest}")
    return str(rest)


def image_environment() -> dict[str, str]:
    """ENV of the image that the Dockerfile ends with."""
    last_stage = DOCKERFILE.read_text().replace("\\\n", " ").split("\nFROM ")[-1]
    lines = [line.split()[1:] for line in last_stage.splitlines() if line.startswith("ENV ")]
    return dict(word.split("=", 1) for words in lines for word in words)


class Compose:
    """The services as running processes, under `folder`, which everybody may enter.

    `binaries` is the folder that stands for the image's /opt/flopwatch/bin.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str], binaries: Path) -> None:
        self.services = services(variables)
        self.ports = {name: free_port() for name in _PORTS}
        self.url = f"http://127.0.0.1:{self.ports['server']}"
        self._folder = folder
        self._binaries = binaries
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._account = "postgres" if os.geteuid() == 0 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in reversed(self._running.values()):
            process.kill()
            process.wait()

    def up(self, *names: str) -> None:
        """Start services, each after those that it needs are healthy."""
        for name in names:
            if name not in self._running:
                needed = self.services[name].get("depends_on", {})
                self.up(*needed)
                for other in needed:
                    wait_for(lambda other=other: self.healthy(other), f"{other} is healthy", 150)  # type: ignore[misc]
                self._start(name)

    def run(self, service: str, *command: str, stdin: str) -> subprocess.CompletedProcess[str]:
        """`docker compose run --rm SERVICE COMMAND`."""
        return subprocess.run(
            command, env=self._environment(service), input=stdin, text=True, capture_output=True,
            check=False, timeout=120,
        )  # fmt: skip

    def healthy(self, name: str) -> bool:
        """What the service's health check says now."""
        process = self._running[name]
        assert process.poll() is None, f"{name} ended:\n{self.log(name)}"
        kind, *command = self._here(self._health_check(name))
        if kind == "CMD-SHELL":
            command = ["sh", "-c", *command]
        if command[0] == "redis-cli":
            command[1:1] = ["-p", str(self.ports["redis"])]
        done = subprocess.run(
            command, env=self._environment(name), capture_output=True, check=False, timeout=60
        )
        return done.returncode == 0

    def stop(self, name: str) -> tuple[int, float]:
        """`docker compose stop SERVICE`: its exit code, and the seconds it took."""
        process = self._running.pop(name)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM if name != "postgres" else signal.SIGINT)
        return process.wait(60), time.monotonic() - began

    def log(self, name: str) -> str:
        """The end of what a service wrote."""
        return (self._folder / f"{name}.log").read_text(errors="replace")[-6000:]

    def _start(self, name: str) -> None:
        prepare: Callable[[list[str]], list[str]] = {
            "postgres": self._postgres,
            "redis": lambda command: [*command, "--port", str(self.ports["redis"])],
        }.get(name, lambda command: command)
        command = prepare(self._here(self.services[name]["command"]))
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command, env=self._environment(name), cwd=self._folder, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, user=self._account if name == "postgres" else None,
            )  # fmt: skip

    def _postgres(self, command: list[str]) -> list[str]:
        """Do what the image of PostgreSQL does before it runs the command."""
        data, secret = self._folder / "postgres", self._folder / "password"
        data.mkdir()
        environment = self.services["postgres"]["environment"]
        secret.write_text(environment["POSTGRES_PASSWORD"])
        for path in (data, secret):
            shutil.chown(path, self._account) if self._account else None
        name = environment["POSTGRES_USER"]
        assert environment["POSTGRES_DB"] == name
        subprocess.run(
            [system_binaries() / "initdb", "--pgdata", data, "--username", name, "--pwfile", secret,
             "--auth=scram-sha-256", *environment["POSTGRES_INITDB_ARGS"].split()],
            check=True, capture_output=True, user=self._account, cwd="/",
        )  # fmt: skip
        create = f"CREATE DATABASE {name};\n"
        subprocess.run(
            [system_binaries() / "postgres", "--single", "-D", data, "postgres"], input=create,
            text=True, check=True, capture_output=True, user=self._account, cwd="/",
        )  # fmt: skip
        return [*command, "-D", str(data), "-p", str(self.ports["postgres"]), "-k", "",
                "-c", "listen_addresses=127.0.0.1"]  # fmt: skip

    def _environment(self, name: str) -> dict[str, str]:
        """What a process of the service finds, and nothing of this process's own."""
        service = self.services[name]
        image = image_environment() if service["image"] == "flopwatch" else {}
        given = self._here({**image, **service.get("environment", {})})
        own = {"PGPORT": str(self.ports["postgres"])} if name == "postgres" else {}
        if name == "server":
            own["FLOPWATCH_PORT"] = str(self.ports["server"])
        path = f"{self._binaries}:{system_binaries()}:/usr/bin:/bin"
        return {**given, **own, "PATH": path, "HOSTNAME": socket.gethostname()}

    def _health_check(self, name: str) -> list[str]:
        check = self.services[name].get("healthcheck")
        if check is not None:
            return list(check["test"])
        joined = DOCKERFILE.read_text().replace("\\\n", " ")
        line = re.search(r"^HEALTHCHECK .*CMD (\[.*\])$", joined, re.M)
        assert line is not None
        return ["CMD", *yaml.safe_load(line.group(1))]

    def _here(self, part: Any) -> Any:
        """The same, with names of containers and folders as they are on this machine."""
        if isinstance(part, dict):
            return {key: self._here(value) for key, value in part.items()}
        if isinstance(part, list):
            return [self._here(value) for value in part]
        text = str(part)
        for name, port in _PORTS.items():
            for host in (name, "127.0.0.1"):
                text = text.replace(f"{host}:{port}", f"127.0.0.1:{self.ports[name]}")
        return text.replace("/var/lib/flopwatch", f"{self._folder}/data").replace(
            "/tmp/", f"{self._folder}/"
        )


def own_binaries() -> Path:
    """The commands of the environment that runs the tests."""
    return Path(sys.executable).parent
