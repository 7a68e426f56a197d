"""Broker to client: matching replies with requests, calling quota callbacks, editing and sending replies.

One per upstream connection, run by `headrace.proxy.connection.client_connection`. A reply is never held back (KIP-219):
a throttle mutes the client's channel, and the reply has the remaining time. Each read, and the write that follows it,
is one synchronous step, which the poller calls (`ReplyRelay._step`). The task runs only while the client accepts no
more bytes, or while replies of the proxy itself have to be sent first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from headrace.proxy.connection.collected_replies import (
    body_of,
    edited_in_steps,
    set_throttle,
    settled_fetch_in_steps,
)
from headrace.proxy.connection.enforcement import enforce_on_fetched, enforce_on_reply
from headrace.proxy.connection.relay import FRAMES_A_STEP, HEAD_BYTES, READS_A_STEP, SPLICE_FROM_BYTES, Relay
from headrace.proxy.connection.reply_edits import amended_in_steps, edit_reply, names_topics
from headrace.proxy.connection.state.reply_actions import (
    AnswerLocally,
    Forward,
    KeepForProxy,
    Observe,
    PassToken,
    Rewrite,
    Settle,
    WalkFetch,
)
from headrace.proxy.connection.state.thread_time import Stopwatch
from headrace.proxy.connection.state.timeouts import end_if_done
from headrace.proxy.errors import UpstreamFault
from headrace.proxy.long_work import LONG_STEP_BYTES, run_one_slice
from headrace.proxy.network.sockets import READ_BYTES
from headrace.proxy.wire.errors import MalformedFrame
from headrace.proxy.wire.heads import LENGTH_BYTES, PLAIN_BODY_AT, frame_size, read_response_head, response_body_at
from headrace.proxy.wire.messages.stepwise import finish
from headrace.proxy.wire.walks.fetch import FetchWalk
from headrace.proxy.wire.walks.fetched_topics import FetchedTopicsWalk
from headrace.quota_callbacks.api_keys import API_NAMES

if TYPE_CHECKING:
    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.connection.state.in_flight import Exchange
    from headrace.proxy.network.sockets import Socket
    from headrace.proxy.wire.messages.stepwise import Steps

_EDITED: Final = (Rewrite, Settle)
"""The actions that decode the reply."""
SETTLED_FETCH_BYTES: Final = 2 * 1024 * 1024
"""The longest reply to a Fetch that is collected to be charged by topic, so that it has the throttle time: a full
partition by the defaults of clients (``max.partition.fetch.bytes``, 1 MiB), and some more. A longer one is forwarded
while it is read."""


class _LargeReply(Exception):  # noqa: N818 -- ends the scan; a flag would cost something for each reply
    """The task continues with the reply that was collected."""


class ReplyRelay(Relay):
    """The broker's side of one connection."""

    __slots__ = ("_current", "_done", "_ended", "_large", "_sending", "_sent_to", "_upstream")

    def __init__(self, state: ConnectionState, upstream: Socket) -> None:
        super().__init__(state)
        self._upstream = upstream
        self._sent_to = 0
        self._current: Exchange | None = None
        """The request whose reply is being read."""
        self._done: list[Exchange] = []
        self._large: Steps[bytes | memoryview] | None = None
        """The work for a large reply that was collected, which the task continues; it returns the reply to send."""
        self._ended = False
        self._sending = False
        """Whether some bytes could not be sent without waiting."""

    @property
    def is_at_rest(self) -> bool:
        """Whether all that was read was sent."""
        return (
            self._current is None
            and self._large is None
            and not (self._sending or self.held or self.tail or self.parts or self._done)
            and (self.splice is None or not self.splice.held)
        )

    def continue_with(self, tail: bytes, left: int) -> None:
        """See `Relay.continue_with`."""
        super().continue_with(tail, left)
        if left:
            self._current = self.state.in_flight.first

    @property
    def mid_reply(self) -> bool:
        """Whether a reply has been read in part."""
        return self._current is not None or bool(self.tail)

    async def run(self) -> None:
        """Relay until the broker closes its side. Raises `UpstreamFault`, `PeerFault` or ``OSError``."""
        state = self.state
        try:
            while not self._ended:
                if state.local_replies_first:
                    await state.send_local_replies_first()
                if self.held:
                    self._upstream.may_read = True
                await self._upstream.steps(self._step)
                if self._sending:
                    await self._send()
                if self._large is not None:
                    await self._edit_large(self._large)
                self.shared.grant_credits()
        finally:
            self._charge_walked()
            self._complete_unsent()
            self.close()
            state.holders.remove(self)

    def _complete_unsent(self) -> None:
        """Report the requests whose replies were read, and not accepted by the client to their ends."""
        done, self._done = self._done, []
        for exchange in done:
            exchange.error = self.state.reason or "connection closed"
            self.state.completed(exchange)

    def _charge_walked(self) -> None:
        """Charge the part of a Fetch reply that was sent, if the connection ends in it."""
        walk, exchange = self.walk, self._current
        if isinstance(walk, FetchedTopicsWalk) and exchange is not None:
            exchange.fetched_bytes = walk.by_topic
            enforce_on_fetched(self.state, exchange, self.shared.clock())

    def _step(self) -> bool:  # noqa: C901 -- on the path of every reply
        """Read, scan and send what can be sent without waiting.

        Return ``False`` if the task has to continue: the broker has closed its side, the client does not read, or an
        answer of the proxy itself has to be sent first.
        """
        upstream = self._upstream
        for _ in range(READS_A_STEP):
            if self.state.local_replies_first:
                return False
            if self.to_splice():
                moved = self._splice_now()
                if self._sending:
                    return False
                if not upstream.may_read or (moved and self.to_splice()):
                    return True
            kept = self.put_tail_back()
            end: int | None
            if self.held:
                self.held, end = False, kept
            else:
                end = self.receive(upstream, kept)
            if end is None:
                self.expect_rest(upstream)
                return True
            if end == 0:
                self._check_end()
                self._ended = True
                return False
            self.state.last_active_s = self.now_s = self.shared.clock()
            try:
                if not self.take(end):
                    return False
            except _LargeReply:
                self._keep_rest(end)
                return False
            if self.held:
                return True
            if not upstream.may_read:
                self.expect_rest(upstream)
                return True
        return True

    def _check_end(self) -> None:
        if self.left:
            raise UpstreamFault(f"the broker closed in the middle of a reply, {self.left} bytes missing")

    # --- scanning ---

    def scan(self, end: int) -> None:  # noqa: C901 -- on the path of every reply
        """Match the replies in the buffer with their requests, and add what is to be sent to `parts`."""
        scanner = self.scanner
        scanner.feed(self.shared.view, end)
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
                    if len(frame) > LONG_STEP_BYTES:
                        self._collected_much(frame)
                    else:
                        self._collected(frame)
            elif self.walk is not None:
                self.walk_on(self.walk, at, end)
                if self.walk.pauses:
                    self.held = self._upstream.may_read = True  # to be called again, after others
                    break
            else:
                scanner.advance()
            if self._is_over():
                self._finish()
                if scanner.position >= end:
                    break
                if len(self._done) >= FRAMES_A_STEP:
                    self.held = self._upstream.may_read = True  # to be called again, after others
                    break
            elif scanner.position == at:
                break  # more bytes are needed
        self._forward_to(scanner.position)
        if scanner.position < end or self.held_here or scanner.collecting:
            self.keep_tail()

    def _is_over(self) -> bool:
        if self._current is None:
            return False
        if self.walk is not None:
            return self.walk.done
        return self.scanner.left == 0

    def _forward_to(self, end: int) -> None:
        """Add the bytes between the last part and ``end`` to the next write, unchanged."""
        if end > self._sent_to:
            self.parts.append(self.shared.view[self._sent_to : end])
            self._sent_to = end

    def _begin(self, at: int, end: int) -> bool:
        """Read the head of the reply that begins at ``at``; return ``False`` if more bytes are needed."""
        exchange = self.state.in_flight.first
        if exchange is None:
            raise UpstreamFault("the broker sent a reply without a request")
        buffer, limit = self.shared.view, self.state.limits.max_frame_bytes
        action = exchange.reply
        if isinstance(action, PassToken):
            size = frame_size(buffer, at, end, limit, 0)
            if size is None:
                return False
            self._current = exchange
            if action.watch is None:
                self.scanner.skip(size)
            else:
                self._collect(at, size)
            return True
        head = read_response_head(buffer, at, end, limit)
        if head is None:
            return False
        size, correlation_id = head
        if correlation_id != exchange.correlation_id:
            raise UpstreamFault(
                f"the broker answered request {correlation_id} instead of request {exchange.correlation_id}"
            )
        body_at: int | None = PLAIN_BODY_AT
        if exchange.layout.flexible:
            if size > PLAIN_BODY_AT - LENGTH_BYTES and end - at > PLAIN_BODY_AT and buffer[at + PLAIN_BODY_AT] == 0:
                body_at = PLAIN_BODY_AT + 1  # no tagged fields, which is the usual case
            else:
                body_at = response_body_at(buffer, at, end, size, exchange.api_key, exchange.api_version)
        return body_at is not None and self._begin_body(exchange, at, end, size, body_at)

    def _begin_body(self, exchange: Exchange, at: int, end: int, size: int, body_at: int) -> bool:
        """Call the callbacks for the reply, and begin to forward or collect it, according to its action."""
        scanner, action = self.scanner, exchange.reply
        throttle_at = exchange.layout.throttle_at
        forwards = isinstance(action, Forward)
        passes = forwards or (isinstance(action, WalkFetch) and not (action.by_topic and size <= SETTLED_FETCH_BYTES))
        if throttle_at is not None and passes:
            if body_at + throttle_at + 4 > size + LENGTH_BYTES:
                raise MalformedFrame(f"a {API_NAMES[exchange.api_key]} reply ends before its throttle time")
            if end < at + body_at + throttle_at + 4:
                return False
        now_s = self.now_s
        exchange.reply_s = now_s
        exchange.response_bytes = size
        exchange.response_header_bytes = body_at - LENGTH_BYTES
        large = forwards and size >= SPLICE_FROM_BYTES and self.state.can_splice
        self.read_bytes = HEAD_BYTES if large else READ_BYTES
        authentication = self.state.authentication
        asked_by_proxy = isinstance(action, KeepForProxy)  # the code that asked reads the reply first
        if authentication is not None and exchange.connection.authenticating and not asked_by_proxy:
            authentication.answered(exchange.api_key)
            exchange.authenticating = exchange.connection.authenticating
        if not isinstance(action, Settle):
            enforce_on_reply(self.state, exchange, now_s)
        self._current = exchange
        if not passes:
            self._collect(at, size)
            return True
        if throttle_at is not None:
            set_throttle(self.state, self.shared.view, exchange, at + body_at + throttle_at, now_s)
        if forwards:
            scanner.skip(size)
        else:
            body_bytes = size + LENGTH_BYTES - body_at
            by_topic = isinstance(action, WalkFetch) and action.by_topic
            self.walk = FetchedTopicsWalk(exchange.api_version, body_bytes) if by_topic else FetchWalk(body_bytes)
            scanner.pass_bytes(body_at)
        return True

    def _collect(self, at: int, size: int) -> None:
        self._forward_to(at)
        frame = self.scanner.collect(size, self.state.limits.max_collected_bytes, "limits.max_collected_bytes")
        self._sent_to = self.scanner.position
        if frame is not None:
            exchange, in_flight = self._current, self.state.in_flight
            added = in_flight.bytes_of_amendment(exchange) if in_flight.amendments and exchange is not None else 0
            if size + added > LONG_STEP_BYTES:
                self._collected_much(frame)
            else:
                self._collected(frame)

    def _keep_rest(self, end: int) -> None:
        """Keep what the buffer has before and behind a large reply, which the task edits."""
        self.parts = [b"".join(self.parts)] if self.parts else []
        self.held = self.scanner.position < end
        self.keep_tail()

    async def _edit_large(self, steps: Steps[bytes | memoryview]) -> None:
        """Edit a large reply when it is this connection's turn for long steps, and send it."""
        info, watch = self.state.info, Stopwatch(self.shared.thread_time)
        edited = await self.shared.long_steps.run(self.state.counts_for, steps, watch.paused)
        if info.measure_thread_time:
            info.thread_ns += watch.take_ns()
        self._large, self.waiting_bytes = None, 0
        self.count_held()
        self.parts.append(edited)
        self._finish()
        self._begin_sending()
        await self._send()

    def _collected_much(self, frame: bytes) -> None:
        """Process a large reply that was collected, or leave it to the task if that takes long."""
        exchange = self._current
        if exchange is None:
            raise AssertionError("a reply was collected for no request")
        action = exchange.reply
        if isinstance(action, WalkFetch):  # only one of many partitions takes long
            steps: Steps[bytes | memoryview] = settled_fetch_in_steps(self.state, exchange, frame)
            settled = run_one_slice(steps)
            if settled is not None:
                self.parts.append(settled)
                return
        elif isinstance(action, _EDITED):
            steps = edited_in_steps(self.state, exchange, action, frame)
        else:
            self._collected(frame)
            return
        self._large, self.waiting_bytes = steps, len(frame)
        raise _LargeReply

    def _collected(self, frame: bytes) -> None:
        """Process a collected reply according to its action."""
        exchange = self._current
        if exchange is None:
            raise AssertionError("a reply was collected for no request")
        action = exchange.reply
        body = body_of(exchange, frame)
        match action:
            case KeepForProxy():
                action.take(bytes(body))
            case Observe() | PassToken():
                exchange.reply = exchange.layout.action  # drop the watcher: a plugin may keep the request
                if action.watch is not None:
                    action.watch(body)
                self.parts.append(frame)
            case Rewrite() if action.merge is None and not names_topics(self.state, exchange):
                # most replies that are edited, which need no steps
                edited = edit_reply(self.state, exchange, frame)
                if self.state.in_flight.amendments:
                    edited = finish(
                        amended_in_steps(self.state, exchange, edited, LENGTH_BYTES + exchange.response_header_bytes)
                    )
                self.parts.append(edited)
            case Rewrite() | Settle():
                self.parts.append(finish(edited_in_steps(self.state, exchange, action, frame)))
            case WalkFetch():
                self.parts.append(finish(settled_fetch_in_steps(self.state, exchange, frame)))
            case Forward() | AnswerLocally():
                raise AssertionError(f"the reply to {exchange.api_key} v{exchange.api_version} must not be collected")
            case _:
                assert_never(action)

    def _finish(self) -> None:
        """Remove the request whose reply is complete, and add the proxy's own replies that are next."""
        walk, exchange = self.walk, self._current
        self.walk = self._current = None
        if isinstance(walk, FetchWalk):
            self.shared.counters.hints_hidden += walk.hints
            if isinstance(walk, FetchedTopicsWalk) and exchange is not None:
                exchange.fetched_bytes = walk.by_topic
                enforce_on_fetched(self.state, exchange, self.now_s)
        in_flight = self.state.in_flight
        self._done.append(in_flight.pop())
        while (reply := in_flight.local_reply) is not None:
            if len(self._done) >= FRAMES_A_STEP:
                self._upstream.may_read = True  # the task sends the others
                return
            self._forward_to(self.scanner.position)
            self.parts.append(reply.make())
            self._done.append(in_flight.pop())

    # --- sending ---

    def send_now(self) -> bool:
        """Send what was scanned; return ``False`` if the client accepts only a part now; `_send` sends the rest."""
        state, parts = self.state, self.parts
        if parts:
            self.parts = []
            if not state.client.send_now(parts, more=self.to_splice() > 0):
                self._begin_sending()
                return False
        self._sent()
        return True

    def _begin_sending(self) -> None:
        """Leave the rest of what was scanned to `_send`, which waits until the client accepts it."""
        self._sending = True
        self.state.begin_reply()

    async def _send(self) -> None:
        """Send the remaining bytes, waiting until the client has accepted them."""
        state = self.state
        if self.splice is not None and self.splice.held:
            await self.splice.drain()
        parts, self.parts = self.parts, []
        await state.client.send(parts)
        self._sending = False
        state.end_reply()
        self._sent()
        await state.flush_local_replies()

    def _sent(self) -> None:
        state = self.state
        if self._done:
            done, self._done = self._done, []
            for exchange in done:
                state.completed(exchange)
        if state.ends_when_quiet:
            end_if_done(state)

    def _splice_now(self) -> int | None:
        """Splice the part of a large frame that has arrived; set `_sending` if the client does not accept all of it."""
        moved = self.move(self._upstream, self.state.client)
        splice = self.splice
        if moved:
            if self._is_over():
                self._finish()
            if (splice is not None and splice.held) or self.parts:
                self._begin_sending()
            else:
                self._sent()
        elif moved == 0 and splice is not None and splice.ended:
            self._check_end()
        return moved
