"""The SASL tokens that follow SaslHandshake v0: length-prefixed bytes without a request header.

Nothing marks the last token; the next frame is an ordinary request. With PLAIN the client sends one token (which can
look like a request header, since it may begin with a zero byte), with SCRAM two. Tokens of other mechanisms never look
like a request: GSSAPI's begin with 0x60 or 0x05, and OAUTHBEARER's with ``n`` or 0x01, so that their first bytes, read
as a request header, contain an API key of 256 or more. No broker serves such a key, so a frame that is taken for a
token here is never served as a request by a broker. Frames with smaller keys are requests, even if this proxy does not
know the key or the version.

Source: KIP-43, ``SaslServerAuthenticator``, RFC 4121, RFC 4616, RFC 5802, RFC 7628.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.proxy.wire.heads import Buffer

_INT16 = Struct(">h")
_REQUEST_START = Struct(">ih")
_SHORTEST_REQUEST: Final = 8  # api key, api version, correlation id
_NO_API_FROM: Final = 256
"""Kafka's API keys are far below this (94 is the last one in 4.4), and the first two bytes of tokens are above it."""
_TOKEN_COUNTS: Final = {"PLAIN": 1, "SCRAM-SHA-256": 2, "SCRAM-SHA-512": 2}


class HeaderlessTokens:
    """What distinguishes a client's tokens from its requests, after SaslHandshake v0."""

    __slots__ = ("_left",)

    def __init__(self, mechanism: str) -> None:
        self._left = _TOKEN_COUNTS.get(mechanism)

    def is_token(self, buffer: Buffer, position: int, end: int) -> bool | None:
        """Return whether the frame at ``position`` is a token; ``None`` while the window is too short to decide."""
        if self._left is not None:
            return self._left > 0
        if end - position < _REQUEST_START.size:
            return None
        size, api_key = _REQUEST_START.unpack_from(buffer, position)
        return size < _SHORTEST_REQUEST or not 0 <= api_key < _NO_API_FROM

    def passed(self) -> None:
        """Count a token that was forwarded."""
        if self._left is not None:
            self._left -= 1


def handshake_mechanism(body: bytes | memoryview) -> str:
    """Return the mechanism of a SaslHandshake request v0 or v1; "" if it cannot be read."""
    if len(body) < 2:
        return ""
    length: int = _INT16.unpack_from(body, 0)[0]
    return bytes(body[2 : 2 + max(length, 0)]).decode("ascii", "replace")
