"""One client's connection, from accept to close: its upstream connection, its mute, and the nursery of its two relays.

The accepting task runs the request relay; the reply relay is the one task more, started when the broker is dialled,
which is when the first request came. Both end with the connection. Whatever goes wrong ends this connection alone and
is logged in one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
import trio

from proxy.errors import ConnectionFault, UpstreamFault
from proxy.in_flight import Exchange, InFlight
from proxy.judging import give_up
from proxy.muting import Mute
from proxy.reply_plans import TOKEN_PLAN
from proxy.reply_relay import ReplyRelay
from proxy.request_relay import RequestRelay
from proxy.wire.errors import PeerFault
from quota_callbacks.api_keys import API_NAMES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from proxy.authentication import Authentication
    from proxy.house import House
    from proxy.sockets import Channel
    from proxy.wire.heads import RequestHead
    from quota_callbacks.requests import Connection

log = structlog.get_logger("headrace.connection")


class ClientConnection:
    """Owns the client's channel and the broker's.

    *Cancellation:* closes both channels at once; what was in flight is lost to the client, as when a broker dies.
    """

    __slots__ = (
        "_nursery",
        "_reason",
        "_replies",
        "_reply_turn",
        "_requests",
        "_scope",
        "_upstream_lost",
        "accepted",
        "authenticates",
        "authentication",
        "can_splice",
        "client",
        "collected_head",
        "current",
        "draining",
        "house",
        "in_flight",
        "info",
        "last_active_s",
        "limits",
        "mute",
        "replying",
        "requesting",
        "unacknowledged",
        "upstream",
    )

    def __init__(self, house: House, info: Connection, client: Channel) -> None:
        self.house = house
        self.info = info
        self.client = client
        self.limits = house.limits
        self.upstream: Channel | None = None
        self.in_flight = InFlight(self.limits.max_in_flight_requests)
        self.mute = Mute()
        self.last_active_s = house.clock()
        self.current: Exchange | None = None
        """The request that was read last."""
        self.collected_head: RequestHead | None = None
        """Its head, while the rest of it is being collected."""
        self.replying = False
        """Whether somebody writes to the client; see `let_others_reply`."""
        self.requesting = False
        """Whether the request relay has read what it could not hand on at once."""
        self.unacknowledged = False
        """Whether the last thing the broker was told was a Produce without acks, whose failure it tells by closing."""
        self.can_splice = False
        """Whether both sides are plaintext sockets of a system that can; otherwise large frames are copied, too."""
        self.draining = False
        self.authenticates = False
        """Whether the client has begun to authenticate, so that a new upstream connection cannot take over."""
        self.authentication: Authentication | None = None
        """Who the client is; made at its first SaslHandshake."""
        self.accepted = house.upstream.serves_anybody
        """Whether the broker has shown that it serves this client. Until then nothing is charged, and nothing passes
        but what leads there (`HANDSHAKE_APIS`)."""
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._requests = RequestRelay(self)
        self._reply_turn: trio.Event | None = None
        self._replies: ReplyRelay | None = None
        self._upstream_lost = False
        self._reason: str | None = None

    async def serve(self) -> None:
        """Relay until either side ends, a fault, or a cancel; then close both sides. Raises nothing but a cancel from
        outside."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    await self._guard(self._requests.run)
                    if self.upstream is not None:
                        self.upstream.shut_down_writing()
                    self._note_half_closed()
                    nursery.cancel_scope.cancel()
        finally:
            self._close()

    # --- for the relays ---

    async def dial(self) -> Channel:
        """Connect to the broker that this connection is for, and start the reply relay. Raises `UpstreamFault`."""
        if self._upstream_lost:
            raise UpstreamFault("the broker closed the authenticated connection while the client was muted")
        channel, address = await self.house.upstream.dial(self.info.node_id)
        self.upstream = channel
        self.info.upstream = address
        self.can_splice = channel.can_splice and self.client.can_splice
        self.house.counters.upstream_connections += 1
        self._replies = ReplyRelay(self, channel)
        if self._nursery is None:
            raise AssertionError("a connection dials only while it serves")
        self._nursery.start_soon(self._relay_replies, self._replies)
        return channel

    def is_accepted(self) -> bool:
        """Look again whether the broker serves this client."""
        if not self.accepted:
            authentication = self.authentication
            self.accepted = self.house.upstream.serves_anybody or (
                authentication is not None and authentication.accepted
            )
        return self.accepted

    def note_accepted(self) -> None:
        """The broker has answered what it answers only to those it serves."""
        self.accepted = True
        if not self.authenticates:
            self.house.upstream.serves_anybody = True

    def note_sasl(self) -> None:
        """The broker has agreed to a SASL mechanism, so its listener serves only those who authenticate."""
        self.house.upstream.serves_anybody = False

    async def wait_for_turn(self) -> None:
        """Wait until the next request may be read: the mute is over, and there is room among the requests in flight."""
        while True:
            if self.draining:
                self.end_if_drained()
                await trio.sleep_forever()
            if self.mute.until_s > self.house.clock():
                if not await self.mute.sit_out(self.client):
                    self.end("the client hung up while it was muted")
                    await trio.sleep_forever()
            elif self.in_flight.full:
                await self.in_flight.wait_for_room()
            else:
                return

    def throttle_to_tell(self, exchange: Exchange, broker_ms: int, now_s: float) -> int:
        """The throttle time of a reply that goes out now: what remains of the mute, the broker's own included."""
        if broker_ms > 0:
            exchange.broker_throttle_ms = broker_ms
        if not exchange.enforced or not self.house.enforcement.enabled:
            return broker_ms
        if broker_ms > 0:
            self.mute.extend(now_s, broker_ms)
        return max(broker_ms, self.mute.remaining_ms(now_s))

    @property
    def throttle_left_ms(self) -> int:
        """What remains of the mute now, for a reply of the proxy's own."""
        return self.mute.remaining_ms(self.house.clock())

    @property
    def local_reply_is_due(self) -> bool:
        """Whether it is the turn of an answer of the proxy's own, and nobody writes who will see to it."""
        first = self.in_flight.first
        return first is not None and first.local_reply is not None and not self.replying

    async def flush_local_replies(self) -> None:
        """Send the proxy's own answers whose turn it is, unless the reply relay is writing and will do it itself."""
        while self.local_reply_is_due:
            first = self.in_flight.first
            if first is None or first.local_reply is None:
                raise AssertionError("an answer is due, and there is none")
            self.replying = True
            exchange = self.in_flight.pop()
            await self.client.send([first.local_reply()])
            self.end_reply()
            self.completed(exchange)
        self.end_if_drained()

    @property
    def others_reply_first(self) -> bool:
        """Whether the proxy's own answers have to go out before the broker's next reply."""
        first = self.in_flight.first
        return self.replying or (first is not None and first.local_reply is not None)

    async def let_others_reply(self) -> None:
        """Wait until they are out; then nobody writes to the client, and the next reply is the broker's."""
        while self.others_reply_first:
            if self.replying:
                self._reply_turn = trio.Event()
                await self._reply_turn.wait()
            else:
                await self.flush_local_replies()

    def end_reply(self) -> None:
        """The write to the client is done."""
        self.replying = False
        if self._reply_turn is not None:
            self._reply_turn.set()
            self._reply_turn = None

    def completed(self, exchange: Exchange) -> None:
        """The last byte of the reply was handed to the client."""
        if exchange.observed:
            exchange.completed_s = self.house.clock()
            self.house.hooks.request_completed(exchange)

    def spliced(self, moved: int) -> None:
        """So many bytes have passed user space by."""
        self.house.counters.bytes_spliced += moved
        self.last_active_s = self.house.clock()

    # --- for the server ---

    def end(self, reason: str) -> None:
        """Close it, and log why."""
        self._note(reason)
        self._scope.cancel()

    def end_idle(self) -> None:
        """Close it because it is idle; that is nobody's error."""
        log.debug("connection closed", peer=str(self.info.peer), reason="idle", user=self.info.user)
        self._reason = "idle"
        self._scope.cancel()

    def release(self) -> None:
        """End its mute; that it was silent for so long does not make it idle."""
        self.mute.release()
        self.last_active_s = self.house.clock()

    def begin_drain(self) -> None:
        """Read no further request; close when every reply is out."""
        self.draining = True
        self.end_if_drained()

    def end_if_drained(self) -> None:
        """Close it when it drains and nothing is in flight."""
        busy = self.replying or self.requesting or self._requests.mid_request
        if self.draining and not busy and not len(self.in_flight):
            self._scope.cancel()

    def waiting(self, now_s: float) -> dict[str, object]:
        """Who is muted here, and for how long yet, for operators."""
        return {
            "peer": str(self.info.peer),
            "user": self.info.user,
            "client_id": self.current.client_id if self.current is not None else "",
            "quota": self.mute.quota or "the broker's own",
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

    def end_waiting(self) -> None:
        """Close it because the broker hangs."""
        timeout_s = self.limits.reply_timeout_s
        self._fault("upstream", f"upstream: the broker did not answer within upstream.reply_timeout = {timeout_s:g} s")

    # --- its end ---

    async def _relay_replies(self, replies: ReplyRelay) -> None:
        await self._guard(replies.run)
        waiting = len(self.in_flight)
        if self._reason is not None:  # a fault, which has been logged and counted
            self._scope.cancel()
        elif (first := self.in_flight.first) is not None and first.plan is TOKEN_PLAN:
            self._fault("client", "client: the broker refused the log-in")
        elif waiting or replies.mid_reply:
            self._fault("upstream", f"upstream: the broker closed with {waiting} requests in flight")
        elif self._requests.mid_request:
            self._fault("upstream", "upstream: the broker closed in the middle of a request")
        elif self._may_outlive_upstream():
            self._drop_upstream()
        else:
            self._scope.cancel()

    def _may_outlive_upstream(self) -> bool:
        """Whether the broker has only got tired of a muted client: nothing was lost and nothing is to be told."""
        muted = self.mute.until_s > self.house.clock()
        return muted and not self.requesting and not self.unacknowledged

    def _drop_upstream(self) -> None:
        """The broker got tired of a muted client: that is not the client's error, and must not end its mute."""
        if self.upstream is not None:
            self._count_bytes(self.upstream, upstream=True)
            self.upstream.close()
        self.upstream = None
        self._upstream_lost = self.authenticates

    async def _guard(self, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
        except ConnectionFault as fault:
            self._fault(fault.side, f"{fault.side}: {fault}")
        except PeerFault as fault:
            side = "client" if run == self._requests.run else "upstream"
            self._fault(side, f"{side}: {fault}")
        except Exception as error:
            self._fault("proxy", f"proxy: {type(error).__name__}: {error}")
            log.exception("a mistake of headrace closed a connection", peer=str(self.info.peer), exc_info=error)

    def _fault(self, side: str, reason: str) -> None:
        errors = self.house.counters.errors
        errors[side] = errors.get(side, 0) + 1
        self.end(reason)

    def _note(self, reason: str) -> None:
        if self._reason is not None:
            return
        self._reason = reason
        log.warning(
            "connection closed",
            peer=str(self.info.peer),
            reason=reason,
            request=self._describe_request(),
            client_id=self.current.client_id if self.current is not None else None,
            user=self.info.user,
            upstream=str(self.info.upstream) if self.info.upstream is not None else None,
        )

    def _note_half_closed(self) -> None:
        if len(self.in_flight) and self._reason is None:
            self._reason = f"the client closed its side with {len(self.in_flight)} requests in flight"
            log.info(
                "connection closed", peer=str(self.info.peer), reason=self._reason, request=self._describe_request()
            )

    def _describe_request(self) -> str | None:
        exchange = self.in_flight.first or self.current
        if exchange is None:
            return None
        name = API_NAMES.get(exchange.api_key, "SASL token")
        return f"{name} v{exchange.api_version} #{exchange.correlation_id}"

    def _close(self) -> None:
        self._count_bytes(self.client, upstream=False)
        self.client.close()
        if self.upstream is not None:
            self._count_bytes(self.upstream, upstream=True)
            self.upstream.close()
        lost = self.in_flight.give_up()
        if self.info.upstream is None:  # never dialled: what stands in the queue was not sent
            for exchange in lost:
                exchange.forwarded_s = None
        for exchange in [*lost, *self._requests.unsettled()]:
            exchange.error = self._reason or "connection closed"
            give_up(self, exchange)
            self.completed(exchange)
        self.house.hooks.connection_closed(self.info, self._reason)

    def _count_bytes(self, channel: Channel, *, upstream: bool) -> None:
        counters = self.house.counters
        if upstream:
            counters.upstream_connections -= 1
            counters.bytes_from_upstream += channel.bytes_received
            counters.bytes_to_upstream += channel.bytes_sent
        else:
            counters.bytes_from_clients += channel.bytes_received
            counters.bytes_to_clients += channel.bytes_sent
