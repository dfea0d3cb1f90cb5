"""A dcgm-exporter for tests: a real HTTP server with the page that a test wants, or none."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_NAMES = {
    "engine_active": "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "sm_active": "DCGM_FI_PROF_SM_ACTIVE",
    "tensor_active": "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "dram_active": "DCGM_FI_PROF_DRAM_ACTIVE",
    "pcie_rx": "DCGM_FI_PROF_PCIE_RX_BYTES",
    "xid": "DCGM_FI_DEV_XID_ERRORS",
}


class FakeExporter:
    """Serves `rows` to whoever asks. Its energy counter grows each time it `samples`.

    `status`, `body`, `cuts` and `hangs` make it misbehave; `asked` counts the requests.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, float]] = []
        self.samples = True
        self.status = 200
        self.body: bytes | None = None
        self.cuts = 0
        self.hangs = threading.Event()
        self.asked = 0
        self._energy = 0
        self._http: ThreadingHTTPServer | None = None
        self.port = 0
        self.up()

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.port}/metrics"

    def set(self, uuid: str, gpu_instance: int | None = None, **values: float) -> None:
        """Let these be the values of a device; others of it stay."""
        labels = f'gpu="0",UUID="{uuid}",device="nvidia0",Hostname="localhost"'
        if gpu_instance is not None:
            labels += f',GPU_I_PROFILE="3g.40gb",GPU_I_ID="{gpu_instance}"'
        for metric, value in values.items():
            name = _NAMES[metric]
            self.rows = [row for row in self.rows if row[:2] != (name, labels)]
            self.rows.append((name, labels, value))

    def up(self) -> None:
        """Answer, at the same port as before."""
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                exporter.asked += 1
                page = exporter.page()
                self.send_response(exporter.status)
                self.send_header("Location", "/elsewhere")
                if exporter.cuts:
                    self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                if exporter.hangs.is_set():
                    while exporter.hangs.is_set():
                        self.wfile.write(b"#")
                        self.wfile.flush()
                        threading.Event().wait(0.01)
                    return
                self.wfile.write(page[: len(page) - exporter.cuts])

            def log_message(self, format: str, *args: object) -> None:
                """Keep the test's output clean."""

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except ConnectionError:
                    self.close_connection = True

        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def down(self) -> None:
        """Refuse connections."""
        self.hangs.clear()
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()

    def page(self) -> bytes:
        """The page as it is now."""
        if self.body is not None:
            return self.body
        self._energy += self.samples
        uuid = self.rows[0][1] if self.rows else 'UUID="GPU-0"'
        energy = ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", uuid, float(self._energy))
        lines = [f"{name}{{{labels}}} {value:f}" for name, labels, value in [*self.rows, energy]]
        return "\n".join(["# HELP a page", *lines, ""]).encode()
