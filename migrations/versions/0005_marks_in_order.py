"""Marks of minutes and hours in the order in which they are consumed, instead of by number."""

from alembic import op

revision = "0005"
down_revision = "0004"

SCHEMA = """
ALTER TABLE dirty_marks DROP COLUMN id;
CREATE INDEX ix_dirty_marks_minute ON dirty_marks (minute, device_id);
ALTER TABLE dirty_hours DROP COLUMN id;
CREATE INDEX ix_dirty_hours_hour ON dirty_hours (hour, device_id);
"""


def upgrade() -> None:
    op.execute(SCHEMA)
