"""Hours of devices, and how the GPU time of clusters was used."""

from alembic import op

revision = "0003"
down_revision = "0002"

# Minutes move into partitions of a week, hours get some of 91 days, both counted from a Monday.
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
DO $$
DECLARE part record;
BEGIN
    FOR part IN
        SELECT DISTINCT tier, span, date_bin(span, minute, '2001-01-01Z') AS first
        FROM (SELECT minute FROM all_device_minutes UNION SELECT minute FROM dirty_marks) AS known,
             (VALUES ('device_minutes', interval '7 days'),
                     ('device_hours', interval '91 days')) AS tiers (tier, span)
    LOOP
        EXECUTE format(
            'CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L)',
            part.tier || '_' || to_char(part.first AT TIME ZONE 'UTC', 'YYYYMMDD'),
            part.tier, part.first, part.first + part.span
        );
    END LOOP;
END $$;
INSERT INTO device_minutes SELECT * FROM all_device_minutes;
DROP TABLE all_device_minutes;
INSERT INTO dirty_hours (device_id, hour)
SELECT DISTINCT device_id, date_trunc('hour', minute, 'UTC') FROM device_minutes;
"""

USAGE = """
CREATE TABLE dirty_steps (
    id BIGSERIAL NOT NULL,
    device_id BIGINT NOT NULL,
    step timestamptz NOT NULL,
    CONSTRAINT pk_dirty_steps PRIMARY KEY (id)
);
CREATE TABLE allocation_marks (
    id BIGSERIAL NOT NULL,
    device_id BIGINT,
    since timestamptz NOT NULL,
    CONSTRAINT pk_allocation_marks PRIMARY KEY (id)
);
CREATE TABLE allocation_hours (
    device_id BIGINT NOT NULL,
    hour timestamptz NOT NULL,
    allocation_id BIGINT NOT NULL,
    active_seconds INTEGER NOT NULL,
    low_seconds INTEGER NOT NULL,
    idle_seconds INTEGER NOT NULL,
    sm_active_sum FLOAT,
    sm_active_minutes SMALLINT NOT NULL,
    tensor_active_sum FLOAT,
    tensor_active_minutes SMALLINT NOT NULL,
    dram_active_sum FLOAT,
    dram_active_minutes SMALLINT NOT NULL,
    power_watts_sum FLOAT,
    power_watts_minutes SMALLINT NOT NULL,
    CONSTRAINT pk_allocation_hours PRIMARY KEY (device_id, hour, allocation_id),
    CONSTRAINT fk_allocation_hours_allocation_id FOREIGN KEY(allocation_id) REFERENCES allocations (id) ON DELETE CASCADE
);
CREATE INDEX ix_allocation_hours_allocation_id ON allocation_hours (allocation_id, hour);
CREATE TABLE run_figures (
    run_id BIGINT NOT NULL,
    idle_gpu_hours FLOAT,
    sm_active FLOAT,
    tensor_active FLOAT,
    dram_active FLOAT,
    power_watts FLOAT,
    mfu FLOAT,
    CONSTRAINT pk_run_figures PRIMARY KEY (run_id),
    CONSTRAINT fk_run_figures_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE TABLE cluster_steps (
    cluster_id BIGINT NOT NULL,
    step timestamptz NOT NULL,
    allocated_seconds FLOAT NOT NULL,
    free_seconds FLOAT NOT NULL,
    power_watts FLOAT,
    is_seen BOOLEAN NOT NULL,
    CONSTRAINT pk_cluster_steps PRIMARY KEY (cluster_id, step),
    CONSTRAINT fk_cluster_steps_cluster_id FOREIGN KEY(cluster_id) REFERENCES clusters (id)
);
CREATE TABLE account_steps (
    cluster_id BIGINT NOT NULL,
    step timestamptz NOT NULL,
    account TEXT NOT NULL,
    allocated_seconds FLOAT NOT NULL,
    active_seconds INTEGER NOT NULL,
    low_seconds INTEGER NOT NULL,
    idle_seconds INTEGER NOT NULL,
    tensor_active_sum FLOAT,
    tensor_active_minutes INTEGER NOT NULL,
    CONSTRAINT pk_account_steps PRIMARY KEY (cluster_id, step, account),
    CONSTRAINT fk_account_steps_cluster_id FOREIGN KEY(cluster_id) REFERENCES clusters (id)
);
CREATE INDEX ix_allocations_ended ON allocations (valid_to);

-- Where only the end has moved, what was counted before both ends stands.
CREATE FUNCTION mark_allocation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND (NEW.device_id, NEW.valid_from, NEW.shared, NEW.confidence = 'disputed')
        IS NOT DISTINCT FROM (OLD.device_id, OLD.valid_from, OLD.shared, OLD.confidence = 'disputed')
    THEN
        INSERT INTO allocation_marks (device_id, since)
        VALUES (NEW.device_id, least(OLD.valid_to, NEW.valid_to));
    ELSE
        INSERT INTO allocation_marks (device_id, since)
        SELECT device_id, since
        FROM (VALUES (OLD.device_id, OLD.valid_from), (NEW.device_id, NEW.valid_from))
            AS changed (device_id, since)
        WHERE since IS NOT NULL;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER mark_new AFTER INSERT OR DELETE ON allocations
FOR EACH ROW EXECUTE FUNCTION mark_allocation();
CREATE TRIGGER mark_change AFTER UPDATE ON allocations
FOR EACH ROW WHEN (
    (NEW.device_id, NEW.valid_from, NEW.valid_to, NEW.shared, NEW.confidence = 'disputed')
    IS DISTINCT FROM
    (OLD.device_id, OLD.valid_from, OLD.valid_to, OLD.shared, OLD.confidence = 'disputed')
) EXECUTE FUNCTION mark_allocation();
CREATE FUNCTION mark_account() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO allocation_marks (device_id, since)
    SELECT device_id, valid_from FROM allocations WHERE run_id = NEW.id;
    RETURN NULL;
END $$;
CREATE TRIGGER mark_change AFTER UPDATE ON runs
FOR EACH ROW WHEN (NEW.account IS DISTINCT FROM OLD.account) EXECUTE FUNCTION mark_account();

INSERT INTO allocation_marks (device_id, since) SELECT device_id, valid_from FROM allocations;
INSERT INTO dirty_steps (device_id, step)
SELECT min(device_id), date_bin('10 minutes', minute, 'epoch') FROM device_minutes GROUP BY 2;
"""


def upgrade() -> None:
    op.execute(TIERS)
    op.execute(USAGE)
