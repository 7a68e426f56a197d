"""A client that is nothing but a socket: sends one request in a given version and waits for its reply.

The messages are plain values (`headrace.proxy.wire.messages.codec`). Used where a test decides exactly which
bytes go out, or to ask a broker directly and the proxy the same.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any, Final, Self

from headrace.proxy.wire.apis import APIS, request_header_version, response_header_version
from headrace.proxy.wire.messages.codec import Message, decode, encode
from headrace.proxy.wire.messages.schemas import Field, schema
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

ANSWER_TIMEOUT_S: Final = 30.0
CORRELATION_ID: Final = 4711
CLIENT_ID: Final = "wire-connection"

_UNSUPPORTED_VERSION: Final = struct.pack(">h", 35)
_LENGTH: Final = struct.Struct(">i")


class WireConnection:
    """A connection to a broker or to the proxy, by TLS if ``tls`` is given. A context manager.

    ``source`` is the address of this side. `ask` raises OSError or EOFError.
    """

    def __init__(
        self, address: tuple[str, int], tls: ssl.SSLContext | None = None, *, source: str | None = None
    ) -> None:
        self._socket = socket.create_connection(address, ANSWER_TIMEOUT_S, None if source is None else (source, 0))
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=address[0])

    @property
    def local_port(self) -> int:
        """The port on this side."""
        port: int = self._socket.getsockname()[1]
        return port

    def ask(self, api_key: ApiKey, version: int, message: Message | None = None, behind: bytes = b"") -> Message:
        """Send a request, of which the fields that the version lacks are left out, and return the reply."""
        return read_reply(api_key, version, self.exchange(request_frame(api_key, version, message or {}, behind)))

    def exchange(self, request: bytes) -> bytes:
        """Send a whole frame and return the reply's, without its length."""
        self._socket.sendall(request)
        return self._receive(_LENGTH.unpack(self._receive(_LENGTH.size))[0])

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            data = self._socket.recv(size - len(received))
            if not data:
                raise EOFError(f"the connection ended after {len(received)} of {size} bytes")
            received += data
        return bytes(received)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def request_frame(api_key: ApiKey, version: int, message: Message, behind: bytes = b"") -> bytes:
    """A whole request: length, header, body with the fields of ``message`` that the version has, and bytes behind."""
    name = f"{APIS[api_key].name}Request"
    header: Message = {"request_api_key": api_key, "request_api_version": version, "correlation_id": CORRELATION_ID}
    header_version = request_header_version(api_key, version)
    if header_version >= 1:
        header["client_id"] = CLIENT_ID
    body = encode("RequestHeader", header_version, header) + encode(name, version, fitting(name, version, message))
    body += behind
    return _LENGTH.pack(len(body)) + body


def read_reply(api_key: ApiKey, version: int, reply: bytes) -> Message:
    """A reply's body, after its header was checked. KIP-511: to an ApiVersions that is too new, the answer is a v0."""
    header_bytes = 5 if response_header_version(api_key, version) else 4
    assert decode("ResponseHeader", header_bytes - 4, reply[:header_bytes])["correlation_id"] == CORRELATION_ID
    body = reply[header_bytes:]
    if api_key == ApiKey.API_VERSIONS and body[:2] == _UNSUPPORTED_VERSION:
        version = 0
    return decode(f"{APIS[api_key].name}Response", version, body)


def fitting(name: str, version: int, message: Message) -> Message:
    """``message`` without the fields, at any depth, that this version of it lacks."""
    return _fitting(schema(name, version).fields, message)


def _fitting(fields: Sequence[Field], message: Message) -> Message:
    return {field.name: _value(field, message[field.name]) for field in fields if field.name in message}


def _value(field: Field, value: Any) -> Any:
    if not field.fields or value is None:
        return value
    return [_fitting(field.fields, row) for row in value] if field.is_array else _fitting(field.fields, value)
