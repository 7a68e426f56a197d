"""The first record of a client, which is read and checked before any state of TLS is allocated.

The base class of the sockets with TLS, whatever library computes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.proxy.errors import ClientFault
from headrace.proxy.network.sockets import PlainSocket
from headrace.proxy.network.tls.client_hello import server_name
from headrace.proxy.network.tls.failures import plaintext_failure
from headrace.proxy.network.tls.records import HEADER_BYTES

if TYPE_CHECKING:
    import socket

    from headrace.proxy.errors import ConnectionFault
    from headrace.proxy.network.poller import Poller

MAX_RECORD_BYTES: Final = 16 * 1024
"""The longest record of a handshake (RFC 8446 section 5.1), and the longest ClientHello: those of clients have 0.2 to
2 KiB. OpenSSL would permit 128 KiB, and allocate them when it has read the length."""

_HANDSHAKE: Final = 0x16
_MAJOR_VERSION: Final = 3
_MESSAGE_HEADER_BYTES: Final = 4
"""The type and the length of a message of a handshake (RFC 8446 section 4)."""


class NotTls(ClientFault):
    """The client's first bytes are not those of TLS; ``first`` has them."""

    def __init__(self, first: bytes, setting: str) -> None:
        super().__init__(plaintext_failure(first, setting))
        self.first = first


class HelloSocket(PlainSocket):
    """A TCP connection whose first record is read by `receive_hello`."""

    __slots__ = ("_hello", "_hello_goes_on", "_setting", "server_name")

    can_splice = False

    def __init__(self, sock: socket.socket, fault: type[ConnectionFault], poller: Poller | None = None) -> None:
        super().__init__(sock, fault, poller)
        self._hello = b""
        self._hello_goes_on = False
        """Whether the first record has only a part of the ClientHello."""
        self._setting = ""
        self.server_name: str | None = None
        """The host name that a client has asked for (SNI)."""

    async def receive_hello(self, setting: str) -> None:
        """Wait for the first record of a client, which needs no more memory than its bytes.

        ``setting`` is the table of the configuration, for messages. Raises `NotTls` for anything else than the first
        record of a handshake, `ClientFault` for one that is too long or has too many extensions, and the fault of the
        socket if the client closes the connection.
        """
        header = await self.receive_exactly(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            raise self._fault("the client closed the connection before the TLS handshake")
        if header[0] != _HANDSHAKE or header[1] != _MAJOR_VERSION:
            raise NotTls(header, setting)
        size = int.from_bytes(header[3:5], "big")
        if size > MAX_RECORD_BYTES:
            raise ClientFault(f"TLS: the first record has {size} bytes; at most {MAX_RECORD_BYTES} are permitted")
        record = await self.receive_exactly(size)
        if len(record) < size:
            raise self._fault("the client closed the connection in its first TLS record")
        if size < _MESSAGE_HEADER_BYTES:
            raise ClientFault(f"TLS: the first record has {size} bytes; at least {_MESSAGE_HEADER_BYTES} are required")
        hello_size = int.from_bytes(record[1:4], "big")
        if hello_size > MAX_RECORD_BYTES:
            raise ClientFault(f"TLS: the ClientHello has {hello_size} bytes; at most {MAX_RECORD_BYTES} are permitted")
        self._hello = header + record
        self.server_name = server_name(header + record)
        self._hello_goes_on = size < _MESSAGE_HEADER_BYTES + hello_size

    def take_hello(self) -> bytes:
        """Return the record that `receive_hello` has read, and free it."""
        hello, self._hello = self._hello, b""
        return hello
