"""Client to broker: reading requests, calling quota callbacks, muting the client.

One per connection, run by `headrace.proxy.connection.client_connection`. Each read, and the write that follows it, is
one synchronous step, which the poller calls (`RequestRelay._step`). Bytes that cannot be forwarded yet (an incomplete
head, requests that arrived before the end of a mute) are kept and placed in front of the next ones. The task runs only
while the relay waits: for the end of a mute or a hold, for a connection to the broker, for the broker's answer to a
request of the proxy, or for the broker to accept more bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.proxy.connection.authorization.requests import passes_unread
from headrace.proxy.connection.broker_questions import become_accepted, renew_broker_login
from headrace.proxy.connection.enforcement import (
    enforce_after_hold,
    enforce_on_arrival,
    enforce_on_batches,
    enforce_on_request,
)
from headrace.proxy.connection.relay import FRAMES_A_STEP, HEAD_BYTES, READS_A_STEP, SPLICE_FROM_BYTES
from headrace.proxy.connection.request_forwarding import RequestForwarding
from headrace.proxy.connection.state.authentication import HANDSHAKE_APIS
from headrace.proxy.connection.state.in_flight import Exchange
from headrace.proxy.connection.state.reply_actions import TOKEN_LAYOUT, PassToken, reply_layout
from headrace.proxy.connection.state.timeouts import end_if_old
from headrace.proxy.errors import ClientFault, ClientGone
from headrace.proxy.network.sockets import READ_BYTES
from headrace.proxy.wire.heads import LENGTH_BYTES, RequestHead, bytes_to_continue, frame_size, read_request_head
from headrace.proxy.wire.walks.produce import ProduceWalk
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey
from headrace.quota_callbacks.entities import SHORT_NAME, bounded_name

if TYPE_CHECKING:
    from headrace.proxy.connection.state.authentication import Authentication
    from headrace.proxy.connection.state.connection_state import ConnectionState

NO_API_KEY: Final = -1
"""The API key of an exchange that is a SASL token without a header."""

FRAMES: Final = range(FRAMES_A_STEP)

MAX_HANDSHAKES: Final = 100
"""The most handshake requests and SASL tokens of a client that the broker has not accepted. Clients send two to eight:
ApiVersions, perhaps in two versions, SaslHandshake, and up to five tokens (Kerberos)."""

_LOGIN_APIS: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""The APIs that the proxy answers while it authenticates a client. A broker closes the connection for any other API."""


