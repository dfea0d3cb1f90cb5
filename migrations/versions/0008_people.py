"""Users, accounts and associations of a scheduler, and their fair share over time."""

from alembic import op

revision = "0008"
down_revision = "0007"

SCHEMA = """
CREATE TABLE users (
    cluster_id BIGINT NOT NULL,
    name TEXT NOT NULL,
    admin_level TEXT NOT NULL,
    coordinates TEXT[] NOT NULL,
    first_told_at timestamptz NOT NULL,
    gone_at timestamptz,
    CONSTRAINT pk_users PRIMARY KEY (cluster_id, name),
    CONSTRAINT fk_users_cluster_id FOREIGN KEY(cluster_id) REFERENCES clusters (id)
);
CREATE TABLE accounts (
    cluster_id BIGINT NOT NULL,
    name TEXT NOT NULL,
    parent TEXT,
    first_told_at timestamptz NOT NULL,
    gone_at timestamptz,
    CONSTRAINT pk_accounts PRIMARY KEY (cluster_id, name),
    CONSTRAINT fk_accounts_cluster_id FOREIGN KEY(cluster_id) REFERENCES clusters (id)
);
CREATE TABLE associations (
    id BIGSERIAL NOT NULL,
    cluster_id BIGINT NOT NULL,
    account TEXT NOT NULL,
    user_name TEXT,
    partition TEXT DEFAULT '' NOT NULL,
    raw_shares BIGINT,
    first_told_at timestamptz NOT NULL,
    gone_at timestamptz,
    CONSTRAINT pk_associations PRIMARY KEY (id),
    CONSTRAINT fk_associations_cluster_id FOREIGN KEY(cluster_id) REFERENCES clusters (id)
);
CREATE UNIQUE INDEX ix_associations_key ON associations (cluster_id, account, user_name, partition) NULLS NOT DISTINCT;
CREATE TABLE shares (
    association_id BIGINT NOT NULL,
    hour timestamptz NOT NULL,
    at timestamptz NOT NULL,
    norm_shares FLOAT,
    raw_usage BIGINT,
    effective_usage FLOAT,
    fair_share FLOAT,
    level_fs FLOAT,
    CONSTRAINT pk_shares PRIMARY KEY (association_id, hour),
    CONSTRAINT fk_shares_association_id FOREIGN KEY(association_id) REFERENCES associations (id) ON DELETE CASCADE
);
"""


def upgrade() -> None:
    op.execute(SCHEMA)
