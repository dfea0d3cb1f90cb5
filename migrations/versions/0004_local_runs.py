"""Runs of machines that no scheduler shares out."""

from alembic import op

revision = "0004"
down_revision = "0003"

SCHEMA = """
ALTER TABLE runs ADD COLUMN local BOOLEAN DEFAULT false NOT NULL;
CREATE TABLE local_sightings (
    run_id BIGINT NOT NULL,
    node_id BIGINT NOT NULL,
    last_seen_at timestamptz NOT NULL,
    heard_at timestamptz NOT NULL,
    CONSTRAINT pk_local_sightings PRIMARY KEY (run_id),
    CONSTRAINT fk_local_sightings_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE,
    CONSTRAINT fk_local_sightings_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_local_sightings_heard_at ON local_sightings (heard_at);
"""


def upgrade() -> None:
    op.execute(SCHEMA)
