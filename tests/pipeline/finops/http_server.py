"""A real HTTP server that receives alerts, and answers with given statuses."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class Receiver(ThreadingHTTPServer):
    """Answers with the statuses of ``answers``, and with 204 after the last one; 0 closes the connection."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[int] = []
        self.received: list[tuple[str, dict[str, str], Any]] = []
        """Method, headers with small names, and document of each request."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/alerts?key=secret"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.received.append((self.command, headers, json.loads(body) if body else None))
        status = self.server.answers.pop(0) if self.server.answers else 204
        if not status:
            return
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", self.server.url.replace("alerts", "elsewhere"))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the signature of the base class
        pass


@contextlib.contextmanager
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
