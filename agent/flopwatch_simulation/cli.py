"""`flopwatch simulate`: let a simulated cluster report to a server."""

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from flopwatch_simulation.cluster import DEFAULT_NODES
from flopwatch_simulation.crew import Orders, play, processes_for
from flopwatch_simulation.doors import Refused


def main() -> int:
    """Entry point: simulate until Ctrl-C or SIGTERM. 0 then, 1 if the server refuses it."""
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    try:
        play(
            Orders(
                server=arguments.server,
                node_token=arguments.node_token_file.read_text().strip(),
                feed_token=arguments.feed_token_file.read_text().strip(),
                seed=arguments.seed,
                nodes=arguments.nodes,
                history_seconds=int(arguments.history_hours * 3600),
                processes=arguments.processes or processes_for(arguments.nodes),
            )
        )
    except (OSError, ValueError, Refused) as problem:
        print(f"flopwatch simulate: {problem}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Let a simulated GPU cluster report to a Flopwatch server, by the same doors "
        "as a real one. The same seed is the same cluster, with the same jobs at the same time."
    )
    parser.add_argument("--server", required=True, help="URL, such as http://localhost:8260")
    parser.add_argument("--node-token-file", required=True, type=Path)
    parser.add_argument("--feed-token-file", required=True, type=Path)
    parser.add_argument("--nodes", type=_positive, default=DEFAULT_NODES, help="of 8 GPUs each")
    parser.add_argument("--seed", type=int, default=1, help="of another cluster")
    parser.add_argument("--history-hours", type=_hours, default=2.0, help="how far back it begins")
    parser.add_argument("--processes", type=_positive, help="that send; by default as needed")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _hours(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{number} is no stretch of time")
    return number


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(0)
