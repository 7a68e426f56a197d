"""Requests to the admin server of a running proxy, byte by byte as an attacker would write them."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from testbed.proxy_process import ProxyProcess

TIMEOUT_S = 40.0


@dataclass(frozen=True)
class Reply:
    status: int
    """0 if the connection was closed without an answer."""
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"])

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def connected(address: str, source: str = "", tls: ssl.SSLContext | None = None) -> socket.socket:
    """A connection to ``host:port`` or ``unix:/path``; with ``tls``, the handshake is done."""
    if address.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(TIMEOUT_S)
        sock.connect(address.removeprefix("unix:"))
        return sock
    host, _, port = address.rpartition(":")
    sock = socket.create_connection(
        (host, int(port)), timeout=TIMEOUT_S, source_address=(source, 0) if source else None
    )
    if tls is None:
        return sock
    try:
        return tls.wrap_socket(sock, server_hostname=host)
    except OSError:
        sock.close()
        raise


def send(address: str, request: bytes, tls: ssl.SSLContext | None = None) -> Reply:
    """Send bytes on a connection of their own, and read until it is closed or the answer is complete."""
    with connected(address, tls=tls) as sock:
        received = b""
        try:
            sock.sendall(request)
            while not _is_complete(received) and (piece := sock.recv(65536)):
                received += piece
        except (ConnectionResetError, BrokenPipeError):
            pass
    if not received:
        return Reply(status=0, headers={}, body=b"")
    head, _, body = received.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Reply(status=int(status.split()[1]), headers=headers, body=body)


def _is_complete(received: bytes) -> bool:
    head, end, body = received.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: ")]
    return bool(end) and bool(lengths) and len(body) >= int(lengths[0].split()[1])


def ask(
    address: str,
    path: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    tls: ssl.SSLContext | None = None,
) -> Reply:
    """Send a request with these headers; the default for Host is ``localhost``."""
    sent = {"Host": "localhost", "Connection": "close"} | dict(headers or {})
    if body:
        sent["Content-Length"] = str(len(body))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
    return send(address, "\r\n".join(lines).encode() + b"\r\n\r\n" + body, tls)


def switch_off(address: str, headers: Mapping[str, str]) -> Reply:
    """Ask for enforcement to be switched off."""
    return ask(address, "/enforcement", method="PUT", headers=headers, body=b'{"enabled": false}')


def is_enforced(proxy: ProxyProcess) -> bool:
    return bool(ask(proxy.admin, "/enforcement", headers=proxy.authorization).json["enabled"])
