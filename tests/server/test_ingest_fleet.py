"""Agents introduce nodes, devices and where the devices sit."""

from datetime import timedelta
from itertools import repeat
from typing import Any

from flopwatch import wire
from flopwatch_server.database.engine import Database
from flopwatch_server.fleet import service
from flopwatch_server.fleet.repository.clusters import ensure_cluster
from flopwatch_server.fleet.repository.nodes import ensure_nodes
from flopwatch_server.house import House
from tests.lab.ingest import NOW, NOW_SECONDS, IngestClient, batch, device, query, sampled

PLACES = """
    SELECT right(d.uuid, 1), d.instance, n.name, p.minor, p.gres_ordinal
    FROM placements p JOIN devices d ON d.id = p.device_id JOIN nodes n ON n.id = p.node_id
    WHERE p.valid_to IS NULL ORDER BY n.name, p.minor, d.instance, 1
"""


def tell(agent: IngestClient, after: int, *devices: wire.Device, node: str = "gpu01") -> None:
    """Post one sample of each device at `after` seconds from now, and so when they are there."""
    rows = [(index, NOW_SECONDS + after, {"sm_active": 0.5}) for index in range(len(devices))]
    message, values = sampled(rows, ["sm_active"], node=node, devices=list(devices))
    assert agent.post(message, values).status_code == 200


def ordinals(
    database: Database, node: str = "gpu01", source: str = "minor order"
) -> dict[int, str]:
    """The last digit of the UUID at each ordinal of a node, as other parts are told."""
    uuids = dict(query(database, "SELECT id, right(uuid, 1) FROM devices"))
    with database.session() as session:
        [node_id] = ensure_nodes(session, 1, [node]).values()
        found = service.current_devices(session, [node_id])
    assert {kind for _, kind in found.values()} <= {source}
    return {ordinal: uuids[device_id] for (_, ordinal), (device_id, _) in found.items()}


def test_ordinals_follow_the_minors_not_the_order_in_the_batch(agent: IngestClient) -> None:
    tell(agent, 0, device(1, minor=6), device(2, minor=0), device(3, minor=4))
    assert ordinals(agent.database) == {0: "2", 1: "3", 2: "1"}


def test_samples_belong_to_the_device_that_the_index_names(agent: IngestClient) -> None:
    devices = [device(1, minor=1), device(2, minor=0)]
    rows = [(0, NOW_SECONDS, {"sm_active": 0.25}), (1, NOW_SECONDS, {"sm_active": 0.75})]
    agent.post(*sampled(rows, devices=devices))
    kept = query(agent.database, "SELECT right(uuid, 1), sm_active FROM samples "
                 "JOIN devices ON devices.id = device_id ORDER BY 1")  # fmt: skip
    assert kept == [("1", 0.25), ("2", 0.75)]


def test_a_gpu_that_changes_its_node_leaves_the_old_one(agent: IngestClient) -> None:
    tell(agent, 0, device(1, minor=0), device(2, minor=1))
    tell(agent, 10, device(2, minor=1))
    tell(agent, 20, device(3, minor=0), device(1, minor=1), node="gpu02")
    assert query(agent.database, PLACES) == [
        ("2", "", "gpu01", 1, 0), ("3", "", "gpu02", 0, 0), ("1", "", "gpu02", 1, 1),
    ]  # fmt: skip
    tell(agent, 30, device(3, minor=0), node="gpu02")
    tell(agent, 40, device(1, minor=0), device(2, minor=1))
    assert ordinals(agent.database) == {0: "1", 1: "2"}
    assert ordinals(agent.database, "gpu02") == {0: "3"}
    assert query(agent.database, "SELECT count(*) FROM devices") == [(3,)]


