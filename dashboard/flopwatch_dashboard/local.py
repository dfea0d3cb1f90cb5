"""What `flopwatch run` adds to a server: an agent for this machine, or a simulated cluster."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from flopwatch_server.access import tokens
from flopwatch_server.children import die_with_owner
from flopwatch_server.clock import utc_now
from flopwatch_server.database.engine import Database
from flopwatch_server.fleet.repository.clusters import ensure_cluster
from flopwatch_server.settings import Settings

_STOP_SECONDS = 5.0


def has_gpu() -> bool:
    """Whether the NVIDIA driver on this machine knows a GPU."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    try:
        return bool(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


class LocalHouse:
    """The child processes of `flopwatch run`; they end with it, however it ends.

    They reach the server by HTTP with tokens of their own, like any agent on any node.
    """

    def __init__(self, settings: Settings, database: Database, seed: int) -> None:
        self._settings = settings
        self._database = database
        self._seed = seed
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> None:
        if has_gpu():
            print("This machine has an NVIDIA GPU: watching it.", flush=True)
            self._child = self._start(*self._agent())
        else:
            print("No NVIDIA GPU here: playing a simulated cluster.", flush=True)
            self._child = self._start(*self._simulation())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._child is None:
            return
        self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _agent(self) -> list[str]:
        folder = self._settings.data_dir / "agent"
        print(f"Training scripts find it by FLOPWATCH_SOCKET={folder / 'hook.sock'}", flush=True)
        return [
            "agent", "--server", self._address(),
            "--token-file", str(self._token("workstation", "node")),
            "--spool", str(folder / "spool"), "--socket", str(folder / "hook.sock"),
            *([] if self._settings.slurm_cluster else ["--local-runs"]),
        ]  # fmt: skip

    def _simulation(self) -> list[str]:
        return [
            "simulate", "--server", self._address(),
            "--node-token-file", str(self._token("simulated", "node", simulated=True)),
            "--feed-token-file", str(self._token("simulated", "feed", simulated=True)),
            "--seed", str(self._seed),
        ]  # fmt: skip

    def _address(self) -> str:
        return f"http://{self._settings.host}:{self._settings.port}"

    def _token(self, cluster: str, kind: tokens.Kind, *, simulated: bool = False) -> Path:
        """A token of this data folder, made at the first start."""
        path = self._settings.data_dir / "tokens" / f"{cluster}-{kind}"
        with self._database.session() as session:
            if path.exists() and tokens.identify(session, path.read_text().strip()):
                return path
            now = utc_now()
            cluster_id = ensure_cluster(session, cluster, now, simulated=simulated)
            value = tokens.create(session, kind, cluster_id, None, now)
        tokens.write(path, value)
        return path

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = shutil.which("flopwatch", path=str(Path(sys.executable).parent))
        if command is None:
            raise FileNotFoundError(f"no flopwatch command beside {sys.executable}")
        return subprocess.Popen(
            [command, *arguments],
            stdin=subprocess.DEVNULL,
            preexec_fn=die_with_owner(signal.SIGTERM),
        )
