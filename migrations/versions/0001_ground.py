"""The ground: fleet, runs, samples and minutes, access."""

from alembic import op

revision = "0001"
down_revision = None

SCHEMA = """
CREATE TABLE clusters (
    id BIGSERIAL NOT NULL,
    name TEXT NOT NULL,
    simulated BOOLEAN NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_clusters PRIMARY KEY (id),
    CONSTRAINT uq_clusters_name UNIQUE (name)
);
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
);
CREATE INDEX ix_device_minutes_minute ON device_minutes (minute);
CREATE TABLE devices (
    id BIGSERIAL NOT NULL,
    uuid TEXT NOT NULL,
    instance TEXT NOT NULL,
    profile TEXT NOT NULL,
    valid_from timestamptz NOT NULL,
    valid_to timestamptz,
    model TEXT NOT NULL,
    memory_mib FLOAT,
    power_limit_watts FLOAT,
    CONSTRAINT pk_devices PRIMARY KEY (id),
    CONSTRAINT uq_devices_uuid_instance_profile_valid_from UNIQUE (uuid, instance, profile, valid_from)
);
CREATE UNIQUE INDEX ix_devices_current ON devices (uuid, instance, profile) WHERE valid_to IS NULL;
CREATE TABLE dirty_marks (
    id BIGSERIAL NOT NULL,
    device_id BIGINT NOT NULL,
    minute timestamptz NOT NULL,
    CONSTRAINT pk_dirty_marks PRIMARY KEY (id)
);
CREATE TABLE local_accounts (
    name TEXT NOT NULL,
    password_hash BYTEA NOT NULL,
    salt BYTEA NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT pk_local_accounts PRIMARY KEY (name)
);
CREATE TABLE samples (
    device_id INTEGER NOT NULL,
    epoch_id INTEGER NOT NULL,
    ts timestamptz NOT NULL,
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
    energy_joules REAL,
    sm_clock_mhz REAL,
    temperature_c REAL,
    pcie_tx REAL,
    pcie_rx REAL,
    nvlink_tx REAL,
    nvlink_rx REAL,
    throttled_share REAL,
    engine_low_share REAL,
    sm_min REAL,
    sm_max REAL,
    subsample_count REAL,
    source_period REAL,
    CONSTRAINT pk_samples PRIMARY KEY (device_id, ts, epoch_id)
)
 PARTITION BY RANGE (ts);
CREATE TABLE browser_sessions (
    id_hash BYTEA NOT NULL,
    name TEXT NOT NULL,
    created_at timestamptz NOT NULL,
    last_used_at timestamptz NOT NULL,
    CONSTRAINT pk_browser_sessions PRIMARY KEY (id_hash),
    CONSTRAINT fk_browser_sessions_name FOREIGN KEY(name) REFERENCES local_accounts (name)
);
CREATE TABLE gaps (
    device_id BIGINT NOT NULL,
    valid_from timestamptz NOT NULL,
    valid_to timestamptz NOT NULL,
    cause TEXT NOT NULL,
    CONSTRAINT pk_gaps PRIMARY KEY (device_id, valid_from),
    CONSTRAINT fk_gaps_device_id FOREIGN KEY(device_id) REFERENCES devices (id)
);
CREATE TABLE metric_states (
    device_id BIGINT NOT NULL,
    metric TEXT NOT NULL,
    valid_from timestamptz NOT NULL,
    valid_to timestamptz,
    reason TEXT NOT NULL,
    CONSTRAINT pk_metric_states PRIMARY KEY (device_id, metric, valid_from),
    CONSTRAINT fk_metric_states_device_id FOREIGN KEY(device_id) REFERENCES devices (id)
);
CREATE TABLE nodes (
    id BIGSERIAL NOT NULL,
    cluster_id BIGINT NOT NULL,
    name TEXT NOT NULL,
    aliases TEXT[] DEFAULT '{}' NOT NULL,
    scheduler_state TEXT,
    scheduler_reason TEXT,
    gpu_count BIGINT,
    partitions TEXT[] DEFAULT '{}' NOT NULL,
    last_batch_at timestamptz,
    CONSTRAINT pk_nodes PRIMARY KEY (id),
    CONSTRAINT uq_nodes_cluster_id_name UNIQUE (cluster_id, name),
    CONSTRAINT fk_nodes_cluster_id FOREIGN KEY(cluster_id) REFERENCES clusters (id)
);
CREATE TABLE runs (
    id BIGSERIAL NOT NULL,
    cluster_id BIGINT NOT NULL,
    raw_job_id BIGINT NOT NULL,
    submitted_at timestamptz NOT NULL,
    display_id TEXT NOT NULL,
    array_job_id BIGINT,
    array_task_id BIGINT,
    het_job_id BIGINT,
    het_offset BIGINT,
    name TEXT NOT NULL,
    user_name TEXT NOT NULL,
    account TEXT NOT NULL,
    partition TEXT NOT NULL,
    qos TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    started_at timestamptz,
    ended_at timestamptz,
    vanished_at timestamptz,
    time_limit_seconds BIGINT,
    suspended_seconds BIGINT,
    restarts BIGINT,
    exit_code TEXT,
    gpu_count BIGINT,
    node_count BIGINT,
    CONSTRAINT pk_runs PRIMARY KEY (id),
    CONSTRAINT uq_runs_cluster_id_raw_job_id_submitted_at UNIQUE (cluster_id, raw_job_id, submitted_at),
    CONSTRAINT fk_runs_cluster_id FOREIGN KEY(cluster_id) REFERENCES clusters (id)
);
CREATE INDEX ix_runs_account ON runs (account);
CREATE INDEX ix_runs_display ON runs (cluster_id, display_id);
CREATE INDEX ix_runs_ended_at ON runs (ended_at);
CREATE INDEX ix_runs_open ON runs (cluster_id) WHERE ended_at IS NULL;
CREATE INDEX ix_runs_user_name ON runs (user_name);
CREATE TABLE scheduler_sources (
    cluster_id BIGINT NOT NULL,
    kind TEXT NOT NULL,
    last_success_at timestamptz,
    closed_until timestamptz,
    error TEXT,
    error_since timestamptz,
    CONSTRAINT pk_scheduler_sources PRIMARY KEY (cluster_id, kind),
    CONSTRAINT fk_scheduler_sources_cluster_id FOREIGN KEY(cluster_id) REFERENCES clusters (id)
);
CREATE TABLE tokens (
    id BIGSERIAL NOT NULL,
    kind TEXT NOT NULL,
    hash BYTEA NOT NULL,
    prefix TEXT NOT NULL,
    cluster_id BIGINT NOT NULL,
    node TEXT,
    created_at timestamptz NOT NULL,
    last_used_at timestamptz,
    revoked_at timestamptz,
    CONSTRAINT pk_tokens PRIMARY KEY (id),
    CONSTRAINT uq_tokens_hash UNIQUE (hash),
    CONSTRAINT fk_tokens_cluster_id FOREIGN KEY(cluster_id) REFERENCES clusters (id)
);
CREATE TABLE agent_epochs (
    id BIGSERIAL NOT NULL,
    node_id BIGINT NOT NULL,
    boot_id TEXT NOT NULL,
    number BIGINT NOT NULL,
    started_at timestamptz NOT NULL,
    agent_version TEXT NOT NULL,
    clock_skew_seconds FLOAT,
    capabilities JSONB DEFAULT '{}' NOT NULL,
    CONSTRAINT pk_agent_epochs PRIMARY KEY (id),
    CONSTRAINT uq_agent_epochs_node_id_boot_id_number UNIQUE (node_id, boot_id, number),
    CONSTRAINT fk_agent_epochs_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);
CREATE TABLE allocations (
    id BIGSERIAL NOT NULL,
    run_id BIGINT NOT NULL,
    node_id BIGINT NOT NULL,
    place INTEGER NOT NULL,
    gres_ordinal INTEGER,
    gres_type TEXT,
    device_id BIGINT,
    valid_from timestamptz NOT NULL,
    valid_to timestamptz,
    shared BOOLEAN NOT NULL,
    source TEXT NOT NULL,
    confidence TEXT NOT NULL,
    CONSTRAINT pk_allocations PRIMARY KEY (id),
    CONSTRAINT uq_allocations_run_id_node_id_place_valid_from UNIQUE (run_id, node_id, place, valid_from),
    CONSTRAINT fk_allocations_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE,
    CONSTRAINT fk_allocations_node_id FOREIGN KEY(node_id) REFERENCES nodes (id),
    CONSTRAINT fk_allocations_device_id FOREIGN KEY(device_id) REFERENCES devices (id)
);
CREATE INDEX ix_allocations_device ON allocations (device_id, valid_from);
CREATE INDEX ix_allocations_open ON allocations (node_id) WHERE valid_to IS NULL;
CREATE TABLE evidence (
    id BIGSERIAL NOT NULL,
    node_id BIGINT NOT NULL,
    kind TEXT NOT NULL,
    raw_job_id BIGINT NOT NULL,
    device_id BIGINT,
    ordinals TEXT,
    pid BIGINT,
    uid BIGINT,
    first_seen_at timestamptz NOT NULL,
    last_seen_at timestamptz NOT NULL,
    CONSTRAINT pk_evidence PRIMARY KEY (id),
    CONSTRAINT fk_evidence_node_id FOREIGN KEY(node_id) REFERENCES nodes (id),
    CONSTRAINT fk_evidence_device_id FOREIGN KEY(device_id) REFERENCES devices (id)
);
CREATE UNIQUE INDEX ix_evidence_key ON evidence (node_id, kind, raw_job_id, device_id, pid, ordinals, first_seen_at) NULLS NOT DISTINCT;
CREATE TABLE hook_counters (
    node_id BIGINT NOT NULL,
    boot TEXT NOT NULL,
    rank BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    cluster_id BIGINT NOT NULL,
    raw_job_id BIGINT,
    received_at timestamptz NOT NULL,
    pid BIGINT NOT NULL,
    uid BIGINT NOT NULL,
    world_size BIGINT NOT NULL,
    device_name TEXT NOT NULL,
    device_uuid TEXT,
    train_flops JSONB NOT NULL,
    forward_only_flops JSONB NOT NULL,
    train_seconds FLOAT NOT NULL,
    elapsed_seconds FLOAT NOT NULL,
    steps BIGINT NOT NULL,
    phase_seconds JSONB NOT NULL,
    convention TEXT NOT NULL,
    reason TEXT,
    dropped BIGINT NOT NULL,
    CONSTRAINT pk_hook_counters PRIMARY KEY (node_id, boot, rank, sequence),
    CONSTRAINT fk_hook_counters_node_id FOREIGN KEY(node_id) REFERENCES nodes (id),
    CONSTRAINT fk_hook_counters_cluster_id FOREIGN KEY(cluster_id) REFERENCES clusters (id)
);
CREATE INDEX ix_hook_counters_job ON hook_counters (cluster_id, raw_job_id, node_id, boot, rank, received_at);
CREATE TABLE node_minutes (
    node_id BIGINT NOT NULL,
    minute timestamptz NOT NULL,
    cpu_seconds FLOAT,
    cpu_count BIGINT,
    memory_used_mib FLOAT,
    memory_total_mib FLOAT,
    CONSTRAINT pk_node_minutes PRIMARY KEY (node_id, minute),
    CONSTRAINT fk_node_minutes_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);
CREATE TABLE placements (
    device_id BIGINT NOT NULL,
    valid_from timestamptz NOT NULL,
    valid_to timestamptz,
    node_id BIGINT NOT NULL,
    minor BIGINT,
    pci_bus_id TEXT,
    gres_ordinal BIGINT,
    ordinal_source TEXT,
    CONSTRAINT pk_placements PRIMARY KEY (device_id, valid_from),
    CONSTRAINT fk_placements_device_id FOREIGN KEY(device_id) REFERENCES devices (id),
    CONSTRAINT fk_placements_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_placements_node ON placements (node_id) WHERE valid_to IS NULL;
CREATE TABLE run_minutes (
    node_id BIGINT NOT NULL,
    raw_job_id BIGINT NOT NULL,
    minute timestamptz NOT NULL,
    cpu_seconds FLOAT,
    cpu_count BIGINT,
    memory_used_mib FLOAT,
    memory_total_mib FLOAT,
    CONSTRAINT pk_run_minutes PRIMARY KEY (node_id, raw_job_id, minute),
    CONSTRAINT fk_run_minutes_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);
"""


def upgrade() -> None:
    op.execute(SCHEMA)
