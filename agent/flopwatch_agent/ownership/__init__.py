"""Evidence of who holds a GPU: prolog files, and processes that compute on it.

The scheduler decides what is allocated; the agent only tells what it sees and where.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from flopwatch.wire import Evidence
from flopwatch_agent.inventory import Key
from flopwatch_agent.ownership.process import ProcessOwner
from flopwatch_agent.ownership.prolog import Held


def prolog_evidence(
    now: float, held: Iterable[Held], index: Mapping[Key, int]
) -> Iterator[Evidence]:
    """What the prolog's drop files say now. `index` gives a device's place in the batch."""
    places = {_uuid(*key): place for key, place in index.items()}
    for file in held:
        sign = Evidence("prolog", file.job_id, file.since, now, uid=file.uid)
        if file.ordinals:
            yield replace(sign, ordinals=file.ordinals)
        for uuid in file.uuids:
            if uuid in places:
                yield replace(sign, device=places[uuid])


def _uuid(gpu: str, instance: str, _profile: str) -> str:
    """What `nvidia-smi -L` calls a whole GPU, and older drivers a MIG instance."""
    return f"MIG-{gpu}/{instance}" if instance else gpu


class ProcessEvidence:
    """Remembers since when each process has been seen on each device."""

    def __init__(self, owner_of: Callable[[int], ProcessOwner | None]) -> None:
        self._owner_of = owner_of
        self._first_seen: dict[tuple[Key, int, ProcessOwner], float] = {}

    def observe(
        self, now: float, pids: Mapping[Key, list[int]], index: Mapping[Key, int]
    ) -> list[Evidence]:
        """The processes that compute now. `index` gives a device's place in the batch."""
        first_seen: dict[tuple[Key, int, ProcessOwner], float] = {}
        for key, numbers in pids.items():
            for pid in numbers:
                owner = self._owner_of(pid)
                if owner is not None and key in index:
                    sign = (key, pid, owner)
                    first_seen[sign] = self._first_seen.get(sign, now)
        self._first_seen = first_seen
        return [
            Evidence(owner.kind, owner.job_id, since, now, device=index[key], pid=pid,
                     uid=owner.uid)
            for (key, pid, owner), since in first_seen.items()
        ]  # fmt: skip
