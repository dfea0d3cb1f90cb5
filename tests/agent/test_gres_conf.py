"""Which device stands at which position of the GRES list: gres.conf and device files."""

import logging
import os
from pathlib import Path
from stat import S_IFCHR

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flopwatch.wire import Device
from flopwatch_agent.ownership import gres_conf, slurm_conf
from flopwatch_agent.ownership.gres_conf import GresConf
from tests.agent.test_daemon import Life, life

__all__ = ["life"]

NVIDIA, CAPS = 195, 511  # majors: of /dev/nvidia*, and one of those that nvidia-caps gets

# A node "gpu2" in gres.conf, by hand after gres.conf(5): the numbers of its nvidia files in order.
LISTS = {
    "in order": ("Name=gpu File=/dev/nvidia[0-3]", [0, 1, 2, 3]),
    "one by one and reversed": (
        "Name=gpu File=/dev/nvidia1\nName=gpu File=/dev/nvidia0", [1, 0],
    ),
    "reversed in one list": ("Name=gpu File=/dev/nvidia[3,1,0]", [3, 1, 0]),
    "from nvidia2 on": ("Name=gpu Type=h100 File=/dev/nvidia[2-5]", [2, 3, 4, 5]),
    "with a hole": ("Name=gpu File=/dev/nvidia[0-3,5]", [0, 1, 2, 3, 5]),
    "several lists": ("Name=gpu File=/dev/nvidia[4-5],/dev/nvidia7,/dev/nvidia[0,2]",
                      [4, 5, 7, 0, 2]),
    "keys in any case, blanks, quotes, comments": (
        '# NAME=gpu File=/dev/nvidia9\n\n NAME = gpu  file="/dev/nvidia[1-2]" # the last\r\n',
        [1, 2],
    ),
    "over several lines": (
        "Name=gpu Type=h100 \\\n  File=/dev/nvidia[6-7] \\\n  Cores=0-31\n"
        "Name=gpu Type=h100 File=/dev/nvidia0",
        [6, 7, 0],
    ),
    "for other nodes": (
        "NodeName=gpu1 Name=gpu File=/dev/nvidia[0-7]\n"
        "NodeName=gpu[2-3],login Name=gpu File=/dev/nvidia[4-5]\n"
        "NodeName=gpu[20-29] Name=gpu File=/dev/nvidia[6-7]",
        [4, 5],
    ),
    "lines for all come before those of the node": (
        "NodeName=gpu2 Name=gpu File=/dev/nvidia0\nName=gpu File=/dev/nvidia1", [1, 0],
    ),
    "beside other resources": (
        "Name=shard Count=32 File=/dev/nvidia3\nName=mps Count=100\n"
        "Name=gpu File=/dev/nvidia[2-3]\nName=bandwidth Type=lustre Count=4G Flags=CountOnly",
        [2, 3],
    ),
    "detection switched off for the node": (
        "AutoDetect=nvml\nNodeName=gpu2 AutoDetect=off Name=gpu File=/dev/nvidia[0-1]", [0, 1],
    ),
    "detection in a line of a resource, which Slurm takes no notice of": (
        "Name=gpu AutoDetect=nvml File=/dev/nvidia[1,0]", [1, 0],
    ),
    "detection for other nodes": (
        "NodeName=gpu[5-9] AutoDetect=nvml\nNodeName=gpu2 Name=gpu File=/dev/nvidia1", [1],
    ),
    "of types in the order of slurm.conf, no more of each than there": (
        "Name=gpu Type=v100 File=/dev/nvidia[0-3]\nName=gpu Type=A100 File=/dev/nvidia4\n"
        "Name=gpu Type=a100 File=/dev/nvidia5\nName=gpu Type=old File=/dev/nvidia6",
        [4, 5, 0, 1],
    ),
}  # fmt: skip
SLURM = """\
ClusterName=lab
NodeName=gpu1 Gres=gpu:4
  INCLUDE 	nodes.conf
PartitionName=all Nodes=ALL
"""
NODES = """\
NodeName=gpu[2-3] Gres=gpu:a100:no_consume:2(S:0),gpu:V100:2,shard:64 \\
  RealMemory=512000
"""

