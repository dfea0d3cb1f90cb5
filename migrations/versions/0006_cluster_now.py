"""What every cluster does now, found once for all who look."""

from alembic import op

revision = "0006"
down_revision = "0005"

SCHEMA = """
CREATE TABLE cluster_now (
    cluster_id bigint NOT NULL,
    made_at timestamptz NOT NULL,
    figures jsonb NOT NULL,
    CONSTRAINT pk_cluster_now PRIMARY KEY (cluster_id),
    CONSTRAINT fk_cluster_now_cluster_id_clusters FOREIGN KEY(cluster_id) REFERENCES clusters (id)
);
"""


def upgrade() -> None:
    op.execute(SCHEMA)