def test_a_gpu_stays_in_the_node_that_goes_on_telling_of_it(agent: IngestClient) -> None:
    mine, claimed = device(1, minor=0), device(1, minor=0, model="Tesla", power_limit_watts=1.0)
    for after in (0, 10, 20):
        tell(agent, after, mine)
        tell(agent, after, claimed, node="gpu02")
    assert query(agent.database, PLACES) == [("1", "", "gpu01", 0, 0)]
    assert query(agent.database, "SELECT count(*) FROM placements") == [(1,)]
    described = query(agent.database, "SELECT model, power_limit_watts FROM devices")
    assert described == [(mine.model, 700.0)]
    kept = "SELECT count(*), count(DISTINCT epoch_id), count(DISTINCT device_id) FROM samples"
    assert query(agent.database, kept) == [(6, 2, 1)]


def test_a_gpu_moves_once_its_node_has_been_silent_for_2_minutes(agent: IngestClient) -> None:
    house: House = agent.http.app.state.house  # type: ignore[attr-defined]
    tell(agent, 0, device(1, minor=0))
    for after, node in ((0, "gpu01"), (110, "gpu01"), (120, "gpu02"), (130, "gpu02")):
        house.clock = repeat(NOW + timedelta(seconds=after)).__next__
        tell(agent, after, device(1, minor=0), node="gpu02")
        assert query(agent.database, PLACES) == [("1", "", node, 0, 0)]
    tell(agent, 130, device(1, minor=0))
    assert query(agent.database, PLACES) == [("1", "", "gpu02", 0, 0)]


def test_a_node_that_tells_again_what_it_told_before_gets_its_gpu_back(agent: IngestClient) -> None:
    house: House = agent.http.app.state.house  # type: ignore[attr-defined]
    for after, node in ((0, "gpu01"), (130, "gpu02"), (260, "gpu01")):
        house.clock = repeat(NOW + timedelta(seconds=after)).__next__
        tell(agent, after, device(1, minor=0), node=node)
        assert query(agent.database, PLACES) == [("1", "", node, 0, 0)]


def test_gpus_that_swap_minors_swap_ordinals(agent: IngestClient) -> None:
    tell(agent, 0, device(1, minor=0), device(2, minor=1))
    tell(agent, 10, device(1, minor=1), device(2, minor=0))
    assert ordinals(agent.database) == {0: "2", 1: "1"}
    assert query(agent.database, "SELECT count(*) FROM placements") == [(4,)]


def test_a_gpu_in_anothers_place_displaces_it(agent: IngestClient) -> None:
    tell(agent, 0, device(1, minor=0), device(2, minor=1))
    tell(agent, 10, device(3, minor=0), device(2, minor=1))
    assert ordinals(agent.database) == {0: "3", 1: "2"}


def test_a_gpu_that_fell_off_the_bus_keeps_its_place(agent: IngestClient) -> None:
    tell(agent, 0, device(1, minor=0), device(2, minor=1))
    tell(agent, 10, device(2, minor=1))
    assert ordinals(agent.database) == {0: "1", 1: "2"}


def test_an_old_word_that_comes_late_moves_nothing(agent: IngestClient) -> None:
    tell(agent, 0, device(1, minor=0))
    tell(agent, 100, device(2, minor=0))
    tell(agent, 200, device(1, minor=0), node="gpu02")
    tell(agent, 50, device(1, minor=0))
    assert query(agent.database, PLACES) == [("2", "", "gpu01", 0, 0), ("1", "", "gpu02", 0, 0)]


def test_where_a_gpu_is_split_no_device_has_an_ordinal(agent: IngestClient) -> None:
    """Each instance has a position in the GRES list, so those of whole GPUs behind it shift."""
    first = device(1, minor=0, instance="1/0", profile="3g.40gb")
    second = device(1, minor=0, instance="2/0", profile="3g.40gb")
    tell(agent, 0, first, second, device(2, minor=1))
    assert query(agent.database, PLACES) == [
        ("1", "1/0", "gpu01", 0, None), ("1", "2/0", "gpu01", 0, None), ("2", "", "gpu01", 1, None),
    ]  # fmt: skip


