"""Observing a client's SASL exchanges, and adopting its principal once the broker has accepted the authentication.

One `Authentication` per connection, created at the first SaslHandshake; it does no I/O. The request relay passes it
what the client sends, and receives a watcher of the reply for each, which the reply relay calls. A plugin's observer is
therefore given each token together with the broker's answer to that token. A client that sends several tokens at once
can neither be taken for another user nor stay anonymous.

Source: KIP-43, KIP-152, KIP-368, ``SaslServerAuthenticator``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import structlog

from headrace.proxy.errors import ClientFault
from headrace.proxy.wire.errors import MalformedFrame
from headrace.proxy.wire.headerless_tokens import HeaderlessTokens
from headrace.proxy.wire.heads import LENGTH_BYTES
from headrace.proxy.wire.messages.codec import decode
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import bounded_name
from headrace.quota_callbacks.error_codes import ErrorCode
from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS, ClaimingObserver, TokenObserver, UserSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.proxy.hooks.calls.hook_calls import HookCalls
    from headrace.proxy.wire.heads import Buffer
    from headrace.quota_callbacks.identities import AuthenticationObserver
    from headrace.quota_callbacks.requests import Connection

    ReplyWatch = Callable[[memoryview], None]

log = structlog.get_logger("headrace.authentication")

REPEATED_AFTER_S: Final = 1.0
"""The shortest time between two authentications of a connection; to a broker, an earlier SaslHandshake is an ordinary
request (``KafkaChannel.MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS``)."""

_LAST_UNANSWERED: Final = "GSSAPI"
"""The mechanism whose last token, if sent without a header, is not answered: ``GssKrb5Server`` has nothing to send."""

_INT32 = Struct(">i")
_SHORTEST_REQUEST: Final = 8  # api key, api version, correlation id

HANDSHAKE_APIS: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS})
"""The APIs that a broker serves to a client that has not authenticated (``SaslServerAuthenticator``)."""


class _Attempt:
    """One authentication, which begins with a SaslHandshake."""

    __slots__ = ("agreed", "mechanism", "observer", "over", "plugin", "unanswered")

    def __init__(self, mechanism: str, plugin: str, observer: AuthenticationObserver | None) -> None:
        self.mechanism = mechanism
        self.plugin = plugin
        self.observer = observer
        """``None`` if no plugin observes the mechanism, and after the observer has raised."""
        self.agreed = False
        """Whether the broker has agreed to the mechanism."""
        self.over = False
        self.unanswered: list[bytes] = []
        """The tokens that the broker has not answered yet, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogin:
    """A login by a delegation token (KIP-48) that the broker has accepted, whose owner is to be adopted."""

    token_id: str
    fallback: str | None
    """The user if the owner is not known; ``None``: the client stays ``ANONYMOUS``."""
    attempt: _Attempt


