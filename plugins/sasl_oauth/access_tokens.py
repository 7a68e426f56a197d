"""Access tokens by the client-credentials grant (RFC 6749, section 4.4), cached until shortly before they expire.

There is one request at a time for each identity, whose token all its connections share. All of this runs on the event
loop, but for reading the secret and the certificates, which is done in a thread.

Source: ``ClientCredentialsJwtRetriever`` and ``HttpJwtRetriever``, whose requests have the same form.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeAlias, TypeGuard
from urllib.parse import parse_qsl, quote_plus, urlencode

import structlog
import trio

from headrace.plugins.sasl_oauth.endpoints import shown
from headrace.plugins.sasl_oauth.jwt import TokenError, read_jwt, read_object
from headrace.plugins.sasl_oauth.messages import LONGEST_MESSAGE_BYTES, MECHANISM, MessageError, client_message
from headrace.quota_callbacks.options import read_secret
from headrace.quota_callbacks.secret_sources import SecretError, SecretSource

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from headrace.plugins.sasl_oauth.http_requests import Answer
    from headrace.plugins.sasl_oauth.jwt import JsonObject

log = structlog.get_logger("headrace.sasl_oauth")

RENEWAL_SHARE: Final = 0.2
"""The share of a token's lifetime that is left when it is renewed: 1 - ``sasl.login.refresh.window.factor``."""
RENEWAL_S: Final = 60.0
"""The longest time before the end of a token at which it is renewed. An earlier renewal would shorten each session by
the difference (KIP-368)."""
LEAST_LEFT_S: Final = 5.0
"""How long a token must still be valid to be used if it cannot be renewed: the time of an authentication."""
UNKNOWN_LIFETIME_S: Final = 60.0
"""How long a token is used that does not state when it expires."""
RETRY_S: Final = 1.0
"""Time after a failed request in which no other is made; connections get the same error meanwhile. Also the least age
of a token that is fetched again because a broker refused it."""
MOST_IDENTITIES: Final = 1024
"""Maximum number of identities whose tokens are kept: 64 KiB each at most, in practice 2 KiB."""

Pairs: TypeAlias = tuple[tuple[str, str], ...]
_OWN_PARAMETERS: Final = frozenset({"grant_type", "scope", "client_id", "client_secret"})
_ERROR_CODE: Final = re.compile(r"[a-z_]{1,64}")
"""The errors of RFC 6749, section 5.2. Messages contain nothing else of an answer, which may repeat what was sent."""
REPORT_EVERY_S: Final = 60.0
"""Failures are logged when they begin, and then at most once in this interval for each identity."""
_LONG_AGO_S: Final = -86_400.0
_LONGEST_S: Final = 365 * 86_400.0
"""Longest lifetime that is counted with: a number of any size may come."""


class TokenUnavailableError(Exception):
    """No token can be had. ``str()`` is for the log, names the endpoint and the reason, and contains no secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """An identity of the proxy, and where its tokens come from."""

    endpoint: str
    client_id: str
    secret: SecretSource
    scope: str | None = None
    ca_file: str | None = None
    secret_in_body: bool = False
    """Whether client id and secret are parameters of the request, and not its header (RFC 6749, section 2.3.1)."""
    header_urlencode: bool = False
    """Whether client id and secret are form-encoded in the header (RFC 6749, section 2.3.1). As in Kafka
    (``sasl.oauthbearer.header.urlencode``), they are not by default."""
    parameters: Pairs = field(default=(), repr=False)
    """Further parameters of the request, such as ``audience``. ``repr`` hides them: they may be secret."""
    parameters_file: str | None = None
    """A file with these parameters, form-encoded, in place of ``parameters``; read for each request."""
    extensions: Pairs = field(default=(), repr=False, compare=False)
    """What brokers are sent beside the token (KIP-342). Identities that differ in it alone share a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessToken:
    """A token, with times of the event loop's clock in seconds."""

    value: str = field(repr=False)
    fetched_s: float
    renew_s: float
    expires_s: float