SILENT = {
    "detection": ("AutoDetect=nvml\nName=gpu File=/dev/nvidia[0-1]", "AutoDetect=nvml"),
    "detection for the node": ("NodeName=gpu[1-2] AutoDetect=nvidia", "AutoDetect=nvidia"),
    "a count alone": ("Name=gpu Count=4", "gres.conf:1: no File"),
    "no end": ("\n\nName=gpu File=/dev/nvidia[0-3", "gres.conf:3: '/dev/nvidia[0-3' has a bracket"),
    "backwards": ("Name=gpu File=/dev/nvidia[3-0]", "gres.conf:1: [3-0] has no end"),
    "letters": ("Name=gpu File=/dev/nvidia[a-b]", "gres.conf:1: [a-b] is no list of numbers"),
    "too many": ("Name=gpu File=/dev/nvidia[0-1024]", "gres.conf:1: [0-1024] has no end"),
    "far too many": ("Name=gpu File=/dev/nvidia[0-999999999]", "names too many"),
    "too many one by one": (
        f"Name=gpu File={','.join(f'/dev/nvidia{number}' for number in range(1025))}", "too many",
    ),
    "too many by too many": (f"Name=gpu File=/dev/nvidia{'[0-999]' * 9999}", "names too many"),
    "too many together": (
        "Name=gpu File=/dev/nvidia[0-9]\n" + "Name=gpu File=/dev/nvidia[0-1014]\n", "gres.conf:2: ",
    ),
    "far too many nodes": ("NodeName=n[0-9999][0-9999] Name=gpu File=/dev/nvidia0", "too many"),
    "prose": ("Name=gpu File=/dev/nvidia0\nthe quick fox", "gres.conf:2: 'the quick fox' is not"),
    "an unknown line": ("Gpus=4", "gres.conf:1: neither Name nor NodeName"),
    "a lost include": ("include gone.conf", "gone.conf"),
    "an include of itself": ("Include gres.conf", "gres.conf: one Include too many"),
    "too much": ("#" * (1 << 20) + "\n", "gres.conf: over 1048576 bytes"),
    "include after include": ("Include nodes.conf", "nodes.conf:1: 'include"),
}  # fmt: skip


def folder(path: Path, gres: str, slurm: str = SLURM, nodes: str = NODES) -> Path:
    (path / "slurm.conf").write_text(slurm)
    (path / "nodes.conf").write_text(nodes)
    (path / "gres.conf").write_text(gres)
    return path / "gres.conf"


def follow(path: Path, node: str = "gpu2", proc: Path = Path("/proc")) -> GresConf:
    return GresConf({"SLURM_CONF": str(path / "slurm.conf")}, node, proc)


def device_file(path: Path, major: int, minor: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, 0o600 | S_IFCHR, os.makedev(major, minor))
    return path


@pytest.mark.parametrize(("gres", "numbers"), LISTS.values(), ids=list(LISTS))
def test_positions_go_by_the_files_as_slurm_takes_them(
    tmp_path: Path, gres: str, numbers: list[int]
) -> None:
    _, listed = gres_conf.load(folder(tmp_path, gres), "gpu2")
    assert listed == [(f"/dev/nvidia{number}",) for number in numbers]


def test_positions_are_those_that_a_real_slurm_had(tmp_path: Path) -> None:
    """Of five jobs with one GPU each in Slurm 22.05: their IDX, and the file that each could open.

    There nvidia5 and nvidia2 were IDX 0 and 1, nvidia7, nvidia6 and nvidia1 were 2 to 4.
    """
    gres = (
        "NodeName=gpu2 Name=gpu Type=a File=/dev/nvidia[1,0]\n"
        "NodeName=gpu2 Name=gpu Type=b \\\n  File=/dev/nvidia[5,2-4]\n"
        "Name=gpu Type=a File=/dev/nvidia7,/dev/nvidia6\n"
    )
    slurm = "NodeName=gpu2 Gres=gpu:b:2,gpu:a:3\n"
    _, listed = gres_conf.load(folder(tmp_path, gres, slurm), "gpu2")
    assert listed == [(f"/dev/nvidia{number}",) for number in (5, 2, 7, 6, 1)]


def test_a_resource_of_several_files_has_one_position(tmp_path: Path) -> None:
    gres = (
        "Name=gpu Type=3g.40gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[30-31]\n"
        "Name=gpu Type=3g.40gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[39-40]\n"
    )
    _, listed = gres_conf.load(folder(tmp_path, gres), "gpu2")
    assert listed == [
        ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"),
        ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap39", "/dev/nvidia-caps/nvidia-cap40"),
    ]


@pytest.mark.parametrize(("gres", "cause"), SILENT.values(), ids=list(SILENT))
def test_what_is_not_written_there_is_not_known_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, gres: str, cause: str
) -> None:
    folder(tmp_path, gres, nodes="include more.conf\n")
    conf = follow(tmp_path)
    with caplog.at_level(logging.INFO):
        assert [conf.read(), conf.read()] == [[{}], [{}]]
    [message] = caplog.messages
    assert cause in message


