"""docker-compose.yml and the image: true to their schema, safe by default, and they work."""

import fnmatch
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
import yaml

from tests.lab.compose import (
    DOCKERFILE,
    FILE,
    REPOSITORY,
    STOP_SECONDS,
    Compose,
    MissingVariable,
    image_environment,
    own_binaries,
    services,
)
from tests.lab.postgres import public_folder
from tests.lab.processes import wait_for

PASSWORD = "p@ss:word/with%25signs"
GIVEN = {"POSTGRES_PASSWORD": PASSWORD}
ADMIN = "a long password of the admin"


def tool(name: str, *arguments: str | Path) -> None:
    made = subprocess.run(
        [own_binaries() / name, *arguments], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stdout + made.stderr


def test_the_file_follows_the_schema_of_compose() -> None:
    tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", FILE)


def test_the_dockerfile_has_nothing_to_complain_of() -> None:
    tool("hadolint", "--failure-threshold", "info", DOCKERFILE)


def test_the_image_holds_all_that_is_installed_and_nothing_else() -> None:
    """Parts of the distribution that .dockerignore keeps out would be missing in the image."""
    ignored, *rules = [
        line for line in (REPOSITORY / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]  # fmt: skip
    kept = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    assert ignored == "*"
    hatch = REPOSITORY / "pyproject.toml"
    packages = re.findall(r'^    "((?:agent|server|dashboard)/\w+)",$', hatch.read_text(), re.M)
    needed = {package.split("/")[0] for package in packages}
    assert kept == needed | {"migrations", "pyproject.toml", "README.md", "LICENSE"}
    assert all((REPOSITORY / name).exists() for name in kept)
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.split()
    assert not fnmatch.filter(tracked, ".env*")


def test_without_a_password_nothing_starts() -> None:
    with pytest.raises(MissingVariable, match="POSTGRES_PASSWORD"):
        services({})


def test_no_service_has_more_rights_than_it_needs() -> None:
    for name, service in services(GIVEN).items():
        assert "privileged" not in service, name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert not {"cap_add", "network_mode", "pid", "devices"} & set(service), name
        if name != "postgres":  # its image begins as root and steps down by itself
            assert service["cap_drop"] == ["ALL"], name
            assert service["read_only"] is True, name
    user = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE.read_text(), re.M)
    assert user == [("1000", "1000")]


def test_only_the_server_is_published_to_this_machine_alone_and_with_sign_in() -> None:
    published = {name: service["ports"] for name, service in services(GIVEN).items()
                 if "ports" in service}  # fmt: skip
    assert published == {"server": ["127.0.0.1:8260:8260"]}
    document = yaml.safe_load(FILE.read_text())
    assert document["networks"]["inside"] == {"internal": True}
    assert services(GIVEN)["postgres"]["networks"] == ["inside"]
    assert services(GIVEN)["redis"]["networks"] == ["inside"]
    assert image_environment()["FLOPWATCH_SIGN_IN"] == "local"


@pytest.fixture
def folder() -> Iterator[Path]:
    with public_folder() as found:
        yield found


def test_its_commands_bring_a_cluster_to_the_signed_in_admin(folder: Path) -> None:
    with Compose(folder, GIVEN, own_binaries()) as compose:
        compose.up("server", "worker", "beat", "simulation")
        admin = compose.run("server", "flopwatch", "admin", stdin=f"{ADMIN}\n")
        assert admin.returncode == 0, admin.stderr
        with httpx.Client(
            base_url=compose.url, timeout=30, headers={"accept": "text/html"}
        ) as browser:
            assert browser.get("/").headers["location"].startswith("/sign-in")
            browser.post("/sign-in", data={"name": "admin", "password": ADMIN})
            wait_for(lambda: _shows_the_cluster(browser), "figures of the cluster", 150)
        wait_for(lambda: _minutes(compose) > 0, "the worker computes minutes", 150)
        for name in ("worker", "beat"):
            wait_for(lambda name=name: compose.healthy(name), f"{name} is healthy", 60)  # type: ignore[misc]
        for name in ("simulation", "beat", "worker", "server", "redis", "postgres"):
            status, seconds = compose.stop(name)
            assert status == 0, f"{name}: {status}\n{compose.log(name)}"
            assert seconds < STOP_SECONDS, name
            assert "Traceback" not in compose.log(name), compose.log(name)


def _shows_the_cluster(browser: httpx.Client) -> bool:
    answer = browser.get("/api/v1/overview", params={"cluster": "simulated"})
    if answer.status_code == 404:  # it is not known yet
        return False
    overview = answer.raise_for_status().json()
    assert overview["simulated"] is True
    return bool(overview["newest_sample_at"] and overview["allocated"])


def _minutes(compose: Compose) -> int:
    with psycopg.connect(
        host="127.0.0.1", port=compose.ports["postgres"], user="flopwatch", dbname="flopwatch",
        password=PASSWORD,
    ) as connection:  # fmt: skip
        row = connection.execute("SELECT count(*) FROM device_minutes").fetchone()
    assert row is not None
    return int(row[0])
