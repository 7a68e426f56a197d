"""The state of one client's connection, which its relays, its authentication and its replies share.

The lowest module of the package: it knows no relay. `headrace.proxy.connection.client_connection` makes one for each
connection, and everything that happens on the connection reads and changes it through the methods below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
import trio

from headrace.proxy.connection.in_flight import Exchange, InFlight
from headrace.proxy.connection.muting import Mute
from headrace.quota_callbacks.api_keys import API_NAMES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from headrace.proxy.connection.authentication import Authentication
    from headrace.proxy.connection.shared_state import SharedState
    from headrace.proxy.network.sockets import Channel
    from headrace.proxy.wire.heads import RequestHead
    from headrace.quota_callbacks.requests import Connection

log = structlog.get_logger("headrace.connection")


class ConnectionState:
    """Both sockets of a connection, its requests in flight, its mute, and how far it has come.

    A connection goes through these states, each by the method beside the arrow::

        accepted by the listener
              |
              v
        UNACCEPTED ---- is_accepted(), note_accepted() ----> ACCEPTED
        the broker has not shown                             requests are judged
        that it serves the client                                |
              |                                                  | begin_drain()
              | end(), end_idle()                                v
              |                                              DRAINING
              |                                              reads no further request
              |                                                  | end_if_drained(), end()
              +-----------------> ENDED <------------------------+

    In each of them the client's socket is read, unless the client is muted (``mute``), the queue of requests in flight
    is full (``in_flight.full``), or the connection is draining; `wait_for_turn` waits until it may be read.
    """

    __slots__ = (
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
        self, shared: SharedState, info: Connection, client: Channel, dial: Callable[[], Awaitable[Channel]]
    ) -> None:
        self.shared = shared
        self.info = info
        self.client = client
        self.dial = dial
        """Connect to the broker that this connection is for, and start relaying its replies. Raises
        `UpstreamFault`."""
        self.limits = shared.limits
        self.upstream: Channel | None = None
        """``None`` until the first byte of the client has come, and while a broker that closed is not dialled
        again."""
        self.in_flight = InFlight(self.limits.max_in_flight_requests)
        self.mute = Mute()
        self.last_active_s = shared.clock()
        self.current: Exchange | None = None
        """The request that was read last."""
        self.collected_head: RequestHead | None = None
        """Its head, while the rest of it is being collected."""
        self.accepted = shared.upstream.serves_anybody
        """Whether the broker has shown that it serves this client. Until then nothing is charged, and nothing passes
        but handshakes."""
        self.draining = False
        self.replying = False
        """Whether a task is writing to the client; see `let_others_reply`."""
        self.requesting = False
        """Whether the request relay has read what it could not hand on at once."""
        self.mid_request = False
        """Whether a part of a request was forwarded and the rest has not come."""
        self.unacknowledged = False
        """Whether the last request that was forwarded is a Produce without acks, whose failure the broker shows by
        closing the connection."""
        self.can_splice = False
        """Whether both sides are plaintext sockets of a system that can splice; otherwise large frames are copied,
        too."""
        self.authenticates = False
        """Whether the client has begun to authenticate, so that a new upstream connection cannot take over."""
        self.authentication: Authentication | None = None
        """Who the client is; made at its first SaslHandshake."""
        self.reason: str | None = None
        """Why the connection ends, once it is known."""
        self._scope = trio.CancelScope()
        self._reply_turn: trio.Event | None = None

    # --- UNACCEPTED to ACCEPTED ---

    def is_accepted(self) -> bool:
        """Look again whether the broker serves this client."""
        if not self.accepted:
            authentication = self.authentication
            self.accepted = self.shared.upstream.serves_anybody or (
                authentication is not None and authentication.accepted
            )
        return self.accepted

    def note_accepted(self) -> None:
        """Note that the broker has answered what it answers only to clients that it serves."""
        self.accepted = True
        if not self.authenticates:
            self.shared.upstream.serves_anybody = True

    def note_sasl(self) -> None:
        """Note that the broker has agreed to a SASL mechanism: its listener serves only clients that authenticate."""
        self.shared.upstream.serves_anybody = False

    # --- reading ---

    async def wait_for_turn(self) -> None:
        """Wait until the next request may be read: the mute is over, and there is room among the requests in flight."""
        while True:
            if self.draining:
                self.end_if_drained()
                await trio.sleep_forever()
            if self.mute.until_s > self.shared.clock():
                if not await self.mute.sit_out(self.client):
                    self.end("the client hung up while it was muted", gone=True)
                    await trio.sleep_forever()
            elif self.in_flight.full:
                await self.in_flight.wait_for_room()
            else:
                return

    @property
    def must_hold(self) -> bool:
        """Whether the next request must not be read, apart from a mute."""
        return self.draining or self.in_flight.full

    def spliced(self, moved: int) -> None:
        """Count ``moved`` bytes that did not enter user space."""
        self.shared.counters.bytes_spliced += moved
        self.last_active_s = self.shared.clock()

    # --- replying ---

    def throttle_to_tell(self, exchange: Exchange, broker_ms: int, now_s: float) -> int:
        """Return the throttle time, in milliseconds, of a reply that goes out now: what remains of the mute.

        ``broker_ms`` is the broker's own, which lengthens the mute.
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
        """What remains of the mute now, for a reply of the proxy's own."""
        return self.mute.remaining_ms(self.shared.clock())

    @property
    def local_reply_is_due(self) -> bool:
        """Whether it is the turn of an answer of the proxy's own, and no task is writing that will send it."""
        return not self.replying and self.in_flight.local_reply is not None

    async def flush_local_replies(self) -> None:
        """Send the proxy's own answers whose turn it is, unless the reply relay is writing and will do it itself."""
        while not self.replying and (reply := self.in_flight.local_reply) is not None:
            self.replying = True
            exchange = self.in_flight.pop()
            await self.client.send([reply.make()])
            self.end_reply()
            self.completed(exchange)
        self.end_if_drained()

    @property
    def others_reply_first(self) -> bool:
        """Whether the proxy's own answers have to go out before the broker's next reply."""
        return self.replying or self.in_flight.local_reply is not None

    async def let_others_reply(self) -> None:
        """Wait until they are out; then no task writes to the client, and the next reply is the broker's."""
        while self.others_reply_first:
            if self.replying:
                self._reply_turn = trio.Event()
                await self._reply_turn.wait()
            else:
                await self.flush_local_replies()

    def end_reply(self) -> None:
        """Note that the write to the client is done."""
        self.replying = False
        if self._reply_turn is not None:
            self._reply_turn.set()
            self._reply_turn = None

    def completed(self, exchange: Exchange) -> None:
        """Report that the last byte of the reply was handed to the client."""
        if exchange.observed:
            exchange.completed_s = self.shared.clock()
            self.shared.hooks.request_completed(exchange)

    # --- DRAINING, ENDED ---

    def begin_drain(self) -> None:
        """Read no further request, and end when every reply is out."""
        self.draining = True
        self.end_if_drained()

    def end_if_drained(self) -> None:
        """End a draining connection when nothing is in flight."""
        if self.draining and not (self.replying or self.requesting or self.mid_request or len(self.in_flight)):
            self.cancel()

    def end(self, reason: str, *, gone: bool = False, cause: Hashable = None) -> None:
        """End the connection, and log why in one line.

        The line is a warning, or for debugging if the client is merely ``gone``. Of the warnings with the same
        ``cause``, one a minute is logged and the others are for debugging, too.
        """
        if self.reason is None:
            self.reason = reason
            left_out = 0 if cause is None else self.shared.repeated.due(cause)
            fields = {
                "peer": str(self.info.peer),
                "reason": reason,
                "request": self.describe_request(),
                "client_id": self.current.client_id if self.current is not None else None,
                "user": self.info.user,
                "upstream": str(self.info.upstream) if self.info.upstream is not None else None,
            }
            if gone or left_out is None:
                log.debug("connection closed", **fields)
            else:
                log.warning("connection closed", **fields, left_out=left_out or None)
        self.cancel()

    def end_idle(self) -> None:
        """End the connection because it is idle, which is an error of neither side."""
        log.debug("connection closed", peer=str(self.info.peer), reason="idle", user=self.info.user)
        self.reason = "idle"
        self.cancel()

    def end_waiting(self) -> None:
        """End the connection because the broker does not answer."""
        timeout_s = self.limits.reply_timeout_s
        self.end_for_fault("upstream", f"the broker did not answer within upstream.reply_timeout = {timeout_s:g} s")

    def end_for_fault(self, side: str, reason: str, *, gone: bool = False, cause: Hashable = None) -> None:
        """Count a fault of ``side`` (``client``, ``upstream`` or ``proxy``) and end the connection, as `end` does."""
        errors = self.shared.counters.errors
        errors[side] = errors.get(side, 0) + 1
        self.end(f"{side}: {reason}", gone=gone, cause=cause)

    def note_refused_login(self, mechanism: str, user: str | None, reason: str) -> None:
        """Log that the broker has refused a SASL login, once a minute for each host, mechanism and user."""
        left_out = self.shared.repeated.due(("login", self.info.peer.host, mechanism, user))
        if left_out is not None:
            log.warning(
                "login refused",
                peer=str(self.info.peer),
                mechanism=mechanism,
                user=user,
                reason=reason,
                upstream=str(self.info.upstream) if self.info.upstream is not None else None,
                left_out=left_out or None,
            )

    def cancel(self) -> None:
        """Stop both relays; the connection is closed then."""
        self._scope.cancel()

    @property
    def scope(self) -> trio.CancelScope:
        """The scope that both relays run in."""
        return self._scope

    # --- for operators and the sweep ---

    def release(self) -> None:
        """End the mute; that the client was not read for so long does not make the connection idle."""
        self.mute.release()
        self.last_active_s = self.shared.clock()

    def waiting(self, now_s: float) -> dict[str, object]:
        """Describe who is muted here, and for how long yet."""
        return {
            "peer": str(self.info.peer),
            "user": self.info.user,
            "client_id": self.current.client_id if self.current is not None else "",
            "quota": self.mute.quota or "the broker's own",
            "entity": self.mute.entity,
            "remaining_ms": self.mute.remaining_ms(now_s),
        }

    def is_idle(self, now_s: float) -> bool:
        """Whether it is over ``limits.idle_timeout``: nothing in flight, not muted, and no byte for that long."""
        since_s = max(self.last_active_s, self.mute.until_s)
        return not len(self.in_flight) and now_s - since_s > self.limits.idle_timeout_s

    def waits_in_vain(self, now_s: float) -> bool:
        """Whether the broker has not begun to answer the oldest request within ``upstream.reply_timeout``."""
        first = self.in_flight.first
        if first is None or first.reply_s is not None or first.forwarded_s is None:
            return False
        since_s = max(first.forwarded_s, self.last_active_s)
        return now_s - since_s > self.limits.reply_timeout_s

    def describe_request(self) -> str | None:
        """Describe the oldest request in flight, or the one that was read last, for a log line."""
        exchange = self.in_flight.first or self.current
        if exchange is None:
            return None
        name = API_NAMES.get(exchange.api_key, "SASL token")
        return f"{name} v{exchange.api_version} #{exchange.correlation_id}"
