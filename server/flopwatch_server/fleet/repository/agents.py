"""What agents tell: nodes, devices and where they sit, lives of agents, and signs of life."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Float,
    Row,
    Update,
    and_,
    bindparam,
    case,
    func,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.orm import Session

from flopwatch import wire
from flopwatch_server.database.base import UtcDateTime
from flopwatch_server.fleet.models import AgentEpoch, Device, Node, Placement

GRES_CONF = "gres.conf"
_MINOR_ORDER = "minor order"


def current_placements(session: Session, node_ids: Collection[int]) -> Sequence[Placement]:
    """Where devices of these nodes sit now."""
    return session.scalars(
        select(Placement).where(Placement.node_id.in_(node_ids), Placement.valid_to.is_(None))
    ).all()


def agent_node(session: Session, cluster_id: int, name: str, aliases: Sequence[str]) -> int:
    """The node an agent speaks for, by name, else by alias; a name nobody told yet is a new one.

    The agent's aliases are kept, so that the scheduler's name for it leads to the same node.
    """
    names = [name, *aliases]
    found = session.scalars(
        select(Node)
        .where(
            Node.cluster_id == cluster_id,
            or_(Node.name.in_(names), Node.aliases.contains([name])),
        )
        .order_by((Node.name == name).desc(), Node.id)
    ).first()
    if found is None:
        session.execute(
            insert(Node)
            .values(cluster_id=cluster_id, name=name, aliases=aliases)
            .on_conflict_do_nothing()
        )
        found = session.scalars(
            select(Node).where(Node.cluster_id == cluster_id, Node.name == name)
        ).one()
    unknown = [alias for alias in names if alias != found.name and alias not in found.aliases]
    if unknown:
        found.aliases = [*found.aliases, *unknown]
        session.flush()
    return found.id


def agent_epoch(session: Session, node_id: int, epoch: wire.Epoch) -> int:
    """Id of one life of one agent, which is made if it is new."""
    session.execute(
        insert(AgentEpoch)
        .values(
            node_id=node_id,
            boot_id=epoch.boot_id,
            number=epoch.number,
            started_at=datetime.fromtimestamp(epoch.started_at, UTC),
            agent_version=epoch.agent_version,
        )
        .on_conflict_do_nothing()
    )
    return session.scalars(
        select(AgentEpoch.id).where(
            AgentEpoch.node_id == node_id,
            AgentEpoch.boot_id == epoch.boot_id,
            AgentEpoch.number == epoch.number,
        )
    ).one()


def tell_capabilities(session: Session, epoch_id: int, found: Mapping[str, str]) -> None:
    """Keep what an agent can see on its node now."""
    session.execute(
        update(AgentEpoch).where(AgentEpoch.id == epoch_id).values(capabilities=dict(found))
    )


def devices(session: Session, told: Sequence[wire.Device], since: datetime) -> list[int]:
    """Ids of devices in the order told; new ones are made, valid from `since`."""
    if not told:
        return []
    session.execute(
        insert(Device)
        .values(
            [
                {"uuid": device.uuid, "instance": device.instance, "profile": device.profile,
                 "valid_from": since, "model": device.model}
                for device in sorted(told, key=_identity)  # one order, so two writers can't lock
            ]
        )
        .on_conflict_do_nothing()
    )  # fmt: skip
    identity = tuple_(Device.uuid, Device.instance, Device.profile)
    rows = session.execute(
        select(Device.id, Device.uuid, Device.instance, Device.profile).where(
            identity.in_([_identity(device) for device in told]), Device.valid_to.is_(None)
        )
    )
    ids = {(uuid, instance, profile): id_ for id_, uuid, instance, profile in rows}
    return [ids[_identity(device)] for device in told]


def describe(session: Session, told: Mapping[int, wire.Device]) -> None:
    """Keep what the driver says of these devices (by id), and what it said if it is silent now."""
    rows = [
        {"device_id": id_, "model": told[id_].model, "memory_mib": told[id_].memory_mib,
         "power_limit_watts": told[id_].power_limit_watts}
        for id_ in sorted(told)
    ]  # fmt: skip
    if rows:
        session.connection().execute(_DESCRIBE_DEVICE, rows)


def _identity(device: wire.Device) -> tuple[str, str, str]:
    return device.uuid, device.instance, device.profile


def place(
    session: Session, node_id: int, told: Mapping[int, wire.Device], since: datetime, at: datetime
) -> bool:
    """Bring placements up to what `node_id` tells of its devices (by id) at the time `at`.

    One place, a minor with an instance, holds one device: another that was thought to be there is
    no longer, and if it was a MIG instance, it no longer exists. So it is with the whole of a GPU
    that is told as instances, and the other way round. A word older than what is known changes
    nothing. A device never seen before has been there from `since`. Returns whether a
    device left a place.
    """
    session.execute(select(Node.id).where(Node.id == node_id).with_for_update())
    newest = _newest_placements(session, told)
    opening = {id_: told[id_] for id_ in told if id_ not in newest or newest[id_] < at}
    ordinals = _told_once(told)
    spots = {(device.minor, device.instance): id_ for id_, device in told.items()}
    forms = {(device.uuid, bool(device.instance)): id_ for id_, device in told.items()}
    left: list[Placement] = []
    for placement, known in _placements_near(session, node_id, told):
        holder = spots.get((placement.minor, known.instance))
        other_form = forms.get((known.uuid, not known.instance))
        if placement.device_id in told:
            ordinal = ordinals.get(placement.device_id)
            if _sits(placement, node_id, told[placement.device_id], ordinal):
                opening.pop(placement.device_id, None)
            elif placement.valid_from < at:
                left.append(placement)
        elif other_form is not None or (holder is not None and placement.minor is not None):
            if placement.valid_from >= at:
                opening.pop(other_form or holder or 0, None)
            else:
                left.append(placement)
                known.valid_to = at if known.instance else None
    for placement in left:
        placement.valid_to = at
    session.add_all(
        Placement(device_id=id_, node_id=node_id, minor=device.minor, pci_bus_id=device.pci_bus_id,
                  gres_ordinal=ordinals.get(id_),
                  ordinal_source=GRES_CONF if id_ in ordinals else None,
                  valid_from=at if id_ in newest else since)
        for id_, device in opening.items()
    )  # fmt: skip
    session.flush()
    _rank(session, {node_id, *(placement.node_id for placement in left)})
    return any(placement.node_id != node_id for placement in left)


def _told_once(told: Mapping[int, wire.Device]) -> dict[int, int]:
    """GRES ordinals by device; one that is told of two devices is known of neither."""
    times = Counter(device.gres_ordinal for device in told.values())
    return {
        id_: device.gres_ordinal
        for id_, device in told.items()
        if device.gres_ordinal is not None and times[device.gres_ordinal] == 1
    }


def _newest_placements(session: Session, device_ids: Collection[int]) -> dict[int, datetime]:
    """When each of these devices came to the last place it is known to have been in."""
    rows = session.execute(
        select(Placement.device_id, func.max(Placement.valid_from))
        .where(Placement.device_id.in_(device_ids))
        .group_by(Placement.device_id)
    )
    return {device_id: valid_from for device_id, valid_from in rows}


def _placements_near(
    session: Session, node_id: int, device_ids: Collection[int]
) -> Sequence[Row[Placement, Device]]:
    """Open placements on this node, and those of these devices wherever they are."""
    return session.execute(
        select(Placement, Device)
        .join(Device, Device.id == Placement.device_id)
        .where(
            Placement.valid_to.is_(None),
            or_(Placement.node_id == node_id, Placement.device_id.in_(device_ids)),
        )
    ).all()


def _sits(placement: Placement, node_id: int, device: wire.Device, ordinal: int | None) -> bool:
    known = placement.gres_ordinal if placement.ordinal_source == GRES_CONF else None
    return (placement.node_id, placement.minor, placement.pci_bus_id, known) == (
        node_id,
        device.minor,
        device.pci_bus_id,
        ordinal,
    )


def _rank(session: Session, node_ids: Collection[int]) -> None:
    """Settle the GRES ordinals of these nodes.

    Where an agent tells any, those are all: of two devices at one ordinal the one that was placed
    there last holds it. Else whole GPUs are ranked by the order of their minors. Where one is
    split, no rank is known: each instance has a position of its own.
    """
    node = Placement.node_id
    is_told = Placement.ordinal_source.is_not_distinct_from(GRES_CONF)
    told = case((is_told, Placement.gres_ordinal))
    is_whole = and_(Device.instance == "", Placement.minor.is_not(None))
    rank = func.row_number().over(partition_by=node, order_by=Placement.minor) - 1
    newest = func.row_number().over(partition_by=(node, told), order_by=Placement.valid_from.desc())
    placed = (
        select(
            Placement.device_id,
            Placement.valid_from,
            case((newest == 1, told)).label("told"),
            rank.label("rank"),
            func.bool_and(is_whole & ~is_told).over(partition_by=node).label("is_ranked"),
        )
        .join(Device, Device.id == Placement.device_id)
        .where(Placement.node_id.in_(node_ids), Placement.valid_to.is_(None))
        .subquery()
    )
    session.execute(
        update(Placement)
        .where(
            Placement.device_id == placed.c.device_id,
            Placement.valid_from == placed.c.valid_from,
        )
        .values(
            gres_ordinal=case((placed.c.is_ranked, placed.c.rank), else_=placed.c.told),
            ordinal_source=case(
                (placed.c.is_ranked, _MINOR_ORDER), (placed.c.told.is_not(None), GRES_CONF)
            ),
        )
        .execution_options(synchronize_session="fetch")
    )


def touch_nodes(session: Session, seen: Mapping[int, datetime]) -> None:
    """Remember when the newest batch of each node came."""
    ids = sorted(seen)
    session.execute(_TOUCH_NODES, {"ids": ids, "values": [seen[id_] for id_ in ids]})


def measure_skews(session: Session, skews: Mapping[int, float]) -> None:
    """Remember how far each agent's clock is ahead of the server's, in seconds, by epoch."""
    ids = sorted(skews)
    session.execute(_MEASURE_SKEWS, {"ids": ids, "values": [skews[id_] for id_ in ids]})


def _update_each(model: type[Node] | type[AgentEpoch], column: str, kind: type[Any]) -> Update:
    """UPDATE of one column of many rows, from the arrays `ids` and `values`."""
    told = func.unnest(
        bindparam("ids", type_=ARRAY(BigInteger)), bindparam("values", type_=ARRAY(kind))
    ).table_valued("id", "value", name="told")
    rows = told.render_derived()
    return (
        update(model)
        .where(model.id == rows.c.id)
        .values({column: rows.c.value})
        .execution_options(synchronize_session=False)
    )


_DESCRIBE_DEVICE = (
    update(Device)
    .where(Device.id == bindparam("device_id"))
    .values(
        model=bindparam("model"),
        memory_mib=func.coalesce(bindparam("memory_mib", type_=Float), Device.memory_mib),
        power_limit_watts=func.coalesce(
            bindparam("power_limit_watts", type_=Float), Device.power_limit_watts
        ),
    )
)
# Every second runs these, and building a statement costs more than running it.
_TOUCH_NODES = _update_each(Node, "last_batch_at", UtcDateTime)
_MEASURE_SKEWS = _update_each(AgentEpoch, "clock_skew_seconds", Float)
