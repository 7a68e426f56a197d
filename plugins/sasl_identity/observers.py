"""When has the broker accepted, and whom: one observer per family of mechanisms (`AuthenticationObserver`).

Each is told of a token together with the broker's answer, after that answer; a token that the broker refused is not
told. None keeps a token.
"""

from __future__ import annotations

from headrace.plugins.sasl_identity.names import oauth_name, plain_name, scram_name


class UnseenIdentity:
    """A mechanism that hides the name (GSSAPI), or that is not known: who is accepted is the fallback user.

    The last answer of GSSAPI is empty, and no other is (``GssKrb5Server``). What other mechanisms end with is not
    known, so the first ordinary request that is served tells.
    """

    __slots__ = ("_ends_empty", "_fallback", "_principal")

    def __init__(self, fallback: str | None, *, ends_empty: bool = False) -> None:
        self._fallback = fallback
        self._ends_empty = ends_empty
        self._principal: str | None = None

    @property
    def principal(self) -> str | None:
        """The fallback user, once the broker has accepted."""
        return self._principal

    def exchanged(self, _client_token: bytes, broker_token: bytes) -> None:
        """Look for the end."""
        if self._ends_empty and not broker_token:
            self._principal = self._fallback

    def served(self) -> None:
        """It must have been accepted."""
        self._principal = self._fallback


class PlainIdentity:
    """PLAIN: one token, and any answer without an error accepts it."""

    __slots__ = ("_fallback", "_principal")

    def __init__(self, fallback: str | None) -> None:
        self._fallback = fallback
        self._principal: str | None = None

    @property
    def principal(self) -> str | None:
        """The authentication id, once the broker has accepted."""
        return self._principal

    def exchanged(self, client_token: bytes, _broker_token: bytes) -> None:
        """The token was accepted."""
        self._principal = plain_name(client_token) or self._fallback

    def claimed_user(self, client_token: bytes) -> str | None:
        """Return the authentication id."""
        return plain_name(client_token)

    def served(self) -> None:
        """Nothing new: the one answer has told."""


class ScramIdentity:
    """SCRAM: the client's first token names the user, and the server's second answer, ``v=...``, accepts it."""

    __slots__ = ("_answers", "_fallback", "_named", "_principal")

    def __init__(self, fallback: str | None) -> None:
        self._fallback = fallback
        self._answers = 0
        self._named: str | None = None
        self._principal: str | None = None

    @property
    def principal(self) -> str | None:
        """The user, once the server has signed."""
        return self._principal

    def exchanged(self, client_token: bytes, broker_token: bytes) -> None:
        """Take the name from the first pair, and look for the signature in the second."""
        self._answers += 1
        if self._answers == 1:
            self._named = scram_name(client_token) or self._fallback
        elif self._answers == 2 and broker_token.startswith(b"v="):
            self._principal = self._named

    def claimed_user(self, client_token: bytes) -> str | None:
        """Return the user that the client's first token names."""
        return self._named if self._answers else scram_name(client_token)

    def served(self) -> None:
        """Nothing new: whoever is served behind a SCRAM exchange has been signed for."""


class OAuthIdentity:
    """OAUTHBEARER: an empty answer accepts the token. Another tells an error, without an error code; the client then
    gives up, or tries another token (``OAuthBearerSaslServer``)."""

    __slots__ = ("_claim", "_fallback", "_principal", "_refused")

    def __init__(self, fallback: str | None, claim: str) -> None:
        self._fallback = fallback
        self._claim = claim
        self._refused: str | None = None
        """The claim of a token that the broker has answered with an error."""
        self._principal: str | None = None

    @property
    def principal(self) -> str | None:
        """The claim, once the broker has accepted the token."""
        return self._principal

    def exchanged(self, client_token: bytes, broker_token: bytes) -> None:
        """Look into the token if it was accepted."""
        if not broker_token:
            self._principal = oauth_name(client_token, self._claim) or self._fallback
        else:  # a refusal, whose error code comes with the answer to the next token
            self._refused = oauth_name(client_token, self._claim)

    def claimed_user(self, client_token: bytes) -> str | None:
        """Return the claim of the token that was refused."""
        return oauth_name(client_token, self._claim) or self._refused

    def served(self) -> None:
        """Nothing new: the empty answer has told."""