class Authentication:
    """The authentications of one connection. Sets the connection's ``user``, ``authenticating`` and ``mechanism``."""

    __slots__ = (
        "_attempt",
        "_began_s",
        "_clock",
        "_connection",
        "_held_bytes",
        "_hooks",
        "_max_bytes",
        "_may_repeat",
        "_on_adopted",
        "_on_agreed",
        "_on_refused",
        "_on_token",
        "accepted",
        "session_end_s",
        "tokens",
    )

    def __init__(
        self,
        connection: Connection,
        hooks: HookCalls,
        on_agreed: Callable[[], None],
        on_refused: Callable[[str, str | None, str], None],
        on_adopted: Callable[[], None],
        on_token: Callable[[TokenLogin], None],
        max_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        """Observe ``connection``. At most ``max_bytes`` of tokens may wait for the broker's answer.

        ``on_agreed`` is called when the broker agrees to a mechanism, which requires SASL. ``on_refused`` is called
        when the broker answers with an error. Its arguments are the mechanism, the name that the client gave or
        ``None`` if it is unknown, and the reason. ``on_adopted`` is called when the broker has accepted the user,
        before the client learns of it, and may raise `ClientFault`. ``on_token`` is called when the broker has accepted
        a delegation token; it calls `adopt_owner`, at once or later.
        """
        self._connection = connection
        self._hooks = hooks
        self._on_agreed = on_agreed
        self._on_refused = on_refused
        self._on_adopted = on_adopted
        self._on_token = on_token
        self._attempt: _Attempt | None = None
        """The authentication that the client's next token belongs to."""
        self.accepted = False
        """Whether the broker has accepted an authentication of this connection."""
        self._may_repeat = False
        """Whether the broker has set a session lifetime (KIP-368), so that the client may re-authenticate."""
        self._clock = clock
        self.session_end_s = math.inf
        """Time on ``clock`` from which the broker closes the connection at the next request, unless the client has
        authenticated again (KIP-368)."""
        self._began_s = -math.inf
        """Time of the last SaslHandshake that began an authentication."""
        self._held_bytes = 0
        self._max_bytes = max_bytes
        self.tokens: HeaderlessTokens | None = None
        """Recognizes tokens without headers: set from the broker's agreement to a SaslHandshake v0 until the client's
        first ordinary request."""

    # --- requests and tokens of the client: each method returns the watcher of the reply ---

    def handshake(self, mechanism: str, version: int, now_s: float, *, serves_anonymous: bool = False) -> ReplyWatch:
        """Begin an authentication with a SaslHandshake that is about to be forwarded.

        It is an ordinary request if no authentication can follow: where the broker serves clients that do not
        authenticate, after an authentication that may not be repeated, and within `REPEATED_AFTER_S` of the last one.
        After a SaslHandshake of version 0, the caller must not read further requests before the reply has arrived: the
        reply determines whether tokens without headers follow.
        """
        if self.accepted:
            may_begin = self._may_repeat and now_s - self._began_s >= REPEATED_AFTER_S
        else:
            may_begin = not serves_anonymous
        if may_begin:
            self._connection.authenticating = True
            self._began_s = now_s
        started = self._hooks.authentication_started(self._connection, mechanism)
        plugin, observer = started if started is not None else ("", None)
        self._attempt = attempt = _Attempt(bounded_name(mechanism), plugin, observer)
        self.tokens = None
        return partial(self._handshake_answered, attempt, version)

    def withdraw(self) -> None:
        """End the authentication whose SaslHandshake is not forwarded after all."""
        if self._attempt is not None:
            self._end(self._attempt)

    def close(self) -> None:
        """Free the tokens, since the connection is ended. Memory is freed here: this is part of reference cycles."""
        if self._attempt is not None:
            self._attempt.unanswered.clear()

    def authenticate(self, body: memoryview, version: int) -> ReplyWatch | None:
        """Observe a SaslAuthenticate that is about to be forwarded. Raises `MalformedMessage`."""
        if self._attempt is None:
            return None
        return self._watch(self._attempt, decode("SaslAuthenticateRequest", version, body)["auth_bytes"], version)

    def token(self, token: bytes) -> ReplyWatch | None:
        """Observe a token without a header that is about to be forwarded."""
        return None if self._attempt is None else self._watch(self._attempt, token, None)

    def is_token(self, buffer: Buffer, position: int, end: int) -> bool | None:
        """Return whether the frame at ``position`` is a token without a header; ``None`` if more bytes are needed."""
        if self.tokens is None:
            return False
        found = self.tokens.is_token(buffer, position, end)
        if found is None and end - position >= LENGTH_BYTES:
            size: int = _INT32.unpack_from(buffer, position)[0]
            return True if size < _SHORTEST_REQUEST else None  # it may be complete: GSSAPI sends empty tokens
        return found

    def describe(self) -> str:
        """Return the mechanism of the current login and the name that the client gave, for a log line."""
        attempt = self._attempt
        if attempt is None:
            return "no SaslHandshake before it"
        user = self._claimed_user(attempt, attempt.unanswered[0] if attempt.unanswered else None)
        return f"mechanism {attempt.mechanism}, user {'unknown' if user is None else user}"

    def _claimed_user(self, attempt: _Attempt, token: bytes | None) -> str | None:
        """Return the name that the client gave in ``token`` or an earlier one; the broker has not confirmed it."""
        observer: object = attempt.observer
        if token is None or not isinstance(observer, ClaimingObserver):
            return None
        try:
            user = self._hooks.call_observer(attempt.plugin, partial(observer.claimed_user, token))
        except BaseException as error:  # noqa: ASYNC103, BLE001 -- code of a plugin
            self._failed(attempt, error)
            return None  # noqa: ASYNC104
        return bounded_name(user) if isinstance(user, str) and 0 < len(user) <= MAX_PRINCIPAL_CHARACTERS else None

    def end_tokens(self) -> bool:
        """Note the client's first ordinary request after tokens without headers; return whether the last token gets no
        answer."""
        self.tokens = None
        return self._attempt is not None and self._attempt.mechanism == _LAST_UNANSWERED

    # --- replies of the broker ---

    def answered(self, api_key: int) -> None:
        """Note that the broker has begun to answer a request. An API outside `HANDSHAKE_APIS` completes the
        authentication. Only needed while the connection is authenticating. Raises `UserRefused`."""
        attempt = self._attempt
        if attempt is None or not attempt.agreed or api_key in HANDSHAKE_APIS:
            return
        if attempt.observer is not None:
            self._observe(attempt, attempt.observer.served)
        if not attempt.over:
            self.accepted = True
            self._end(attempt)

    def _handshake_answered(self, attempt: _Attempt, version: int, body: memoryview) -> None:
        reply = decode("SaslHandshakeResponse", version, body)
        if reply["error_code"]:
            offered = ", ".join(reply["mechanisms"]) or "none"
            self._on_refused(attempt.mechanism, None, f"{_error(reply)}: the broker offers {offered}")
            self._end(attempt)
        elif version == 0 and self.accepted:
            raise ClientFault(
                "a SaslHandshake v0 to authenticate again: its tokens have no headers, so that the broker's refusal"
                " cannot be distinguished from other replies; clients that authenticate again use v1 (KIP-368)"
            )
        else:
            attempt.agreed = True
            self._connection.mechanism = attempt.mechanism
            if self._attempt is attempt:
                self._connection.authenticating = True
            if version == 0 and self._attempt is attempt:
                self.tokens = HeaderlessTokens(attempt.mechanism)
            self._on_agreed()

    def _watch(self, attempt: _Attempt, token: bytes, version: int | None) -> ReplyWatch:
        self._held_bytes += len(token)
        if self._held_bytes > self._max_bytes:  # clients send one token at a time
            raise MalformedFrame(
                f"SASL tokens of {self._held_bytes} bytes wait for the broker's answer; limits.max_handshake_bytes ="
                f" {self._max_bytes}"
            )
        attempt.unanswered.append(token)
        return partial(self._answered, attempt, token, version)

    def _answered(self, attempt: _Attempt, token: bytes, version: int | None, body: memoryview) -> None:
        self._held_bytes -= len(token)
        if attempt.unanswered:
            attempt.unanswered.pop(0)
        if attempt.over:
            return
        if version is None:
            answer = bytes(body)
        else:
            reply = decode("SaslAuthenticateResponse", version, body)
            if reply["error_code"]:
                reason = f"{_error(reply)}: {reply['error_message'] or 'the broker gave no reason'}"
                self._on_refused(attempt.mechanism, self._claimed_user(attempt, token), reason)
                self._end(attempt)
                return
            answer = reply["auth_bytes"]
            lifetime_ms: int = reply.get("session_lifetime_ms", 0)
            self._may_repeat = self._may_repeat or lifetime_ms > 0
            if lifetime_ms > 0:  # 0 in the answers before the last, which must not prolong a session
                self.session_end_s = self._clock() + lifetime_ms / 1000
        if attempt.observer is not None:
            self._observe(attempt, partial(attempt.observer.exchanged, token, answer))

    def _observe(self, attempt: _Attempt, call: Callable[[], None]) -> None:
        """Call a method of the observer, and adopt the principal if it is known then. Raises `UserRefused`."""
        observer = attempt.observer
        if observer is None:
            return
        try:
            self._hooks.call_observer(attempt.plugin, call)
            principal = _checked(self._hooks.call_observer(attempt.plugin, lambda: observer.principal), "a principal")
            token_id = None
            if isinstance(observer, TokenObserver):
                token = observer
                token_id = _checked(self._hooks.call_observer(attempt.plugin, lambda: token.token_id), "a token's id")
        except BaseException as error:  # noqa: ASYNC103, BLE001 -- code of a plugin
            self._failed(attempt, error)
            return  # noqa: ASYNC104
        if token_id is not None:
            self._accept_token(attempt, token_id, principal)
        elif principal is not None:
            self._adopt(attempt, principal)

    def _accept_token(self, attempt: _Attempt, token_id: str, fallback: str | None) -> None:
        """Pass the accepted login to ``on_token``, which makes the token's owner the user of the connection.

        When a client authenticates again, its user stays unchanged: the broker has checked that it is the same
        (KIP-368).
        """
        self._end(attempt)
        if not self.accepted:
            self._on_token(TokenLogin(token_id=token_id, fallback=fallback, attempt=attempt))

    def adopt_owner(self, login: TokenLogin, owner: str | None) -> None:
        """Make the owner of a token, or without one the fallback user, the user of the connection.

        The user of a client that has meanwhile authenticated without a token stays unchanged. Raises `UserRefused`, and
        what ``on_adopted`` raises.
        """
        user = login.fallback if owner is None else owner
        if self.accepted:
            return
        if user is None:
            self.accepted = True
        else:
            self._adopt(login.attempt, user)

    def _adopt(self, attempt: _Attempt, principal: str) -> None:
        connection = self._connection
        connection.user = self._hooks.users.rewritten(connection, principal, UserSource.BROKER)
        self.accepted = True
        self._end(attempt)
        log.debug("user adopted", peer=str(connection.peer), user=connection.user, mechanism=attempt.mechanism)
        self._on_adopted()

    def _failed(self, attempt: _Attempt, error: BaseException) -> None:
        attempt.observer = None
        self._hooks.observer_failed(attempt.plugin, error)

    def _end(self, attempt: _Attempt) -> None:
        """End an authentication that was accepted or refused."""
        attempt.over = True
        attempt.observer = None
        attempt.unanswered.clear()
        if self._attempt is attempt:
            self._attempt = None
            self._connection.authenticating = False
            self.tokens = None


def _checked(value: object, what: str) -> str | None:
    """Return ``value`` if it can be a name, or is None. Raises `ValueError`."""
    if value is None or (isinstance(value, str) and 0 < len(value) <= MAX_PRINCIPAL_CHARACTERS):
        return value
    raise ValueError(f"{what} must be a string of 1 to {MAX_PRINCIPAL_CHARACTERS} characters, or None")


def _error(reply: Mapping[str, Any]) -> str:
    code: int = reply["error_code"]
    return next((each.name for each in ErrorCode if each == code), f"error {code}")
