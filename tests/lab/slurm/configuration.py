"""The configuration files of the lab, as text, and the ports that they name."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LabOptions:
    """What a test may choose about its cluster.

    `device_minors` are the minors of the files nvidia0, nvidia1, ... of every node, in that order:
    another order than 0, 1, ... makes a node whose GRES positions are not minor numbers.
    `proctrack` is "cgroup" (v1) or "linuxproc". Scripts are absolute paths that root, or for
    `task_prolog` the user, can run. `extra` holds further lines of slurm.conf.
    """

    cluster: str
    prefix: str
    nodes: int
    gpus: int
    gres_type: str
    device_minors: Sequence[int]
    proctrack: str = "cgroup"
    prolog: Path | None = None
    epilog: Path | None = None
    task_prolog: Path | None = None
    extra: str = ""

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of the nodes, from 1."""
        return tuple(f"{self.prefix}{number}" for number in range(1, self.nodes + 1))


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
        "Sockets=2 CoresPerSocket=32 ThreadsPerCore=1 RealMemory=512000 "
        f"Gres=gpu:{options.gres_type}:{options.gpus}"
        for name, port in zip(options.node_names, slurmds, strict=True)
    ]
    names = ",".join(options.node_names)
    return "\n".join(
        [
            f"ClusterName={options.cluster}",
            f"SlurmctldHost={socket.gethostname()}(127.0.0.1)",
            f"SlurmctldPort={controller}",
            "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",
            "SlurmUser=slurm",
            f"AuthInfo=socket={root}/munge/socket",
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
            "GresTypes=gpu",
            "SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,"
            "sched_min_interval=10000",
            "PriorityType=priority/multifactor",
            "PriorityCalcPeriod=1",
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePort={accounting}",
            f"AccountingStoragePass={root}/munge/socket",
            f"AccountingStorageTRES=gres/gpu,gres/gpu:{options.gres_type}",
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


def gres_conf(root: Path, options: LabOptions) -> str:
    """gres.conf: on every node, its own folder of device files."""
    return "".join(
        f"NodeName={name} Name=gpu Type={options.gres_type} "
        f"File={root}/dev/{name}/nvidia[0-{options.gpus - 1}]\n"
        for name in options.node_names
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
            f"AuthInfo=socket={root}/munge/socket",
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
