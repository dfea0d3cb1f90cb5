"""Hours of devices, and how the GPU time of clusters was used."""

from alembic import op

revision = "0003"
down_revision = "0002"

SCHEMA = ""


def upgrade() -> None:
    op.execute(SCHEMA)
