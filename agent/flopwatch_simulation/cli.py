"""`flopwatch simulate`: let a simulated cluster report to a server."""

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

from flopwatch_simulation.cast import NODES_PER_BLOCK
from flopwatch_simulation.cluster import Cluster
from flopwatch_simulation.doors import Doors, Refused
from flopwatch_simulation.sender import Sender


def main() -> int:
    """Entry point: simulate until Ctrl-C or SIGTERM. 0 then, 1 if the server refuses it."""
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    try:
        doors = Doors(
            arguments.server, _token(arguments.node_token_file), _token(arguments.feed_token_file)
        )
        cluster = Cluster(arguments.seed, arguments.nodes)
        Sender(cluster, doors, arguments.history_minutes * 60).run()
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
    parser.add_argument("--nodes", type=_positive, default=NODES_PER_BLOCK, help="of 8 GPUs each")
    parser.add_argument("--seed", type=int, default=1, help="of another cluster")
    parser.add_argument(
        "--history-minutes", type=_positive, default=120, help="how far back it begins"
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _token(path: Path) -> str:
    return path.read_text().strip()


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(0)
