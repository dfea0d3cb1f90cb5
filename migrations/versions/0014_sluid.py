"""The SLUID of runs, and its index."""

from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.execute("ALTER TABLE runs ADD COLUMN sluid TEXT")
    op.execute("CREATE INDEX ix_runs_sluid ON runs (cluster_id, sluid) WHERE sluid IS NOT NULL")
