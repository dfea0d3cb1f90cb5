"""What an agent's spool holds on disk, read beside a running agent."""

import gzip
from pathlib import Path

from flopwatch_agent.segment import scan


def waiting(folder: Path) -> list[bytes]:
    """The batches that the server does not have yet, oldest first."""
    return [
        gzip.decompress(segment[record.offset : record.offset + record.length])
        for segment in (path.read_bytes() for path in sorted(folder.glob("*.segment")))
        for record, done in scan(segment)
        if not done
    ]
