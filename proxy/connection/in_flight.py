"""The requests of one connection that wait for their replies, in order; Kafka answers a connection strictly in turn.

A reply that the proxy gives itself stands in the same queue, so that it goes out in its turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from headrace.proxy.connection.reply_actions import AnswerLocally, PassToken
from headrace.quota_callbacks.requests import Connection, Request

if TYPE_CHECKING:
    from headrace.proxy.connection.reply_actions import ReplyAction, ReplyLayout


class Exchange(Request):
    """A request in flight, and what to do with its reply."""

    __slots__ = ("enforced", "layout", "observed", "reply", "throttle_after_hold_s")

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
        """Until when the client is muted once this request, which is held, has gone on; for which quota, and of which
        entity."""
        self.observed = False
        """Whether a plugin wants to know when it is completed."""
        self.enforced = False
        """Whether quotas were asked about it."""

    @property
    def is_token(self) -> bool:
        """Whether it is a SASL token without a header."""
        return isinstance(self.reply, PassToken)


class InFlight:
    """The queue; at most ``cap`` requests (``limits.max_in_flight_requests``), beyond which the client is not read."""

    __slots__ = ("_alone", "_cap", "_queue", "_room")

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._alone: Exchange | None = None
        self._queue: list[Exchange] = []
        self._room: trio.Event | None = None

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def first(self) -> Exchange | None:
        """The request whose reply comes next."""
        return self._queue[0] if self._queue else None

    @property
    def local_reply(self) -> AnswerLocally | None:
        """The proxy's own answer whose turn it is, if it is the turn of one."""
        if self._queue:
            reply = self._queue[0].reply
            if isinstance(reply, AnswerLocally):
                return reply
        return None

    def add(self, exchange: Exchange) -> None:
        """Append a request that was forwarded, or that the proxy answers itself."""
        self._queue.append(exchange)

    def pop(self) -> Exchange:
        """Take out the first request, which has got its reply."""
        exchange = self._queue.pop(0)
        if exchange is self._alone:
            self._alone = None
        if self._room is not None and not self.full:
            self._room.set()
            self._room = None
        return exchange

    @property
    def full(self) -> bool:
        """Whether the client must not be read now."""
        return self._alone is not None or len(self._queue) >= self._cap

    def nothing_behind(self, exchange: Exchange) -> None:
        """Read nothing more until ``exchange``, which was added, has got its reply."""
        self._alone = exchange

    async def wait_for_room(self) -> None:
        """Wait until it is no longer `full`."""
        if self.full:
            self._room = trio.Event()
            await self._room.wait()

    def forget_unanswered_token(self) -> None:
        """Take out the last request if it is a SASL token: the broker does not answer it, which is in order."""
        if self._queue and self._queue[-1].is_token:
            self._queue.pop()

    def give_up(self) -> list[Exchange]:
        """Take out all requests, which will get no reply."""
        lost = list(self._queue)
        self._queue.clear()
        for exchange in lost:
            exchange.reply = exchange.layout.action  # a plugin may keep the request, and must not keep what watches it
        return lost
