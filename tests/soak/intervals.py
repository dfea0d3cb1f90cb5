"""What a database holds of each device's intervals, counted by SQL of the tests' own."""

from typing import Any

from sqlalchemy import text

from flopwatch_server.database.engine import Database

_SAMPLES = """
    SELECT s.device_id, s.epoch_id, s.ts, n.id AS node_id, n.name
    FROM samples s
    JOIN agent_epochs e ON e.id = s.epoch_id
    JOIN nodes n ON n.id = e.node_id
    JOIN clusters c ON c.id = n.cluster_id
    WHERE c.name = :cluster
"""


class Intervals:
    """Samples and minutes of one cluster; an interval is 10 s, named by its end."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)

    def ask(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Any query, which may take longer than those of pages: it goes over all samples."""
        with self.database.session() as session:
            session.execute(text("SET LOCAL statement_timeout = '5min'"))
            return [tuple(row) for row in session.execute(text(statement), parameters)]

    def devices(self, cluster: str) -> list[tuple[Any, ...]]:
        """(device, first interval, last interval, how many between) of every device."""
        return self.ask(
            f"""SELECT device_id, min(ts), max(ts), count(DISTINCT ts)
                FROM ({_SAMPLES}) s GROUP BY device_id ORDER BY device_id""",
            cluster=cluster,
        )

    def lost(self, cluster: str) -> list[tuple[Any, ...]]:
        """Devices with a hole between their first and their last interval.

        An agent that was held up so long that it could not read a GPU says so: that is no hole.
        """
        return self.ask(
            f"""WITH span AS (
                    SELECT device_id, min(ts) AS first, max(ts) AS last, count(DISTINCT ts) AS told
                    FROM ({_SAMPLES}) s GROUP BY device_id)
                SELECT device_id, first, last, told, unread.seconds FROM span, LATERAL (
                    SELECT coalesce(sum(extract(epoch FROM valid_to - valid_from)), 0) AS seconds
                    FROM gaps g WHERE g.device_id = span.device_id AND cause LIKE '%readings%'
                    AND valid_from >= first AND valid_to <= last) unread
                WHERE told + unread.seconds / 10 <> extract(epoch FROM last - first) / 10 + 1""",
            cluster=cluster,
        )

    def lost_by_fault(self) -> list[tuple[Any, ...]]:
        """What agents say was lost other than by not having been read."""
        return self.ask("SELECT DISTINCT cause FROM gaps WHERE cause NOT LIKE '%readings%'")

    def twice(self, cluster: str) -> list[tuple[Any, ...]]:
        """Intervals of a device that are there more than once."""
        return self.ask(
            f"SELECT device_id, ts FROM ({_SAMPLES}) s GROUP BY device_id, ts HAVING count(*) > 1",
            cluster=cluster,
        )

    def wrong_minutes(self, cluster: str) -> list[tuple[Any, ...]]:
        """Minutes that count other samples than there are; (minute, minute + 60 s] is one."""
        return self.ask(
            f"""WITH raw AS (
                    SELECT device_id, date_trunc('minute', ts - interval '1 s') AS minute,
                           count(*) AS samples
                    FROM ({_SAMPLES}) s GROUP BY 1, 2)
                SELECT device_id, minute, raw.samples, m.samples_received
                FROM raw LEFT JOIN device_minutes m USING (device_id, minute)
                WHERE raw.samples IS DISTINCT FROM m.samples_received""",
            cluster=cluster,
        )

    def history_is_in(self, cluster: str, hours: float) -> bool:
        """Whether every device goes back so far without a hole, and as far as all others."""
        devices = self.devices(cluster)
        begins = {first for _, first, _, _ in devices}
        spans = [(last - first).total_seconds() for _, first, last, _ in devices]
        return bool(devices) and len(begins) == 1 and min(spans) >= hours * 3600 - 10 \
            and not self.lost(cluster)  # fmt: skip

    def newest_age_seconds(self, cluster: str) -> float:
        """How old the newest interval of the device is that is furthest behind."""
        [(age,)] = self.ask(
            f"""SELECT extract(epoch FROM now() - min(newest)) FROM
                (SELECT max(ts) AS newest FROM ({_SAMPLES}) s GROUP BY device_id) d""",
            cluster=cluster,
        )
        return float(age) if age is not None else float("inf")