def test_a_gpu_that_is_split_and_joined_again_is_one_thing_at_a_time(agent: IngestClient) -> None:
    whole, other = device(1, minor=0), device(2, minor=1)
    part = device(1, minor=0, instance="1/0", profile="3g.40gb")
    tell(agent, 0, whole, other)
    tell(agent, 10, part, other)
    assert query(agent.database, PLACES) == [
        ("1", "1/0", "gpu01", 0, None), ("2", "", "gpu01", 1, None),
    ]  # fmt: skip
    tell(agent, 20, whole, other)
    assert ordinals(agent.database) == {0: "1", 1: "2"}


def test_a_mig_instance_that_is_split_anew_is_another_device(agent: IngestClient) -> None:
    first = device(1, minor=0, instance="1/0", profile="3g.40gb")
    other = device(1, minor=0, instance="1/0", profile="1g.10gb")
    tell(agent, 0, first)
    tell(agent, 10, other)
    tell(agent, 20, first)
    devices = query(agent.database, "SELECT profile, valid_to IS NULL FROM devices ORDER BY id")
    assert devices == [("3g.40gb", False), ("1g.10gb", False), ("3g.40gb", True)]
    assert query(agent.database, "SELECT count(*) FROM placements WHERE valid_to IS NULL") == [(1,)]


def listed(number: int, ordinal: int | None, **changes: Any) -> wire.Device:
    """A device with its position in gres.conf."""
    return device(number, gres_ordinal=ordinal, **changes)


def test_gres_conf_goes_before_the_order_of_minors(agent: IngestClient) -> None:
    tell(agent, 0, listed(0, 2), listed(1, 1), listed(2, 0))
    assert ordinals(agent.database, source="gres.conf") == {0: "2", 1: "1", 2: "0"}


def test_a_gpu_that_gres_conf_leaves_out_has_no_ordinal(agent: IngestClient) -> None:
    """Nor does it matter that the scheduler knows of fewer GPUs than there are."""
    tell(agent, 0, listed(0, None), listed(1, None), listed(2, 0), listed(3, 1))
    query(agent.database, "UPDATE nodes SET gpu_count = 2 RETURNING 1")
    assert ordinals(agent.database, source="gres.conf") == {0: "2", 1: "3"}
    sources = query(agent.database, "SELECT ordinal_source FROM placements ORDER BY minor")
    assert sources == [(None,), (None,), ("gres.conf",), ("gres.conf",)]


def test_a_changed_ordinal_alone_is_taken_up_from_then_on(agent: IngestClient) -> None:
    tell(agent, 0, listed(0, None), listed(1, None))
    assert ordinals(agent.database) == {0: "0", 1: "1"}
    tell(agent, 30, listed(0, 1), listed(1, 0))
    assert ordinals(agent.database, source="gres.conf") == {0: "1", 1: "0"}
    tell(agent, 20, listed(0, 0), listed(1, 1))  # an older word
    assert ordinals(agent.database, source="gres.conf") == {0: "1", 1: "0"}
    tell(agent, 50, listed(0, None), listed(1, None))
    assert ordinals(agent.database) == {0: "0", 1: "1"}
    history = query(
        agent.database,
        "SELECT p.gres_ordinal, p.ordinal_source, p.valid_to - p.valid_from"
        " FROM placements p JOIN devices d ON d.id = device_id WHERE right(uuid, 1) = '0'"
        " ORDER BY p.valid_from",
    )
    assert [row[:2] for row in history] == [
        (0, "minor order"), (1, "gres.conf"), (0, "minor order"),
    ]  # fmt: skip
    assert [lasted for *_, lasted in history[1:]] == [timedelta(seconds=20), None]


def test_an_ordinal_that_is_told_twice_is_nobodys(agent: IngestClient) -> None:
    tell(agent, 0, listed(0, 1), listed(1, 1), listed(2, 0))
    assert ordinals(agent.database, source="gres.conf") == {0: "2"}