@dataclass(slots=True)
class _Entry:
    """The token, the failures and the lock of one identity."""

    lock: trio.Lock = field(default_factory=trio.Lock)
    """Held during a request for a token."""
    token: AccessToken | None = None
    failure: str = ""
    failed_s: float = _LONG_AGO_S
    reported_s: float = _LONG_AGO_S


class AccessTokens:
    """The cache of tokens of one event loop."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """``now_s`` returns the wall time in seconds since 1970, which the expiry of a token without ``expires_in``
        is compared with."""
        self.fetched = 0
        """Number of requests that returned a token."""
        self.failed = 0
        """Number of requests that failed."""
        self._now_s = now_s
        self._entries: dict[Credentials, _Entry] = {}

    @property
    def used(self) -> bool:
        """Whether a token was ever asked for."""
        return bool(self._entries)

    async def token(self, credentials: Credentials) -> AccessToken:
        """Return a valid token, from the cache if possible. Raises `TokenUnavailableError`.

        When a caller that waits is cancelled, another one that waits makes the request.
        """
        entry = self._entry(credentials)
        token = entry.token
        if token is not None and trio.current_time() < token.renew_s:
            return token
        async with entry.lock:
            return await self._renewed(entry, credentials)

    def refused(self, credentials: Credentials, token: AccessToken) -> None:
        """Forget a token that a broker has refused, unless it is so new that another one would not be better."""
        entry = self._entries.get(credentials)
        if entry is not None and entry.token is token and trio.current_time() >= token.fetched_s + RETRY_S:
            entry.token = None

    def _entry(self, credentials: Credentials) -> _Entry:
        entry = self._entries.get(credentials)
        if entry is None:
            if len(self._entries) >= MOST_IDENTITIES:
                del self._entries[next(iter(self._entries))]
            entry = self._entries[credentials] = _Entry()
        return entry

    async def _renewed(self, entry: _Entry, credentials: Credentials) -> AccessToken:
        """Return a new token, or the old one while it is valid; called with the entry's lock."""
        token, now_s = entry.token, trio.current_time()
        if token is not None and now_s < token.renew_s:  # another connection has fetched it
            return token
        if now_s >= entry.failed_s + RETRY_S:
            try:
                entry.token = await self._fetch(credentials)
            except TokenUnavailableError as error:
                self.failed += 1
                _note_failure(entry, credentials, str(error))
            else:
                self.fetched += 1
                entry.reported_s = _LONG_AGO_S
                return entry.token
        if token is not None and trio.current_time() < token.expires_s - LEAST_LEFT_S:
            return token
        raise TokenUnavailableError(entry.failure)

    async def _fetch(self, credentials: Credentials) -> AccessToken:
        secret, parameters, tls = await trio.to_thread.run_sync(_prepare, credentials, abandon_on_cancel=True)
        from headrace.plugins.sasl_oauth.http_requests import RequestError, request  # imported by _prepare

        fields = [("grant_type", "client_credentials"), *parameters]
        if credentials.scope is not None:
            fields.append(("scope", credentials.scope))
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if credentials.secret_in_body:
            fields += (("client_id", credentials.client_id), ("client_secret", secret))
        else:
            headers["Authorization"] = _authorization(credentials, secret)
        asked_s = trio.current_time()  # the lifetime begins when the token is issued, which is later
        try:
            answer = await request(
                "POST", credentials.endpoint, tls=tls, headers=headers, content=urlencode(fields).encode()
            )
        except RequestError as error:
            raise TokenUnavailableError(str(error)) from None  # the chain would keep the secret in its frames
        try:
            value, lifetime_s = read_answer(answer, self._now_s())
        except ValueError as error:
            raise TokenUnavailableError(f"{shown(credentials.endpoint)}: {error}") from None
        return AccessToken(
            value=value,
            fetched_s=trio.current_time(),
            renew_s=asked_s + lifetime_s - min(RENEWAL_S, lifetime_s * RENEWAL_SHARE),
            expires_s=asked_s + lifetime_s,
        )


def _authorization(credentials: Credentials, secret: str) -> str:
    parts = (credentials.client_id, secret)
    if credentials.header_urlencode:
        parts = (quote_plus(credentials.client_id), quote_plus(secret))
    return f"Basic {base64.b64encode(':'.join(parts).encode()).decode()}"


