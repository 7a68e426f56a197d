"""A real HTTP or HTTPS server with a key set and a token endpoint, whose answers the test decides.

A test waits for requests by conditions, and holds an answer back by `hold`; nothing here sleeps.
"""

from __future__ import annotations

import json
import ssl
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

import trustme

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DEADLINE_S: Final = 20.0


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    form: dict[str, list[str]]


@dataclass
class Reply:
    """An answer. ``length`` is what the header Content-Length states, if not the truth."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None


class IdentityProvider:
    """The server. ``answer`` is called in a thread of the server for each request."""

    def __init__(self, server: ThreadingHTTPServer, scheme: str) -> None:
        self.url = f"{scheme}://localhost:{server.server_address[1]}"
        self.asked: list[Asked] = []
        self.answer: Callable[[Asked], Reply] = lambda _: Reply(status=404)
        self._condition = threading.Condition()
        self._open = threading.Event()
        self._open.set()

    def serves(self, body: bytes | dict[str, Any], **reply: Any) -> None:
        """Answer every request with this body from now on."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.answer = lambda _: Reply(content, **reply)

    def hold(self) -> None:
        """Answer no request until `release`."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def wait_for(self, count: int) -> None:
        """Wait until so many requests have come in all."""
        with self._condition:
            assert self._condition.wait_for(lambda: len(self.asked) >= count, DEADLINE_S), f"{len(self.asked)} requests"

    def note(self, asked: Asked) -> Reply:
        with self._condition:
            self.asked.append(asked)
            self._condition.notify_all()
        assert self._open.wait(DEADLINE_S)
        return self.answer(asked)


@contextmanager
def identity_provider(tls: ssl.SSLContext | None = None, port: int = 0) -> Iterator[IdentityProvider]:
    """Run a server on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply("")

        def do_POST(self) -> None:
            self._reply(self.rfile.read(int(self.headers["Content-Length"])).decode())

        def _reply(self, body: str) -> None:
            reply = provider.note(Asked(self.command, self.path, dict(self.headers), parse_qs(body)))
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body) if reply.length is None else reply.length))
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that went away is no error."""

    server = Server(("localhost", port), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    provider = IdentityProvider(server, "http" if tls is None else "https")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield provider
    finally:
        provider.release()
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass(frozen=True)
class Authority:
    """A certificate authority, and the file with its certificate."""

    ca: trustme.CA
    file: Path

    def server_tls(self, name: str = "localhost") -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert(name).configure_cert(context)
        return context


def new_authority(folder: Path) -> Authority:
    ca = trustme.CA()
    file = folder / "ca.pem"
    ca.cert_pem.write_to_path(str(file))
    return Authority(ca, file)
