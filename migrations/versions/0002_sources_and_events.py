"""Which collector a device's figures come from, and what happened to it."""

from alembic import op

revision = "0002"
down_revision = "0001"

SCHEMA = ""


def upgrade() -> None:
    op.execute(SCHEMA)