def test_a_silent_gpu_keeps_its_ordinal_until_another_is_told_there(agent: IngestClient) -> None:
    tell(agent, 0, listed(0, 1), listed(1, 0), listed(2, 2))
    tell(agent, 10, listed(1, 0), listed(2, 2))
    assert ordinals(agent.database, source="gres.conf") == {0: "1", 1: "0", 2: "2"}
    tell(agent, 20, listed(1, 1), listed(2, 0))
    assert query(agent.database, PLACES) == [
        ("0", "", "gpu01", 0, None), ("1", "", "gpu01", 1, 1), ("2", "", "gpu01", 2, 0),
    ]  # fmt: skip


def test_instances_have_the_ordinals_that_gres_conf_gives_them(agent: IngestClient) -> None:
    first = listed(1, 1, minor=0, instance="1/0", profile="3g.40gb")
    second = listed(1, 0, minor=0, instance="2/0", profile="3g.40gb")
    tell(agent, 0, first, second, listed(2, 2, minor=1))
    assert query(agent.database, PLACES) == [
        ("1", "1/0", "gpu01", 0, 1), ("1", "2/0", "gpu01", 0, 0), ("2", "", "gpu01", 1, 2),
    ]  # fmt: skip


def test_what_the_driver_says_of_a_gpu_is_kept_up_to_date(agent: IngestClient) -> None:
    tell(agent, 0, device(1, power_limit_watts=700.0))
    tell(agent, 10, device(1, power_limit_watts=500.0, memory_mib=None))
    limits = query(agent.database, "SELECT power_limit_watts, memory_mib FROM devices")
    assert limits == [(500.0, 81559.0)]


def test_an_agent_finds_the_schedulers_node_by_an_alias(agent: IngestClient) -> None:
    with agent.database.session() as session:
        cluster_id = ensure_cluster(session, "alpha", NOW)
        ensure_nodes(session, cluster_id, ["gpu01"])
    agent.post(batch(node="gpu01.example.org", aliases=["gpu01"]))
    nodes = query(agent.database, "SELECT name, aliases, last_batch_at FROM nodes")
    assert nodes == [("gpu01", ["gpu01.example.org"], NOW)]
    agent.post(batch(node="gpu01.example.org"))
    assert query(agent.database, "SELECT count(*) FROM nodes") == [(1,)]


def test_what_an_agent_can_see_is_kept_with_its_life_until_it_tells_otherwise(
    agent: IngestClient,
) -> None:
    kept = "SELECT number, capabilities FROM agent_epochs ORDER BY number"
    agent.post(batch(capabilities={"cgroup": "v2", "job_cgroups": "none"}))
    agent.post(batch())
    assert query(agent.database, kept) == [(1, {"cgroup": "v2", "job_cgroups": "none"})]
    agent.post(batch(capabilities={"cgroup": "v2", "job_cgroups": "job id\0" + "x" * 400}))
    later = wire.Epoch("boot-a", 2, NOW_SECONDS - 60.0, "0.1.0")
    agent.post(batch(epoch=later, capabilities={"cgroup": "v1"}))
    first, second = query(agent.database, kept)
    assert first[1]["job_cgroups"].startswith("job id xxx")
    assert len(first[1]["job_cgroups"]) == 300
    assert second == (2, {"cgroup": "v1"})


def test_equal_names_on_two_clusters_are_two_nodes(agent: IngestClient) -> None:
    with agent.database.session() as session:
        ensure_nodes(session, ensure_cluster(session, "beta", NOW), ["gpu01"])
    agent.post(batch())
    assert query(agent.database, "SELECT count(*) FROM nodes WHERE name = 'gpu01'") == [(2,)]


def test_clusters_are_listed_by_name(database: Database) -> None:
    with database.session() as session:
        ensure_cluster(session, "granite", NOW)
        ensure_cluster(session, "basalt", NOW, simulated=True)
        views: list[dict[str, Any]] = [view.model_dump() for view in service.clusters(session)]
    assert views == [
        {"name": "basalt", "simulated": True}, {"name": "granite", "simulated": False},
    ]  # fmt: skip
