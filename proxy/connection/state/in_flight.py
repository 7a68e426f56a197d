"""The queue of a connection's requests that wait for their replies, which Kafka sends in the order of the requests.

Requests that the proxy answers itself are in the same queue, so that their replies are sent in order. Used by both
relays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from headrace.proxy.connection.state.reply_actions import REWRITE, SETTLE, AnswerLocally, Forward, PassToken, WalkFetch
from headrace.proxy.network.held_bytes import held
from headrace.quota_callbacks.api_keys import API_NAMES
from headrace.quota_callbacks.requests import Connection, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.connection.state.reply_actions import ReplyAction, ReplyLayout
    from headrace.proxy.hooks.implementations import Calls
    from headrace.proxy.wire.messages.stepwise import Steps
    from headrace.proxy.wire.walks.produce import ProduceWalk

    Amend = Callable[[memoryview | bytes], Steps[bytes]]


HANDSHAKES_IN_FLIGHT: Final = 8
"""The most requests in flight of a client that the broker has not accepted. librdkafka and the clients in Java and
Python have one: each of their handshake requests depends on the reply to the one before."""

UNCOUNTED_REQUESTS: Final = 16
"""Requests in flight whose memory is not counted: more than ordinary clients have."""

REQUEST_BYTES: Final = 1024
"""Memory of a request in flight, without its batches."""

UNCOUNTED_BATCHES: Final = 16
"""Batches of a Produce whose memory is not counted."""

BATCH_BYTES: Final = 192
"""Memory of one of the batches that are kept with a Produce."""


MOST_AMENDMENT_BYTES: Final = 1024 * 1024
"""While what is to be changed in the replies of a connection takes this many bytes or more, its client is not read.
That is a thousand requests of which nothing is denied, or one that takes more."""


class Exchange(Request):
    """A request in flight, and what to do with its reply."""

    __slots__ = ("ask_again", "enforced", "layout", "observed", "reply", "settled", "throttle_after_hold_s")

    ask_again: Calls
    """Set when the request is held: the callbacks to call again when the hold is over."""

    def __init__(
        self,
        connection: Connection,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str,
        request_bytes: int,
        received_s: float,
        layout: ReplyLayout,
    ) -> None:
        super().__init__(connection, api_key, api_version, correlation_id, client_id, request_bytes, received_s)
        self.layout = layout
        self.reply: ReplyAction = layout.action
        self.throttle_after_hold_s: tuple[float, str | None, str] | None = None
        """The time until which the client is muted after this held request is forwarded; the names of the quota and of
        its entity."""
        self.observed = False
        """Whether a plugin subscribes to its completion."""
        self.enforced = False
        """Whether quotas apply to it."""
        self.settled = False
        """Whether the callbacks were called for its reply, or for the proxy's own answer in place of one."""

    @property
    def is_token(self) -> bool:
        """Whether it is a SASL token without a header."""
        return isinstance(self.reply, PassToken)


def description_of(exchange: Exchange | None) -> str | None:
    """Return the description of a request for a log line; ``None`` for none."""
    if exchange is None:
        return None
    name = API_NAMES.get(exchange.api_key, "SASL token")
    return f"{name} v{exchange.api_version} #{exchange.correlation_id}"


