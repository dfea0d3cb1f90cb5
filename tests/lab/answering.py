"""A server that takes batches and answers them as a test says."""

import gzip
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """A real HTTP server that answers as told: (status, headers), or hangs up for status 0."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.tokens: list[str] = []
        self.clients: set[tuple[str, int]] = set()
        self.took: Callable[[], None] = lambda: None
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                body = self.rfile.read(length)
                if len(body) < length:  # the agent was killed while it sent
                    self.close_connection = True
                    return
                status, headers = server.answers.pop(0) if server.answers else (200, {})
                server.took()
                server.paths.append(self.path)
                server.clients.add(self.client_address)
                server.tokens.append(self.headers["Authorization"])
                if self.headers["Content-Encoding"] == "gzip":
                    server.bodies.append(gzip.decompress(body))
                if status == 0:
                    self.close_connection = True
                    return
                self.send_response_only(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                text = headers.get("X-Text", "").encode()
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)
                # Without a word in the header, as a server that is tired of an idle connection.
                self.close_connection = "X-Hang-Up" in headers

            def log_message(self, format: str, *args: object) -> None:
                """Keep the test's output clean."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
