"""What nodes did for the queue, reservations and outages, over time: what GPU time was that no job
held.

States of nodes are told anew by the next poll, so that their history begins with it.
"""

from alembic import op

revision = "0011"
down_revision = "0010"

SCHEMA = (
    """
    CREATE TABLE scheduler_outages (
        cluster_id BIGINT NOT NULL REFERENCES clusters (id),
        kind TEXT NOT NULL,
        valid_from TIMESTAMP WITH TIME ZONE NOT NULL,
        valid_to TIMESTAMP WITH TIME ZONE NOT NULL,
        PRIMARY KEY (cluster_id, kind, valid_from)
    )
    """,
    """
    CREATE TABLE node_states (
        node_id BIGINT NOT NULL REFERENCES nodes (id),
        valid_from TIMESTAMP WITH TIME ZONE NOT NULL,
        valid_to TIMESTAMP WITH TIME ZONE,
        service TEXT NOT NULL,
        PRIMARY KEY (node_id, valid_from)
    )
    """,
    "CREATE UNIQUE INDEX ix_node_states_now ON node_states (node_id) WHERE valid_to IS NULL",
    """
    CREATE TABLE reservations (
        cluster_id BIGINT NOT NULL REFERENCES clusters (id),
        name TEXT NOT NULL,
        valid_from TIMESTAMP WITH TIME ZONE NOT NULL,
        valid_to TIMESTAMP WITH TIME ZONE NOT NULL,
        nodes TEXT[] NOT NULL,
        is_whole BOOLEAN NOT NULL,
        users TEXT[] NOT NULL,
        accounts TEXT[] NOT NULL,
        flags TEXT[] NOT NULL,
        PRIMARY KEY (cluster_id, name, valid_from)
    )
    """,
    *(
        f"ALTER TABLE cluster_steps ADD COLUMN {state}_seconds DOUBLE PRECISION NOT NULL DEFAULT 0"
        for state in ("reserved", "drained", "down")
    ),
    *(
        f"ALTER TABLE cluster_steps ALTER COLUMN {state}_seconds DROP DEFAULT"
        for state in ("reserved", "drained", "down")
    ),
)


def upgrade() -> None:
    for statement in SCHEMA:
        op.execute(statement)
