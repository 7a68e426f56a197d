"""The messages of SASL/OAUTHBEARER (RFC 7628), as Kafka reads and writes them. Pure.

Source: ``OAuthBearerClientInitialResponse``, ``OAuthBearerSaslServer`` and ``OAuthBearerSaslClient``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

MECHANISM: Final = "OAUTHBEARER"

LONGEST_MESSAGE_BYTES: Final = 64 * 1024
"""The longest message that is read. Real tokens are shorter, since HTTP servers refuse headers of more than 8 to 16
KiB; a broker reads up to 512 KiB (``sasl.server.max.receive.size``)."""

ACKNOWLEDGEMENT: Final = b"\x01"
"""The client's answer to an error, which ends the exchange."""

INVALID_TOKEN: Final = b'{"status":"invalid_token"}'
"""The answer to a token that is not accepted, in the form of ``OAuthBearerSaslServer.jsonErrorResponse``."""

_SEPARATOR: Final = "\x01"
_SASL_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_KEY: Final = r"[A-Za-z]+"
_VALUE: Final = r"[\x21-\x7e \t\r\n]+"
_PAIR: Final = rf"{_KEY}={_VALUE}\x01"
_MESSAGE: Final = re.compile(rf"n,(?:a=(?P<authzid>{_SASL_NAME}))?,\x01(?P<pairs>(?:{_PAIR})*)\x01", re.ASCII)
_RFC_6750_FORM: Final = r"[-._~+/A-Za-z0-9]+=*"
_AUTH: Final = re.compile(rf"(?P<scheme>\w+) +(?P<token>{_RFC_6750_FORM})", re.ASCII)
_BEARER_TOKEN: Final = re.compile(_RFC_6750_FORM, re.ASCII)


class MessageError(ValueError):
    """A client's message is malformed. ``str()`` contains nothing of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMessage:
    """The fields of a client's first message."""

    token: str = field(repr=False)
    authorization_id: str
    """The user that the client wants to be, as it is written; empty if the client does not name one."""


def read_client_message(message: bytes) -> ClientMessage:
    """Return the content of a client's first message. Raises `MessageError` where a broker refuses it.

    The last of equal keys is used. Extensions are checked and ignored: a broker accepts them all, too
    (``OAuthBearerValidatorCallbackHandler.handleExtensionsValidatorCallback``).
    """
    if len(message) > LONGEST_MESSAGE_BYTES:
        raise MessageError(f"the first message is longer than {LONGEST_MESSAGE_BYTES} bytes")
    found = _MESSAGE.fullmatch(message.decode("utf-8", "replace"))
    if found is None:
        raise MessageError("the first message does not have the form of RFC 7628")
    pairs = dict(pair.partition("=")[::2] for pair in found["pairs"].split(_SEPARATOR)[:-1])
    if "auth" not in pairs:
        raise MessageError("the first message has no key 'auth'")
    auth = _AUTH.fullmatch(pairs["auth"])
    if auth is None:
        raise MessageError("the value of the key 'auth' is not a scheme and a token")
    if auth["scheme"].lower() != "bearer":
        raise MessageError("the scheme of the key 'auth' is not Bearer")
    return ClientMessage(token=auth["token"], authorization_id=found["authzid"] or "")


def client_message(token: str, extensions: Iterable[tuple[str, str]] = ()) -> bytes:
    """Return a client's first message with ``token`` and extensions, each of which `is_extension` has accepted.

    Raises `MessageError` for what is not a bearer token (RFC 6750): one with other characters could add keys of its own
    to the message.
    """
    if not _BEARER_TOKEN.fullmatch(token):
        raise MessageError("the token contains characters that RFC 6750 does not allow")
    pairs = "".join(f"{name}={value}{_SEPARATOR}" for name, value in extensions)
    return f"n,,\x01auth=Bearer {token}\x01{pairs}\x01".encode()


def is_extension(name: str, value: str) -> bool:
    """Return whether a client may send this extension (KIP-342, ``OAuthBearerClientInitialResponse``)."""
    return name != "auth" and bool(re.fullmatch(_KEY, name) and re.fullmatch(_VALUE, value))
