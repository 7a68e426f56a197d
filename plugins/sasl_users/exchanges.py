"""The authentication of one client by PLAIN or SCRAM (``PlainSaslServer``, ``ScramSaslServer``).

The reason of a refusal is the same for an unknown user and for a wrong password. Nothing that the client sends is in
it, apart from the user's name.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

from headrace.proxy.sasl.errors import ExchangeError
from headrace.proxy.sasl.plain import read_plain_message
from headrace.proxy.sasl.scram import scram_verifier
from headrace.proxy.sasl.scram_server import ScramServer, read_client_first
from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS
from headrace.quota_callbacks.sasl import SaslRefused, SaslStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.plugins.sasl_users.lookups import KnownUsers
    from headrace.proxy.sasl.scram import ScramMechanism

MAX_TOKEN_BYTES: Final = 10 * 1024
"""A name of `MAX_PRINCIPAL_CHARACTERS` has 4 KiB at most, and may come twice; passwords and nonces have 1 KiB at most.
Reading a token of this size takes less than 0.1 ms."""

_INVALID: Final = "invalid user name or password"
_OVER: Final = "a token after the end of the authentication"


class PlainServerExchange:
    """PLAIN: the client sends its name and password at once. The password is not kept."""

    __slots__ = ("_known", "_over")

    blocks: Final = True
    """The verifier is computed from the password, which takes milliseconds."""

    def __init__(self, known: Callable[[], KnownUsers]) -> None:
        self._known = known
        self._over = False

    def respond(self, token: bytes) -> SaslStep:
        """Return the principal. Raises `SaslRefused`."""
        if self._over:
            raise SaslRefused(_OVER)
        self._over = True
        _check_size(token)
        try:
            message = read_plain_message(token)
        except ExchangeError as error:
            raise SaslRefused(str(error)) from None
        user = _bounded(message.user)
        mechanism, expected = self._known().plain_verifier(user)
        found = scram_verifier(mechanism, message.password, expected.salt, expected.iterations)
        if not hmac.compare_digest(found.stored_key, expected.stored_key):
            raise SaslRefused(_INVALID, user=user)
        return SaslStep(principal=user)


class ScramServerExchange:
    """SCRAM: the client names itself, then proves that it knows the password, and the proxy proves the same."""

    __slots__ = ("_known", "_mechanism", "_over", "_server", "_user")

    blocks: Final = False
    """The client computes the iterations; here it takes some 20 µs."""

    def __init__(self, mechanism: ScramMechanism, known: Callable[[], KnownUsers]) -> None:
        self._mechanism = mechanism
        self._known = known
        self._user: str | None = None
        self._server: ScramServer | None = None
        self._over = False

    def respond(self, token: bytes) -> SaslStep:
        """Return the answer to the client's next message. Raises `SaslRefused`."""
        if self._over:
            raise SaslRefused(_OVER, user=self._user)
        self._over = True
        _check_size(token)
        if self._server is None:
            step = self._first(token)
            self._over = False
            return step
        try:
            return SaslStep(answer=self._server.final(token), principal=self._user)
        except ExchangeError:
            raise SaslRefused(_INVALID, user=self._user) from None

    def _first(self, token: bytes) -> SaslStep:
        try:
            first = read_client_first(token)
        except ExchangeError as error:
            raise SaslRefused(str(error)) from None
        self._user = _bounded(first.user)
        verifier = self._known().scram_verifier(self._mechanism, self._user)
        self._server = ScramServer(self._mechanism, first, verifier)
        return SaslStep(answer=self._server.first)


def _check_size(token: bytes) -> None:
    if len(token) > MAX_TOKEN_BYTES:
        raise SaslRefused(f"a token of {len(token)} bytes; the maximum is {MAX_TOKEN_BYTES}")


def _bounded(user: str) -> str:
    if len(user) > MAX_PRINCIPAL_CHARACTERS:
        raise SaslRefused(f"a user name of {len(user)} characters; the maximum is {MAX_PRINCIPAL_CHARACTERS}")
    return user
