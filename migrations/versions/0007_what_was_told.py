"""The fingerprint of what a scheduler said of a run last, so that it is not written again."""

from alembic import op

revision = "0007"
down_revision = "0006"

SCHEMA = "ALTER TABLE runs ADD COLUMN told BIGINT"


def upgrade() -> None:
    op.execute(SCHEMA)
