"""Which device stands at which position of the node's GRES list, as gres.conf says.

A scheduler tells of GPUs by their position in that list. What stands there is a device file, and
only the node knows the file's minor, by which the driver knows the GPU: nvidia0 may have minor 7,
and the list may be in any order and leave GPUs out.

Slurm's order, by its source (`gres_g_node_config_load` and `_merge_config` of 22.05 and newer):

* lines that begin with Name come before those that begin with NodeName, else as they are written;
* GPUs of several types come in the order of the types in slurm.conf, and no more of each than it
  says;
* with AutoDetect the driver decides, so the file tells no order.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flopwatch.wire import Device
from flopwatch_agent.inventory import Key
from flopwatch_agent.ownership import slurm_conf
from flopwatch_agent.ownership.slurm_conf import Conf

_log = logging.getLogger(__name__)

Files = tuple[str, ...]
"""The device files of one position: one of a GPU, several of a MIG instance."""

Spot = tuple[int | None, str]
"""(minor, MIG instance): where the driver has a device; the instance is empty for a whole GPU."""

Places = dict[Spot, int]
"""Positions by spot."""

PERIOD_SECONDS = 60

# The first as packages have it, the others where slurmd got its configuration from slurmctld.
_FOLDERS = ("/etc/slurm", "/run/slurm/conf", "/var/spool/slurmd/conf-cache")
_MOST_POSITIONS = 1024  # Slurm's limit of device files (gres.conf(5), Count); the server's as well
_NVIDIA_MAJOR = 195  # of /dev/nvidia*, as the driver registers it
_CAP = re.compile(r"^(\S+) ([0-9]{1,9})$", re.MULTILINE)
_MIG_INSTANCE = re.compile(r"(gpu([0-9]{1,9})/gi([0-9]+))/ci([0-9]+)/access")


class GresConf:
    """Follows the node's gres.conf."""

    def __init__(self, environment: Mapping[str, str], node: str, proc: Path) -> None:
        """`node` is Slurm's name of this node; `proc` is where the host's /proc is mounted.

        With SLURM_CONF in the environment its folder is the only one, as it is for Slurm.
        """
        told = environment.get("SLURM_CONF")
        folders = [Path(told).parent] if told else [Path(folder) for folder in _FOLDERS]
        self._paths = [folder / "gres.conf" for folder in folders]
        self._node = node
        self._proc = proc
        self._conf = Conf()
        self._listed: list[Files] = []
        self._complaint = ""
        self.trouble = ""
        """Why the file that is there can't be read; empty where it can, or where there is none."""

    def read(self) -> list[Places]:
        """One table: the position of each device of which the files tell it for certain."""
        complaint = trouble = ""
        try:
            path = next((path for path in self._paths if path.exists()), None)
            if path is None:
                self._conf, self._listed = Conf(), []
            elif path not in self._conf.stamps or not self._conf.is_current():
                self._conf, self._listed = load(path, self._node)
        except (OSError, ValueError) as error:
            self._conf, self._listed = Conf(), []
            complaint = f"no order of the node's GPUs from gres.conf: {error}"
            trouble = (error.strerror or str(error)) if isinstance(error, OSError) else ""
        if complaint and complaint != self._complaint:
            _log.info("%s", complaint)
        self._complaint, self.trouble = complaint, trouble
        return [ordinals(self._listed, self._proc)]


def load(path: Path, node: str) -> tuple[Conf, list[Files]]:
    """What was read, and the files of each position of a node's list of GPUs.

    Raises OSError or ValueError, with place and cause, where the order is not written there.
    """
    conf = slurm_conf.read(path)
    gpus = _gpus(conf, node)
    if len({type_ for type_, _ in gpus}) > 1:
        slurm = slurm_conf.read(path.with_name("slurm.conf"))
        conf.stamps.update(slurm.stamps)
        gres = slurm_conf.gres_of(slurm, node)
        if gres is None:
            raise ValueError(f"{path}: several types, and slurm.conf does not name {node}")
        if counts := _types(gres):
            gpus = [gpu for type_, count in counts.items()
                    for gpu in [each for each in gpus if each[0] == type_][:count]]  # fmt: skip
    return conf, [files for _, files in gpus]


