"""From the broker to the client: matches replies with requests, asks the quota callbacks, edits, and sends at once.

One per upstream connection, run by `proxy.client_connection`. A reply is never held back (KIP-219): what a quota says
mutes the client's channel, and the reply carries the time that remains. From read to write it is a step of the poller's
(`ReplyRelay._step`); the task runs only while the client takes nothing, or the proxy's own answers go first.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from proxy.errors import UpstreamFault
from proxy.judging import judge_reply
from proxy.reply_edits import edit_reply
from proxy.reply_plans import ReplyKind
from proxy.request_relay import HEAD_BYTES, READS_A_STEP, SPLICE_FROM_BYTES
from proxy.sockets import READ_BYTES
from proxy.splicing import Splice
from proxy.wire.errors import MalformedFrame
from proxy.wire.fetch_walk import FetchWalk
from proxy.wire.frames import FrameScanner
from proxy.wire.heads import LENGTH_BYTES, PLAIN_BODY_AT, frame_size, read_response_head, response_body_at
from proxy.wire.mutations import read_topic_errors
from quota_callbacks.api_keys import API_NAMES, ApiKey

if TYPE_CHECKING:
    from proxy.client_connection import ClientConnection
    from proxy.in_flight import Exchange
    from proxy.sockets import Channel

_INT32 = Struct(">i")


class ReplyRelay:
    """The broker's side of one connection."""

    __slots__ = (
        "_connection",
        "_current",
        "_done",
        "_ended",
        "_house",
        "_now_s",
        "_parts",
        "_read_bytes",
        "_scanner",
        "_sending",
        "_sent_to",
        "_splice",
        "_tail",
        "_upstream",
        "_walk",
    )

    def __init__(self, connection: ClientConnection, upstream: Channel) -> None:
        self._connection = connection
        self._house = connection.house
        self._upstream = upstream
        self._scanner = FrameScanner(connection.limits.max_collected_bytes)
        self._read_bytes = READ_BYTES
        self._tail = b""
        self._parts: list[memoryview | bytes] = []
        self._sent_to = 0
        self._current: Exchange | None = None
        """The request whose reply is passing."""
        self._walk: FetchWalk | None = None
        self._done: list[Exchange] = []
        self._ended = False
        self._now_s = 0.0
        """When the last bytes were read."""
        self._sending = False
        """Whether a part of what was read could not be sent at once."""
        self._splice: Splice | None = None

    @property
    def mid_reply(self) -> bool:
        """Whether a part of a reply has come and the rest has not."""
        return self._current is not None or bool(self._tail)

    async def run(self) -> None:
        """Relay until the broker ends its side. Raises `UpstreamFault`, `PeerFault` or ``OSError``."""
        connection = self._connection
        try:
            while not self._ended:
                if connection.others_reply_first:
                    await connection.let_others_reply()
                await self._upstream.steps(self._step)
                if self._sending:
                    await self._send()
        finally:
            if self._splice is not None:
                self._splice.close()

    def _step(self) -> bool:
        """Read, scan and send what can be sent without waiting. ``False`` when the task has to go on: the broker has
        ended its side, the client takes nothing, or an answer of the proxy's own goes first.
        """
        upstream = self._upstream
        for _ in range(READS_A_STEP):
            if self._connection.others_reply_first:
                return False
            if self._to_splice():
                moved = self._splice_now()
                if self._sending:
                    return False
                if not upstream.may_read or (moved and self._to_splice()):
                    return True
            end = self._read()
            if end is None:
                return True
            if end == 0:
                self._check_end()
                self._ended = True
                return False
            self._take(end)
            if self._sending:
                return False
            if not upstream.may_read:
                return True
        return True

    def _read(self) -> int | None:
        buffer, tail = self._house.view, self._tail
        kept = len(tail)
        if kept:
            buffer[:kept] = tail
        most = self._read_bytes
        if most != READ_BYTES:
            most += self._to_copy()
        count = self._upstream.receive_into(buffer[kept : kept + most])
        if count is None or count == 0:
            return count
        self._connection.last_active_s = self._now_s = self._house.clock()
        return kept + count

    def _check_end(self) -> None:
        missing = self._scanner.left if self._walk is None else self._walk.left
        if missing:
            raise UpstreamFault(f"the broker closed in the middle of a reply, {missing} bytes missing")

    def _take(self, end: int) -> None:
        """Scan what was read and send it; measure the thread time of it where somebody wants to know."""
        info = self._connection.info
        spell = self._house.spells.begin() if info.measure_thread_time else 0
        self._scan(end)
        self._send_now()
        if spell:
            info.thread_ns += self._house.spells.end(spell)

    # --- scanning ---

    def _scan(self, end: int) -> None:
        scanner = self._scanner
        scanner.feed(self._house.view, end)
        self._sent_to = 0
        while True:
            at = scanner.position
            if self._current is None:
                if at >= end or not self._begin(at, end):
                    break
            elif scanner.collecting:
                frame = scanner.advance()
                self._sent_to = scanner.position
                if frame is not None:
                    self._edited(frame)
            elif self._walk is not None:
                scanner.position = self._walk.walk(scanner.buffer, at, end)
                if self._walk.longest >= SPLICE_FROM_BYTES and self._connection.can_splice:
                    self._read_bytes = HEAD_BYTES
            else:
                scanner.advance()
            if self._is_over():
                self._finish()
            elif scanner.position == at:
                break  # it takes more bytes to go on
        self._forward_to(scanner.position)
        self._tail = scanner.tail() if scanner.position < end else b""

    def _is_over(self) -> bool:
        if self._current is None:
            return False
        if self._walk is not None:
            return self._walk.done
        return not self._scanner.mid_frame

    def _forward_to(self, end: int) -> None:
        """What lies between the last part and ``end`` goes out as it is."""
        if end > self._sent_to:
            self._parts.append(self._house.view[self._sent_to : end])
            self._sent_to = end

    def _begin(self, at: int, end: int) -> bool:
        """Look at the reply that begins at ``at``; ``False`` when too little of it is there."""
        exchange = self._connection.in_flight.first
        if exchange is None:
            raise UpstreamFault("the broker sent a reply that nobody asked for")
        buffer, limit = self._house.view, self._connection.limits.max_frame_bytes
        plan = exchange.plan
        if plan.kind is ReplyKind.TOKEN:
            size = frame_size(buffer, at, end, limit, 0)
            if size is None:
                return False
            self._current = exchange
            if exchange.watch_reply is None:
                self._scanner.skip(size)
            else:
                self._collect(at, size)
            return True
        head = read_response_head(buffer, at, end, limit)
        if head is None:
            return False
        size, correlation_id = head
        if correlation_id != exchange.correlation_id:
            raise UpstreamFault(
                f"the broker answered request {correlation_id} where {exchange.correlation_id} was its turn"
            )
        body_at: int | None = PLAIN_BODY_AT
        if plan.flexible:
            if size > PLAIN_BODY_AT - LENGTH_BYTES and end - at > PLAIN_BODY_AT and buffer[at + PLAIN_BODY_AT] == 0:
                body_at = PLAIN_BODY_AT + 1  # no tagged fields, as nearly always
            else:
                body_at = response_body_at(buffer, at, end, size, exchange.api_key, exchange.api_version)
        return body_at is not None and self._begin_body(exchange, at, end, size, body_at)

    def _begin_body(self, exchange: Exchange, at: int, end: int, size: int, body_at: int) -> bool:
        plan, scanner = exchange.plan, self._scanner
        collect = (
            plan.kind is ReplyKind.COLLECT
            or exchange.edit_body is not None
            or exchange.watch_reply is not None
            or exchange.mutations is not None
        )
        throttle_at = plan.throttle_at
        if throttle_at is not None and not collect:
            if body_at + throttle_at + 4 > size + LENGTH_BYTES:
                raise MalformedFrame(f"a {API_NAMES[exchange.api_key]} reply ends before its throttle time")
            if end < at + body_at + throttle_at + 4:
                return False
        now_s = self._now_s
        exchange.reply_s = now_s
        exchange.response_bytes = size
        exchange.response_header_bytes = body_at - LENGTH_BYTES
        passes = plan.kind is ReplyKind.PASS and not collect
        large = passes and size >= SPLICE_FROM_BYTES and self._connection.can_splice
        self._read_bytes = HEAD_BYTES if large else READ_BYTES
        authentication = self._connection.authentication
        if authentication is not None and exchange.connection.authenticating:
            authentication.answered(exchange.api_key)
            exchange.authenticating = exchange.connection.authenticating
        if exchange.mutations is None:  # of those, what the broker refused is to be known first
            judge_reply(self._connection, exchange, now_s)
        self._current = exchange
        if collect:
            self._collect(at, size)
            return True
        if throttle_at is not None:
            self._set_throttle(exchange, at + body_at + throttle_at, now_s)
        if plan.kind is ReplyKind.WALK:
            self._walk = FetchWalk(size + LENGTH_BYTES - body_at)
            scanner.pass_bytes(body_at)
        else:
            scanner.skip(size)
        return True

    def _collect(self, at: int, size: int) -> None:
        self._forward_to(at)
        frame = self._scanner.collect(size)
        self._sent_to = self._scanner.position
        if frame is not None:
            self._edited(frame)

    def _set_throttle(self, exchange: Exchange, field_at: int, now_s: float) -> None:
        buffer = self._house.view
        broker_ms: int = _INT32.unpack_from(buffer, field_at)[0]
        throttle_ms = self._connection.throttle_to_tell(exchange, broker_ms, now_s)
        if throttle_ms != broker_ms:
            _INT32.pack_into(buffer, field_at, throttle_ms)

    def _edited(self, frame: bytes) -> None:
        exchange = self._current
        if exchange is None:
            raise AssertionError("a reply was collected for no request")
        body = memoryview(frame)[LENGTH_BYTES + exchange.response_header_bytes :]
        if exchange.answer_to_proxy is not None:
            exchange.answer_to_proxy(bytes(body))
            return
        if exchange.mutations is not None:
            self._judge_mutation(exchange, body)
        watch, exchange.watch_reply = exchange.watch_reply, None
        if watch is None:
            self._parts.append(edit_reply(self._connection, exchange, frame))
        else:
            watch(body)
            self._parts.append(frame)

    def _judge_mutation(self, exchange: Exchange, body: memoryview) -> None:
        if exchange.api_key != ApiKey.METADATA:
            exchange.topic_errors = read_topic_errors(exchange.api_key, exchange.api_version, body)
        judge_reply(self._connection, exchange, self._now_s)

    def _finish(self) -> None:
        """A reply has passed whole: the next is the turn of the next request, or of the proxy's own answers."""
        self._current = None
        if self._walk is not None:
            self._house.counters.hints_hidden += self._walk.hints
            self._walk = None
        in_flight = self._connection.in_flight
        self._done.append(in_flight.pop())
        while (first := in_flight.first) is not None and first.local_reply is not None:
            self._forward_to(self._scanner.position)
            self._parts.append(first.local_reply())
            self._done.append(in_flight.pop())

    # --- sending ---

    def _send_now(self) -> None:
        """Send what was scanned; what the client does not take now is left to `_send`."""
        connection, parts = self._connection, self._parts
        if parts:
            self._parts = []
            rest = connection.client.send_now(parts, more=self._to_splice() > 0)
            if rest:
                self._parts = [rest]
                self._sending = connection.replying = True
                return
        self._sent()

    async def _send(self) -> None:
        """Wait until the client has taken it."""
        connection = self._connection
        if self._splice is not None and self._splice.held:
            await self._splice.drain()
        if self._parts:
            parts, self._parts = self._parts, []
            await connection.client.send(parts)
        self._sending = False
        connection.end_reply()
        self._sent()
        await connection.flush_local_replies()

    def _sent(self) -> None:
        connection = self._connection
        if self._done:
            done, self._done = self._done, []
            for exchange in done:
                connection.completed(exchange)
        if connection.draining:
            connection.end_if_drained()

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
        """Splice what has come of them: how many bytes, and `_sending` when the client does not take them now;
        ``None`` when they have to be copied."""
        connection, splice = self._connection, self._splice
        if splice is None:
            splice = self._splice = Splice(self._upstream, connection.client, self._house.pipes)
        moved = splice.move(self._to_splice())
        if moved is None:
            self._read_bytes = READ_BYTES
        elif moved:
            connection.spliced(moved)
            self._passed_outside(moved)
            if splice.held or self._parts:
                self._sending = connection.replying = True
            else:
                self._sent()
        elif splice.ended:
            self._check_end()
        return moved

    def _passed_outside(self, moved: int) -> None:
        if self._walk is not None:
            self._walk.passed_outside(moved)
        else:
            self._scanner.passed_outside(moved)
        if self._is_over():
            self._finish()
