"""The exchange with a client that authenticates to the proxy by a token.

```
FIRST ──token──▶ OVER                           accepted
  └────token──▶ REFUSING ──acknowledgement──▶ OVER    refused, in the form of RFC 7628, section 3.2.3
```

Source: ``OAuthBearerSaslServer``, which accepts another token after an error. RFC 7628 does not provide for that, and
the proxy refuses it.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from headrace.plugins.sasl_oauth.jwt import TokenError
from headrace.plugins.sasl_oauth.messages import ACKNOWLEDGEMENT, INVALID_TOKEN, MessageError, read_client_message
from headrace.quota_callbacks.sasl import SaslRefused, SaslStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.plugins.sasl_oauth.verification import TokenVerifier


class _State(Enum):
    FIRST = auto()
    """The client has not sent its token yet."""
    REFUSING = auto()
    """The client has to acknowledge the error."""
    OVER = auto()


class OAuthServerExchange:
    """The authentication of one client (`headrace.quota_callbacks.sasl.ServerExchange`)."""

    __slots__ = ("_claimed", "_now_s", "_reason", "_state", "_verifier")

    def __init__(self, verifier: TokenVerifier, now_s: Callable[[], float]) -> None:
        """``now_s`` returns the wall time in seconds since 1970."""
        self._verifier = verifier
        self._now_s = now_s
        self._state = _State.FIRST
        self._reason = ""
        self._claimed: str | None = None

    @property
    def blocks(self) -> bool:
        """Whether the next token is one to verify, which takes 0.1 to 2 ms."""
        return self._state is _State.FIRST

    def respond(self, token: bytes) -> SaslStep:
        """Return what follows the client's message. Raises `SaslRefused`.

        A token that is not accepted is answered with an error, which the client acknowledges; that raises
        `SaslRefused`.
        """
        state, self._state = self._state, _State.OVER
        if state is _State.REFUSING and token == ACKNOWLEDGEMENT:
            raise SaslRefused(self._reason, user=self._claimed)
        if state is not _State.FIRST:
            raise SaslRefused("the client sent a message that does not belong here", user=self._claimed)
        return self._verify(token)

    def _verify(self, message: bytes) -> SaslStep:
        try:
            sent = read_client_message(message)
        except MessageError as error:
            raise SaslRefused(str(error)) from None
        now_s = self._now_s()
        try:
            identity = self._verifier.verify(sent.token, now_s)
        except TokenError as error:
            self._state, self._reason, self._claimed = _State.REFUSING, str(error), error.claimed
            return SaslStep(answer=INVALID_TOKEN)
        if sent.authorization_id not in ("", identity.principal):
            raise SaslRefused("the authorization id is not the user of the token", user=identity.principal)
        return SaslStep(principal=identity.principal, lifetime_s=max(0.0, identity.expires_s - now_s))
