"""From the client to the broker: reads requests, asks the quota callbacks, hands the bytes on, and mutes.

One per connection, run by `proxy.client_connection`. All that happens between a read and the write after it is
synchronous, in the process's one read buffer; what has to wait (a head that is not whole, requests that came before a
mute ended) is kept as `_tail` and put back in front of the next bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from proxy.errors import ClientFault
from proxy.in_flight import Exchange
from proxy.refusing import answer_unsupported_version, refuse
from proxy.reply_plans import TOKEN_PLAN, reply_plan
from proxy.sockets import READ_BYTES, waiting
from proxy.wire.apis import APIS, ApiKey
from proxy.wire.frames import FrameScanner
from proxy.wire.headerless_tokens import HeaderlessTokens, handshake_mechanism
from proxy.wire.heads import RequestHead, cap_fetch, frame_size, read_request_head
from proxy.wire.walker import decode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxy.client_connection import ClientConnection
    from proxy.sockets import PlainChannel
    from quota_callbacks.verdicts import Refuse

SPLICE_FROM_BYTES: Final = 64 * 1024
"""What is left of a frame is spliced from here on; below, a copy costs less than the two more system calls."""

SHARE_FETCH_BYTES: Final = 4 * 1024 * 1024
"""A ShareFetch may ask for so much at most. Its reply has to be held whole: the leader hints behind the records are no
tagged field that could be made inert. A consumer gets the rest with its next request."""

READS_A_WAKE_UP: Final = 4
"""Reads before the loop is given back, so that one fast client does not starve the others."""


class RequestRelay:
    """The client's side of one connection."""

    __slots__ = ("_acks_zero", "_connection", "_held", "_house", "_parts", "_refusals", "_scanner", "_tail", "_tokens")

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._house = connection.house
        self._scanner = FrameScanner(connection.limits.max_collected_bytes)
        self._tail = b""
        self._held = False
        """Whether `_tail` may hold whole requests, so that it is looked at before the socket is read again."""
        self._parts: list[memoryview | bytes] = []
        self._acks_zero: list[Exchange] = []
        self._tokens: HeaderlessTokens | None = None
        self._refusals: dict[Exchange, Refuse] = {}
        """Of the request that is being collected, if any."""

    @property
    def mid_request(self) -> bool:
        """Whether a part of a request was handed on and the rest has not come."""
        return self._scanner.mid_frame and not self._scanner.collecting

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
                self._scan(end)
                await self._hand_on()
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
        if self._scanner.mid_frame or self._tail:
            missing = f", {self._scanner.left} bytes missing" if self._scanner.mid_frame else ""
            raise ClientFault(f"the client closed in the middle of a request{missing}")

    def _must_hold(self) -> bool:
        connection = self._connection
        return (
            connection.in_flight.full or connection.draining or connection.mute.until_s > self._house.clock()
        ) and not self._scanner.mid_frame

    # --- synchronous part ---

    def _scan(self, end: int) -> None:
        scanner = self._scanner
        scanner.feed(self._house.view, end)
        sent_to = 0
        if scanner.mid_frame:
            collecting = scanner.collecting
            frame = scanner.advance()
            if collecting:
                sent_to = scanner.position
                if frame is not None:
                    self._collected(frame)
        while scanner.position < end:
            if self._must_hold():
                self._held = True
                break
            at = scanner.position
            size = self._next_frame(at, end)
            if size is None:
                break
            if size < 0:  # to be collected
                self._forward(sent_to, at)
                frame = scanner.collect(-size)
                sent_to = scanner.position
                if frame is not None:
                    self._collected(frame)
            else:
                scanner.skip(size)
        self._forward(sent_to, scanner.position)
        self._tail = scanner.tail() if scanner.position < end else b""
        if self._held:
            waiting.count += len(self._tail)

    def _forward(self, begin: int, end: int) -> None:
        if end > begin:
            self._parts.append(self._house.view[begin:end])

    def _next_frame(self, at: int, end: int) -> int | None:
        """Look at the frame at ``at``: its size, negative when it has to be collected, ``None`` when too little is
        there."""
        buffer = self._house.view
        limit = self._connection.limits.max_frame_bytes
        if self._tokens is not None:
            is_token = self._tokens.is_token(buffer, at, end)
            if is_token is None:
                return None
            if is_token:
                return self._token(at, end, limit)
            self._tokens = None
        head = read_request_head(buffer, at, end, limit)
        if head is None:
            return None
        return self._received(head, at)

    def _token(self, at: int, end: int, limit: int) -> int | None:
        size = frame_size(self._house.view, at, end, limit, 0)
        if size is not None and self._tokens is not None:
            self._tokens.passed()
            now_s = self._house.clock()
            token = Exchange(self._connection.info, TOKEN_PLAN.api_key, 0, 0, "", size, now_s, TOKEN_PLAN)
            self._connection.in_flight.add(token)
        return size

    def _received(self, head: RequestHead, at: int) -> int:
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
        if not self._is_plain(exchange):
            connection.collected_head = head
            return -head.size
        refusal = self._ask(exchange, now_s)
        if refusal is not None:
            self._refusals[exchange] = refusal
            connection.collected_head = head
            return -head.size
        self._cap_fetch(exchange, head, at)
        self._forwarded(exchange, now_s)
        return head.size

    def _cap_fetch(self, exchange: Exchange, head: RequestHead, at: int) -> None:
        if head.fetch_limits_at is None:
            return
        cap = exchange.fetch_max_bytes
        if exchange.api_key == ApiKey.SHARE_FETCH:
            cap = SHARE_FETCH_BYTES if cap is None else min(cap, SHARE_FETCH_BYTES)
        if cap is not None:
            cap_fetch(self._house.view, at + head.fetch_limits_at, cap)

    def _is_plain(self, exchange: Exchange) -> bool:
        """Whether the request goes by its head alone."""
        api_key = exchange.api_key
        api = APIS[api_key]
        if api.must_know and not api.knows(exchange.api_version) and exchange.api_version > api.max_version:
            return False
        if api_key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
            self._connection.authenticates = True
            return api_key == ApiKey.SASL_AUTHENTICATE or exchange.api_version > 0
        return api_key not in self._house.hooks.bodies

    def _ask(self, exchange: Exchange, now_s: float) -> Refuse | None:
        house = self._house
        calls = house.hooks.wants_request(exchange.api_key)
        if not house.enforcement.applies(self._connection.info.user, exchange.client_id):
            return None
        exchange.enforced = True
        if not calls:
            return None
        refusal = house.hooks.request_received(calls, exchange, int(now_s * 1000))
        if exchange.throttle_ms:
            self._connection.throttled(exchange, now_s)
        return refusal

    def _forwarded(self, exchange: Exchange, now_s: float) -> None:
        exchange.forwarded_s = now_s
        connection = self._connection
        connection.unacknowledged = exchange.api_key == ApiKey.PRODUCE and exchange.acks == 0
        if connection.unacknowledged:
            if exchange.observed:
                self._acks_zero.append(exchange)
        else:
            connection.in_flight.add(exchange)

    def _collected(self, frame: bytes) -> None:
        """A request that had to be read whole is here."""
        connection = self._connection
        exchange, head = connection.current, connection.collected_head
        if exchange is None or head is None:
            raise AssertionError("a frame was collected without a head")
        connection.collected_head = None
        api = APIS[exchange.api_key]
        if api.must_know and exchange.api_version > api.max_version:
            answer_unsupported_version(connection, exchange)
            return
        body = memoryview(frame)[head.body_at :]
        refusal = self._refusals.pop(exchange, None)
        now_s = self._house.clock()
        if refusal is None:
            if exchange.api_key == ApiKey.SASL_HANDSHAKE:
                self._tokens = HeaderlessTokens(handshake_mechanism(body))
            elif exchange.api_key in self._house.hooks.bodies and api.knows(exchange.api_version):
                exchange.body = decode(f"{api.name}Request", exchange.api_version, body)
            refusal = self._ask(exchange, now_s)
        if refusal is None:
            self._parts.append(frame)
            self._forwarded(exchange, now_s)
            return
        forwarded = refuse(connection, exchange, refusal, frame[: head.body_at], body)
        if forwarded is not None:
            self._parts.append(forwarded)
            self._forwarded(exchange, now_s)

    # --- asynchronous part ---

    async def _hand_on(self) -> None:
        """Send what was scanned; splice what is left of a large frame."""
        connection = self._connection
        upstream = connection.upstream
        parts, self._parts = self._parts, []
        connection.requesting = bool(parts)
        if upstream is None and parts:
            parts = [bytes(part) for part in parts]  # others use the buffer while the broker is dialled
            upstream = await connection.dial()
        if upstream is not None:
            await self._send(upstream, parts)
        connection.requesting = False
        await connection.flush_local_replies()
        if self._acks_zero and not self._scanner.mid_frame:
            completed, self._acks_zero = self._acks_zero, []
            for exchange in completed:
                connection.completed(exchange)

    async def _send(self, upstream: PlainChannel, parts: Sequence[memoryview | bytes]) -> None:
        if parts:
            await upstream.send(parts)
        left = self._scanner.left
        connection = self._connection
        if left >= SPLICE_FROM_BYTES and connection.can_splice and not self._scanner.collecting:
            moved = await connection.splice(connection.client, upstream, left)
            if moved is None:
                return
            self._scanner.passed_outside(moved)
            if moved < left:
                self._check_end()
