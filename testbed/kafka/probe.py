"""Asks a broker, with two simple requests on a plain socket, whether it serves and which brokers it knows.

Called by the cluster to determine when it is ready. Blocking; requires neither a Kafka client nor a JVM: the two
requests are constants, and the responses are parsed with `struct`. Supports PLAINTEXT and SSL, and no SASL.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

# The testbed imports nothing of the project, so it has the keys of these APIs itself.
API_VERSIONS = 18
METADATA = 3
# Header version 1: api key, api version, correlation id, no client id.
HEADER = struct.Struct(">hhih")
CORRELATION_ID = 1
NO_CLIENT_ID = -1
# A broker that serves answers within milliseconds; one that is starting on a busy machine may take this long.
ANSWER_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A broker's metadata: the ids and addresses of all brokers it knows, and the controller's id (-1: none)."""

    brokers: Mapping[int, tuple[str, int]]
    controller_id: int


def ask(
    host: str, port: int, *, timeout_s: float = ANSWER_TIMEOUT_S, tls: ssl.SSLContext | None = None
) -> Answer | None:
    """Return the metadata of the broker at `host`:`port`, or None if it does not answer within `timeout_s` seconds.

    With `tls`, connects by TLS. Sends ApiVersions v0 and Metadata v1, which all brokers since 0.10 support (Kafka's
    protocol guide).
    """
    try:
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection((host, port), timeout_s))
            if tls is not None:
                connection = stack.enter_context(tls.wrap_socket(connection, server_hostname=host))
            versions = _exchange(connection, API_VERSIONS, 0, b"")
            if versions[:2] != b"\0\0":
                return None
            return _read_metadata(_exchange(connection, METADATA, 1, struct.pack(">i", 0)))
    except (OSError, EOFError, UnicodeDecodeError, struct.error):
        return None


def _exchange(connection: socket.socket, api_key: int, api_version: int, body: bytes) -> bytes:
    request = HEADER.pack(api_key, api_version, CORRELATION_ID, NO_CLIENT_ID) + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", _receive(connection, 4))
    return _receive(connection, size)[4:]


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        data = connection.recv(size - len(received))
        if not data:
            raise EOFError
        received += data
    return bytes(received)


def _read_metadata(body: bytes) -> Answer:
    """Read a Metadata response of version 1: brokers (id, host, port, nullable rack), controller id, no topics."""
    (count,) = struct.unpack_from(">i", body)
    at = 4
    brokers: dict[int, tuple[str, int]] = {}
    for _ in range(count):
        node_id, length = struct.unpack_from(">ih", body, at)
        host = body[at + 6 : at + 6 + length].decode()
        at += 6 + length
        port, rack_length = struct.unpack_from(">ih", body, at)
        at += 6 + max(rack_length, 0)
        brokers[node_id] = (host, port)
    (controller_id,) = struct.unpack_from(">i", body, at)
    return Answer(brokers=brokers, controller_id=controller_id)
