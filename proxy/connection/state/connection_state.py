"""The state of one client's connection, shared by its relays, its authentication and the editing of its replies.

Must not import a relay. `headrace.proxy.connection.client_connection` creates one state for each connection. Its
progress (see the diagram) is changed by the methods below alone; its other attributes are set by the relays, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import structlog
import trio

from headrace.proxy.connection.state.in_flight import Exchange, InFlight
from headrace.proxy.connection.state.muting import Mute
from headrace.quota_callbacks.api_keys import API_NAMES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from headrace.proxy.connection.state.authentication import Authentication
    from headrace.proxy.connection.state.shared_state import SharedState
    from headrace.proxy.network.sockets import Socket
    from headrace.proxy.wire.heads import RequestHead
    from headrace.quota_callbacks.requests import Connection

log = structlog.get_logger("headrace.connection")

PROGRESS_BYTES: Final = 64 * 1024
"""The part of a long request that has to arrive within ``limits.request_timeout``: about 2 KiB/s by default."""


class Holder(Protocol):
    """A relay, as far as the state knows it."""

    @property
    def awaits_bytes(self) -> bool:
        """Whether the last bytes that were read end in the middle of a frame."""

    def drop_held(self) -> None:
        """Free the bytes that it holds."""


class ConnectionState:
    """The sockets of a connection, its requests in flight, its mute, and its progress through these states::

        accepted by the listener
              |
              v
        UNACCEPTED ---- is_accepted(), note_accepted() ----> ACCEPTED
        the broker has not shown                             callbacks are called
        that it serves the client                                |
              |                                                  | begin_drain()
              | end_for_fault(), end_idle()                      v
              |                                              DRAINING
              |                                              reads no further request
              |                                                  | end_if_drained(), end_for_fault()
              +-----------------> ENDED <------------------------+

    In each state but ENDED the client's socket is read, unless the client is muted (``mute``), the queue of requests in
    flight is full (``in_flight.full``), or the connection is draining; `wait_for_turn` waits until it may be read.
    """

    __slots__ = (
        "_arrival",
        "_opened_s",
        "_reply_turn",
        "_scope",
        "accepted",
        "authenticates",
        "authentication",
        "can_splice",
        "client",
        "collected_head",
        "current",
        "dial",
        "draining",
        "held_bytes",
        "holders",
        "in_flight",
        "info",
        "last_active_s",
        "limits",
        "mid_request",
        "mute",
        "reason",
        "replying",
        "requesting",
        "shared",
        "unacknowledged",
        "upstream",
    )

    def __init__(
        self, shared: SharedState, info: Connection, client: Socket, dial: Callable[[], Awaitable[Socket]]
    ) -> None:
        self.shared = shared
        self.info = info
        self.client = client
        self.dial = dial
        """Connects to the broker of this connection and starts relaying its replies. Raises `UpstreamFault`."""
        self.limits = shared.limits
        self.upstream: Socket | None = None
        """The socket to the broker; ``None`` before the first request, and between its end and the next request."""
        self.in_flight = InFlight(self.limits.max_in_flight_requests)
        self.mute = Mute()
        self.last_active_s = self._opened_s = shared.clock()
        self._arrival: tuple[Exchange | None, int, float] | None = None
        """The last progress of a request that is arriving: the request before it, or the request itself; the number of
        bytes that the client had sent; the time in seconds."""
        self.current: Exchange | None = None
        """The last request that was read."""
        self.collected_head: RequestHead | None = None
        """The head of the request that is being collected."""
        self.accepted = shared.upstream.serves_anybody
        """Whether the broker has shown that it serves this client. Until then nothing is charged, and only handshakes
        are forwarded."""
        self.draining = False
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
        self.reason: str | None = None
        """The reason for the end of the connection, once it is known."""
        self._scope = trio.CancelScope()
        self._reply_turn: trio.Event | None = None

    # --- UNACCEPTED to ACCEPTED ---

    def is_accepted(self) -> bool:
        """Return whether the broker has shown by now that it serves this client."""
        if not self.accepted:
            authentication = self.authentication
            self.accepted = self.shared.upstream.serves_anybody or (
                authentication is not None and authentication.accepted
            )
        return self.accepted

    def note_accepted(self) -> None:
        """Note that the broker has answered a request that it answers only to clients that it serves."""
        self.accepted = True
        if not self.authenticates:
            self.shared.upstream.serves_anybody = True

    def note_sasl(self) -> None:
        """Note that the broker has agreed to a SASL mechanism: its listener serves only clients that authenticate."""
        self.shared.upstream.serves_anybody = False

    # --- reading ---

    async def wait_for_turn(self) -> None:
        """Wait until the next request may be read: the mute is over, and the queue in flight is not full."""
        while True:
            if self.draining:
                self.end_if_drained()
                await trio.sleep_forever()
            if self.mute.until_s > self.shared.clock():
                if not await self.mute.wait_until_over(self.client):
                    self._end("the client hung up while it was muted", None)
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
            self.replying = True
            exchange = self.in_flight.pop()
            await self.client.send([reply.make()])
            self.end_reply()
            self.completed(exchange)
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

    def begin_drain(self) -> None:
        """Read no further requests, and end the connection when all replies were sent."""
        self.draining = True
        self.end_if_drained()

    def end_if_drained(self) -> None:
        """End a draining connection if nothing is in flight."""
        if self.draining and not (self.replying or self.requesting or self.mid_request or len(self.in_flight)):
            self.cancel()

    def end_for_fault(self, side: str, reason: str, kind: Hashable) -> None:
        """Count a fault of ``side`` (``client``, ``upstream`` or ``proxy``), end the connection and log one line.

        ``kind`` identifies the kind of the fault by something that no peer chooses, such as the place where it was
        raised. The line is a warning, at most once a minute for each kind, client host and listener. Further lines are
        debug lines, and so are those of clients that have closed or reset the connection, whose ``kind`` is ``None``.
        """
        errors = self.shared.counters.errors
        errors[side] = errors.get(side, 0) + 1
        self._end(f"{side}: {reason}", None if kind is None else (side, kind))

    def _end(self, reason: str, cause: tuple[str, Hashable] | None) -> None:
        if self.reason is None:
            self.reason = reason
            left_out = None
            if cause is not None:
                side, kind = cause
                left_out = self.shared.repeated.due(f"fault of {side}", kind, self.info.peer.host, self.info.node_id)
            fields = {
                "peer": str(self.info.peer),
                "reason": reason,
                "request": self.describe_request(),
                "client_id": self.current.client_id if self.current is not None else None,
                "user": self.info.user,
                "upstream": str(self.info.upstream) if self.info.upstream is not None else None,
            }
            if left_out is None:
                log.debug("connection closed", **fields)
            else:
                log.warning("connection closed", **fields, left_out=left_out or None)
        self.cancel()

    def end_idle(self) -> None:
        """End the connection because it is idle, which is not a fault."""
        log.debug("connection closed", peer=str(self.info.peer), reason="idle", user=self.info.user)
        self.reason = "idle"
        self.cancel()

    def note_refused_login(self, mechanism: str, user: str | None, reason: str) -> None:
        """Log that the broker has refused a SASL login, as a warning at most once a minute for each host."""
        left_out = self.shared.repeated.due("login", self.info.peer.host)
        fields = {
            "peer": str(self.info.peer),
            "mechanism": mechanism,
            "user": user,
            "reason": reason,
            "upstream": str(self.info.upstream) if self.info.upstream is not None else None,
        }
        if left_out is None:
            log.debug("login refused", **fields)
        else:
            log.warning("login refused", **fields, left_out=left_out or None)

    @property
    def ended(self) -> bool:
        """Whether the connection was ended, so that nothing more is read."""
        return self.reason is not None

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

    # --- for operators, and for the periodic check of the server ---

    def release(self) -> None:
        """End the mute. The time for which the client was not read does not count as idle."""
        self.mute.release()
        self.last_active_s = self.shared.clock()

    def waiting(self, now_s: float) -> dict[str, object]:
        """Describe the muted client and its remaining time, for ``/decisions``."""
        return {
            "peer": str(self.info.peer),
            "user": self.info.user,
            "client_id": self.current.client_id if self.current is not None else "",
            "quota": self.mute.quota or "the broker's own",
            "entity": self.mute.entity,
            "remaining_ms": self.mute.remaining_ms(now_s),
        }

    @property
    def memory_bytes(self) -> int:
        """Number of bytes that the connection holds; see `headrace.proxy.network.held_bytes`."""
        upstream = self.upstream
        holds = self.held_bytes + self.in_flight.held_bytes
        return holds + self.client.unsent_bytes + (0 if upstream is None else upstream.unsent_bytes)

    def is_idle(self, now_s: float) -> bool:
        """Return whether nothing is in flight and no byte was received for ``limits.idle_timeout``, without mutes."""
        since_s = max(self.last_active_s, self.mute.until_s)
        return not len(self.in_flight) and now_s - since_s > self.limits.idle_timeout_s

    def is_slow(self, now_s: float) -> bool:
        """Return whether a request that has begun to arrive did not make progress for ``limits.request_timeout``.

        Progress is its last byte, or `PROGRESS_BYTES` more of it; a byte now and then is none. Time in which the proxy
        does not read does not count.
        """
        if not self.holders[0].awaits_bytes or self.requesting or self.must_hold or self.mute.until_s > now_s:
            self._arrival = None
            return False
        received, arrival = self.client.bytes_received, self._arrival
        if arrival is None or arrival[0] is not self.current or received - arrival[1] >= PROGRESS_BYTES:
            self._arrival = (self.current, received, now_s)
            return False
        return now_s - arrival[2] > self.limits.request_timeout_s

    def end_if_overdue(self, now_s: float) -> None:
        """End the connection if one of its timeouts is over."""
        limits = self.limits
        if self.is_idle(now_s):
            self.end_idle()
        elif self.in_flight.stops_reading and self.client.hung_up():  # its end is behind bytes that are not read
            self._end("the client hung up while its requests were in flight", None)
        elif self.waits_in_vain(now_s):
            reason = f"the broker did not answer within upstream.reply_timeout = {limits.reply_timeout_s:g} s"
            self.end_for_fault("upstream", reason, "no answer")
        elif self.is_slow(now_s):
            reason = f"a request arrives too slowly: limits.request_timeout = {limits.request_timeout_s:g} s"
            self.end_for_fault("client", reason, "slow")
        elif now_s - self._opened_s > limits.login_timeout_s and not self.is_accepted():
            reason = f"not accepted by the broker within limits.login_timeout = {limits.login_timeout_s:g} s"
            self.end_for_fault("client", reason, "no login")

    def waits_in_vain(self, now_s: float) -> bool:
        """Return whether the broker has not begun to answer the oldest request within ``upstream.reply_timeout``."""
        first = self.in_flight.first
        if first is None or first.reply_s is not None or first.forwarded_s is None:
            return False
        since_s = max(first.forwarded_s, self.last_active_s)
        return now_s - since_s > self.limits.reply_timeout_s

    def describe_request(self) -> str | None:
        """Describe the oldest request in flight, or the last one that was read, for a log line."""
        exchange = self.in_flight.first or self.current
        if exchange is None:
            return None
        name = API_NAMES.get(exchange.api_key, "SASL token")
        return f"{name} v{exchange.api_version} #{exchange.correlation_id}"
