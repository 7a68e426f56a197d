"""The message of PLAIN, ``[authzid] NUL authcid NUL passwd`` (RFC 4616; ``PlainSaslServer``, ``PlainSaslClient``)."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.proxy.sasl.errors import ExchangeError


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainMessage:
    """A user's name and password. The password is not part of ``repr``."""

    user: str
    password: str = field(repr=False)


def plain_message(user: str, password: str) -> bytes:
    """Return the client's message, without an authorization id. Raises `ExchangeError` for a zero character."""
    if "\0" in user or "\0" in password:
        raise ExchangeError("a user name or password with a zero character cannot be sent by PLAIN")
    return f"\0{user}\0{password}".encode()


def read_plain_message(message: bytes) -> PlainMessage:
    """Return what a client's message contains. Raises `ExchangeError` for a message that a broker refuses.

    An authorization id is accepted if it equals the user's name. Unlike a broker, bytes that are not UTF-8 are refused,
    since different passwords would become equal if they were replaced.
    """
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        raise ExchangeError("the message is not UTF-8") from None  # the cause contains the message
    if len(parts) != 3:
        raise ExchangeError(f"the message has {len(parts)} parts, not 3")
    authorization_id, user, password = parts
    if not user:
        raise ExchangeError("the user name is empty")
    if not password:
        raise ExchangeError("the password is empty")
    if authorization_id and authorization_id != user:
        raise ExchangeError("the authorization id is not the user name")
    return PlainMessage(user=user, password=password)
