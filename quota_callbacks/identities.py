"""Who a client is: what a source of identities shows of one authentication.

A plugin answers `authentication_started` (`headrace.quota_callbacks.hookspecs`) with an observer; the proxy shows it
what passes and adopts the name that it tells. Observers do not authenticate: the broker does, and they only read along.
"""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

MAX_PRINCIPAL_CHARACTERS: Final = 1024
"""Of a principal's name. It stands in log lines and in the keys of buckets; Kafka itself has no limit, and directory
names of a few hundred characters are the longest in use."""


class AuthenticationObserver(Protocol):
    """Reads along with one authentication of one connection; dropped when that is over.

    Runs on the event loop and must not block. What it raises is logged and counted as its plugin's error, and the
    connection's user stays who it was. Tokens are secrets: they must not be kept, logged or put into errors.
    """

    def exchanged(self, client_token: bytes, broker_token: bytes) -> None:
        """The broker has answered a token, without an error code.

        Called once the answer is there, in order, also where a client sends several tokens at once: so no token can be
        taken for another that the broker accepted. Not called for a token that the broker refused, after which the
        authentication is over.
        """

    def served(self) -> None:
        """The broker has answered an ordinary request behind the exchange, which it does for the authenticated alone.

        For mechanisms whose last token is not told from others, or not answered. Called once at most, and only while
        `principal` is ``None``.
        """

    @property
    def principal(self) -> str | None:
        """The name in the principal that the broker has accepted; ``None`` while it has not, or where it cannot be
        seen. 1 to `MAX_PRINCIPAL_CHARACTERS` characters. Read after each call; the first name is final."""


@runtime_checkable
class ClaimingObserver(Protocol):
    """What an `AuthenticationObserver` may implement besides, so that the log names whose login was refused."""

    def claimed_user(self, client_token: bytes) -> str | None:
        """Return the name that the client gave in this token or an earlier one; ``None`` if it cannot be seen.

        Called only when the broker has refused the token, or closed the connection instead of answering it. The name
        is logged, so it must not contain a secret.
        """
