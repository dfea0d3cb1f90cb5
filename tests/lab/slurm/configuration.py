"""The configuration files of the lab, as text, and the ports that they name."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cards:
    """The GPUs of one node: its device files, and what Slurm is told of them.

    `minors` are those of the files, by name. `gres` is what slurm.conf says of the node, `lines`
    are those of gres.conf, where {dev} stands for the folder of the files.
    """

    minors: Mapping[str, int]
    gres: str
    lines: Sequence[str]

    @property
    def names(self) -> set[str]:
        """The GRES without their counts: "gpu:h100", "shard"."""
        return {one.rpartition(":")[0] for one in self.gres.split(",")}


def plain_cards(gpus: int, gres_type: str, minors: Sequence[int]) -> Cards:
    """GPUs whose files nvidia0, nvidia1, ... have these minors, listed in the order of the names.

    Another order than 0, 1, ... makes a node whose GRES positions are not minor numbers.
    """
    return Cards(
        {f"nvidia{number}": minor for number, minor in enumerate(minors)},
        f"gpu:{gres_type}:{gpus}",
        [f"Name=gpu Type={gres_type} File={{dev}}/nvidia[0-{gpus - 1}]"],
    )


@dataclass(frozen=True)
class LabOptions:
    """What a test may choose about its cluster: `cards` are those of each node.

    `proctrack` is "cgroup" (v1) or "linuxproc". Scripts are absolute paths that root, or for
    `task_prolog` the user, can run. `extra` holds further lines of slurm.conf.
    """

    cluster: str
    prefix: str
    cards: Sequence[Cards]
    proctrack: str = "cgroup"
    prolog: Path | None = None
    epilog: Path | None = None
    task_prolog: Path | None = None
    extra: str = ""

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of the nodes, from 1."""
        return tuple(f"{self.prefix}{number}" for number in range(1, len(self.cards) + 1))

    @property
    def gres(self) -> list[str]:
        """The GRES that any node has."""
        return sorted({name for cards in self.cards for name in cards.names})


def slurm_conf(root: Path, options: LabOptions, ports: Sequence[int]) -> str:
    """slurm.conf: `ports` are those of slurmctld, slurmdbd and then of every slurmd."""
    controller, accounting, *slurmds = ports
    scripts = {
        "Prolog": options.prolog,
        "Epilog": options.epilog,
        "TaskProlog": options.task_prolog,
    }
    nodes = [
        f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} "
        f"Sockets=2 CoresPerSocket={max(32, len(cards.minors))} ThreadsPerCore=1 RealMemory=512000 "
        f"Gres={cards.gres}"
        for name, port, cards in zip(options.node_names, slurmds, options.cards, strict=True)
    ]
    names = ",".join(options.node_names)
    return "\n".join(
        [
            f"ClusterName={options.cluster}",
            f"SlurmctldHost={socket.gethostname()}(127.0.0.1)",
            f"SlurmctldPort={controller}",
            "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",
            "SlurmUser=slurm",
            *_authentication(root),
            f"StateSaveLocation={root}/state",
            f"SlurmdSpoolDir={root}/spool/%n",
            f"SlurmctldPidFile={root}/run/slurmctld.pid",
            f"SlurmdPidFile={root}/run/slurmd.%n.pid",
            "SlurmdParameters=config_overrides",
            f"ProctrackType=proctrack/{options.proctrack}",
            f"TaskPlugin=task/{'cgroup' if options.proctrack == 'cgroup' else 'none'}",
            "PrologFlags=Alloc",
            *(f"{key}={path}" for key, path in scripts.items() if path is not None),
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core_Memory",
            "DefMemPerCPU=100",
            f"GresTypes={','.join(sorted({name.partition(':')[0] for name in options.gres}))}",
            "SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,"
            "sched_min_interval=10000",
            "PriorityType=priority/multifactor",
            "PriorityCalcPeriod=1",
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePort={accounting}",
            f"AccountingStoragePass={root}/munge/socket",
            f"AccountingStorageTRES=gres/gpu,{','.join(f'gres/{name}' for name in options.gres)}",
            "AccountingStorageEnforce=associations,limits,qos",
            "AccountingStoreFlags=job_comment",
            "JobAcctGatherType=jobacct_gather/none",
            "PropagateResourceLimits=NONE",
            "MailProg=/bin/true",
            "KillWait=2",
            "ReturnToService=2",
            *nodes,
            f"PartitionName=gpu Nodes={names} Default=YES MaxTime=UNLIMITED DefaultTime=30",
            f"PartitionName=debug Nodes={names} MaxTime=60 DefaultTime=5",
            options.extra,
            "",
        ]
    )


def _authentication(root: Path) -> list[str]:
    """By munge or, for whoever comes over slurmrestd, by a token."""
    return [
        f"AuthInfo=socket={root}/munge/socket",
        "AuthAltTypes=auth/jwt",
        f"AuthAltParameters=jwt_key={root}/etc/jwt_key",
    ]


def gres_conf(root: Path, options: LabOptions) -> str:
    """gres.conf: on every node, its own folder of device files."""
    return "".join(
        f"NodeName={name} {line.format(dev=root / 'dev' / name)}\n"
        for name, cards in zip(options.node_names, options.cards, strict=True)
        for line in cards.lines
    )


CGROUP_CONF = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
ConstrainDevices=yes
"""


def slurmdbd_conf(root: Path, port: int) -> str:
    """slurmdbd.conf: it reaches MariaDB over the socket in its environment, as its own user."""
    return "\n".join(
        [
            "DbdHost=localhost",
            "DbdAddr=127.0.0.1",
            f"DbdPort={port}",
            "CommunicationParameters=NoInAddrAny",
            "SlurmUser=slurm",
            *_authentication(root),
            f"PidFile={root}/run/slurmdbd.pid",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            "StorageLoc=slurm",
            "StorageUser=slurm",
            "",
        ]
    )


DATABASE_SQL = """\
CREATE DATABASE IF NOT EXISTS slurm;
CREATE USER IF NOT EXISTS slurm@localhost IDENTIFIED VIA unix_socket;
GRANT ALL ON slurm.* TO slurm@localhost;
"""


def accounts_file(cluster: str, accounts: dict[str, str]) -> str:
    """The dump that `sacctmgr load` reads: `accounts` maps each user to an account."""
    lines = [f"Cluster - '{cluster}':Fairshare=1:QOS='normal'", "Parent - 'root'"]
    lines.append("User - 'root':DefaultAccount='root':AdminLevel='Administrator':Fairshare=1")
    names = sorted(set(accounts.values()))
    lines += [f"Account - '{name}':Description='{name}':Organization='lab'" for name in names]
    for name in names:
        lines.append(f"Parent - '{name}'")
        users = sorted(user for user, account in accounts.items() if account == name)
        lines += [f"User - '{user}':DefaultAccount='{name}':Fairshare=1" for user in users]
    return "\n".join(lines) + "\n"
