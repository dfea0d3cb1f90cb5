"""Local runs: process trees that compute on GPUs of a machine that no scheduler shares out.

**What a run is.** From a process that computes on a device we climb to its parent for as long as
that one belongs to the same user and is a program of the same work. Not part of the work is what
people and services start their work from: init and other service managers, logins, terminals and
multiplexers, editors, notebook servers, containers' shims, and a shell that a person types into.
A shell that runs a script is part of it; one that runs a single command (`sh -c`) is climbed past.
The last process reached is the run's root. So

* `python train.py` with its data loaders, or `torchrun train.py` with its ranks, is one run;
* `bash sweep.sh` that starts one training after the other is one run;
* each kernel of a notebook server is a run of its own;
* what was left behind by a closed terminal (nohup) is a run by itself.

A run begins with its root and ends with it. It holds a device from when one of its processes is
first seen to compute there until a minute after the last was.

The name is that of the first process below the root that is no mere launcher: a script's or
module's, not the interpreter's. Command lines hold secrets: nothing else of one leaves the node.
"""

import pwd
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from flopwatch.wire import LocalRun, as_text, local_job_id
from flopwatch_agent.inventory import Key

MOST_RUNS = 256
DEVICE_LINGER_SECONDS = 60.0
_MOST_CLIMB = 64
_MOST_COMMAND_BYTES = 4096
_MOST_NAME = 80
_TICKS_PER_SECOND = 100  # USER_HZ: what Linux tells times in, on every architecture (time(7))

_SHELL = re.compile(r"(ba|z|da|k|tc|c|fi|a)?sh")
_PYTHON = re.compile(r"(python|pypy)[\d.]*")
_SHELL_TAKES_VALUE = frozenset({"-o", "-O", "+o", "+O", "--rcfile", "--init-file"})
_PYTHON_TAKES_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_LAUNCHER = re.compile(
    r"torchrun|torch\.distributed\.(run|launch)|accelerate(\.commands\.launch)?|deepspeed|mpirun|"
    r"mpiexec|orterun|horovodrun|uv|uvx|poetry|pixi|conda|make|just|time|timeout|nice|nohup|setsid|"
    r"stdbuf|env|xvfb-run|script|sudo|(ba|z|da|k|tc|c|fi|a)?sh"
)
_STARTING_POINT = re.compile(
    r"systemd|init|\(sd-pam\)|supervisord|runit|runsv|s6-.*|cron|crond|atd|anacron|"
    r"sshd(-session)?|login|su|sudo|mosh-server|dropbear|tmux|screen|SCREEN|zellij|byobu|"
    r"gnome-terminal.*|konsole|xterm|xfce4-terminal|mate-terminal|terminator|tilix|kitty|alacritty|"
    r"wezterm.*|foot|ptyxis.*|gnome-shell|plasmashell|"
    r"containerd-shim.*|conmon|dockerd|podman|tini|dumb-init|docker-init|catatonit|"
    r"jupyter(-.*|lab|hub)?|notebook|code(-server|-tunnel|-insiders)?|codium|cursor|node|emacs|vim|"
    r"nvim|pycharm|java|flopwatch"
)


_Shell = Literal["none", "typed into", "of one command", "of a script"]


@dataclass(frozen=True, slots=True)
class _Stat:
    """`start_ticks` since the node's start tells a process from all that had or will have its
    pid."""

    name: str
    parent: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class _Process:
    """One process, as /proc tells."""

    pid: int
    parent: int
    start_ticks: int
    uid: int
    program: str
    shell: _Shell


@dataclass(frozen=True, slots=True)
class Sighting:
    """A run as it was seen, and by their own names the devices it held: places vary by batch."""

    run: LocalRun
    devices: frozenset[Key]

    def told(self, index: Mapping[Key, int]) -> LocalRun:
        """The run as a batch tells it in which `index` gives a device's place."""
        return replace(self.run, devices=sorted(index[key] for key in self.devices & index.keys()))


@dataclass(slots=True)
class _Known:
    run: LocalRun
    start_ticks: int
    used: dict[Key, float] = field(default_factory=dict)  # when each device was last seen in use


