"""The authentication of one connection to a broker by PLAIN or SCRAM (``SaslClientAuthenticator``)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import trio

from headrace.plugins.sasl_client.shared_results import SharedResults
from headrace.proxy.sasl.errors import ExchangeError
from headrace.proxy.sasl.plain import plain_message
from headrace.proxy.sasl.scram import ScramKeys, ScramMechanism, scram_keys
from headrace.proxy.sasl.scram_client import ScramClient
from headrace.quota_callbacks.sasl import SaslRefused
from headrace.quota_callbacks.secret_sources import SecretError, SecretSource

if TYPE_CHECKING:
    from headrace.quota_callbacks.sasl import UpstreamSasl

PASSWORD_KEPT_S: Final = 10.0
"""How long a password is used before its source is read again, so that a changed one is used soon."""
FAILURE_KEPT_S: Final = 1.0
"""How long all connections fail after a password could not be read: a command may take up to 30 s to fail."""
KEYS_KEPT_S: Final = 3600.0
"""How long SCRAM keys are used. The salt, which changes with the password, is part of the key of the cache."""
MOST_PASSWORDS: Final = 1024
MOST_KEYS: Final = 1024
"""Maximum number of SCRAM keys in the cache. A cluster has one salt, so one entry, for each user and mechanism."""
PASSWORD_THREADS: Final = 4
KEY_THREADS: Final = 1
"""Number of threads that compute SCRAM keys. More would not be faster: the proxy has at most one processor to spare."""

Passwords: TypeAlias = SharedResults[SecretSource, str]
Keys: TypeAlias = SharedResults[tuple[ScramMechanism, str, bytes, int], ScramKeys]


def no_passwords() -> Passwords:
    """Return an empty cache of passwords."""
    return SharedResults(
        most=MOST_PASSWORDS,
        kept_s=PASSWORD_KEPT_S,
        failure=SecretError,
        failure_kept_s=FAILURE_KEPT_S,
        threads=PASSWORD_THREADS,
    )


def no_keys() -> Keys:
    """Return an empty cache of SCRAM keys."""
    return SharedResults(
        most=MOST_KEYS, kept_s=KEYS_KEPT_S, failure=ExchangeError, failure_kept_s=0.0, threads=KEY_THREADS
    )


class _Credentials:
    """The user and the password of the settings. Raises `ValueError` if one is missing, or there are other options."""

    __slots__ = ("_passwords", "_source", "user")

    def __init__(self, settings: UpstreamSasl, passwords: Passwords) -> None:
        if not settings.user or settings.password is None:
            raise ValueError(f"{settings.mechanism} to brokers needs a user and a password")
        if settings.options:
            raise ValueError(f"{settings.mechanism} has no options; found {', '.join(sorted(settings.options))}")
        self.user = settings.user
        self._source = settings.password
        self._passwords = passwords

    async def password(self) -> str:
        """Return the password; reads its source in a thread if needed. Raises `SaslRefused`."""
        try:
            return await self._passwords.get(self._source, self._source.read)
        except SecretError as error:
            raise SaslRefused(f"the password for brokers cannot be read: {error}", user=self.user) from error


class PlainClientExchange:
    """PLAIN: one token with the user's name and password."""

    __slots__ = ("_credentials",)

    def __init__(self, settings: UpstreamSasl, passwords: Passwords) -> None:
        self._credentials = _Credentials(settings, passwords)

    async def respond(self, challenge: bytes | None) -> bytes | None:
        """Return the token; ``None`` for the broker's answer, which is empty."""
        if challenge is not None:
            await trio.lowlevel.checkpoint()
            return None
        user = self._credentials.user
        password = await self._credentials.password()
        try:
            return plain_message(user, password)
        except ExchangeError as error:
            raise SaslRefused(str(error), user=user) from error


class ScramClientExchange:
    """SCRAM: the user's name, then a proof of the password; the broker's last answer is its own proof."""

    __slots__ = ("_client", "_credentials", "_extensions", "_is_proved", "_keys", "_kind")

    def __init__(self, kind: ScramMechanism, settings: UpstreamSasl, passwords: Passwords, keys: Keys) -> None:
        self._kind = kind
        self._credentials = _Credentials(settings, passwords)
        self._extensions = settings.extensions
        self._keys = keys
        self._client: ScramClient | None = None
        self._is_proved = False

    async def respond(self, challenge: bytes | None) -> bytes | None:
        """Return the next token; ``None`` once the broker has proved that it knows the password."""
        user = self._credentials.user
        if challenge is None:
            await trio.lowlevel.checkpoint()
            self._client = ScramClient(self._kind, user, extensions=self._extensions)
            self._is_proved = False
            return self._client.first()
        if self._client is None:
            raise SaslRefused("the broker sent a challenge before the first token", user=user)
        try:
            if self._is_proved:
                await trio.lowlevel.checkpoint()
                self._client.check(challenge)
                return None
            demanded = self._client.read_challenge(challenge)
            password = await self._credentials.password()
            known_by = (self._kind, password, demanded.salt, demanded.iterations)
            proof = self._client.final(await self._keys.get(known_by, partial(scram_keys, *known_by)))
        except ExchangeError as error:
            raise SaslRefused(str(error), user=user) from error
        self._is_proved = True
        return proof
