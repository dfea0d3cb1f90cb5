"""`flopwatch agent`: the command line of the per-node daemon."""

import argparse
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from socket import gethostname

from flopwatch.wire import DEFAULT_SOCKET, NODE
from flopwatch_agent import collectors
from flopwatch_agent.daemon import Agent, Settings
from flopwatch_agent.transport import read_token

_ENVIRONMENT = "FLOPWATCH_AGENT_"

# name, default, meaning
_OPTIONS: tuple[tuple[str, str | None, str], ...] = (
    ("server", None, "URL of the Flopwatch server"),
    ("token-file", None, "file with this node's token, readable for its owner only"),
    ("node", gethostname().split(".")[0], "name of this node, as the scheduler knows it"),
    ("spool", "/var/lib/flopwatch/spool", "folder for batches not yet taken by the server"),
    ("spool-mib", "1024", "MiB of batches to keep at most; the oldest go first"),
    ("spool-hours", "47", "age in hours of the oldest batch worth sending: below the server's 48"),
    ("socket", DEFAULT_SOCKET, "socket that training processes report to"),
    ("proc", "/proc", "where the host's /proc is mounted"),
    ("cgroup", "/sys/fs/cgroup", "where the host's cgroups are mounted"),
    ("prolog-dir", "/run/flopwatch/jobs", "folder that the prolog drops its files in"),
    ("slurmd-name", "", "with several slurmd on this host: count only this one's jobs"),
)


def main() -> int:
    """Run the agent until SIGTERM or SIGINT; 2 where the command line is wrong."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        settings = _settings()
        if not NODE.fullmatch(settings.node):
            raise ValueError(f"{settings.node!r} is no name of a node: --node needs {NODE.pattern}")
        read_token(settings.token_file)
        agent = Agent(settings, time.time, stop.wait)
    except (OSError, ValueError) as error:
        print(f"flopwatch agent: {error}", file=sys.stderr)
        return 2
    if settings.server.startswith("http:"):
        logging.warning("%s is not encrypted: the token travels in clear", settings.server)
    agent.run()
    return 0


def _settings() -> Settings:
    parser = argparse.ArgumentParser(
        description="Read this node's GPUs and send their figures to the Flopwatch server.",
        epilog=f"Each option may also be set as {_ENVIRONMENT}NAME in the environment.",
    )
    of_collectors = [each for entry in collectors.registered() for each in entry.settings]
    for name, default, meaning in (
        *_OPTIONS,
        *((each.name, each.default, each.meaning) for each in of_collectors),
    ):
        value = os.environ.get(_ENVIRONMENT + name.upper().replace("-", "_"), default)
        parser.add_argument(
            f"--{name}",
            default=value,
            required=value is None,
            help=f"{meaning} ({default})" if default else meaning,
        )
    parser.add_argument(
        "--local-runs",
        action="store_true",
        default=os.environ.get(f"{_ENVIRONMENT}LOCAL_RUNS") == "1",
        help="no scheduler shares this machine out: each process tree on a GPU is a run",
    )
    given = parser.parse_args()
    return Settings(
        server=given.server,
        token_file=Path(given.token_file),
        node=given.node,
        spool=Path(given.spool),
        socket=Path(given.socket),
        proc=Path(given.proc),
        cgroup=Path(given.cgroup),
        prolog_dir=Path(given.prolog_dir),
        slurmd_name=given.slurmd_name or None,
        collectors={
            each.name: getattr(given, each.name.replace("-", "_")) for each in of_collectors
        },
        spool_bytes=_amount("spool-mib", given.spool_mib) << 20,
        spool_age_seconds=3600.0 * _amount("spool-hours", given.spool_hours),
        local_runs=given.local_runs,
    )


def _amount(option: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise ValueError(f"--{option} needs a whole number above 0, not {text!r}")
    return int(text)