def _note_failure(entry: _Entry, credentials: Credentials, reason: str) -> None:
    entry.failure, entry.failed_s = reason, trio.current_time()
    if entry.failed_s >= entry.reported_s + REPORT_EVERY_S:
        entry.reported_s = entry.failed_s
        log.warning("no token for OAUTHBEARER", client_id=credentials.client_id, reason=reason)


def form_pairs(option: str, text: str, example: str) -> Pairs:
    """Return the names and values in a form-encoded text. Raises `ValueError`, without the text."""
    try:
        return tuple(parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), errors="strict"))
    except ValueError:
        raise ValueError(f'{MECHANISM}: {option}: expected a form-encoded text, such as "{example}"') from None


def parameters_of(option: str, text: str) -> Pairs:
    """Return further parameters of a request. Raises `ValueError`, without their values."""
    found = form_pairs(option, text, "audience=kafka&resource=https%3A%2F%2Fkafka.example.com")
    for name, _ in found:
        if name in _OWN_PARAMETERS:
            raise ValueError(f"{MECHANISM}: {option}: {name} is not a further parameter; the proxy sends it itself")
    return found


def _prepare(credentials: Credentials) -> tuple[str, Pairs, ssl.SSLContext]:
    """Return the secret, further parameters and the settings of TLS, and import what requests need; blocks."""
    requests = import_module("headrace.plugins.sasl_oauth.http_requests")
    try:
        secret = credentials.secret.read()
    except SecretError as error:
        raise TokenUnavailableError(f"the client secret cannot be read: {error}") from None
    parameters, file = credentials.parameters, credentials.parameters_file
    if file is not None:
        try:
            parameters = parameters_of("parameters_file", read_secret(file))
        except ValueError as error:
            raise TokenUnavailableError(f"{file}: {error}") from None
    try:
        tls: ssl.SSLContext = requests.tls_context(credentials.ca_file)
    except OSError as error:
        raise TokenUnavailableError(f"{credentials.ca_file or 'the authorities of the system'}: {error}") from None
    return secret, parameters, tls


def read_answer(answer: Answer, now_s: float) -> tuple[str, float]:
    """Return the token in the answer of a token endpoint, and its lifetime in seconds. Raises `ValueError`.

    The lifetime is that of ``expires_in``, else of the token's claim ``exp``, which is compared with ``now_s``, the
    wall time; else `UNKNOWN_LIFETIME_S`.
    """
    try:
        found = read_object(answer.body)
    except ValueError as error:
        found, problem = {}, str(error)
    else:
        problem = "without a text access_token"
    if answer.status != HTTPStatus.OK:
        code = found.get("error")
        known = f": {code}" if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else ""
        raise ValueError(f"the answer has status {answer.status}{known}")
    value, kind = found.get("access_token"), found.get("token_type", "Bearer")
    if not isinstance(value, str):
        raise ValueError(f"the answer is {problem}")  # noqa: TRY004
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise ValueError("the token is not of the type Bearer")
    try:
        message = client_message(value)
    except MessageError as error:
        raise ValueError(str(error)) from None
    if len(message) > LONGEST_MESSAGE_BYTES:
        raise ValueError(f"the token is longer than {LONGEST_MESSAGE_BYTES} bytes")
    return value, _lifetime_s(found, value, now_s)


def _lifetime_s(answer: JsonObject, token: str, now_s: float) -> float:
    lifetime = answer.get("expires_in")
    if isinstance(lifetime, str) and lifetime.isdecimal() and len(lifetime) < 10:
        lifetime = int(lifetime)
    if lifetime is None:
        try:
            expires = read_jwt(token).claims.get("exp")
        except TokenError:
            expires = None
        # Bounded first, since an int can be too large for a float.
        lifetime = min(max(expires, 0), now_s + _LONGEST_S) - now_s if _is_number(expires) else UNKNOWN_LIFETIME_S
    if not _is_number(lifetime) or lifetime <= 0:
        raise ValueError("the token has expired already, or expires_in is not a number of seconds")
    return float(min(lifetime, _LONGEST_S))


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
