"""Forwarding to the broker what was read from the client.

`RequestForwarding` is the lower half of `headrace.proxy.connection.request_relay`, which reads requests and decides
about them. It writes to the broker without waiting where it can (`send_now`), and in the relay's task otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from headrace.proxy.connection.enforcement import fetch_cap
from headrace.proxy.connection.relay import Relay
from headrace.proxy.connection.state.reply_actions import SETTLE, WALK_TOPICS
from headrace.proxy.connection.state.timeouts import end_if_done
from headrace.proxy.connection.whole_requests import WholeRequests
from headrace.proxy.wire.heads import LENGTH_BYTES, cap_fetch
from headrace.proxy.wire.walks.fetched_topics import LAST_VERSION
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.connection.state.in_flight import Exchange
    from headrace.proxy.wire.heads import Buffer, RequestHead


class RequestForwarding(Relay):
    """The client's side of one connection, as far as it writes to the broker."""

    __slots__ = ("_acks_zero", "_arriving", "_whole")

    def __init__(self, state: ConnectionState) -> None:
        super().__init__(state)
        self._acks_zero: list[Exchange] = []
        """Produce requests with acks=0 that a plugin observes and that were not sent completely."""
        self._arriving: Exchange | None = None
        """The request that is being forwarded and whose last byte has not been read."""
        self._whole = WholeRequests(state, self._forward_whole)

    @property
    def unsent(self) -> list[Exchange]:
        """The Produce requests with acks=0 that a plugin observes and that were not sent completely."""
        return list(self._acks_zero)

    # --- without waiting ---

    def _forward(self, begin: int, end: int) -> None:
        if end > begin:
            self.parts.append(self.shared.view[begin:end])

    def _cap_fetch(self, exchange: Exchange, head: RequestHead, at: int) -> None:
        if head.fetch_limits_at is None:
            return
        cap = fetch_cap(exchange)
        if cap is not None:
            cap_fetch(self.shared.view, at + head.fetch_limits_at, cap)

    def _forward_whole(self, exchange: Exchange, frame: bytes, now_s: float) -> None:
        self.parts.append(frame)
        self._forwarded(exchange, now_s)

    def _forwarded(self, exchange: Exchange, now_s: float) -> None:
        exchange.forwarded_s = now_s
        state = self.state
        state.unacknowledged = exchange.api_key == ApiKey.PRODUCE and exchange.acks == 0
        if state.unacknowledged:
            if exchange.observed:
                self._acks_zero.append(exchange)
        else:
            if exchange.read_fetched:
                if exchange.api_key == ApiKey.SHARE_FETCH:
                    exchange.reply = SETTLE
                elif exchange.api_key == ApiKey.FETCH and exchange.api_version <= LAST_VERSION:
                    exchange.reply = WALK_TOPICS
            state.in_flight.add(exchange)

    def _is_one_frame(self, exchange: Exchange, parts: Sequence[Buffer | bytes]) -> bool:
        """Return whether ``parts`` have nothing but bytes of ``exchange``, whose last byte has not been read.

        A broker can do nothing with them alone, and the system sends them with the next ones.
        """
        return sum(map(len, parts)) <= LENGTH_BYTES + exchange.request_bytes - self.left

    def send_now(self) -> bool:
        """Send what was scanned, as far as possible without waiting; return ``False`` if `_send` must do the rest."""
        state = self.state
        parts = self.parts
        if parts:
            if state.upstream is None:  # copied, since other connections use the buffer while the broker is dialled
                self.parts = [b"".join(parts)]
                return False
            self.parts = []
            arriving = self._arriving
            if not state.upstream.send_now(parts, more=arriving is not None and self._is_one_frame(arriving, parts)):
                return False
        if self._whole.pending is not None or state.local_reply_is_due:
            return False
        self._complete_acks_zero()
        if state.ends_when_quiet:
            end_if_done(state)
        return True

    # --- in the relay's task ---

    async def _send(self) -> None:
        """Send what was scanned, and finish the request that is pending."""
        state = self.state
        await self._count_waiting()
        await self._send_parts()
        if self._whole.pending is not None:
            state.requesting = True
            await self._whole.settle()
            await self._send_parts()
        if self.waiting_bytes:
            self.waiting_bytes = 0
            self.count_held()
        state.requesting = False
        await state.flush_local_replies()
        self._complete_acks_zero()
        if state.ends_when_quiet:
            end_if_done(state)

    async def _count_waiting(self) -> None:
        """Count what waits for the broker to be dialled, and the request that is pending."""
        pending = self._whole.pending
        self.waiting_bytes = 0 if pending is None else len(pending.frame)
        if self.state.upstream is None:
            self.waiting_bytes += sum(map(len, self.parts))
        if self.waiting_bytes:
            self.count_held()
            if self.state.ended:  # since all connections together hold too much
                await trio.lowlevel.checkpoint_if_cancelled()

    async def _send_parts(self) -> None:
        state = self.state
        parts, self.parts = self.parts, []
        state.requesting = True
        upstream = state.upstream
        if upstream is None and parts:
            upstream = await state.dial()
        if upstream is not None:
            await upstream.send(parts)
        if self.splice is not None and self.splice.held:
            await self.splice.drain()

    def _complete_acks_zero(self) -> None:
        """Complete the requests that have been sent, except one of which a part has not arrived."""
        waiting = self._acks_zero
        if not waiting:
            return
        arriving = waiting[-1:] if self.state.mid_request and waiting[-1] is self.state.current else []
        self._acks_zero = arriving
        for exchange in waiting[: len(waiting) - len(arriving)]:
            self.state.completed(exchange)
