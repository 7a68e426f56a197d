"""The requests of one connection that wait for their replies, in order; Kafka answers a connection strictly in turn.

A reply that the proxy gives itself stands in the same queue, so that it goes out in its turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from quota_callbacks.requests import Connection, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.reply_plans import ReplyPlan


class Exchange(Request):
    """A request in flight and what is to be done with its reply."""

    __slots__ = (
        "answer_to_proxy",
        "edit_body",
        "enforced",
        "local_reply",
        "observed",
        "plan",
        "throttle_after_hold_s",
        "watch_reply",
    )

    def __init__(
        self,
        connection: Connection,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str,
        request_bytes: int,
        received_s: float,
        plan: ReplyPlan,
    ) -> None:
        super().__init__(connection, api_key, api_version, correlation_id, client_id, request_bytes, received_s)
        self.plan = plan
        self.local_reply: Callable[[], bytes] | None = None
        """Makes, when its turn has come, the whole frame that the proxy answers by itself; nothing was forwarded."""
        self.edit_body: Callable[[bytes, int], bytes] | None = None
        """Given the reply's body and the throttle time in ms, the body to send instead. Makes the reply be
        collected."""
        self.watch_reply: Callable[[memoryview], None] | None = None
        """Given the reply's body, which goes out as it is. Makes the reply be collected."""
        self.answer_to_proxy: Callable[[bytes], None] | None = None
        """The proxy itself asked: given the reply's body, which the client does not get."""
        self.throttle_after_hold_s: tuple[float, str | None] | None = None
        """Until when the client is muted once this request, which is held, has gone on; and for which quota."""
        self.observed = False
        """Whether somebody wants to hear when it is completed."""
        self.enforced = False


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

    def add(self, exchange: Exchange) -> None:
        """A request was handed on, or answered by the proxy itself."""
        self._queue.append(exchange)

    def pop(self) -> Exchange:
        """The first request has got its reply."""
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
        """Read nothing more until ``exchange``, which was added, has got its reply: it may be muted for then."""
        self._alone = exchange

    async def wait_for_room(self) -> None:
        """Wait until it is no longer `full`."""
        if self.full:
            self._room = trio.Event()
            await self._room.wait()

    def forget_unanswered(self, plan: ReplyPlan) -> None:
        """Take out the last request if it is one of ``plan``: it will get no reply, and that is in order."""
        if self._queue and self._queue[-1].plan is plan:
            self._queue.pop().watch_reply = None

    def give_up(self) -> list[Exchange]:
        """Take out all that will get no reply."""
        lost = list(self._queue)
        self._queue.clear()
        for exchange in lost:
            exchange.watch_reply = None  # who keeps the request must not keep what the watcher knows
        return lost
