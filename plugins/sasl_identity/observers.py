"""One authentication observer (`AuthenticationObserver`) per family of SASL mechanisms.

An observer receives each client token together with the broker's answer, after that answer; it does not receive a token
that the broker refused. It detects that the broker has accepted the client, and gives the client's principal. No
observer keeps a token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.plugins.sasl_identity.names import oauth_name, plain_name, scram_name, token_id

if TYPE_CHECKING:
    from collections.abc import Callable


class UnseenIdentity:
    """A mechanism that is unknown or hides the name (GSSAPI): an accepted client becomes the fallback user.

    Only the last answer of GSSAPI is empty (``GssKrb5Server``). The last answer of an unknown mechanism cannot be
    recognised, so the first ordinary request that the broker serves shows that the client has been accepted.
    """

    __slots__ = ("_ends_empty", "_fallback", "_on_unnamed", "_principal")

    def __init__(self, fallback: str | None, on_unnamed: Callable[[], None], *, ends_empty: bool = False) -> None:
        """``on_unnamed`` is called if the client has been accepted and there is no fallback user."""
        self._fallback = fallback
        self._on_unnamed = on_unnamed
        self._ends_empty = ends_empty
        self._principal: str | None = None

    @property
    def principal(self) -> str | None:
        """The fallback user, once the broker has accepted."""
        return self._principal

    def exchanged(self, _client_token: bytes, broker_token: bytes) -> None:
        """Set the principal if this is the last answer."""
        if self._ends_empty and not broker_token:
            self.served()

    def served(self) -> None:
        """Set the principal: the broker only serves clients that it has accepted."""
        self._principal = self._fallback
        if self._fallback is None:
            self._on_unnamed()


class PlainIdentity:
    """PLAIN: the client sends one token, which any answer without an error accepts."""

    __slots__ = ("_fallback", "_principal")

    def __init__(self, fallback: str | None) -> None:
        self._fallback = fallback
        self._principal: str | None = None

    @property
    def principal(self) -> str | None:
        """The authentication id, once the broker has accepted."""
        return self._principal

    def exchanged(self, client_token: bytes, _broker_token: bytes) -> None:
        """Set the principal: the broker has accepted the token."""
        self._principal = plain_name(client_token) or self._fallback

    def claimed_user(self, client_token: bytes) -> str | None:
        """Return the authentication id in the token."""
        return plain_name(client_token)

    def served(self) -> None:
        """Do nothing: the broker's only answer has set the principal."""


class ScramIdentity:
    """SCRAM: the client's first token names the user, and the server's second answer, ``v=...``, accepts it."""

    __slots__ = ("_answers", "_claimed_token", "_fallback", "_named", "_principal", "_token_id")

    def __init__(self, fallback: str | None) -> None:
        self._fallback = fallback
        self._claimed_token: str | None = None
        """The id of the token that the client's first message names."""
        self._token_id: str | None = None
        self._answers = 0
        self._named: str | None = None
        self._principal: str | None = None

    @property
    def principal(self) -> str | None:
        """The user, once the broker has sent its signature."""
        return self._principal

    @property
    def token_id(self) -> str | None:
        """The id of the client's delegation token, once the broker has sent its signature."""
        return self._token_id

    def exchanged(self, client_token: bytes, broker_token: bytes) -> None:
        """Read the name from the first token, and look for the signature in the second answer."""
        self._answers += 1
        if self._answers == 1:
            self._named = scram_name(client_token) or self._fallback
            self._claimed_token = token_id(client_token)
        elif self._answers == 2 and broker_token.startswith(b"v="):
            self._principal, self._token_id = self._named, self._claimed_token

    def claimed_user(self, client_token: bytes) -> str | None:
        """Return the user named in the client's first token."""
        return self._named if self._answers else scram_name(client_token)

    def served(self) -> None:
        """Do nothing: the broker's signature has set the principal."""


class OAuthIdentity:
    """OAUTHBEARER: an empty answer accepts the token.

    Any other answer describes an error, although its error code is 0; the client then gives up or sends another token
    (``OAuthBearerSaslServer``).
    """

    __slots__ = ("_claim", "_fallback", "_principal", "_refused")

    def __init__(self, fallback: str | None, claim: str) -> None:
        self._fallback = fallback
        self._claim = claim
        self._refused: str | None = None
        """The claim in the token that the broker answered with an error."""
        self._principal: str | None = None

    @property
    def principal(self) -> str | None:
        """The claim, once the broker has accepted the token."""
        return self._principal

    def exchanged(self, client_token: bytes, broker_token: bytes) -> None:
        """Set the principal if the broker has accepted the token."""
        if not broker_token:
            self._principal = oauth_name(client_token, self._claim) or self._fallback
        else:  # a refusal; the error code follows in the answer to the next token
            self._refused = oauth_name(client_token, self._claim)

    def claimed_user(self, client_token: bytes) -> str | None:
        """Return the claim in the refused token."""
        return oauth_name(client_token, self._claim) or self._refused

    def served(self) -> None:
        """Do nothing: the empty answer has set the principal."""
