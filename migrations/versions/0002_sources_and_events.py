"""Which collector a device's figures come from, and what happened to it."""

from alembic import op

revision = "0002"
down_revision = "0001"

SCHEMA = """
CREATE TABLE device_sources (
    device_id BIGINT NOT NULL,
    valid_from timestamptz NOT NULL,
    name TEXT,
    period_seconds FLOAT,
    passed_over JSONB NOT NULL,
    CONSTRAINT pk_device_sources PRIMARY KEY (device_id, valid_from),
    CONSTRAINT fk_device_sources_device_id FOREIGN KEY(device_id) REFERENCES devices (id)
);
CREATE TABLE device_events (
    device_id BIGINT NOT NULL,
    at timestamptz NOT NULL,
    kind TEXT NOT NULL,
    value BIGINT NOT NULL,
    detail TEXT NOT NULL,
    CONSTRAINT pk_device_events PRIMARY KEY (device_id, at, kind, value),
    CONSTRAINT fk_device_events_device_id FOREIGN KEY(device_id) REFERENCES devices (id)
);
"""


def upgrade() -> None:
    op.execute(SCHEMA)
