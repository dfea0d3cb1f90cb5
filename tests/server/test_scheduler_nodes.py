"""What the scheduler says of nodes is kept with them."""

from datetime import UTC, datetime

from sqlalchemy import select

from flopwatch_server.database.engine import Database
from flopwatch_server.fleet.models import Node
from flopwatch_server.fleet.repository.clusters import ensure_cluster
from flopwatch_server.jobs import service
from flopwatch_server.scheduler.records import NodeRecord

T0 = datetime(2026, 3, 12, 9, 0, tzinfo=UTC)


def test_nodes_carry_the_schedulers_word(database: Database) -> None:
    record = NodeRecord("g1", "IDLE+DRAIN", "fan", 8, "h100", ("h100", "debug"))
    with database.session() as session:
        cluster_id = ensure_cluster(session, "granite", T0)
        service.apply_records(session, cluster_id, (), (record,), T0, complete=True, source="slurm")
        node = session.scalars(select(Node)).one()
        assert (node.scheduler_state, node.scheduler_reason) == ("IDLE+DRAIN", "fan")
        assert (node.gpu_count, node.partitions) == (8, ["h100", "debug"])