class RequestRelay(RequestForwarding):
    """The client's side of one connection."""

    __slots__ = ("_ended", "_handshakes", "_held_request", "_needed", "_unaccepted", "_walked")

    def __init__(self, state: ConnectionState) -> None:
        super().__init__(state)
        self._ended = False
        self._handshakes = 0
        """Number of handshake requests and tokens before the client was accepted."""
        self._needed = 0
        """Number of bytes that the buffer must have before an incomplete head is read again."""
        self._held_request: tuple[Exchange, RequestHead] | None = None
        """The request at the front of the tail, if callbacks were called for it and it is held."""
        self._walked: Exchange | None = None
        """The Produce that is being walked through, because a callback requires its batches."""
        self._unaccepted: RequestHead | None = None
        """The request at the front of the tail, if it waits until the broker has shown that it serves this client, or
        until the proxy has authenticated to it again."""

    def drop_held(self) -> None:
        """Free the bytes that it holds, and note how many of the request that is being forwarded were not read."""
        exchange = self._arriving
        if exchange is not None:  # called more than once, and the walk is there only the first time
            exchange.missing_bytes = max(exchange.missing_bytes, self.left)
        super().drop_held()

    @property
    def is_at_rest(self) -> bool:
        """Whether all that was read was forwarded, or is the `tail`, which begins with a frame."""
        return (
            self.scanner.left == 0
            and self.walk is None
            and self._arriving is None
            and self._held_request is None
            and self._unaccepted is None
            and self._whole.pending is None
            and not (self._needed or self.parts or self._acks_zero)
            and len(self.tail) <= READ_BYTES
            and (self.splice is None or not self.splice.held)
        )

    def take_tail(self) -> bytes:
        """Return the tail, and free it."""
        tail, self.tail, self.held = bytes(self.tail), b"", False
        self.count_held()
        return tail

    def continue_with(self, tail: bytes, left: int) -> None:
        """See `Relay.continue_with`."""
        super().continue_with(tail, left)
        if left:
            self._arriving = self.state.current
            self.state.mid_request = True

    def unsettled_requests(self) -> list[Exchange]:
        """Return the requests that callbacks were called for and that are not in flight: one that was not forwarded
        yet or that is refused, and a Produce with acks=0 that was read in part."""
        found = self._whole.unanswered
        if self._held_request is not None:
            found.append(self._held_request[0])
        if self._whole.pending is not None:
            found.append(self._whole.pending.exchange)
        if self._arriving is not None and self._arriving.acks == 0:
            found.append(self._arriving)
        return found

    async def run(self) -> None:
        """Relay until the client closes its side. Raises `ClientFault`, `PeerFault` or ``OSError``."""
        try:
            await self._relay()
        finally:
            self.close()
            self._whole.close()

    async def _relay(self) -> None:
        state = self.state
        while True:
            self.now_s = self.shared.clock()
            if self._unaccepted is not None:
                if self._held_request is None:
                    await become_accepted(state, self._unaccepted)
                else:
                    await renew_broker_login(state, self._unaccepted)
                self._unaccepted = None
            if self._must_hold() or (self.held and self._must_wait_for_reply()):
                await state.wait_for_turn()
                if state.ends_when_quiet:  # the end of a mute may be the time for it
                    end_if_old(state, self.shared.clock())
                    continue
            if self.held:
                state.client.may_read = True
            await state.client.steps(self._step)
            if self._ended:
                self._check_end()
                return
            if state.requesting:
                await self._send()
                self.shared.grant_credits()

    def _step(self) -> bool:  # noqa: C901 -- on the path of every request
        """Read, scan and forward what can be forwarded without waiting.

        Return ``False`` if the task has to continue: nothing may be read now, the client has closed its side, or
        something must be waited for (``requesting``).
        """
        state = self.state
        client = state.client
        self.now_s = self.shared.clock()
        if state.native is not None and state.native.try_to_begin(self.now_s):
            return True
        for _ in range(READS_A_STEP):
            if self.to_splice():
                moved = self._splice_now()
                if state.requesting:
                    return False
                if not client.may_read or (moved and self.to_splice()):
                    return True
            if self._must_hold():
                return False
            end = self._read()
            if end is None:
                self.expect_rest(client)
                return True
            if end == 0:
                self._ended = True
                return False
            state.requesting = not self.take(end)
            if state.requesting:
                return False
            if self.held:
                if self.yields:
                    self.yields = False
                    client.may_read = True  # to be called again, after others
                    return True
                return False
            if not client.may_read:
                self.expect_rest(client)
                return True
        return True

    def _read(self) -> int | None:
        """Fill the buffer with the tail and one read of the socket. Return the end of the bytes, as `receive` does."""
        if self._needed:
            return self._read_more()
        kept = self.put_tail_back()
        if self.held:
            self.held = False
            return kept
        end = self.receive(self.state.client, kept)
        if end:
            self.state.last_active_s = self.now_s
        return end

    def _read_more(self) -> int | None:
        """Read more of an incomplete head, as `_read`; return ``None`` while it is shorter than ``_needed``."""
        kept = len(self.tail)
        end = self.receive(self.state.client, kept)
        if not end:
            return end
        if end >= self._needed:
            self._needed = 0
            self.put_tail_back()
            return end
        if not isinstance(self.tail, bytearray):
            self.tail = bytearray(self.tail)
        self.tail += self.shared.view[kept:end]
        self.count_held()
        return None

    def _check_end(self) -> None:
        if self.scanner.mid_frame or self.tail or self.walk is not None:
            missing = f", {self.scanner.left} bytes missing" if self.scanner.mid_frame else ""
            raise ClientGone(f"the client closed in the middle of a request{missing}")

    def _must_hold(self) -> bool:
        state = self.state
        return self.scanner.left == 0 and self.walk is None and (state.must_hold or state.mute.until_s > self.now_s)

    def _must_wait_for_reply(self) -> bool:
        """Return whether a request that was read must not be forwarded before the reply to an earlier one."""
        return self.state.in_flight.alone is not None and self.scanner.left == 0 and self.walk is None

    # --- scanning ---

    def scan(self, end: int) -> None:  # noqa: C901 -- on the path of every request
        """Find the requests in the buffer, call the callbacks, and add what is to be forwarded to `parts`."""
        scanner = self.scanner
        in_flight = self.state.in_flight
        scanner.feed(self.shared.view, end)
        sent_to = 0
        if scanner.left:
            sent_to = self._continue_frame()
            self._note_progress()
        for _ in FRAMES:
            if scanner.position >= end:
                break
            if (
                self._whole.pending is not None
                or self._must_hold()
                or (in_flight.alone is not None and self.walk is None)
            ):
                self.held = True
                break
            at = scanner.position
            walk = self.walk
            if walk is not None:
                self.walk_on(walk, at, end)
                if not walk.done:
                    self.held = self.yields = walk.pauses
                    break
                self._end_walk()
                continue
            size = self._next_frame(at, end)
            if size is None:
                self.held = self._held_request is not None or self._unaccepted is not None
                break
            if size < 0:  # the frame must be collected
                self._forward(sent_to, at)
                frame = scanner.collect(-size, *self._whole.longest())
                sent_to = scanner.position
                if frame is not None:
                    self._whole.collected(frame)
            elif self.walk is None:
                scanner.skip(size)
        else:
            self.held = self.yields = scanner.position < end
        self._forward(sent_to, scanner.position)
        self._note_progress()
        if scanner.position < end or self.held_here or scanner.collecting:
            self.keep_tail()
        if in_flight.uncounted:
            in_flight.count_held()

    def _continue_frame(self) -> int:
        """Continue in the middle of a frame; return the start of the bytes to be forwarded."""
        scanner = self.scanner
        collecting = scanner.collecting
        frame = scanner.advance()
        if frame is not None:
            self._whole.collected(frame)
        return scanner.position if collecting else 0

    def _note_progress(self) -> None:
        """Note whether a request is forwarded in part; call the callbacks for one whose last byte was just read."""
        scanner = self.scanner
        self.state.mid_request = mid_request = self.walk is not None or (scanner.left > 0 and not scanner.collecting)
        exchange = self._arriving
        if exchange is not None and not mid_request:
            self._arriving = None
            enforce_on_arrival(self.state, exchange, self.now_s)

    def _end_walk(self) -> None:
        """Call the callbacks for a Produce whose batches have all been read."""
        walk, exchange = self.walk, self._walked
        self.walk = self._walked = None
        if exchange is not None and isinstance(walk, ProduceWalk):
            self.state.in_flight.note_batches(exchange, walk)
            enforce_on_batches(self.state, exchange, self.now_s)
        self._note_progress()

    def _next_frame(self, at: int, end: int) -> int | None:
        """Begin the frame at ``at``. Return its size, negative if it must be collected, or ``None`` if more bytes are
        needed or the request has to wait."""
        if self._held_request is not None:
            return self._released(*self._held_request, at)
        state = self.state
        buffer = self.shared.view
        limit = state.limits.max_frame_bytes
        authentication = state.authentication
        if authentication is not None and authentication.tokens is not None:
            is_token = authentication.is_token(buffer, at, end)
            if is_token is None:
                return None
            if is_token:
                return self._token(authentication, at, end, limit)
            if authentication.end_tokens():
                state.in_flight.forget_unanswered_token()
        elif state.sasl is not None and state.sasl.expects_token:
            return self._token_for_proxy(at, end, limit)
        head = read_request_head(buffer, at, end, limit)
        if head is None:
            self._needed = bytes_to_continue(buffer, at, end)
            return None
        if state.asks_from_s <= self.now_s and self._waits_for_acceptance(head):
            return None
        return self._received(head, at)

    def _waits_for_acceptance(self, head: RequestHead) -> bool:
        """Return whether the request must wait until the client is accepted, or its session is continued."""
        state = self.state
        sasl = state.sasl
        if sasl is not None and sasl.exchange is not None and head.api_key not in _LOGIN_APIS:
            raise ClientFault(f"{API_NAMES[head.api_key]} in the middle of an authentication, where it is not served")
        if not state.accepted and state.update_accepted():
            return False
        if head.api_key in HANDSHAKE_APIS:
            if not state.accepted:
                self._count_handshake(API_NAMES[head.api_key], head.size)
            is_over = sasl is not None and sasl.session_end_s <= self.now_s
            waits = is_over or state.logs_in_next or state.token_login is not None
            if head.api_key != ApiKey.API_VERSIONS or not waits:
                return False
        self._unaccepted = head
        return True

    def _count_handshake(self, what: str, size: int) -> None:
        """Raise `MalformedFrame` if ``what``, which brokers serve before authentication, is too long, and `ClientFault`
        if it is one too many."""
        self._whole.check_handshake(what, size)
        self._handshakes += 1
        if self._handshakes > MAX_HANDSHAKES:
            raise ClientFault(
                f"{self._handshakes} requests before the broker accepted the client; at most {MAX_HANDSHAKES} may"
                " precede the end of its login"
            )

    def _token(self, authentication: Authentication, at: int, end: int, limit: int) -> int | None:
        state = self.state
        size = frame_size(self.shared.view, at, end, limit, 0)
        if size is None or authentication.tokens is None:
            return size
        self._count_handshake("a SASL token", size)
        authentication.tokens.passed()
        token = Exchange(state.info, NO_API_KEY, 0, 0, "", size, self.now_s, TOKEN_LAYOUT)
        state.current = token
        if size:
            return -size
        token.reply = PassToken(authentication.token(b""))
        state.in_flight.add(token)
        return size

    def _token_for_proxy(self, at: int, end: int, limit: int) -> int | None:
        """Begin a token without a header of a client that the proxy authenticates. Return as `_next_frame`."""
        state = self.state
        size = frame_size(self.shared.view, at, end, limit, 1)
        if size is None:
            return None
        if state.accepted:
            self._whole.check_handshake("a SASL token", size)
        else:
            self._count_handshake("a SASL token", size)
        state.current = Exchange(state.info, NO_API_KEY, 0, 0, "", size, self.now_s, TOKEN_LAYOUT)
        state.collected_head = RequestHead(size, NO_API_KEY, 0, 0, "", LENGTH_BYTES)
        return -size

    def _received(self, head: RequestHead, at: int) -> int | None:
        shared, state, now_s = self.shared, self.state, self.now_s
        self.read_bytes = READ_BYTES
        api_key = head.api_key
        exchange = Exchange(
            state.info,
            api_key,
            head.api_version,
            head.correlation_id,
            head.client_id,
            head.size,
            now_s,
            reply_layout(api_key, head.api_version),
        )
        if head.body_at > SHORT_NAME:  # otherwise the client id has fewer bytes than that
            exchange.client_id = bounded_name(head.client_id)
        exchange.acks = head.acks
        exchange.arrived = self.scanner.end - at >= LENGTH_BYTES + head.size
        exchange.in_flight = len(state.in_flight)
        exchange.observed = api_key in shared.hooks.completions
        shared.counters.requests[api_key] += 1
        state.current = exchange
        if state.native is not None:
            state.native.note_request()
        if self._whole.must_collect(exchange) or (
            shared.authorizes and not passes_unread(state, exchange, head, shared.view[at : self.scanner.end])
        ):
            state.collected_head = head
            return -head.size
        refusal = enforce_on_request(state, exchange, now_s)
        if refusal is not None:
            self._whole.refused(exchange, refusal)
            state.collected_head = head
            return -head.size
        if exchange.hold_ms:
            self._held_request = (exchange, head)
            return None
        return self._admitted(exchange, head, at)

    def _released(self, exchange: Exchange, head: RequestHead, at: int) -> int | None:
        """Forward the request whose hold is over, unless it is held again or refused, or the proxy first has to
        authenticate to the broker again. Return as `_next_frame`."""
        if self.state.broker_login_is_due(self.now_s):
            self._unaccepted = head
            return None
        held, refusal = enforce_after_hold(self.state, exchange, self.now_s)
        if held:
            return None
        self._held_request = None
        if refusal is None:
            return self._admitted(exchange, head, at)
        self._whole.refused(exchange, refusal)
        self.state.collected_head = head
        return -head.size

    def _admitted(self, exchange: Exchange, head: RequestHead, at: int) -> int:
        """Forward a request without collecting it; return its size."""
        self._cap_fetch(exchange, head, at)
        self._forwarded(exchange, self.now_s)
        if not exchange.arrived:
            self._arriving = exchange
        if exchange.read_batches:
            rows = self.state.limits.max_request_rows
            self.walk = ProduceWalk(head.api_version, LENGTH_BYTES + head.size - head.body_at, rows)
            self._walked = exchange
            self.scanner.pass_bytes(head.body_at)
        elif head.size >= SPLICE_FROM_BYTES and self.state.can_splice:
            self.read_bytes = HEAD_BYTES
        return head.size

    def _splice_now(self) -> int | None:
        """Splice the part of a large frame that has arrived; set ``requesting`` if the broker accepts only a part."""
        state = self.state
        if state.upstream is None:
            raise AssertionError("a frame was forwarded before the broker was dialled")
        moved = self.move(state.client, state.upstream)
        splice = self.splice
        if moved:
            state.requesting = splice is not None and splice.held > 0
            if self.walk is not None and self.walk.done:
                self._end_walk()
            else:
                self._note_progress()
            if not state.requesting:
                self._complete_acks_zero()
            self.shared.grant_credits()
        elif moved == 0 and splice is not None and splice.ended:
            self._check_end()
        return moved
