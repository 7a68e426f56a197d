"""The state of one client's connection, shared by its relays, its authentication and the editing of its replies.

Must not import a relay. `headrace.proxy.connection.client_connection` creates one state for each connection. Its
progress (see the diagram), ``authenticates``, ``replying`` and ``ends_when_quiet`` are changed by the methods below
alone; its other attributes are set by the relays, too.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import structlog
import trio

from headrace.proxy.connection.state.client_sasl import ClientSasl
from headrace.proxy.connection.state.in_flight import HANDSHAKES_IN_FLIGHT, Exchange, InFlight, description_of
from headrace.proxy.connection.state.muting import Mute
from headrace.quota_callbacks.client_addresses import counted_address, counted_owner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from headrace.proxy.connection.state.authentication import Authentication, TokenLogin
    from headrace.proxy.connection.state.shared_state import SharedState
    from headrace.proxy.data_plane.interface import NativeRelayState
    from headrace.proxy.network.held_bytes import Holder
    from headrace.proxy.network.listener import Listener
    from headrace.proxy.network.sockets import Socket
    from headrace.proxy.wire.heads import RequestHead
    from headrace.quota_callbacks.requests import Connection

log = structlog.get_logger("headrace.connection")


class ConnectionState:
    """The sockets of a connection, its requests in flight, its mute, and its progress through these states::

        accepted by the listener
              |
              v
        UNACCEPTED ------------- 1 -------------> ACCEPTED
        only handshakes are forwarded             callbacks are called
              |                                       |
              +------ 2 ---> DRAINING <--- 2 ---------+
              |              reads no further request |
              |                  |                    |
              |                  3                    |
              |                  v                    |
              +------ 4 ----> ENDED <----- 4 ---------+

    1. The broker has shown that it serves the client, or the proxy has accepted the client's login: `update_accepted`,
       `note_accepted`, `note_owner`, `note_proved`, `note_broker_login`.
    2. `begin_drain`, `stop_reading`.
    3. `end_if_drained`. This is an end without a fault, so there is no ``reason``.
    4. `end`, `end_for_fault` and `cancel`, also from DRAINING. Most connections end so from ACCEPTED, when the client
       or the broker closes; in that case, too, there is no ``reason`` if nothing was in flight.

    In each state but ENDED the client's socket is read, unless the client is muted (``mute``), the queue of requests in
    flight is full (``in_flight.full``), or the connection is draining; `wait_for_turn` waits until it may be read.
    """

    __slots__ = (
        "_draining",
        "_reason",
        "_renewal_s",
        "_reply_turn",
        "_scope",
        "accepted",
        "arrival",
        "asks_from_s",
        "authenticates",
        "authentication",
        "authorized_rows",
        "authorized_s",
        "can_splice",
        "client",
        "collected_head",
        "counted_user",
        "current",
        "dial",
        "dialling",
        "ends_when_quiet",
        "held_bytes",
        "holders",
        "in_flight",
        "info",
        "jitter",
        "last_active_s",
        "limits",
        "listener",
        "login_began_s",
        "mid_request",
        "moved",
        "mute",
        "native",
        "oldest",
        "opened_s",
        "proved",
        "replying",
        "requesting",
        "sasl",
        "shared",
        "token_login",
        "unacknowledged",
        "upstream",
    )

    def __init__(
        self,
        shared: SharedState,
        listener: Listener,
        info: Connection,
        client: Socket,
        dial: Callable[[], Awaitable[Socket]],
    ) -> None:
        self.shared = shared
        self.listener = listener
        self.info = info
        self.client = client
        self.dial = dial
        """Connects to the broker of this connection and starts relaying its replies. Raises `UpstreamFault`."""
        self.dialling = False
        """Whether `dial` is under way."""
        self.limits = shared.limits
        self.upstream: Socket | None = None
        """The socket to the broker; ``None`` before the first request, and between its end and the next request."""
        self.in_flight = InFlight(min(HANDSHAKES_IN_FLIGHT, self.limits.max_in_flight_requests))
        self.mute = Mute()
        self.native: NativeRelayState | None = None
        """The native relay; ``None`` if the proxy has none, or no broker was dialled yet."""
        self.last_active_s = self.opened_s = shared.clock()
        self.arrival: tuple[Exchange | None, int, float] | None = None
        """The last progress of a request that is arriving: the request before it, or the request itself; the number of
        bytes that the client had sent; the time in seconds."""
        self.moved: tuple[tuple[int, int], float] | None = None
        """The last progress of a reply that has begun: the bytes sent to the client, those received from the broker,
        and the time in seconds of the check that found them."""
        self.oldest: tuple[Exchange, float] | None = None
        """The request that waits longest for the broker, and the time in seconds from which its wait counts."""
        self.jitter = random.random()  # noqa: S311 -- nothing depends on its being secret
        """A random number from 0 to 1: connections end at different ages because of it."""
        self.current: Exchange | None = None
        """The last request that was read."""
        self.collected_head: RequestHead | None = None
        """The head of the request that is being collected."""
        self.accepted = False
        """Whether the broker has shown that it serves this client. Until then nothing is charged, and only handshakes
        are forwarded."""
        self.asks_from_s = -math.inf
        """Time from which the next request waits until the client is accepted, or its session is continued."""
        self._renewal_s = math.inf
        """Time from which the proxy authenticates to the broker again."""
        self.login_began_s: float | None = None
        """When the proxy began to authenticate to the broker, if it has not done so yet."""
        self.proved = False
        """Whether the client has proved to the proxy who it is. The brokers may still require SASL of it."""
        self.counted_user: str | None = None
        """The user whose connection this counts as for the limits per user."""
        self.sasl = None if listener.sasl is None else ClientSasl(listener.sasl)
        """The authentication that the proxy carries out; ``None`` if the brokers do."""
        self._draining = False
        self.ends_when_quiet = False
        """Whether it is draining, or so old that the relays call `timeouts.end_if_done` after each reply."""
        self.replying = False
        """Whether a task is writing to the client; see `send_local_replies_first`."""
        self.requesting = False
        """Whether the request relay has read bytes that it could not forward without waiting."""
        self.mid_request = False
        """Whether a request was forwarded in part."""
        self.held_bytes = 0
        """Number of bytes that the relays hold; see `headrace.proxy.network.held_bytes`."""
        self.holders: list[Holder] = []
        """The relays, that of requests first."""
        self.unacknowledged = False
        """Whether the last forwarded request is a Produce with acks=0, whose failure a broker signals by closing the
        connection."""
        self.can_splice = False
        """Whether both sockets support ``splice``; otherwise large frames are copied."""
        self.authenticates = False
        """Whether the client has begun to authenticate, so that a new upstream connection cannot take over."""
        self.authentication: Authentication | None = None
        """Created at the first SaslHandshake."""
        self.authorized_s = 0.0
        """Time of the latest step in which a request was authorized as it was read."""
        self.authorized_rows = 0
        """Number of rows of requests that were authorized in that step."""
        self.token_login: TokenLogin | None = None
        """The login by a delegation token whose owner is not known yet."""
        self._reason: str | None = None
        self._scope = trio.CancelScope()
        self._reply_turn: trio.Event | None = None
        self.update_accepted()

    # --- UNACCEPTED to ACCEPTED ---

    def update_accepted(self) -> bool:
        """Accept the client if the broker has shown by now that it serves it; return whether it is accepted.

        A client that has to authenticate to the proxy is not, also if brokers serve clients without authentication.
        """
        if not self.accepted and self.token_login is None:
            authentication, sasl = self.authentication, self.sasl
            may_be_anonymous = sasl is None or not sasl.is_missing
            if (may_be_anonymous and self.listener.upstream.serves_anonymous) or (
                authentication is not None and authentication.accepted
            ):
                self._accept()
        return self.accepted

    def _accept(self) -> None:
        self.accepted = True
        session_end_s = math.inf if self.sasl is None else self.sasl.session_end_s
        self.asks_from_s = min(session_end_s, self._renewal_s)
        self.in_flight.cap = self.limits.max_in_flight_requests

    def note_accepted(self) -> None:
        """Note that the broker has answered a request that it answers only to clients that it serves."""
        self._accept()
        if not self.authenticates:
            self.listener.upstream.serves_anonymous = True

    @property
    def is_known(self) -> bool:
        """Whether the client has proved who it is, or is accepted and has had a connection to a broker before.

        Where brokers serve clients without authentication, each new client is accepted at once.
        """
        return self.proved or (self.accepted and self.info.upstream is not None)

    def await_owner(self, login: TokenLogin) -> None:
        """Let the next request wait until the owner of the client's delegation token is known."""
        self.token_login = login
        self.asks_from_s = -math.inf

    def note_owner(self) -> None:
        """Note that the owner of the client's delegation token, or the fallback user, was adopted."""
        self.token_login = None
        self._accept()

    @property
    def logs_in_next(self) -> bool:
        """Whether the proxy is to authenticate to the broker, and the client has done what it has to do for that.

        A broker answers one ApiVersions before its authentication, and Java's clients send another one after theirs.
        """
        sasl = self.sasl
        return self.listener.upstream.sasl is not None and (sasl is None or not sasl.is_missing)

    def note_authenticating(self) -> None:
        """Note that the client, or the proxy for it, authenticates on the connection to the broker, or begins to."""
        self.authenticates = True

    def note_login_began(self) -> None:
        """Note that the client has begun to authenticate to the proxy. No other request is served before the end of the
        authentication."""
        self.note_authenticating()
        self.info.authenticating = True
        self.asks_from_s = -math.inf

    def note_proved(self) -> None:
        """Note that the client has proved to the proxy who it is, so that what it sends may be charged to its user."""
        self.proved = True
        if self.accepted or self.listener.upstream.sasl is None:
            self._accept()

    def broker_login_is_due(self, now_s: float) -> bool:
        """Return whether the proxy has to authenticate to the broker again before it forwards a request."""
        return self.accepted and self._renewal_s <= now_s

    def note_broker_login_began(self, now_s: float) -> None:
        """Note that the proxy begins to authenticate to the broker."""
        self.login_began_s = now_s

    def note_broker_login(self, renewal_s: float) -> None:
        """Note that the proxy has authenticated to the broker, which it does again from ``renewal_s`` on."""
        self._renewal_s = renewal_s
        self.login_began_s = None
        self._accept()

    def note_upstream_lost(self) -> None:
        """Note that the connection to the broker has ended; the proxy authenticates on the next one, if it has to."""
        self.upstream = None
        if self.listener.upstream.sasl is not None and self.accepted:
            self._renewal_s = self.asks_from_s = -math.inf

    def note_sasl(self) -> None:
        """Note that the broker has agreed to a SASL mechanism: its listener serves only clients that authenticate."""
        self.listener.upstream.serves_anonymous = False

    # --- reading ---

    async def wait_for_turn(self) -> None:
        """Wait until the next request may be read: the mute is over, and the queue in flight is not full."""
        while True:
            if self.draining:
                self.end_if_drained()
                await trio.sleep_forever()
            if self.mute.until_s > self.shared.clock():
                if not await self.mute.wait_until_over(self.client):
                    self.end("the client hung up while it was muted", None)
                    await trio.sleep_forever()
            elif self.in_flight.stops_reading:
                await self.in_flight.wait_for_room()
            else:
                return

    @property
    def must_hold(self) -> bool:
        """Whether the next request must not be read for a reason other than a mute."""
        return self.draining or self.in_flight.full

    def spliced(self, moved: int) -> None:
        """Count ``moved`` bytes that were forwarded without entering user space."""
        self.shared.counters.bytes_spliced += moved
        self.last_active_s = self.shared.clock()

    # --- replying ---

    def throttle_time_ms(self, exchange: Exchange, broker_ms: int, now_s: float) -> int:
        """Return the throttle time of a reply that is sent now, in milliseconds: the remaining time of the mute.

        ``broker_ms`` is the broker's own throttle time, which extends the mute.
        """
        if broker_ms > 0:
            exchange.broker_throttle_ms = broker_ms
        if not exchange.enforced or not self.shared.enforcement.enabled:
            return broker_ms
        if broker_ms > 0:
            self.mute.extend(now_s, broker_ms)
        return max(broker_ms, self.mute.remaining_ms(now_s))

    @property
    def throttle_left_ms(self) -> int:
        """The remaining time of the mute in milliseconds, for a reply of the proxy's own."""
        return self.mute.remaining_ms(self.shared.clock())

    @property
    def local_reply_is_due(self) -> bool:
        """Whether the next reply is the proxy's own, and no task that is writing to the client will send it."""
        return not self.replying and self.in_flight.local_reply is not None

    async def flush_local_replies(self) -> None:
        """Send the proxy's own replies that are next, unless the reply relay is writing and will send them."""
        while not self.replying and (reply := self.in_flight.local_reply) is not None:
            self.begin_reply()
            frame = reply.make()  # while what is to be changed in it is kept
            exchange = self.in_flight.pop()
            try:
                await self.client.send([frame])
            except BaseException:  # a failed send or a cancellation: the caller handles it
                exchange.error = self.reason or "connection closed"
                self.completed(exchange)
                raise
            self.end_reply()
            self.completed(exchange)
            if self.in_flight.local_reply is not None:  # there may be hundreds
                await trio.lowlevel.checkpoint()
        self.end_if_drained()

    @property
    def local_replies_first(self) -> bool:
        """Whether the proxy's own replies must be sent before the broker's next one."""
        return self.replying or self.in_flight.local_reply is not None

    async def send_local_replies_first(self) -> None:
        """Wait until the proxy's own replies that are next were sent and no other task writes to the client."""
        while self.local_replies_first:
            if self.replying:
                self._reply_turn = trio.Event()
                await self._reply_turn.wait()
            else:
                await self.flush_local_replies()

    def begin_reply(self) -> None:
        """Note that a task writes to the client and waits for it, so that no other task may write until `end_reply`."""
        self.replying = True

    def end_reply(self) -> None:
        """Note that the write to the client has finished, and wake the task that waits for it."""
        self.replying = False
        if self._reply_turn is not None:
            self._reply_turn.set()
            self._reply_turn = None

    def completed(self, exchange: Exchange) -> None:
        """Report to plugins that the last byte of the reply was sent to the client."""
        if exchange.observed:
            exchange.completed_s = self.shared.clock()
            self.shared.hooks.request_completed(exchange)

    # --- DRAINING, ENDED ---

    def note_age(self, *, is_old: bool) -> None:
        """Note whether the connection is so old that it ends when it is quiet, as one that is draining does anyway."""
        if is_old or not self._draining:
            self.ends_when_quiet = is_old

    def begin_drain(self) -> None:
        """Read no further requests, and end the connection when all replies were sent."""
        self._draining = self.ends_when_quiet = True
        if self.native is not None:
            self.native.recall()
        self.end_if_drained()

    def stop_reading(self) -> None:
        """Read no further requests, and leave the end of the connection to the caller."""
        self._draining = True

    @property
    def draining(self) -> bool:
        """Whether no further requests are read."""
        return self._draining

    @property
    def reason(self) -> str | None:
        """The reason for the end of the connection, once it is known."""
        return self._reason

    def end_if_drained(self) -> None:
        """End a draining connection, without a reason, if nothing is in flight."""
        if self.draining and not self.is_busy:
            self.cancel()

    @property
    def is_busy(self) -> bool:
        """Whether a request is in flight, or is being read, forwarded or answered."""
        return (
            self.replying
            or self.requesting
            or self.mid_request
            or len(self.in_flight) > 0
            or (self.native is not None and self.native.is_active)
        )

    @property
    def requests_in_flight(self) -> int:
        """Number of requests in flight, here and in the data plane."""
        return len(self.in_flight) + (0 if self.native is None else self.native.in_flight)

    def end_for_fault(self, side: str, reason: str, kind: Hashable) -> None:
        """Count a fault of ``side`` (``client``, ``upstream`` or ``proxy``), end the connection and log one line.

        ``kind`` identifies the kind of the fault by something that no peer chooses, such as the place where it was
        raised. The line is a warning, at most once a minute for each kind, client host, listener and broker. Further
        lines are debug lines, and so are those of clients that have closed or reset the connection, whose ``kind`` is
        ``None``.
        """
        errors = self.shared.counters.errors
        errors[side] = errors.get(side, 0) + 1
        self.end(f"{side}: {reason}", None if kind is None else (side, kind))

    def end(self, reason: str, cause: tuple[str, Hashable] | None) -> None:
        """End the connection and log one line, which is a warning if ``cause`` is due (see `end_for_fault`)."""
        if self._reason is None:
            self._reason = reason
            left_out = None
            if cause is not None:
                side, kind = cause
                where = counted_address(self.info.peer.host), self.listener.setting, self.info.node_id
                left_out = self.shared.repeated.due(f"fault of {side}", kind, *where)
            fields = {
                "peer": str(self.info.peer),
                "reason": reason,
                "request": description_of(self.in_flight.first or self.current),
                "client_id": self.current.client_id if self.current is not None else None,
                "user": self.info.user,
                "upstream": str(self.info.upstream) if self.info.upstream is not None else None,
            }
            if left_out is None:
                log.debug("connection closed", **fields)
            else:
                log.warning("connection closed", **fields, left_out=left_out or None)
        self.cancel()

    def note_half_closed(self) -> None:
        """Note and log that the client has closed its side, if requests are in flight and no other reason is known."""
        if len(self.in_flight) and self._reason is None:
            self._reason = f"the client closed its side; requests in flight: {len(self.in_flight)}"
            request = description_of(self.in_flight.first)
            log.debug("connection closed", peer=str(self.info.peer), reason=self._reason, request=request)

    @property
    def ended(self) -> bool:
        """Whether the connection has ended, or its client has closed its side, so that nothing more is read."""
        return self._reason is not None or self._scope.cancel_called

    def drop_held(self) -> None:
        """Free the memory of the relays at once, since the connection is ended."""
        for each in self.holders:
            each.drop_held()

    def cancel(self) -> None:
        """Stop both relays, after which the connection is closed."""
        self._scope.cancel()

    @property
    def scope(self) -> trio.CancelScope:
        """The scope that both relays run in."""
        return self._scope

    # --- for operators ---

    def release(self) -> None:
        """End the mute. The time for which the client was not read does not count as idle."""
        self.mute.release()
        self.last_active_s = self.shared.clock()

    @property
    def counts_for(self) -> str:
        """The owner for which its memory and its long steps count: its user, or without one the address of the
        client."""
        return counted_owner(self.info.user, self.info.peer.host)

    @property
    def memory_bytes(self) -> int:
        """Number of bytes that the connection holds; see `headrace.proxy.network.held_bytes`."""
        holds = self.held_bytes + self.in_flight.held_bytes
        for sock in (self.client, self.upstream):
            holds += 0 if sock is None else sock.unsent_bytes + sock.undecrypted_bytes
        return holds
