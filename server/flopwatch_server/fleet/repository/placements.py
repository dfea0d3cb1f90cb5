"""Where devices sit."""

from datetime import datetime

from sqlalchemy import Select, func, literal, select
from sqlalchemy.dialects.postgresql import distinct_on

from flopwatch_server.database.base import UtcDateTime
from flopwatch_server.fleet.models import Node, Placement


def clusters_at(time: datetime) -> Select[int, int]:
    """In which cluster each device sat at a time: (device id, cluster id), one row a device.

    One that has been taken out counts where it sat last; before it was first seen, where that was.
    """
    moment = literal(time, UtcDateTime)
    away = func.abs(func.extract("epoch", Placement.valid_from - moment))
    return (
        select(Placement.device_id, Node.cluster_id)
        .join(Node, Node.id == Placement.node_id)
        .ext(distinct_on(Placement.device_id))
        .order_by(Placement.device_id, Placement.valid_from > moment, away)
    )
