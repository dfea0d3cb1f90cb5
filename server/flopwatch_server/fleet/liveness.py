"""When nodes were last heard of, and how far off their clocks are."""

from datetime import datetime

from sqlalchemy.orm import Session

from flopwatch_server.fleet.repository import agents


class Liveness:
    """Gathers signs of life, to write them for all nodes at once.

    What was written is forgotten with `keep`, once the transaction is durable.
    """

    def __init__(self) -> None:
        self._seen: dict[int, datetime] = {}
        self._skews: dict[int, float] = {}
        self._is_written = False

    def hear(self, node_id: int, at: datetime) -> None:
        """A batch of this node came."""
        self._seen[node_id] = at

    def measure(self, epoch_id: int, skew_seconds: float) -> None:
        """The clock of this agent was so far ahead of the server's."""
        self._skews[epoch_id] = skew_seconds

    def write(self, session: Session) -> None:
        """Write what was heard."""
        agents.touch_nodes(session, self._seen)
        agents.measure_skews(session, self._skews)
        self._is_written = True

    def keep(self) -> None:
        """The transaction is durable: what was written in it needs no writing any more."""
        if self._is_written:
            self._seen, self._skews = {}, {}
        self._is_written = False

    def forget(self) -> None:
        """The transaction is gone: what was written in it is still to be written."""
        self._is_written = False
