"""Nodes whose GPUs are listed in odd ways: a job is told to hold what it can open, and no other.

The device files have no driver: to open one that a job was given says so, any other is forbidden.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flopwatch_agent.ownership.gres_conf import GresConf
from flopwatch_server.scheduler.records import NodeGpus
from flopwatch_server.scheduler.slurm import Slurm
from tests.lab.slurm import Cards, SlurmLab, lab_folder, plain_cards, wait_until
from tests.slurm.reading import gpus_of

REVERSED = plain_cards(8, "h100", (7, 6, 5, 4, 3, 2, 1, 0))
FROM_TWO = Cards(
    {f"nvidia{minor}": minor for minor in range(2, 6)},
    "gpu:h100:4",
    ["Name=gpu Type=h100 File={dev}/nvidia[2-5]"],
)
# Two instances of one card, each known by the files of the card and of its two parts.
INSTANCES = Cards(
    {"nvidia0": 0, "cap30": 30, "cap31": 31, "cap39": 39, "cap40": 40},
    "gpu:1g.10gb:2",
    [
        "Name=gpu Type=1g.10gb MultipleFiles={dev}/nvidia0,{dev}/cap30,{dev}/cap31",
        "Name=gpu Type=1g.10gb MultipleFiles={dev}/nvidia0,{dev}/cap39,{dev}/cap40",
    ],
)
SHARDS = Cards(
    {"nvidia0": 0, "nvidia1": 1},
    "gpu:h100:2,shard:8",
    ["Name=gpu Type=h100 File={dev}/nvidia[0-1]", "Name=shard Count=8"],
)
LIST_OPENED = """\
for file in {dev}/*; do
  (: <"$file") 2>&1 | grep -q "not permitted" || basename "$file"
done
touch "$SLURM_JOB_ID.listed"
exec sleep 300
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    cards = [REVERSED, FROM_TWO, INSTANCES, SHARDS]
    with lab_folder() as root, SlurmLab(root, cards=cards) as lab:
        yield lab


@pytest.fixture
def slurm(lab: SlurmLab) -> Iterator[Slurm]:
    yield Slurm(lab.cluster, lab.environment)
    lab.cancel_jobs()


def start(lab: SlurmLab, node: str, gres: str) -> tuple[int, list[str]]:
    """A running job, and the device files that it can open."""
    script = LIST_OPENED.format(dev=lab.device_folder(node))
    job = lab.submit(script, f"--gres={gres}", f"--nodelist={node}")
    home = lab.users["fwalice"].home
    wait_until((home / f"{job}.listed").exists, f"job {job} has listed its files", 20.0)
    return job, (home / f"slurm-{job}.out").read_text().split()


@pytest.mark.parametrize(
    ("node", "minors"), [(0, {7, 6}), (1, {2, 3})], ids=["reversed", "from nvidia2"]
)
def test_positions_lead_to_the_devices_that_the_job_can_open(
    slurm: Slurm, lab: SlurmLab, node: int, minors: set[int]
) -> None:
    name = lab.nodes[node]
    job, opened = start(lab, name, "gpu:2")
    files = [lab.device_folder(name) / file for file in opened]
    assert {file.stat().st_rdev & 0xFF for file in files} == minors
    assert gpus_of(slurm, lab, job) == {job: (NodeGpus(name, 2, (0, 1), "h100"),)}
    [places] = GresConf(lab.environment, name, Path("/proc")).read()
    assert {minor for (minor, _), place in places.items() if place in (0, 1)} == minors


def test_instances_are_told_by_their_position_and_not_by_their_card(
    slurm: Slurm, lab: SlurmLab
) -> None:
    name = lab.nodes[2]
    first, its = start(lab, name, "gpu:1g.10gb:1")
    second, others = start(lab, name, "gpu:1")
    assert its == ["cap30", "cap31", "nvidia0"]
    assert others == ["cap39", "cap40", "nvidia0"]
    assert gpus_of(slurm, lab, first, second) == {
        first: (NodeGpus(name, 1, (0,), "1g.10gb"),),
        second: (NodeGpus(name, 1, (1,), "1g.10gb"),),
    }


def test_shards_are_told_by_their_cards_which_are_shared(slurm: Slurm, lab: SlurmLab) -> None:
    """Each card has four shards, and Slurm puts a job's shards on one card."""
    name = lab.nodes[3]
    held = dict(start(lab, name, f"shard:{shards}") for shards in (2, 4, 2))
    cards = {job: tuple(int(file[-1]) for file in files) for job, files in held.items()}
    assert sorted(cards.values()) == [(0,), (0,), (1,)]
    assert gpus_of(slurm, lab, *held) == {
        job: (NodeGpus(name, 1, card, shared=True),) for job, card in cards.items()
    }
    assert slurm.refusals() == []
