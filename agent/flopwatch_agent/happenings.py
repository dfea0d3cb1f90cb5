"""What of the rare things that happen to a device is told: each once, and no flood of them."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from flopwatch_agent.collectors import Happening

MOST_A_MINUTE = 6
"""Of one kind, for one device."""

SAME_XID_SECONDS = 60
"""The driver and DCGM tell of the same Xid, DCGM up to its period of 30 s later."""

_MINUTE_SECONDS = 60


class Gate:
    """Lets the happenings of one device pass, or not. Remembers a bounded number of them."""

    def __init__(self) -> None:
        self._times: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=MOST_A_MINUTE))
        self._left_out: defaultdict[str, int] = defaultdict(int)
        self._xid: tuple[str, int, int] | None = None

    def let_pass(self, collector: str, happenings: Iterable[Happening]) -> Iterator[Happening]:
        """What `collector` saw, without what is too much; the next one says how much that was."""
        for happening in happenings:
            if self._is_echo(collector, happening):
                continue
            times = self._times[happening.kind]
            if len(times) == MOST_A_MINUTE and 0 <= happening.second - times[0] < _MINUTE_SECONDS:
                self._left_out[happening.kind] += 1
                continue
            times.append(happening.second)
            left_out = self._left_out.pop(happening.kind, 0)
            if left_out:
                words = f"{left_out} more before were not told"
                detail = f"{happening.detail}; {words}" if happening.detail else words
                happening = replace(happening, detail=detail)
            yield happening

    def _is_echo(self, collector: str, happening: Happening) -> bool:
        """Whether another collector has just told of the same Xid."""
        if happening.kind != "xid":
            return False
        before, self._xid = self._xid, (collector, happening.value, happening.second)
        return (
            before is not None
            and before[0] != collector
            and before[1] == happening.value
            and 0 <= happening.second - before[2] < SAME_XID_SECONDS
        )
