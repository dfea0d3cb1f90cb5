"""Which version a scheduler has."""

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.execute("ALTER TABLE scheduler_sources ADD COLUMN version TEXT")