def ordinals(listed: Sequence[Files], proc: Path) -> Places:
    """The position of each device that is listed once and known by its files."""
    caps = _mig_caps(proc) if any(len(files) > 1 for files in listed) else {}
    spots = [_spot(files, caps) for files in listed]
    times = Counter(spots)
    return {
        spot: position
        for position, spot in enumerate(spots)
        if spot is not None and times[spot] == 1
    }


def numbered(devices: Mapping[Key, Device], places: Places) -> dict[Key, Device]:
    """The devices with their positions. Where two claim one spot, one is gone: neither has any."""
    times = Counter((device.minor, device.instance) for device in devices.values())
    known = {spot: places.get(spot) for spot, count in times.items() if count == 1}
    return {
        key: replace(device, gres_ordinal=known.get((device.minor, device.instance)))
        for key, device in devices.items()
    }


def _gpus(conf: Conf, node: str) -> list[tuple[str, Files]]:
    """Type and files of each GPU of a node, in the order of the lines as Slurm takes them."""
    lines = [(line.place, line.settings()) for line in conf.lines]
    mine = [
        (place, settings)
        for place, settings in lines
        if "nodename" not in settings
        or node in slurm_conf.names(settings["nodename"], slurm_conf.MOST_NAMES)
    ]
    mine.sort(key=lambda line: "nodename" in line[1])
    detection, found = "off", list[tuple[str, Files]]()
    for place, settings in mine:
        if not {"name", "nodename", "autodetect"} & settings.keys():
            raise ValueError(f"{place}: neither Name nor NodeName")
        if "name" not in settings or "nodename" in settings:  # else Slurm takes no notice of it
            detection = settings.get("autodetect", detection)
        if settings.get("name", "").lower() == "gpu":
            type_, most = settings.get("type", "").lower(), _MOST_POSITIONS - len(found)
            found += [(type_, files) for files in _files(place, settings, most)]
    if detection.lower() != "off":
        raise ValueError(f"AutoDetect={detection}: the driver decides")
    return found


def _files(place: str, settings: Mapping[str, str], most: int) -> list[Files]:
    """Of each resource in a line; ValueError if there are more than `most`, or none."""
    try:
        if "multiplefiles" in settings:
            return [tuple(slurm_conf.names(settings["multiplefiles"], most))]
        file = settings.get("file") or settings["files"]
        return [(each,) for each in slurm_conf.names(file, most)]
    except KeyError:
        raise ValueError(f"{place}: no File") from None
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def _types(gres: str) -> dict[str, int]:
    """How many GPUs of each type: `gpu:a100:2,gpu:v100:6(S:0),shard:64`; none where untyped."""
    counts: Counter[str] = Counter()
    for entry in gres.split(","):
        name, *words = entry.partition("(")[0].lower().split(":")
        count = int(words.pop()) if words and words[-1].isdecimal() else 1
        types = [word for word in words if word != "no_consume"]
        if name == "gpu" and types:
            counts[types[0]] += count
    return counts


def _spot(files: Files, caps: Mapping[int, str]) -> Spot | None:
    """Where the driver has what these files open; None where they don't tell one device."""
    try:
        found = [os.stat(file).st_rdev for file in files]  # 0 of what is no device
    except (OSError, ValueError):  # no such file, or none could have this name
        return None
    numbers = [(os.major(number), os.minor(number)) for number in found]
    gpus = [minor for major, minor in numbers if major == _NVIDIA_MAJOR]
    needed = {caps.get(minor, "") for major, minor in numbers if major != _NVIDIA_MAJOR}
    if len(gpus) != 1:
        return None
    if not needed:
        return gpus[0], ""
    instance = next(filter(None, map(_MIG_INSTANCE.fullmatch, needed)), None)
    if instance is None or needed != {instance[0], f"{instance[1]}/access"}:
        return None
    return (gpus[0], f"{instance[3]}/{instance[4]}") if int(instance[2]) == gpus[0] else None


def _mig_caps(proc: Path) -> dict[int, str]:
    """What the file nvidia-capN of each minor N gives access to, as `gpu0/gi3/ci0/access`."""
    try:
        text = (proc / "driver/nvidia-caps/mig-minors").read_text(errors="replace")
    except OSError:
        return {}
    return {int(minor): name for name, minor in _CAP.findall(text)}