class LocalRuns:
    """Follows the runs of this machine."""

    def __init__(self, proc: Path, booted_at: float, in_a_job: Callable[[int], int | None]) -> None:
        """`in_a_job` tells the scheduler's job of a process: such a process is in no local run."""
        self._proc = proc
        self._booted_at = booted_at
        self._in_a_job = in_a_job
        self._known: dict[int, _Known] = {}

    def job_of(self, pid: int) -> int | None:
        """The scheduler's job of a process, else that of the run it would be part of."""
        chain = self._chain(pid)
        if not chain:
            return self._in_a_job(pid)
        root = chain[-1]
        known = self._known.get(root.pid)
        if known is not None and known.start_ticks == root.start_ticks:
            return local_job_id(root.pid, known.run.started_at)
        return local_job_id(root.pid, self._started_at(root))

    def observe(self, now: float, pids: Mapping[Key, list[int]]) -> list[Sighting]:
        """The runs that live, and once more those that have ended since the last call.

        It asks /proc and the name service, which may both take long to answer.
        """
        for key, numbers in pids.items():
            for known in filter(None, (self._meet(pid, now) for pid in numbers)):
                known.used[key] = now
        return [self._look(now, known) for known in list(self._known.values())]

    def _look(self, now: float, known: _Known) -> Sighting:
        known.used = {
            key: at for key, at in known.used.items() if abs(now - at) < DEVICE_LINGER_SECONDS
        }
        run, devices = known.run, frozenset(known.used)
        root = _stat(self._proc, run.pid)
        if root is None or root.start_ticks != known.start_ticks:
            del self._known[run.pid]
            # It ended some time since it was last seen; its last reports came by now. The clock
            # may have been turned back to before its beginning.
            return Sighting(replace(run, ended_at=max(now, run.started_at)), devices)
        known.run = replace(run, last_seen=now)
        return Sighting(known.run, devices)

    def _meet(self, pid: int, now: float) -> _Known | None:
        """The run that a computing process belongs to."""
        chain = self._chain(pid)
        if not chain:
            return None
        root = chain[-1]
        known = self._known.get(root.pid)
        if known is not None and known.start_ticks == root.start_ticks:
            return known
        if known is not None or len(self._known) >= MOST_RUNS:
            return None  # told as ended first; met again in the next interval
        started_at = min(self._started_at(root), now)
        run = LocalRun(root.pid, started_at, root.uid, _user(root.uid), _name(chain), [], now)
        self._known[root.pid] = known = _Known(run, root.start_ticks)
        return known

    def _chain(self, pid: int) -> list[_Process]:
        """From a process up to its run's root; empty where it is gone or in a scheduler's job."""
        if self._in_a_job(pid) is not None:
            return []
        chain: list[_Process] = []
        for process in _ancestry(self._proc, pid):
            if chain and (process.uid != chain[0].uid or _is_starting_point(process)):
                break
            chain.append(process)
        while len(chain) > 1 and chain[-1].shell == "of one command":
            chain.pop()
        return chain

    def _started_at(self, process: _Process) -> float:
        return self._booted_at + process.start_ticks / _TICKS_PER_SECOND


def program_name(command: list[str]) -> str:
    """What a person would call a command: the script or module rather than the interpreter.

    Only a script's path or a module's name is ever taken from the arguments, never another one.
    """
    program = Path(command[0]).name.removeprefix("-") if command else ""
    is_python = bool(_PYTHON.fullmatch(program))
    if not is_python and not _SHELL.fullmatch(program):
        return program
    arguments = iter(command[1:])
    for argument in arguments:
        if is_python and argument == "-m":
            return next(arguments, program)
        if _is_command_option(argument):
            return program
        if argument in (_PYTHON_TAKES_VALUE if is_python else _SHELL_TAKES_VALUE):
            next(arguments, None)
        elif not argument.startswith(("-", "+")):
            path = Path(argument)
            return path.parent.name if path.name == "__main__.py" else path.name
    return program


def _is_command_option(argument: str) -> bool:
    """Whether the next argument is code: -c, or -lc and the like."""
    return bool(re.fullmatch(r"-\w*c", argument))


def _ancestry(proc: Path, pid: int) -> Iterator[_Process]:
    """A process, its parent and so on, up to but without the first process of all."""
    for _ in range(_MOST_CLIMB):
        process = _read(proc, pid) if pid > 1 else None
        if process is None:
            return
        yield process
        pid = process.parent


def _is_starting_point(process: _Process) -> bool:
    return process.shell == "typed into" or bool(_STARTING_POINT.fullmatch(process.program))


def _stat(proc: Path, pid: int) -> _Stat | None:
    """What the kernel tells of a process without a look into its memory, for which one may wait.

    None where it is gone, a zombie included: what it did is over.
    """
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name may hold anything, spaces and parentheses too; behind it stand numbers (proc(5)).
    head, _, rest = text.rpartition(")")
    state, parent, *more = rest.split()
    if state in "ZX":
        return None
    return _Stat(head.partition("(")[2], int(parent), int(more[17]))


def _read(proc: Path, pid: int) -> _Process | None:
    """A process; None where it is gone."""
    folder = proc / str(pid)
    stat = _stat(proc, pid)
    try:
        with (folder / "cmdline").open("rb") as file:
            command = file.read(_MOST_COMMAND_BYTES)
        uid = folder.stat().st_uid
    except OSError:
        return None
    if stat is None:
        return None
    words = [word.decode(errors="replace") for word in command.rstrip(b"\0").split(b"\0")]
    if len(titled := words[0].split()) > 1:  # it gave itself a title, which may say anything
        words = [titled[0].rstrip(":")]
    elif not titled:
        words = [stat.name]
    return _Process(
        pid, stat.parent, stat.start_ticks, uid, program_name(words), _kind_of_shell(words)
    )


def _kind_of_shell(command: list[str]) -> _Shell:
    name = program_name(command)
    if not _SHELL.fullmatch(Path(command[0]).name.removeprefix("-")):
        return "none"
    if any(_is_command_option(argument) for argument in command[1:]) and _SHELL.fullmatch(name):
        return "of one command"
    return "typed into" if _SHELL.fullmatch(name) else "of a script"


def _name(chain: Iterable[_Process]) -> str:
    """Of the first process below the root that is no launcher; if all are, of the root."""
    names = [process.program for process in reversed(list(chain))]
    name = next((each for each in names if not _LAUNCHER.fullmatch(each)), names[0])
    return as_text(name)[:_MOST_NAME]


def _user(uid: int) -> str:
    """The name of a user; the number where nobody knows it now, which may be an outage."""
    try:
        return _known_user(uid)
    except KeyError:
        return str(uid)


@lru_cache(maxsize=1024)
def _known_user(uid: int) -> str:
    return as_text(pwd.getpwuid(uid).pw_name)
