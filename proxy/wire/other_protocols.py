"""Recognizing TLS, HTTP and the PROXY protocol in place of a Kafka frame, so that an error can name the protocol.

Called for bytes that cannot be a frame, and for the first bytes of a reply to the proxy's own requests. Read as the
length of a frame, the first bytes of each are at least 218,762,506, more than any usual ``limits.max_frame_bytes``.

Source: RFC 8446 section 5.1 (``TLSPlaintext``), RFC 9110 section 9.3, RFC 9112 section 4, RFC 9113 section 3.4;
HAProxy's ``proxy-protocol.txt`` sections 2.1 and 2.2.
"""

from __future__ import annotations

from typing import Final

Buffer = bytearray | memoryview

TLS: Final = "TLS"
HTTP: Final = "HTTP"
PROXY: Final = "the PROXY protocol"

NEEDED_BYTES: Final = 4
_TLS_RECORD_TYPES: Final = range(0x14, 0x18)  # change_cipher_spec, alert, handshake, application_data
_TLS_MAJOR_VERSION: Final = 3
_HIGHEST_TLS_MINOR_VERSION: Final = 4
_HTTP_BEGINNINGS: Final = frozenset(
    {b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"CONN", b"OPTI", b"TRAC", b"PATC", b"PRI ", b"HTTP"}
)
"""The first 4 bytes of each method, of the HTTP/2 connection preface and of a response."""
_PROXY_BEGINNINGS: Final = frozenset({b"PROX", b"\r\n\r\n"})
"""The first 4 bytes of versions 1 and 2."""


def other_protocol(buffer: Buffer, position: int, end: int) -> str | None:
    """Return the protocol, `TLS`, `HTTP` or `PROXY`, that the bytes from ``position`` to ``end`` begin with.

    ``None`` if they begin with none of them, or are fewer than `NEEDED_BYTES`.
    """
    if end - position < NEEDED_BYTES:
        return None
    first = bytes(buffer[position : position + NEEDED_BYTES])
    if first[0] in _TLS_RECORD_TYPES and first[1] == _TLS_MAJOR_VERSION and first[2] <= _HIGHEST_TLS_MINOR_VERSION:
        return TLS
    if first in _PROXY_BEGINNINGS:
        return PROXY
    return HTTP if first in _HTTP_BEGINNINGS else None
