"""The host name that a client asks for (SNI), from the record of its ClientHello.

If a client resumes a session of TLS 1.2, OpenSSL returns the name of that session, whatever name the client asks for.
Therefore OpenSSL's name is used only for a ClientHello that is split over several records.

Source: RFC 8446 section 4.1.2, RFC 6066 section 3.
"""

from __future__ import annotations

from typing import Final

from headrace.proxy.errors import ClientFault

MAX_EXTENSIONS: Final = 100
"""The most extensions of a ClientHello that are looked at. Clients send 10 to 25, and fewer than 70 are registered;
4,000 in one record would take 4 ms."""

_CLIENT_HELLO: Final = 1
_SERVER_NAME: Final = 0
_HOST_NAME: Final = 0
_BEFORE_SESSION_ID: Final = 5 + 4 + 2 + 32
"""The headers of the record and of the handshake message, the version, and the random bytes."""


def server_name(record: bytes) -> str | None:
    """Return the host name in a record that begins with a ClientHello.

    ``None`` if there is none, if the message is longer than the record, or if it is malformed, which OpenSSL refuses.
    Raises `ClientFault` if there is no name among the first `MAX_EXTENSIONS` extensions, and there are more.
    """
    if len(record) < _BEFORE_SESSION_ID or record[5] != _CLIENT_HELLO:
        return None
    at = _BEFORE_SESSION_ID
    for length_bytes in (1, 2, 1):  # session id, cipher suites, compression methods
        at += length_bytes + int.from_bytes(record[at : at + length_bytes], "big")
    end = at + 2 + int.from_bytes(record[at : at + 2], "big")
    at += 2
    end = min(end, len(record))
    for _ in range(MAX_EXTENSIONS):
        if at + 4 > end:
            return None
        kind, size = int.from_bytes(record[at : at + 2], "big"), int.from_bytes(record[at + 2 : at + 4], "big")
        content = record[at + 4 : at + 4 + size]
        if kind == _SERVER_NAME:
            return _host_name(content)
        at += 4 + size
    if at + 4 > end:
        return None
    raise ClientFault(f"TLS: the ClientHello has more than {MAX_EXTENSIONS} extensions")


def _host_name(names: bytes) -> str | None:
    if len(names) < 5 or names[2] != _HOST_NAME:
        return None
    name = names[5:]
    if len(name) != int.from_bytes(names[3:5], "big") or not name.isascii():
        return None
    return name.decode("ascii")