def test_no_more_files_are_included_than_anybody_has(tmp_path: Path) -> None:
    for number in range(32):
        (tmp_path / f"{number}.conf").touch()
    path = folder(tmp_path, "".join(f"include {number}.conf\n" for number in range(31)))
    assert gres_conf.load(path, "gpu2")[1] == []
    folder(tmp_path, "".join(f"include {number}.conf\n" for number in range(32)))
    with pytest.raises(ValueError, match=r"31\.conf: one Include too many"):
        gres_conf.load(path, "gpu2")


@pytest.mark.parametrize("slurm", ["", "NodeName=gpu1 Gres=gpu:a100:1,gpu:v100:1\n"])
def test_several_types_have_no_order_where_slurm_conf_does_not_name_the_node(
    tmp_path: Path, slurm: str
) -> None:
    gres = "Name=gpu Type=a100 File=/dev/nvidia0\nName=gpu Type=v100 File=/dev/nvidia1\n"
    with pytest.raises(ValueError, match=r"slurm\.conf does not name gpu2"):
        gres_conf.load(folder(tmp_path, gres, slurm), "gpu2")


@pytest.mark.parametrize(
    ("slurm", "numbers"),
    [
        ("NodeName=default Gres=gpu:v100:1,gpu:a100:1\nNodeName=gpu2\n", [1, 0]),
        ("NodeName=DEFAULT Gres=gpu:v100,gpu:a100\nNodeName=gpu2 Gres=gpu:a100,gpu:v100", [0, 1]),
    ],
)
def test_a_node_has_the_types_of_the_default_unless_it_has_its_own(
    tmp_path: Path, slurm: str, numbers: list[int]
) -> None:
    gres = "Name=gpu Type=a100 File=/dev/nvidia0\nName=gpu Type=v100 File=/dev/nvidia1\n"
    _, listed = gres_conf.load(folder(tmp_path, gres, slurm), "gpu2")
    assert listed == [(f"/dev/nvidia{number}",) for number in numbers]


def test_types_that_slurm_conf_does_not_know_leave_the_order_as_written(tmp_path: Path) -> None:
    gres = "Name=gpu Type=v100 File=/dev/nvidia1\nName=gpu Type=a100 File=/dev/nvidia0\n"
    _, listed = gres_conf.load(folder(tmp_path, gres, "NodeName=gpu[1-9] Gres=gpu:2"), "gpu2")
    assert listed == [("/dev/nvidia1",), ("/dev/nvidia0",)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[1-3,7],login1", ["gpu1", "gpu2", "gpu3", "gpu7", "login1"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[0-1]n[2,4]-ib", ["r0n2-ib", "r0n4-ib", "r1n2-ib", "r1n4-ib"]),
        ("", []),
    ],
)
def test_lists_of_names_are_spelled_out_in_their_order(text: str, expected: list[str]) -> None:
    assert list(slurm_conf.names(text, 5)) == expected


def test_the_minor_is_the_files_own_whatever_its_name(tmp_path: Path) -> None:
    dev = tmp_path / "dev"
    for number, minor in enumerate([7, 6, 0]):
        device_file(dev / f"nvidia{number}", NVIDIA, minor)
    folder(tmp_path, f"Name=gpu File={dev}/nvidia[0-2]")
    assert follow(tmp_path).read() == [{(7, ""): 0, (6, ""): 1, (0, ""): 2}]


def test_a_file_that_tells_no_gpu_takes_a_position_all_the_same(tmp_path: Path) -> None:
    dev = tmp_path / "dev"
    device_file(dev / "nvidia1", NVIDIA, 1)
    device_file(dev / "nvidia2", CAPS, 2)
    device_file(dev / "nvidia4", NVIDIA, 4)
    device_file(dev / "again", NVIDIA, 4)
    (dev / "nvidia3").touch()
    folder(tmp_path, f"Name=gpu File={dev}/nvidia[0-4],{dev}/again\nName=gpu File={dev}/nvidia1\n")
    assert follow(tmp_path).read() == [{}]
    folder(tmp_path, f"Name=gpu File={dev}/nvidia[0-4]")
    assert follow(tmp_path).read() == [{(1, ""): 1, (4, ""): 4}]


