"""Partitions and QOS with their limits, as the scheduler tells them."""

from alembic import op

revision = "0012"
down_revision = "0011"

SCHEMA = (
    """
    CREATE TABLE scheduler_partitions (
        cluster_id BIGINT NOT NULL REFERENCES clusters (id),
        name TEXT NOT NULL,
        state TEXT NOT NULL,
        is_default BOOLEAN NOT NULL,
        max_time_seconds BIGINT,
        qos TEXT,
        preempt_mode TEXT NOT NULL,
        gone_at TIMESTAMP WITH TIME ZONE,
        PRIMARY KEY (cluster_id, name)
    )
    """,
    """
    CREATE TABLE qos (
        cluster_id BIGINT NOT NULL REFERENCES clusters (id),
        name TEXT NOT NULL,
        priority BIGINT NOT NULL,
        preempts TEXT[] NOT NULL,
        preempt_mode TEXT NOT NULL,
        usage_factor DOUBLE PRECISION NOT NULL,
        max_wall_seconds BIGINT,
        max_gpus_per_user BIGINT,
        first_told_at TIMESTAMP WITH TIME ZONE NOT NULL,
        gone_at TIMESTAMP WITH TIME ZONE,
        PRIMARY KEY (cluster_id, name)
    )
    """,
)


def upgrade() -> None:
    for statement in SCHEMA:
        op.execute(statement)
