"""What lies under the lab's folder before its daemons start: folders, devices, configuration."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_bytes
from shutil import chown
from stat import S_IFCHR

from tests.lab.slurm.configuration import (
    CGROUP_CONF,
    DATABASE_SQL,
    LabOptions,
    gres_conf,
    slurm_conf,
    slurmdbd_conf,
)

NVIDIA_MAJOR = 195  # of /dev/nvidia*, as the driver registers it


def prepare(root: Path, options: LabOptions, ports: Sequence[int]) -> None:
    """Write all that the daemons need; `ports` are those that `slurm_conf` wants."""
    _folder(root / "munge", owner="munge")
    for name in ("database", "state", "run", "log"):
        _folder(root / name, owner="slurm")
    for name in ("etc", "spool", "home"):
        _folder(root / name)
    _file(root / "munge/key", token_bytes(128), owner="munge", mode=0o400)
    etc = root / "etc"
    _file(etc / "jwt_key", token_bytes(32), owner="slurm", mode=0o400)
    _file(etc / "slurm.conf", slurm_conf(root, options, ports).encode())
    _file(etc / "gres.conf", gres_conf(root, options).encode())
    _file(etc / "cgroup.conf", CGROUP_CONF.encode())
    # slurmdbd refuses its file when anybody else can read it.
    database = slurmdbd_conf(root, ports[1]).encode()
    _file(etc / "slurmdbd.conf", database, owner="slurm", mode=0o600)
    _file(etc / "database.sql", DATABASE_SQL.encode())
    for name, cards in zip(options.node_names, options.cards, strict=True):
        _folder(root / "spool" / name)
        _devices(root / "dev" / name, cards.minors)


def _devices(folder: Path, minors: Mapping[str, int]) -> None:
    folder.mkdir(parents=True)
    for name, minor in minors.items():
        path = folder / name
        os.mknod(path, S_IFCHR, os.makedev(NVIDIA_MAJOR, minor))
        path.chmod(0o666)


def _folder(path: Path, owner: str = "root") -> None:
    path.mkdir(mode=0o755)
    chown(path, owner, owner)


def _file(path: Path, content: bytes, owner: str = "root", mode: int = 0o644) -> None:
    path.write_bytes(content)
    path.chmod(mode)
    chown(path, owner, owner)
