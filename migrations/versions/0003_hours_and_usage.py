"""Hours of devices, and how the GPU time of clusters was used."""

from alembic import op

revision = "0003"
down_revision = "0002"

# Minutes move into partitions of a week each, which begin on a Monday.
TIERS = """
ALTER TABLE device_minutes RENAME TO all_device_minutes;
ALTER TABLE all_device_minutes RENAME CONSTRAINT pk_device_minutes TO pk_all_device_minutes;
ALTER INDEX ix_device_minutes_minute RENAME TO ix_all_device_minutes_minute;
CREATE TABLE device_minutes (
    device_id BIGINT NOT NULL,
    minute timestamptz NOT NULL,
    state SMALLINT NOT NULL,
    samples_received SMALLINT NOT NULL,
    samples_expected SMALLINT NOT NULL,
    samples_suspect SMALLINT NOT NULL,
    energy_joules REAL,
    sm_min REAL,
    sm_max REAL,
    engine_active REAL,
    sm_active REAL,
    sm_occupancy REAL,
    tensor_active REAL,
    dram_active REAL,
    fp64_active REAL,
    fp32_active REAL,
    fp16_active REAL,
    gpu_utilization REAL,
    memory_used_mib REAL,
    power_watts REAL,
    sm_clock_mhz REAL,
    temperature_c REAL,
    pcie_tx REAL,
    pcie_rx REAL,
    nvlink_tx REAL,
    nvlink_rx REAL,
    throttled_share REAL,
    engine_low_share REAL,
    sm_active_max REAL,
    tensor_active_max REAL,
    dram_active_max REAL,
    memory_used_mib_max REAL,
    power_watts_max REAL,
    temperature_c_max REAL,
    CONSTRAINT pk_device_minutes PRIMARY KEY (device_id, minute)
)
 PARTITION BY RANGE (minute);
CREATE INDEX ix_device_minutes_minute ON device_minutes (minute);
DO $$
DECLARE week timestamptz;
BEGIN
    FOR week IN SELECT DISTINCT date_trunc('week', minute, 'UTC') FROM all_device_minutes LOOP
        EXECUTE format(
            'CREATE TABLE %I PARTITION OF device_minutes FOR VALUES FROM (%L) TO (%L)',
            'device_minutes_' || to_char(week AT TIME ZONE 'UTC', 'YYYYMMDD'),
            week, week + interval '7 days'
        );
    END LOOP;
END $$;
INSERT INTO device_minutes SELECT * FROM all_device_minutes;
DROP TABLE all_device_minutes;
CREATE TABLE device_hours (
    device_id BIGINT NOT NULL,
    hour timestamptz NOT NULL,
    unknown_minutes SMALLINT NOT NULL,
    idle_minutes SMALLINT NOT NULL,
    low_minutes SMALLINT NOT NULL,
    active_minutes SMALLINT NOT NULL,
    samples_received SMALLINT NOT NULL,
    samples_expected SMALLINT NOT NULL,
    samples_suspect SMALLINT NOT NULL,
    energy_joules REAL,
    sm_min REAL,
    sm_max REAL,
    engine_active REAL,
    sm_active REAL,
    sm_occupancy REAL,
    tensor_active REAL,
    dram_active REAL,
    fp64_active REAL,
    fp32_active REAL,
    fp16_active REAL,
    gpu_utilization REAL,
    memory_used_mib REAL,
    power_watts REAL,
    sm_clock_mhz REAL,
    temperature_c REAL,
    pcie_tx REAL,
    pcie_rx REAL,
    nvlink_tx REAL,
    nvlink_rx REAL,
    throttled_share REAL,
    engine_low_share REAL,
    sm_active_max REAL,
    tensor_active_max REAL,
    dram_active_max REAL,
    memory_used_mib_max REAL,
    power_watts_max REAL,
    temperature_c_max REAL,
    sm_active_points BYTEA,
    tensor_active_points BYTEA,
    dram_active_points BYTEA,
    CONSTRAINT pk_device_hours PRIMARY KEY (device_id, hour)
)
 PARTITION BY RANGE (hour);
CREATE TABLE dirty_hours (
    id BIGSERIAL NOT NULL,
    device_id BIGINT NOT NULL,
    hour timestamptz NOT NULL,
    CONSTRAINT pk_dirty_hours PRIMARY KEY (id)
);
INSERT INTO dirty_hours (device_id, hour)
SELECT DISTINCT device_id, date_trunc('hour', minute, 'UTC') FROM device_minutes;
"""

USAGE = ""


def upgrade() -> None:
    op.execute(TIERS)
    op.execute(USAGE)
