"""The interface through which a plugin reads a client's name from its authentication.

A plugin returns an observer from `authentication_started` (`headrace.quota_callbacks.hookspecs`). The proxy passes it
the exchanged tokens and uses its `principal` as the user. Observers do not authenticate clients; the broker does.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol, runtime_checkable

MAX_PRINCIPAL_CHARACTERS: Final = 1024
"""Maximum length of a principal's name, which is part of log lines and bucket keys. Kafka has no limit; the longest
names in use are directory names of a few hundred characters."""
JAVA_WHITESPACE: Final = "".join(map(chr, range(0x21)))
"""The characters that Java's ``String.trim`` removes."""


class AuthenticationObserver(Protocol):
    """A reader of the tokens of one authentication of one connection. The proxy drops it when the authentication ends.

    Runs on the event loop thread and must not block. An exception is logged and counted as an error of its plugin, and
    the connection's user stays unchanged. Tokens are secrets: do not keep or log them or put them into error messages.
    """

    def exchanged(self, client_token: bytes, broker_token: bytes) -> None:
        """Process a client token and the broker's answer to it, which has no error code.

        Called when the answer arrives, in the order of the tokens, even if the client sends several at once; so each
        token is known to be accepted. Not called for a token that the broker refused, which ends the authentication.
        """

    def served(self) -> None:
        """Take an ordinary request that the broker has answered as proof of the authentication.

        For mechanisms whose last token cannot be distinguished from others or is not answered. Called at most once,
        and only while `principal` is ``None``.
        """

    @property
    def principal(self) -> str | None:
        """The name of the principal that the broker has accepted; ``None`` before, and if the tokens do not show it.

        1 to `MAX_PRINCIPAL_CHARACTERS` characters. Read after each call; the first name is final.
        """


@runtime_checkable
class ClaimingObserver(Protocol):
    """An optional addition to `AuthenticationObserver`: the name of a client whose login the broker refused."""

    def claimed_user(self, client_token: bytes) -> str | None:
        """Return the name that the client gave in this token or an earlier one; ``None`` if it cannot be read.

        Called only when the broker has refused the token, or has closed the connection without answering it. The name
        is logged, so it must not contain a secret.
        """


@runtime_checkable
class TokenObserver(Protocol):
    """An optional addition to `AuthenticationObserver`: a login by a delegation token (KIP-48), which names no user."""

    @property
    def token_id(self) -> str | None:
        """The id of the token by which the broker has accepted the client; ``None`` for a login without one.

        Read after each call. The user is then the owner of the token, if the proxy can ask the brokers for it
        (``upstream.owner_lookup``), and `AuthenticationObserver.principal` otherwise.
        """


class UserSource(Enum):
    """The evidence from which the proxy knows the user of a client."""

    BROKER = "broker"
    """The brokers have authenticated the client by SASL, and the proxy has observed it."""
    PROXY = "proxy"
    """The proxy has authenticated the client by SASL (``listen.sasl.mode = "terminate"``)."""
    CERTIFICATE = "certificate"
    """The client has shown a certificate that the proxy has verified."""


class QuotaOperation(Enum):
    """What a client wants to do with the definitions of quotas."""

    DESCRIBE = "describe"
    """DescribeClientQuotas. A broker requires DESCRIBE_CONFIGS on the cluster."""
    ALTER = "alter"
    """AlterClientQuotas. A broker requires ALTER_CONFIGS on the cluster."""