def test_an_instance_is_known_by_the_files_of_its_gpu_and_of_both_its_parts(tmp_path: Path) -> None:
    """Numbers as the driver gives them: 3 + 9 for each GPU instance of gpu0, then of gpu1."""
    dev, proc = tmp_path / "dev", tmp_path / "proc"
    (proc / "driver/nvidia-caps").mkdir(parents=True)
    (proc / "driver/nvidia-caps/mig-minors").write_text(
        "config 1\nmonitor 2\ngpu0/gi3/access 30\ngpu0/gi3/ci0/access 31\ngpu0/gi3/ci1/access 32\n"
        "gpu0/gi4/access 39\ngpu0/gi4/ci0/access 40\n"
    )
    device_file(dev / "nvidia0", NVIDIA, 0)
    device_file(dev / "nvidia1", NVIDIA, 1)
    for cap in (30, 31, 32, 39, 40, 41):
        device_file(dev / f"cap{cap}", CAPS, cap)
    lists = [
        "nvidia1", "nvidia0,cap39,cap40", "nvidia0,cap30,cap32", "nvidia0,cap[30-31]",
        "nvidia1,cap[30-31]", "nvidia0,cap31,cap39", "nvidia0,cap30", "cap30,cap31",
        "nvidia0,cap31", "nvidia0,cap[39-41]", "nvidia[0-1],cap[39-40]",
    ]  # fmt: skip
    paths = [",".join(f"{dev}/{file}" for file in slurm_conf.names(each, 9)) for each in lists]
    folder(tmp_path, "\n".join(f"Name=gpu MultipleFiles={each}" for each in paths))
    assert follow(tmp_path, proc=proc).read() == [
        {(1, ""): 0, (0, "4/0"): 1, (0, "3/1"): 2, (0, "3/0"): 3}
    ]
    (proc / "driver/nvidia-caps/mig-minors").unlink()
    assert follow(tmp_path, proc=proc).read() == [{(1, ""): 0}]


def test_a_change_is_taken_up_and_what_is_unchanged_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (0, 1):
        device_file(tmp_path / f"dev/nvidia{number}", NVIDIA, number)
    loads: list[Path] = []
    load = gres_conf.load

    def counted(path: Path, node: str) -> tuple[slurm_conf.Conf, list[gres_conf.Files]]:
        loads.append(path)
        return load(path, node)

    monkeypatch.setattr(gres_conf, "load", counted)
    folder(tmp_path, "include nodes.conf", nodes=f"Name=gpu File={tmp_path}/dev/nvidia[0-1]\n")
    conf = follow(tmp_path)
    assert [conf.read(), conf.read()] == [[{(0, ""): 0, (1, ""): 1}]] * 2
    assert len(loads) == 1
    (tmp_path / "nodes.conf").write_text(f"Name=gpu File={tmp_path}/dev/nvidia[1,0]\n")
    assert conf.read() == [{(1, ""): 0, (0, ""): 1}]
    (tmp_path / "gres.conf").unlink()
    assert conf.read() == [{}]
    folder(tmp_path, f"Name=gpu File={tmp_path}/dev/nvidia1")
    assert conf.read() == [{(1, ""): 0}]


def test_two_devices_at_one_spot_have_no_position() -> None:
    def found(uuid: str, minor: int) -> tuple[tuple[str, str, str], Device]:
        return (uuid, "", ""), Device(uuid, "H100", None, minor, None)

    devices = dict([found("GPU-1", 0), found("GPU-2", 1), found("GPU-3", 0), found("GPU-4", 3)])
    told = gres_conf.numbered(devices, {(0, ""): 0, (1, ""): 1, (2, ""): 2})
    assert [device.gres_ordinal for device in told.values()] == [None, 1, None, None]


def test_the_agent_tells_positions_and_takes_up_a_change_within_a_minute(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's two GPUs have the minors 4 and 5."""
    dev, etc = tmp_path / "dev", tmp_path / "etc"
    etc.mkdir()
    for number, minor in enumerate([0, 5, 4]):
        device_file(dev / f"nvidia{number}", NVIDIA, minor)
    folder(etc, f"NodeName=n[1-9] Name=gpu File={dev}/nvidia[0-2]")
    monkeypatch.setenv("SLURM_CONF", str(etc / "slurm.conf"))

    def change() -> None:
        folder(etc, f"NodeName=n1 Name=gpu File={dev}/nvidia[2,1]")

    life.events[5] = change
    batches = life.run(75)
    told = [tuple(device["gres_ordinal"] for device in batch["devices"]) for batch in batches]
    assert told[0] == (2, 1)
    assert told[-1] == (0, 1)


WORDS = st.sampled_from(
    ["Name=gpu", "File=", "/dev/nvidia[0-3", "]", "[", ",", "-", "NodeName=", "n[1-9]", "\\\n",
     "\n", " ", "#", '"', "=", "include ", "gres.conf", "AutoDetect=off", "MultipleFiles=",
     "Type=a", "Type=b", "\0", "[0-99999999]"]
)  # fmt: skip


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(gres=st.lists(WORDS | st.text(max_size=5)).map("".join), slurm=st.lists(WORDS).map("".join))
def test_no_text_costs_more_than_the_order(tmp_path: Path, gres: str, slurm: str) -> None:
    for name, text in (("gres.conf", gres), ("slurm.conf", slurm)):
        (tmp_path / name).write_bytes(text.encode(errors="surrogatepass"))
    [places] = follow(tmp_path, "n1").read()
    assert all(0 <= position < 1024 for position in places.values())
