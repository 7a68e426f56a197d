"""The authentication of a client that the proxy itself carries out (``listen.sasl.mode = "terminate"``). No I/O.

One `ClientSasl` for each connection of such a listener. `headrace.proxy.connection.opening.sasl_termination`
answers the client's requests by it.

Source: ``SaslServerAuthenticator``; KIP-368 for authenticating again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from headrace.proxy.connection.state.authentication import REPEATED_AFTER_S

if TYPE_CHECKING:
    from headrace.proxy.network.listener import ListenerSasl
    from headrace.quota_callbacks.sasl import ServerExchange

MAX_LIFETIME_S: Final = 2.0**31
"""The longest session that is stated to a client, 68 years: plugins may return any number, a token may be valid for
longer, and Java computes the time in nanoseconds of 64 bits."""

SESSION_HAS_ENDED: Final = "its session has expired, and it has not authenticated again (KIP-368)"


class ClientSasl:
    """The state of a client's authentication by the proxy."""

    __slots__ = (
        "began_s",
        "complete",
        "exchange",
        "headerless",
        "max_lifetime_s",
        "mechanism",
        "mechanisms",
        "plugin",
        "proved_by",
        "session_end_s",
    )

    def __init__(self, settings: ListenerSasl) -> None:
        self.mechanisms = settings.mechanisms
        """The mechanisms that the listener offers; none if clients must not authenticate by SASL, since the proxy
        authenticates to the brokers."""
        self.max_lifetime_s = settings.max_lifetime_s
        """The longest session; ``None`` for no limit."""
        self.mechanism = ""
        """The mechanism of the last SaslHandshake."""
        self.proved_by = ""
        """The mechanism by which the client has proved who it is."""
        self.plugin = ""
        self.exchange: ServerExchange | None = None
        """The exchange under way."""
        self.headerless = False
        """Whether the tokens of the exchange have no headers, since its SaslHandshake was one of version 0."""
        self.began_s = -math.inf
        self.complete = False
        """Whether the client has proved who it is."""
        self.session_end_s = math.inf

    @property
    def is_missing(self) -> bool:
        """Whether the client has to authenticate and has not done so."""
        return bool(self.mechanisms) and not self.complete

    def may_begin(self, now_s: float) -> bool:
        """Return whether a SaslHandshake begins an authentication; a later one may not follow too soon."""
        return bool(self.mechanisms) and (not self.complete or now_s - self.began_s >= REPEATED_AFTER_S)

    @property
    def changes_mechanism(self) -> bool:
        """Whether the client authenticates again by another mechanism, which a broker refuses (KIP-368)."""
        return self.complete and self.mechanism != self.proved_by

    @property
    def expects_token(self) -> bool:
        """Whether the next frame of the client is a token without a header."""
        return self.headerless and self.exchange is not None

    def begin(
        self, mechanism: str, plugin: str, exchange: ServerExchange, now_s: float, *, headerless: bool = False
    ) -> None:
        """Begin an authentication."""
        self.mechanism, self.plugin, self.exchange, self.began_s = mechanism, plugin, exchange, now_s
        self.headerless = headerless

    def completed(self, now_s: float, lifetime_s: float | None) -> float | None:
        """Note that the client has proved who it is; return the lifetime of its session in seconds, if it ends.

        ``lifetime_s`` is that of the client's credentials.
        """
        self.exchange, self.complete, self.proved_by = None, True, self.mechanism
        lifetimes = [each for each in (self.max_lifetime_s, lifetime_s) if each is not None]
        if not lifetimes:
            self.session_end_s = math.inf
            return None
        lifetime = max(0.0, min(*lifetimes, MAX_LIFETIME_S))
        self.session_end_s = now_s + lifetime
        return lifetime

    def failed(self) -> None:
        """Note that the authentication has failed."""
        self.exchange = None
