"""Fair share for the small cluster: a tree of three accounts, told again and again by hand."""

import math
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from flopwatch_server.fleet.models import Cluster
from flopwatch_server.people import service
from flopwatch_server.scheduler.records import (
    AssociationRecord,
    People,
    ShareRecord,
    UserRecord,
)
from flopwatch_server.scheduler.repository import sources

PEOPLE = People(
    associations=(
        AssociationRecord("root", None, None, 1),
        AssociationRecord("science", None, "root", 100),
        AssociationRecord("nlp", None, "science", 30),
        AssociationRecord("vision", None, "science", 70),
        AssociationRecord("vision", "alice", None, 10),
        AssociationRecord("vision", "bob", None, None),
        AssociationRecord("vision", "carol", None, 10),
    ),
    users=(UserRecord("alice"), UserRecord("bob"), UserRecord("carol")),
)
ALICE = ShareRecord("vision", "alice", "", 10, 0.25, 41_723, 0.734523, 0.166667, 0.340357)
SHARES = (
    ShareRecord("root", raw_usage=67_779, effective_usage=1.0),
    ShareRecord("science", None, "", 100, 1.0, 67_779, 1.0, None, 1.0),
    ShareRecord("nlp", None, "", 30, 0.3, 10_976, 0.16193, None, 1.852652),
    ShareRecord("vision", None, "", 70, 0.7, 56_803, 0.83807, None, 0.835253),
    ALICE,
    ShareRecord("vision", "bob", "", None, 0.5, 15_080, 0.265477, 0.333333, None),
    ShareRecord("vision", "carol", "", 10, 0.25, 0, 0.0, 0.5, math.inf),
)


def tell(session: Session, at: datetime, *changed: ShareRecord) -> None:
    """What a poll does with the answers of Slurm; `changed` are told in place of their likes."""
    cluster_id = session.scalars(select(Cluster.id)).one()
    known = {(share.account, share.user): share for share in (*SHARES, *changed)}
    service.apply_people(session, cluster_id, PEOPLE, at, complete=True)
    service.apply_shares(session, cluster_id, tuple(known.values()), at)
    sources.succeeded(session, cluster_id, service.SLURM_SHARES, at)