class InFlight:
    """The queue. The client is not read while it has ``cap`` requests or more."""

    __slots__ = (
        "_queue",
        "_room",
        "_taken",
        "alone",
        "amendment_bytes",
        "amendments",
        "cap",
        "held_bytes",
        "uncounted",
    )

    def __init__(self, cap: int) -> None:
        self.cap = cap
        """`HANDSHAKES_IN_FLIGHT`, or ``limits.max_in_flight_requests`` once the client is accepted."""
        self._queue: list[Exchange] = []
        self._room: trio.Event | None = None
        self.alone: Exchange | None = None
        """The last request that is `Request.alone`, until its reply: while there is one, no further request is
        forwarded. The client is still read, so that its end is noticed."""
        self.amendments: dict[Exchange, tuple[Amend, int]] = {}
        """The changes to replies: of requests that were denied in part, and of requests whose replies list what the
        client may not see. Each is a function of the body, with the memory that it takes. The requests are in `_taken`,
        too."""
        self.amendment_bytes = 0
        """Memory of the changes in `amendments` for the requests in the queue; a part of `held_bytes`. A request that
        is held is not counted, since it is not in the queue yet, and would otherwise wait because of its own memory."""
        self._taken: dict[Exchange, int] = {}
        """The bytes of `held_bytes` by request."""
        self.held_bytes = 0
        """Number of bytes of memory that the requests take; see `headrace.proxy.network.held_bytes`."""
        self.uncounted = 0
        """The part of `held_bytes` that is not counted in `held` yet."""

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def first(self) -> Exchange | None:
        """The request whose reply is next."""
        return self._queue[0] if self._queue else None

    @property
    def local_reply(self) -> AnswerLocally | None:
        """The proxy's own answer to the first request, or ``None`` if the broker answers that one."""
        if self._queue:
            reply = self._queue[0].reply
            if isinstance(reply, AnswerLocally):
                return reply
        return None

    def add(self, exchange: Exchange) -> None:
        """Append a request that was forwarded or that the proxy answers itself."""
        queue = self._queue
        queue.append(exchange)
        if exchange.alone:
            self.alone = exchange
        if self.amendments and exchange in self.amendments:
            self.amendment_bytes += self.amendments[exchange][1]
        if len(queue) > UNCOUNTED_REQUESTS:
            self.hold(exchange, REQUEST_BYTES)

    def hold(self, exchange: Exchange, count: int) -> None:
        """Note that ``exchange`` takes ``count`` bytes more until it is answered. Call `count_held` afterwards."""
        self._taken[exchange] = self._taken.get(exchange, 0) + count
        self.held_bytes += count
        self.uncounted += count

    def amend(self, exchange: Exchange, amend: Amend, count: int) -> None:
        """Have the reply to ``exchange`` changed; what is kept for it takes ``count`` bytes of memory. Call it before
        `add`, and `count_held` afterwards."""
        self.amendments[exchange] = (amend, count)
        self.hold(exchange, count)

    def amendment(self, exchange: Exchange) -> Amend | None:
        """Return what changes the reply to ``exchange``; ``None`` if nothing does."""
        found = self.amendments.get(exchange)
        return None if found is None else found[0]

    def bytes_of_amendment(self, exchange: Exchange) -> int:
        """Return the memory that the change to the reply to ``exchange`` takes; 0 without one."""
        found = self.amendments.get(exchange)
        return 0 if found is None else found[1]

    def collect_amended(self, exchange: Exchange) -> None:
        """Have the reply to ``exchange`` collected if it is to be changed. Call it once the request is forwarded."""
        if exchange in self.amendments and isinstance(exchange.reply, Forward | WalkFetch):
            exchange.reply = SETTLE if exchange.read_fetched else REWRITE

    def note_batches(self, exchange: Exchange, walk: ProduceWalk) -> None:
        """Keep the batches of a Produce with it, and note their memory while it is in flight."""
        exchange.batches = walk.batches
        is_in_flight = exchange.acks != 0 and exchange.reply_s is None
        if is_in_flight and exchange.read_refused:
            exchange.reply = SETTLE
        count = len(walk.batches)
        if count > UNCOUNTED_BATCHES:
            exchange.left_out_bytes, exchange.left_out_ids = walk.left_out_bytes, walk.left_out_ids
            if is_in_flight:
                self.hold(exchange, (count + len(walk.left_out_bytes) + len(walk.left_out_ids)) * BATCH_BYTES)

    def count_held(self) -> None:
        """Count what was noted, which may end connections that hold too much, this one included."""
        if self.uncounted:
            count, self.uncounted = self.uncounted, 0
            held.add(count)

    def _release(self, exchange: Exchange) -> None:
        count = self._taken.pop(exchange, 0)
        self.held_bytes -= count
        self.uncounted -= count

    def pop(self) -> Exchange:
        """Remove and return the first request, which was answered."""
        exchange = self._queue.pop(0)
        if exchange is self.alone:
            self.alone = None
        if self._taken:
            amendment = self.amendments.pop(exchange, None)
            if amendment is not None:
                self.amendment_bytes -= amendment[1]
            self._release(exchange)
            self.count_held()
        if self._room is not None and not self.stops_reading:
            self._room.set()
            self._room = None
        return exchange

    @property
    def full(self) -> bool:
        """Whether the client must not be read, because a limit is reached."""
        return len(self._queue) >= self.cap or self.amendment_bytes >= MOST_AMENDMENT_BYTES

    @property
    def stops_reading(self) -> bool:
        """Whether nothing more is forwarded before a reply: the queue is `full`, or a request is `Request.alone`."""
        return self.alone is not None or self.full

    async def wait_for_room(self) -> None:
        """Wait until the queue does not stop reading."""
        while self.stops_reading:
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()

    def forget_unanswered_token(self) -> None:
        """Remove the last request if it is a SASL token, which the broker will not answer."""
        if self._queue and self._queue[-1].is_token:
            self._release(self._queue.pop())

    def take_all(self) -> list[Exchange]:
        """Remove and return all requests, which will not be answered."""
        lost = list(self._queue)
        self._queue.clear()
        self.alone = None
        self.amendments.clear()
        self.amendment_bytes = 0
        for exchange in lost:
            exchange.reply = exchange.layout.action  # drop the reference to the watcher: a plugin may keep the request
        for exchange in list(self._taken):  # also one that was not added, since it was still held
            self._release(exchange)
        self.count_held()
        return lost
