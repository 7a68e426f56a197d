"""From the client to the broker: reads requests, asks the quota callbacks, hands the bytes on, and mutes.

One per connection, run by `proxy.client_connection`. All that happens between a read and the write after it is
synchronous, in the process's one read buffer; what has to wait (a head that is not whole, requests that came before a
mute ended) is kept as `_tail` and put back in front of the next bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from proxy.errors import ClientFault
from proxy.in_flight import Exchange
from proxy.judging import end_hold, judge_batches, judge_request
from proxy.reply_plans import TOKEN_PLAN, reply_plan
from proxy.sockets import READ_BYTES, waiting
from proxy.whole_requests import WholeRequests
from proxy.wire.apis import ApiKey
from proxy.wire.frames import FrameScanner
from proxy.wire.heads import LENGTH_BYTES, RequestHead, cap_fetch, frame_size, read_request_head
from proxy.wire.produce_walk import ProduceWalk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxy.authentication import Authentication
    from proxy.client_connection import ClientConnection
    from proxy.sockets import PlainChannel

SPLICE_FROM_BYTES: Final = 64 * 1024
"""What is left of a frame is spliced from here on; below, a copy costs less than the two more system calls."""

SHARE_FETCH_BYTES: Final = 4 * 1024 * 1024
"""A ShareFetch may ask for so much at most. Its reply has to be held whole: the leader hints behind the records are no
tagged field that could be made inert. A consumer gets the rest with its next request."""

READS_A_WAKE_UP: Final = 4
"""Reads before the loop is given back, so that one fast client does not starve the others."""


class RequestRelay:
    """The client's side of one connection."""

    __slots__ = (
        "_acks_zero",
        "_connection",
        "_held",
        "_house",
        "_parts",
        "_scanner",
        "_tail",
        "_turn",
        "_walk",
        "_walked",
        "_whole",
    )

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._house = connection.house
        self._scanner = FrameScanner(connection.limits.max_collected_bytes)
        self._tail = b""
        self._held = False
        """Whether `_tail` may hold whole requests, so that it is looked at before the socket is read again."""
        self._parts: list[memoryview | bytes] = []
        self._acks_zero: list[Exchange] = []
        self._whole = WholeRequests(connection, self._forward_whole)
        self._turn: tuple[Exchange, RequestHead] | None = None
        """The request at the front of `_tail`, which callbacks have judged and which waits for its turn."""
        self._walk: ProduceWalk | None = None
        """Through the Produce that is passing, where somebody wants to know its batches."""
        self._walked: Exchange | None = None

    @property
    def mid_request(self) -> bool:
        """Whether a part of a request was handed on and the rest has not come."""
        return (self._scanner.mid_frame and not self._scanner.collecting) or self._walk is not None

    @property
    def held(self) -> Exchange | None:
        """The request that was judged, or is being judged, and was not forwarded yet."""
        if self._turn is not None:
            return self._turn[0]
        return None if self._whole.pending is None else self._whole.pending.exchange

    async def run(self) -> None:
        """Relay until the client ends its side. Raises `ClientFault`, `PeerFault` or ``OSError``."""
        try:
            await self._relay()
        finally:
            if self._held:
                waiting.count -= len(self._tail)

    async def _relay(self) -> None:
        connection = self._connection
        while True:
            if self._must_hold():
                await connection.wait_for_turn()
            if not self._held:
                await connection.client.readable()
            for _ in range(READS_A_WAKE_UP):
                end = self._read()
                if end is None:
                    break
                if end == 0:
                    self._check_end()
                    return
                await self._take(end)
                if end < READ_BYTES or self._held or self._must_hold():
                    break

    def _read(self) -> int | None:
        """Fill the window: the tail, and what the socket has behind it. 0 is the end of the stream."""
        buffer, tail = self._house.view, self._tail
        kept = len(tail)
        if kept:
            buffer[:kept] = tail
        if self._held:
            self._held = False
            waiting.count -= kept
            return kept
        connection = self._connection
        count = connection.client.receive_into(buffer[kept : kept + READ_BYTES])
        if count is None or count == 0:
            return count
        connection.last_active_s = self._house.clock()
        return kept + count

    def _check_end(self) -> None:
        if self._scanner.mid_frame or self._tail or self._walk is not None:
            missing = f", {self._scanner.left} bytes missing" if self._scanner.mid_frame else ""
            raise ClientFault(f"the client closed in the middle of a request{missing}")

    def _must_hold(self) -> bool:
        connection = self._connection
        return (
            (connection.in_flight.full or connection.draining or connection.mute.until_s > self._house.clock())
            and not self._scanner.mid_frame
            and self._walk is None
        )

    async def _take(self, end: int) -> None:
        """Scan what was read and hand it on; measure the thread time of it where somebody wants to know."""
        info = self._connection.info
        spell = self._house.spells.begin() if info.measure_thread_time else None
        self._scan(end)
        if spell is not None:
            spell.done()
        await self._hand_on()
        if spell is not None:
            info.thread_ns += spell.own_ns()

    # --- synchronous part ---

    def _scan(self, end: int) -> None:
        scanner = self._scanner
        scanner.feed(self._house.view, end)
        sent_to = self._go_on() if scanner.mid_frame else 0
        while scanner.position < end:
            if self._whole.pending is not None or self._must_hold():
                self._held = True
                break
            at = scanner.position
            if self._walk is not None:
                if self._walk_on(self._walk, at, end):
                    continue
                break
            size = self._next_frame(at, end)
            if size is None:
                self._held = self._turn is not None
                break
            if size < 0:  # to be collected
                self._forward(sent_to, at)
                frame = scanner.collect(-size)
                sent_to = scanner.position
                if frame is not None:
                    self._whole.collected(frame)
            elif self._walk is None:
                scanner.skip(size)
        self._forward(sent_to, scanner.position)
        self._tail = scanner.tail() if scanner.position < end else b""
        if self._held:
            waiting.count += len(self._tail)

    def _go_on(self) -> int:
        """Go on in the middle of a frame; return where what is to be sent begins."""
        scanner = self._scanner
        collecting = scanner.collecting
        frame = scanner.advance()
        if frame is not None:
            self._whole.collected(frame)
        return scanner.position if collecting else 0

    def _forward(self, begin: int, end: int) -> None:
        if end > begin:
            self._parts.append(self._house.view[begin:end])

    def _walk_on(self, walk: ProduceWalk, at: int, end: int) -> bool:
        """Walk through the Produce that is passing; ``False`` when it takes more bytes to go on."""
        self._scanner.position = walk.walk(self._house.view, at, end)
        if walk.done:
            self._end_walk(walk)
            return True
        return False

    def _end_walk(self, walk: ProduceWalk) -> None:
        exchange, self._walk, self._walked = self._walked, None, None
        if exchange is not None:
            exchange.batches, exchange.batches_left_out = walk.batches, walk.left_out
            judge_batches(self._connection, exchange, self._house.clock())

    def _next_frame(self, at: int, end: int) -> int | None:
        """Look at the frame at ``at``: its size, negative when it has to be collected, ``None`` when too little is
        there or when it has to wait for its turn."""
        if self._turn is not None:
            (exchange, judged), self._turn = self._turn, None
            return self._admitted(exchange, judged, at)
        buffer = self._house.view
        limit = self._connection.limits.max_frame_bytes
        authentication = self._connection.authentication
        if authentication is not None and authentication.tokens is not None:
            is_token = authentication.is_token(buffer, at, end)
            if is_token is None:
                return None
            if is_token:
                return self._token(authentication, at, end, limit)
            if authentication.tokens_over():
                self._connection.in_flight.forget_unanswered(TOKEN_PLAN)
        head = read_request_head(buffer, at, end, limit)
        if head is None:
            return None
        return self._received(head, at)

    def _token(self, authentication: Authentication, at: int, end: int, limit: int) -> int | None:
        connection = self._connection
        size = frame_size(self._house.view, at, end, limit, 0)
        if size is None or authentication.tokens is None:
            return size
        authentication.tokens.passed()
        token = Exchange(connection.info, TOKEN_PLAN.api_key, 0, 0, "", size, self._house.clock(), TOKEN_PLAN)
        connection.current = token
        if size and self._whole.can_observe(size):
            return -size
        token.watch_reply = authentication.unseen(None) if size else authentication.token(b"")
        connection.in_flight.add(token)
        return size

    def _received(self, head: RequestHead, at: int) -> int | None:
        house, connection = self._house, self._connection
        now_s = house.clock()
        plan = reply_plan(head.api_key, head.api_version)
        exchange = Exchange(
            connection.info,
            head.api_key,
            head.api_version,
            head.correlation_id,
            head.client_id,
            head.size,
            now_s,
            plan,
        )
        exchange.acks = head.acks
        exchange.observed = bool(house.hooks.wants_completed(head.api_key))
        requests = house.counters.requests
        requests[head.api_key] = requests.get(head.api_key, 0) + 1
        connection.current = exchange
        if self._whole.wants(exchange):
            connection.collected_head = head
            return -head.size
        refusal = judge_request(connection, exchange, now_s)
        if refusal is not None:
            self._whole.refused(exchange, refusal)
            connection.collected_head = head
            return -head.size
        if exchange.hold_ms:
            self._turn = (exchange, head)
            return None
        return self._admitted(exchange, head, at)

    def _admitted(self, exchange: Exchange, head: RequestHead, at: int) -> int:
        """The request goes on, by its head alone."""
        self._cap_fetch(exchange, head, at)
        end_hold(self._connection, exchange)
        self._forwarded(exchange, self._house.clock())
        if exchange.read_batches:
            self._walk = ProduceWalk(head.api_version, LENGTH_BYTES + head.size - head.body_at)
            self._walked = exchange
            self._scanner.pass_bytes(head.body_at)
        return head.size

    def _cap_fetch(self, exchange: Exchange, head: RequestHead, at: int) -> None:
        if head.fetch_limits_at is None:
            return
        cap = exchange.fetch_max_bytes
        if exchange.api_key == ApiKey.SHARE_FETCH:
            cap = SHARE_FETCH_BYTES if cap is None else min(cap, SHARE_FETCH_BYTES)
        if cap is not None:
            cap_fetch(self._house.view, at + head.fetch_limits_at, cap)

    def _forward_whole(self, exchange: Exchange, frame: bytes, now_s: float) -> None:
        self._parts.append(frame)
        self._forwarded(exchange, now_s)

    def _forwarded(self, exchange: Exchange, now_s: float) -> None:
        exchange.forwarded_s = now_s
        connection = self._connection
        connection.unacknowledged = exchange.api_key == ApiKey.PRODUCE and exchange.acks == 0
        if connection.unacknowledged:
            if exchange.observed:
                self._acks_zero.append(exchange)
        else:
            connection.in_flight.add(exchange)

    # --- asynchronous part ---

    async def _hand_on(self) -> None:
        """Send what was scanned; splice what is left of a large frame."""
        connection = self._connection
        await self._send_parts()
        if self._whole.pending is not None:
            connection.requesting = True
            await self._whole.settle()
            await self._send_parts()
        connection.requesting = False
        await connection.flush_local_replies()
        if self._acks_zero and not self.mid_request:
            completed, self._acks_zero = self._acks_zero, []
            for exchange in completed:
                connection.completed(exchange)

    async def _send_parts(self) -> None:
        connection = self._connection
        upstream = connection.upstream
        parts, self._parts = self._parts, []
        connection.requesting = bool(parts)
        if upstream is None and parts:
            parts = [bytes(part) for part in parts]  # others use the buffer while the broker is dialled
            upstream = await connection.dial()
        if upstream is not None:
            await self._send(upstream, parts)

    async def _send(self, upstream: PlainChannel, parts: Sequence[memoryview | bytes]) -> None:
        if parts:
            await upstream.send(parts)
        walk, scanner, connection = self._walk, self._scanner, self._connection
        left = walk.skip_left if walk is not None else 0 if scanner.collecting else scanner.left
        if left < SPLICE_FROM_BYTES or not connection.can_splice:
            return
        moved = await connection.splice(connection.client, upstream, left)
        if moved is None:
            return
        if walk is None:
            scanner.passed_outside(moved)
        else:
            walk.passed_outside(moved)
            if walk.done:
                self._end_walk(walk)
        if moved < left:
            self._check_end()
