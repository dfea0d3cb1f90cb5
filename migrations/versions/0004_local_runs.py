"""Runs of machines that no scheduler shares out."""

from alembic import op

revision = "0004"
down_revision = "0003"

SCHEMA = ""


def upgrade() -> None:
    op.execute(SCHEMA)
