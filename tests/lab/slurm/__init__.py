"""A whole Slurm on this host: munge, MariaDB, slurmdbd, slurmctld and several slurmd.

Everything lives under one folder and ends with the lab. It needs root, the packages of
`tests/lab/prepare.sh slurm`, and for `proctrack="cgroup"` the controllers freezer and devices of
cgroup v1. Slurm 22.05 (Debian 12) and 24.11 (Debian 13) are known to run in it. The GPUs are
character devices without a driver: Slurm schedules and confines them, nothing can compute on them.
"""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from secrets import token_hex
from shutil import chown
from types import TracebackType
from typing import Self

from tests.lab.processes import free_ports
from tests.lab.slurm.configuration import Cards, LabOptions, accounts_file, plain_cards
from tests.lab.slurm.daemons import (
    Daemon,
    LabError,
    cgroup_pids,
    kill_processes,
    remove_cgroup,
    step_processes,
    thaw,
    wait_until,
)
from tests.lab.slurm.folders import prepare
from tests.lab.slurm.gate import Gate
from tests.lab.slurm.users import LabUser, ensure_user, lab_folder, python_command

__all__ = [
    "Cards",
    "Gate",
    "LabError",
    "LabUser",
    "SlurmLab",
    "lab_folder",
    "plain_cards",
    "python_command",
    "wait_until",
]

ACCOUNTS = {"fwalice": "vision", "fwbob": "physics"}
CGROUPS = Path("/sys/fs/cgroup")


