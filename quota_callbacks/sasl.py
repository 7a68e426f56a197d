"""The two sides of a SASL authentication that the proxy takes part in itself, as plugins implement them.

A plugin returns a `ServerExchange` from the hook `sasl_server_exchange`, to authenticate clients in place of the
broker, and a `ClientExchange` from `sasl_client_exchange`, to authenticate the proxy to brokers. One exchange is
created for each authentication of each connection. Tokens are secrets: do not log them or put them into error messages.

Source: RFC 4422; ``SaslServerAuthenticator`` and ``SaslClientAuthenticator``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.quota_callbacks.secret_sources import SecretSource


class SaslRefused(Exception):  # noqa: N818 -- an outcome, not an error of the program
    """The authentication has failed. ``str()`` is for the log; it must not contain a secret.

    A mechanism that describes errors by a token which the client acknowledges (OAUTHBEARER, RFC 7628 section 3.2.3)
    returns that token as a `SaslStep`, and raises this at the acknowledgement.
    """

    def __init__(self, reason: str, *, user: str | None = None) -> None:
        super().__init__(reason)
        self.user = user
        """The name that the client claims, if it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslStep:
    """The result of one step of an authentication: the answer to a client's token, and the user if it is known."""

    answer: bytes = b""
    """The token to send to the client."""
    principal: str | None = None
    """The user, once the client has proved who it is; ``None`` while it has to send another token."""
    lifetime_s: float | None = None
    """Seconds until the credentials expire, if they do; the session ends then at the latest (KIP-368)."""


class ServerExchange(Protocol):
    """The authentication of one client, in place of the broker."""

    @property
    def blocks(self) -> bool:
        """Whether the next `respond` may take longer than 0.1 ms; it is then called in a thread.

        At most a few such calls of all connections run at a time.
        """

    def respond(self, token: bytes) -> SaslStep:
        """Process ``token``, the next one of the client, and return the result.

        Raises `SaslRefused`; then the exchange is over.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSasl:
    """How the proxy authenticates to brokers, as the configuration has it, with the source of the password."""

    mechanism: str
    """The name of the mechanism, as SaslHandshake has it."""
    user: str | None = None
    """The user of PLAIN and SCRAM, or the client id of OAUTHBEARER."""
    password: SecretSource | None = None
    """Where the password, or the secret of the client id, is read from."""
    extensions: Mapping[str, str] = field(default_factory=dict)
    """The extensions that the mechanism sends: of SCRAM, RFC 5802, and of OAUTHBEARER, KIP-342."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further settings of the mechanism, which its plugin defines. ``repr`` hides them: they may be secret."""


class ClientExchange(Protocol):
    """The authentication of one connection of the proxy to a broker."""

    async def respond(self, challenge: bytes | None) -> bytes | None:
        """Return the next token to send; ``None`` when the broker's ``challenge`` has completed the authentication.

        ``challenge`` is ``None`` for the first token. May wait, for instance for an access token, and must be
        cancellable. Raises `SaslRefused` if the broker's challenge is wrong, or the credentials cannot be had.
        """
