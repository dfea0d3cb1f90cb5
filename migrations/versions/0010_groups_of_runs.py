"""Find the runs of an array or of a het job by its id."""

from alembic import op

revision = "0010"
down_revision = "0009"

SCHEMA = (
    "CREATE INDEX ix_runs_array ON runs (cluster_id, array_job_id) WHERE array_job_id IS NOT NULL",
    "CREATE INDEX ix_runs_het ON runs (cluster_id, het_job_id) WHERE het_job_id IS NOT NULL",
)


def upgrade() -> None:
    for statement in SCHEMA:
        op.execute(statement)
