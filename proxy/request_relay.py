"""From the client to the broker: reads requests, asks the quota callbacks, hands the bytes on, and mutes.

One per connection, run by `proxy.client_connection`. All that happens between a read and the write after it is
synchronous, in the process's one read buffer, and is a step of the poller's (`RequestRelay._step`); what has to wait
(a head that is not whole, requests that came before a mute ended) is kept as `_tail` and put back in front of the next
bytes. The task runs only while something waits: for a turn, for a broker that is dialled or asked or takes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from proxy.errors import ClientFault
from proxy.in_flight import Exchange
from proxy.judging import end_hold, judge_arrival, judge_batches, judge_request
from proxy.reply_plans import TOKEN_PLAN, reply_plan
from proxy.sockets import READ_BYTES, waiting
from proxy.splicing import Splice
from proxy.whole_requests import HANDSHAKE_APIS, WholeRequests, ask_for_acceptance
from proxy.wire.frames import FrameScanner
from proxy.wire.heads import LENGTH_BYTES, RequestHead, cap_fetch, frame_size, read_request_head
from proxy.wire.produce_walk import ProduceWalk
from quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from proxy.authentication import Authentication
    from proxy.client_connection import ClientConnection

SPLICE_FROM_BYTES: Final = 32 * 1024
"""What is left of a frame is spliced from here on; below, a copy costs less than the two more system calls."""

HEAD_BYTES: Final = 4096
"""What is read behind a frame, or records of one, so large that all but a head could have been spliced: the next ones
will be like it."""

SHARE_FETCH_BYTES: Final = 4 * 1024 * 1024
"""A ShareFetch may ask for so much at most. Its reply has to be held whole: the leader hints behind the records are no
tagged field that could be made inert. A consumer gets the rest with its next request."""

READS_A_STEP: Final = 4
"""Reads before others have their turn, so that one fast client does not starve them."""


class RequestRelay:
    """The client's side of one connection."""

    __slots__ = (
        "_acks_zero",
        "_arriving",
        "_connection",
        "_ended",
        "_held",
        "_house",
        "_now_s",
        "_parts",
        "_read_bytes",
        "_scanner",
        "_splice",
        "_tail",
        "_turn",
        "_unaccepted",
        "_walk",
        "_walked",
        "_whole",
    )

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._house = connection.house
        self._scanner = FrameScanner(connection.limits.max_collected_bytes)
        self._read_bytes = READ_BYTES
        self._tail = b""
        self._held = False
        """Whether `_tail` may hold whole requests, so that it is looked at before the socket is read again."""
        self._ended = False
        self._now_s = 0.0
        """When the step began; asking the clock for each request would be a tenth of its cost."""
        self._splice: Splice | None = None
        self._parts: list[memoryview | bytes] = []
        self._acks_zero: list[Exchange] = []
        self._whole = WholeRequests(connection, self._forward_whole)
        self._turn: tuple[Exchange, RequestHead] | None = None
        """The request at the front of `_tail`, which callbacks have judged and which waits for its turn."""
        self._walk: ProduceWalk | None = None
        """Through the Produce that is passing, where somebody wants to know its batches."""
        self._walked: Exchange | None = None
        self._arriving: Exchange | None = None
        """The request that is passing and whose last byte has not been read."""
        self._unaccepted: RequestHead | None = None
        """The request at the front of `_tail`, which waits until the broker has shown that it serves this client."""

    @property
    def mid_request(self) -> bool:
        """Whether a part of a request was handed on and the rest has not come."""
        return (self._scanner.mid_frame and not self._scanner.collecting) or self._walk is not None

    @property
    def _walking(self) -> bool:
        return self._walk is not None

    def unsettled(self) -> list[Exchange]:
        """Requests that callbacks were asked about and that are not in flight: one that was not forwarded yet, and a
        Produce without acks of which only a part has come."""
        found = [] if self._turn is None else [self._turn[0]]
        if self._whole.pending is not None:
            found.append(self._whole.pending.exchange)
        if self._arriving is not None and self._arriving.acks == 0:
            found.append(self._arriving)
        return found

    async def run(self) -> None:
        """Relay until the client ends its side. Raises `ClientFault`, `PeerFault` or ``OSError``."""
        try:
            await self._relay()
        finally:
            if self._held:
                waiting.count -= len(self._tail)
            if self._splice is not None:
                self._splice.close()

    async def _relay(self) -> None:
        connection = self._connection
        while True:
            self._now_s = self._house.clock()
            if self._unaccepted is not None:
                await ask_for_acceptance(connection, self._unaccepted)
                self._unaccepted = None
            if self._must_hold():
                await connection.wait_for_turn()
            if self._held:
                self._step()
            else:
                await connection.client.steps(self._step)
            if self._ended:
                self._check_end()
                return
            if connection.requesting:
                await self._hand_on()

    def _step(self) -> bool:
        """Read, scan and hand on what can be handed on without waiting. ``False`` when the task has to go on: nothing
        may be read now, the client has ended its side, or (``requesting``) somebody has to be waited for.
        """
        client = self._connection.client
        self._now_s = self._house.clock()
        for _ in range(READS_A_STEP):
            if self._to_splice():
                moved = self._splice_now()
                if self._connection.requesting:
                    return False
                if not client.may_read or (moved and self._to_splice()):
                    return True
            if self._must_hold():
                return False
            end = self._read()
            if end is None:
                return True
            if end == 0:
                self._ended = True
                return False
            self._take(end)
            if self._connection.requesting or self._held:
                return False
            if not client.may_read:
                return True
        return True

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
        most = self._read_bytes
        if most != READ_BYTES:
            most += self._to_copy()
        count = connection.client.receive_into(buffer[kept : kept + most])
        if count is None or count == 0:
            return count
        connection.last_active_s = self._now_s
        return kept + count

    def _check_end(self) -> None:
        if self._scanner.mid_frame or self._tail or self._walk is not None:
            missing = f", {self._scanner.left} bytes missing" if self._scanner.mid_frame else ""
            raise ClientFault(f"the client closed in the middle of a request{missing}")

    def _must_hold(self) -> bool:
        connection = self._connection
        return (
            (connection.in_flight.full or connection.draining or connection.mute.until_s > self._now_s)
            and not self._scanner.mid_frame
            and self._walk is None
        )

    def _take(self, end: int) -> None:
        """Scan what was read and hand it on; measure the thread time of it where somebody wants to know."""
        info = self._connection.info
        spell = self._house.spells.begin() if info.measure_thread_time else 0
        self._scan(end)
        self._connection.requesting = not self._hand_on_now()
        if spell:
            info.thread_ns += self._house.spells.end(spell)

    # --- scanning ---

    def _scan(self, end: int) -> None:
        scanner = self._scanner
        scanner.feed(self._house.view, end)
        sent_to = self._go_on() if scanner.mid_frame else 0
        self._check_arrival()
        while scanner.position < end:
            if self._whole.pending is not None or self._must_hold():
                self._held = True
                break
            at = scanner.position
            walk = self._walk
            if walk is not None:
                if self._walk_on(walk, at, end):
                    continue
                break
            size = self._next_frame(at, end)
            if size is None:
                self._held = self._turn is not None or self._unaccepted is not None
                break
            if size < 0:  # to be collected
                self._forward(sent_to, at)
                frame = scanner.collect(-size)
                sent_to = scanner.position
                if frame is not None:
                    self._whole.collected(frame)
            elif not self._walking:
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
        if walk.longest >= SPLICE_FROM_BYTES and self._connection.can_splice:
            self._read_bytes = HEAD_BYTES
        if walk.done:
            self._end_walk(walk)
            self._check_arrival()
            return True
        return False

    def _check_arrival(self) -> None:
        """Ask about the request that was passing when its last byte has been read."""
        exchange = self._arriving
        if exchange is not None and not self.mid_request:
            self._arriving = None
            judge_arrival(self._connection, exchange, self._now_s)

    def _end_walk(self, walk: ProduceWalk) -> None:
        exchange, self._walk, self._walked = self._walked, None, None
        if exchange is not None:
            exchange.batches, exchange.batches_left_out = walk.batches, walk.left_out
            judge_batches(self._connection, exchange, self._now_s)

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
        connection = self._connection
        if not connection.accepted and head.api_key not in HANDSHAKE_APIS and not connection.is_accepted():
            self._unaccepted = head
            return None
        return self._received(head, at)

    def _token(self, authentication: Authentication, at: int, end: int, limit: int) -> int | None:
        connection = self._connection
        size = frame_size(self._house.view, at, end, limit, 0)
        if size is None or authentication.tokens is None:
            return size
        authentication.tokens.passed()
        token = Exchange(connection.info, TOKEN_PLAN.api_key, 0, 0, "", size, self._now_s, TOKEN_PLAN)
        connection.current = token
        if size and self._whole.can_observe(size):
            return -size
        token.watch_reply = authentication.unseen(None) if size else authentication.token(b"")
        connection.in_flight.add(token)
        return size

    def _received(self, head: RequestHead, at: int) -> int | None:
        house, connection, now_s = self._house, self._connection, self._now_s
        self._read_bytes = READ_BYTES
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
        exchange.arrived = self._scanner.end - at >= LENGTH_BYTES + head.size
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
        self._forwarded(exchange, self._now_s)
        if not exchange.arrived:
            self._arriving = exchange
        if exchange.read_batches:
            self._walk = ProduceWalk(head.api_version, LENGTH_BYTES + head.size - head.body_at)
            self._walked = exchange
            self._scanner.pass_bytes(head.body_at)
        elif head.size >= SPLICE_FROM_BYTES and self._connection.can_splice:
            self._read_bytes = HEAD_BYTES
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

    # --- handing on ---

    def _hand_on_now(self) -> bool:
        """Send what was scanned, as far as that goes without waiting; ``False`` when `_hand_on` has to do the rest."""
        connection = self._connection
        parts = self._parts
        if parts:
            if connection.upstream is None:  # others use the buffer while the broker is dialled
                self._parts = [b"".join(parts)]
                return False
            self._parts = []
            rest = connection.upstream.send_now(parts, more=self._to_splice() > 0)
            if rest:
                self._parts = [rest]
                return False
        if self._whole.pending is not None or connection.local_reply_is_due:
            return False
        self._complete_acks_zero()
        if connection.draining:
            connection.end_if_drained()
        return True

    async def _hand_on(self) -> None:
        """The same, and wait for whom it takes."""
        connection = self._connection
        await self._send_parts()
        if self._whole.pending is not None:
            connection.requesting = True
            await self._whole.settle()
            await self._send_parts()
        connection.requesting = False
        await connection.flush_local_replies()
        self._complete_acks_zero()

    async def _send_parts(self) -> None:
        connection = self._connection
        parts, self._parts = self._parts, []
        connection.requesting = True
        if parts:
            upstream = connection.upstream or await connection.dial()
            await upstream.send(parts)
        if self._splice is not None and self._splice.held:
            await self._splice.drain()

    def _complete_acks_zero(self) -> None:
        if self._acks_zero and not self.mid_request:
            completed, self._acks_zero = self._acks_zero, []
            for exchange in completed:
                self._connection.completed(exchange)

    def _to_splice(self) -> int:
        """How many of the bytes to come, of a large frame or of the records in it, need not enter user space."""
        walk, scanner = self._walk, self._scanner
        left = walk.skip_left if walk is not None else 0 if scanner.collecting else scanner.left
        return left if left >= SPLICE_FROM_BYTES and self._connection.can_splice else 0

    def _to_copy(self) -> int:
        """How many of the bytes to come belong to the same piece and are too few to be spliced."""
        walk = self._walk
        left = walk.skip_left if walk is not None else self._scanner.left
        return left if left < SPLICE_FROM_BYTES else 0

    def _splice_now(self) -> int | None:
        """Splice what has come of them: how many bytes, and ``requesting`` when the broker does not take them now;
        ``None`` when they have to be copied."""
        connection, splice, upstream = self._connection, self._splice, self._connection.upstream
        if upstream is None:
            raise AssertionError("a frame passes before the broker is dialled")
        if splice is None or splice.target is not upstream:
            splice = self._splice = Splice(connection.client, upstream, self._house.pipes)
        moved = splice.move(self._to_splice())
        if moved is None:
            self._read_bytes = READ_BYTES
        elif moved:
            connection.spliced(moved)
            connection.requesting = splice.held > 0
            self._passed_outside(moved)
        elif splice.ended:
            self._check_end()
        return moved

    def _passed_outside(self, moved: int) -> None:
        walk = self._walk
        if walk is None:
            self._scanner.passed_outside(moved)
        else:
            walk.passed_outside(moved)
            if walk.done:
                self._end_walk(walk)
        self._check_arrival()
