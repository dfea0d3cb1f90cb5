"""What could not be read of a scheduler's answers, when to ask again, and how far back is known.

What accounting has told until when moves to a source of its own, so that neither its failures nor
those of the queue hide the other's.
"""

from alembic import op

revision = "0009"
down_revision = "0008"

SCHEMA = (
    """
    CREATE TABLE scheduler_refusals (
        cluster_id BIGINT NOT NULL REFERENCES clusters (id),
        call TEXT NOT NULL,
        field TEXT NOT NULL,
        problem TEXT NOT NULL,
        count BIGINT NOT NULL,
        first_at TIMESTAMP WITH TIME ZONE NOT NULL,
        last_at TIMESTAMP WITH TIME ZONE NOT NULL,
        PRIMARY KEY (cluster_id, call, field)
    )
    """,
    "ALTER TABLE scheduler_sources ADD COLUMN rests_until TIMESTAMP WITH TIME ZONE",
    "ALTER TABLE scheduler_sources ADD COLUMN history_from TIMESTAMP WITH TIME ZONE",
    """
    INSERT INTO scheduler_sources (cluster_id, kind, closed_until)
    SELECT cluster_id, 'slurm accounting', closed_until FROM scheduler_sources
    WHERE kind = 'slurm' AND closed_until IS NOT NULL
    """,
    "UPDATE scheduler_sources SET closed_until = NULL WHERE kind = 'slurm'",
)


def upgrade() -> None:
    for statement in SCHEMA:
        op.execute(statement)