class SlurmLab:
    """A running cluster as a context manager; see LabOptions for what a test may choose.

    Its nodes are alike, with GPUs as plain_cards has them, or have the `cards` of one node each.
    `environment` is what a Slurm command needs, `users` the Unix users that may submit,
    `slurmctld` and `slurmdbd` daemons that a test may kill, stop and start again.
    """

    def __init__(
        self,
        root: Path,
        nodes: int = 2,
        gpus: int = 8,
        gres_type: str = "h100",
        *,
        device_minors: Sequence[int] | None = None,
        cards: Sequence[Cards] | None = None,
        proctrack: str = "cgroup",
        prolog: Path | None = None,
        epilog: Path | None = None,
        task_prolog: Path | None = None,
        extra: str = "",
    ) -> None:
        self.root = root
        self._options = LabOptions(
            cluster="lab",
            prefix=f"fw{token_hex(2)}n",
            cards=cards or [plain_cards(gpus, gres_type, device_minors or range(gpus))] * nodes,
            proctrack=proctrack,
            prolog=prolog,
            epilog=epilog,
            task_prolog=task_prolog,
            extra=extra,
        )
        self.cluster = self._options.cluster
        self.nodes = self._options.node_names
        self.environment: Mapping[str, str] = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "SLURM_CONF": str(root / "etc/slurm.conf"),
        }
        self.users: dict[str, LabUser] = {}
        self._ports = free_ports(2 + len(self.nodes))
        self._stack = ExitStack()
        self.slurmctld = self._daemon(
            "slurmctld", "slurmctld", "-D", user="slurm", ready=self._controller_is_up
        )
        self.slurmdbd = self._daemon(
            "slurmdbd", "slurmdbd", "-D", user="slurm", ready=self._accounting_is_up
        )

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            prepare(self.root, self._options, self._ports)
            self._add_users()
            self._start(stack, self._munged())
            self._start(stack, self._database())
            self._start(stack, self.slurmdbd)
            self._add_accounts()
            stack.callback(self._kill_leftovers)
            self._start(stack, self.slurmctld)
            for name in self.nodes:
                self._start(stack, self._slurmd(name))
            wait_until(self._nodes_are_idle, "all nodes are idle", 30.0)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def version(self) -> tuple[int, int]:
        """Of Slurm, its year and month: (22, 5)."""
        year, month = self.run("scontrol", "--version").split()[-1].split(".")[:2]
        return int(year), int(month)

    def run(self, *command: str, user: str | None = None, stdin: str = "") -> str:
        """What a command prints, run as root or as one of `users`; raises LabError if it fails."""
        who = self.users.get(user) if user else None
        if user and who is None:
            raise LabError(f"{user} is not a user of this lab")
        home = {"HOME": str(who.home), "USER": who.name} if who else {"HOME": "/root"}
        result = subprocess.run(
            command,
            input=stdin,
            text=True,
            capture_output=True,
            check=False,
            timeout=30,
            env={**self.environment, **home},
            cwd=who.home if who else self.root,
            user=who.uid if who else None,
            group=who.gid if who else None,
            extra_groups=() if who else None,
        )
        if result.returncode != 0:
            raise LabError(f"{' '.join(command)}: {result.returncode}\n{result.stderr}")
        return result.stdout

    def submit(self, script: str, *options: str, user: str = "fwalice") -> int:
        """The id of a batch job; its working folder is the user's, its output slurm-<id>.out."""
        script = script if script.startswith("#!") else f"#!/bin/bash\n{script}\n"
        return int(self.run("sbatch", "--parsable", *options, user=user, stdin=script))

    def states(self, job_id: int | str) -> list[str]:
        """State words of a job, or of all tasks of an array, as slurmctld knows them."""
        return self.run("squeue", "-h", "-t", "all", "-j", str(job_id), "-o", "%T").split()

    def wait_state(self, job_id: int | str, state: str, deadline_seconds: float = 30.0) -> None:
        """Wait until the job (every task of an array) is in this state, or raise LabError."""

        def reached() -> bool:
            return set(self.states(job_id)) == {state}

        wait_until(reached, f"job {job_id} is {state}", deadline_seconds)

    def cancel_jobs(self) -> None:
        """Cancel all jobs and wait until no node holds one any more."""
        for name in self.users:
            self.run("scancel", f"--user={name}")

        def all_over() -> bool:
            return not self.run("squeue", "-h", "-o", "%A") and self._nodes_are_idle()

        wait_until(all_over, "all jobs are over", 30.0)

    def node_pids(self, job_id: int, node: str) -> list[int]:
        """Ids of the processes of a job on a node, from its freezer cgroup (not with linuxproc)."""
        users = (CGROUPS / "freezer" / f"slurm_{node}").glob("uid_*")
        return [pid for user in users for pid in cgroup_pids(user / f"job_{job_id}")]

    def device_folder(self, node: str) -> Path:
        """The folder that stands for /dev of a node: nvidia0, nvidia1, ..."""
        return self.root / "dev" / node

    def _daemon(
        self,
        name: str,
        *command: str | Path,
        ready: Callable[[], bool],
        user: str = "root",
    ) -> Daemon:
        # Slurm's MySQL plugin names no socket: libmariadb takes it from here.
        environment = {**self.environment, "MYSQL_UNIX_PORT": str(self.root / "run/database")}
        log = self.root / "log" / f"{name}.log"
        return Daemon(name, command, log, ready, user=user, environment=environment)

    @staticmethod
    def _start(stack: ExitStack, daemon: Daemon) -> None:
        stack.callback(daemon.stop)
        daemon.start()

    def _munged(self) -> Daemon:
        folder = self.root / "munge"
        files = [f"--{name}-file={folder / name}" for name in ("key", "pid", "log", "seed")]
        socket = folder / "socket"
        command = ("munged", "--foreground", f"--socket={socket}", *files)
        return self._daemon("munged", *command, ready=socket.exists, user="munge")

    def _database(self) -> Daemon:
        data, socket = self.root / "database", self.root / "run/database"
        # The kernel has few slots for asynchronous I/O, and several labs may start at a time.
        plain_io = "--innodb-use-native-aio=0"
        install = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--skip-test-db"]
        made = subprocess.run(
            [*install, plain_io], capture_output=True, text=True, user="slurm", group="slurm",
            check=False,
        )  # fmt: skip
        if made.returncode:
            raise LabError(f"mariadb-install-db: {made.returncode}\n{made.stdout}\n{made.stderr}")
        command = [
            "mariadbd",
            "--no-defaults",
            plain_io,
            f"--datadir={data}",
            f"--socket={socket}",
            f"--init-file={self.root / 'etc/database.sql'}",
            "--skip-networking",
            "--skip-innodb-doublewrite",
            "--innodb-flush-log-at-trx-commit=0",
        ]
        return self._daemon("mariadbd", *command, ready=socket.exists, user="slurm")

    def _slurmd(self, name: str) -> Daemon:
        command = ("slurmd", "-D", "-N", name)
        spool = self.root / "spool" / name
        return self._daemon(f"slurmd.{name}", *command, ready=lambda: any(spool.iterdir()))

    def _add_users(self) -> None:
        for name, account in ACCOUNTS.items():
            entry = ensure_user(name)
            home = self.root / "home" / name
            home.mkdir(mode=0o755)
            chown(home, entry.pw_uid, entry.pw_gid)
            user = LabUser(name, account, entry.pw_uid, entry.pw_gid, home)
            if not user.may("-w", home):
                raise LabError(f"{name} can't reach {home}: open the folders above it")
            self.users[name] = user

    def _add_accounts(self) -> None:
        dump = self.root / "etc/accounts"
        dump.write_text(accounts_file(self.cluster, ACCOUNTS))
        self.run("sacctmgr", "-i", "load", f"file={dump}")

    def _answer(self, *command: str) -> str | None:
        try:
            return self.run(*command)
        except LabError:  # not up yet: the caller asks again
            return None

    def _controller_is_up(self) -> bool:
        return "is UP" in (self._answer("scontrol", "ping") or "")

    def _accounting_is_up(self) -> bool:
        return self._answer("sacctmgr", "-n", "list", "cluster") is not None

    def _nodes_are_idle(self) -> bool:
        return self.run("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * len(self.nodes) * 2

    def _kill_leftovers(self) -> None:
        # Steps outlive slurmd by design. With linuxproc only their environment tells them.
        kill_processes(step_processes(self.environment["SLURM_CONF"]))
        for name in self.nodes:
            frozen = CGROUPS / "freezer" / f"slurm_{name}"
            kill_processes(cgroup_pids(frozen))
            thaw(frozen)
            for group in (frozen, CGROUPS / "devices" / f"slurm_{name}"):
                if group.is_dir():
                    remove_cgroup(group)
