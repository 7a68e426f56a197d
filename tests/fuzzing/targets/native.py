"""Targets: connections that the threads of the native data plane relay, compared with the parsers of the Python relays.

The same bytes are forwarded, charged and read, whatever pieces they arrive in; what the threads do not process comes
back as it was; fields that violate their schema are the same side's fault.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.proxy.data_plane.api_rows import Kind, api_rows
from headrace.proxy.data_plane.native import EXTENSION
from headrace.proxy.wire.apis import READ_IN_FULL
from headrace.proxy.wire.errors import MalformedFrame, MalformedMessage
from headrace.proxy.wire.heads import (
    LENGTH_BYTES,
    cap_fetch,
    read_request_head,
    read_response_head,
    response_body_at,
)
from headrace.proxy.wire.walks.fetch import FetchWalk
from headrace.proxy.wire.walks.produce import ProduceWalk
from headrace.proxy.wire.walks.produce_reply import find_produce_tail
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey
from tests.fuzzing.choices import Choices, pieces
from tests.fuzzing.wire_messages import any_version, framed, message_body, reply_frame, request_frame

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from headrace.proxy.data_plane.api_rows import ApiRow
    from headrace.proxy.wire.heads import RequestHead

APIS: Final = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.HEARTBEAT,
    ApiKey.OFFSET_COMMIT,
    ApiKey.METADATA,
    ApiKey.SHARE_FETCH,
)
PADDINGS: Final = (0, 32_000, 32_767, 32_768, 32_769, 65_535, 65_536, 65_537)
"""Bytes after the last field of a message, which all parties ignore: sizes around those of the engine."""
UNLIMITED: Final = 2**40
LONGEST: Final = 200_000
MOST_ROWS: Final = 100
CAP: Final = 5000
FETCH_BYTES: Final = (2**31 - 1, CAP)
KNOWN_ID: Final = 5
WHOLE_REPLY: Final = 64 * 1024
"""The longest frame of a Produce reply that the threads read."""
FIRST_ID: Final = 1000
NEVER_MS: Final = 2**62
HANGS_S: Final = 30.0
SPINS: Final = 200


class Engine:
    """The threads, which all inputs share, and what is charged."""

    def __init__(self) -> None:
        extension = import_module(EXTENSION)
        rows = list(api_rows(READ_IN_FULL, lambda _: (0.5, 0.25)))
        self.rows: dict[tuple[int, int], ApiRow] = {row[:2]: row for row in rows}
        self.engine: Any = extension.Engine(1, rows, latency_bounds_ns=None, sample_ratio=0.0)
        self.seen: Any = extension.SeenIds()
        self.seen.add(KNOWN_ID, NEVER_MS)
        self.produced, self.fetched, self.time = (self.engine.create_meter() for _ in range(3))

    def settle(self, meter: int, credit: int) -> int:
        """Return what was charged, and grant ``credit``."""
        charges = self.engine.withdraw(meter)
        self.engine.grant(meter, credit)
        return sum(amount for _, amount in charges)


@cache
def _engine() -> Engine:
    return Engine()


class Relayed:
    """A connection that the engine relays: ``sends`` is the side that sends, ``client`` or ``broker``."""

    def __init__(self, sends: str, **terms: Any) -> None:
        self._engine = _engine()
        self._sends = sends
        (client, proxy_client), (broker, proxy_broker) = socket.socketpair(), socket.socketpair()
        self._sockets = (client, proxy_client, broker, proxy_broker)
        for sock in self._sockets:
            sock.setblocking(False)
        self._source, self._inner, self._target = (
            (client, proxy_client, broker) if sends == "client" else (broker, proxy_broker, client)
        )
        self.came = bytearray()
        self.rest: Any = None
        usual: dict[str, Any] = {
            "client_id": b"",
            "in_flight": [],
            "request_tail": b"",
            "produced": self._engine.produced,
            "fetched": self._engine.fetched,
            "request_time": self._engine.time,
            "producer_ids": None,
            "measures_time": False,
            "fetch_bytes": FETCH_BYTES[0],
            "fetches_alone": False,
            "most_in_flight": 1000,
            "longest_frame": LONGEST,
            "most_rows": MOST_ROWS,
        }
        self.progress = self._engine.engine.relay(proxy_client.fileno(), proxy_broker.fileno(), **usual | terms)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self.rest is None:
            self._engine.engine.take_back(self.progress.id)
        for sock in self._sockets:
            sock.close()

    def relay(self, parts: Sequence[bytes]) -> bytes:
        """Send parts, one after the other, until the connection returns; return the unprocessed bytes."""
        sent, total = 0, sum(map(len, parts))
        for part in parts:
            if self.rest is None:
                self._send(part)
                sent += len(part)
        if self.rest is None:
            self.rest = self._engine.engine.take_back(self.progress.id)
        self._drain()
        tail: bytes = self.rest.request_tail if self._sends == "client" else self.rest.reply_tail
        found = bytearray(tail)
        with contextlib.suppress(BlockingIOError):
            while more := self._inner.recv(1 << 17):
                found += more
        return bytes(found) + b"".join(parts)[sent:total]

    def _send(self, part: bytes) -> None:
        """Send a part, and wait until the engine has read all of it or the connection has returned."""
        at = 0 if self._sends == "client" else 2
        left, due = memoryview(part), self.progress.bytes[at] + len(part)
        deadline_s, spins = time.monotonic() + HANGS_S, 0
        while self.rest is None and (left or self.progress.bytes[at] < due):
            if left:
                with contextlib.suppress(BlockingIOError):
                    left = left[self._source.send(left) :]
            self._drain()
            for rest in self._engine.engine.returned():
                if rest.id == self.progress.id:
                    self.rest = rest
            spins += 1
            if spins > SPINS:
                assert time.monotonic() < deadline_s, f"a hang; read {self.progress.bytes}"
                time.sleep(0.0002)
            os.sched_yield()
        while left:
            left = left[self._source.send(left) :]

    def _drain(self) -> None:
        sent = self.progress.bytes[3 if self._sends == "client" else 1]
        while len(self.came) < sent:
            self.came += self._target.recv(1 << 17)


class Expected(NamedTuple):
    """What becomes of a stream, by the parsers of the Python relays."""

    edited: bytes
    """The stream with its edits."""
    forwarded: tuple[int, int]
    """The least and the most bytes that are forwarded."""
    reasons: frozenset[str]
    fault: tuple[str, int] | None = None
    charged: int = 0
    exchanges: tuple[tuple[int, int, int, int, bool], ...] = ()
    producer_ids: tuple[int, ...] = ()
    hints: int = 0


WAITS: Final = frozenset({"recalled"})
REQUEST: Final = frozenset({"request"})
REPLY: Final = frozenset({"reply"})
CREDIT: Final = frozenset({"credit"})


# --- requests ---


def native_requests(data: bytes) -> None:
    """Relay requests to a broker: small and large ones, valid and broken ones, within a credit and beyond it."""
    choices = Choices(data)
    cuts, walks, cap = choices.cuts(), choices.flag(), FETCH_BYTES[choices.byte() & 1]
    credit = choices.number() if choices.byte() >= 200 else UNLIMITED
    stream = b""
    for number in range(1 + choices.byte() % 4):
        stream += choices.take(choices.byte()) if choices.byte() >= 240 else _request(choices, number)
    expected = _expected_requests(stream, walks=walks, cap=cap, credit=credit)
    engine = _engine()
    for meter in (engine.produced, engine.fetched, engine.time):
        engine.settle(meter, credit if meter == engine.produced else UNLIMITED)
    with Relayed("client", producer_ids=engine.seen if walks else None, fetch_bytes=cap) as relayed:
        back = relayed.relay(pieces(stream, cuts))
        _check(relayed, expected, stream, back)
        rest = relayed.rest
    assert tuple((row[0], row[1], row[2], row[4], row[7]) for row in rest.in_flight) == expected.exchanges
    assert tuple(rest.producer_ids) == expected.producer_ids
    assert engine.settle(engine.produced, 0) == expected.charged


def _request(choices: Choices, number: int) -> bytes:
    key = choices.pick(APIS)
    name = f"{API_NAMES[key]}Request"
    version, padding = any_version(choices, name), choices.pick(PADDINGS) if choices.byte() >= 230 else 0
    body = message_body(Choices(choices.take(choices.number() % 4096)), name, version)
    return request_frame(choices, key, version, FIRST_ID + number, body + bytes(padding))


def _expected_requests(stream: bytes, *, walks: bool, cap: int, credit: int) -> Expected:
    engine, edited = _engine(), bytearray(stream)
    at, charged, exchanges = 0, 0, []
    reasons = WAITS
    while at < len(edited):
        try:
            head = read_request_head(edited, at, len(edited), LONGEST)
        except MalformedFrame:
            reasons = REQUEST
            break
        if head is None:
            reasons = WAITS | REQUEST  # the threads may see without the rest of the head that the request is unusual
            break
        row = engine.rows.get((head.api_key, head.api_version))
        if row is None or not _is_usual(edited, at, head, row):
            reasons = REQUEST
            break
        is_produce = row[2] == Kind.PRODUCE
        if is_produce and head.size > credit - charged:
            reasons = CREDIT
            break
        if head.fetch_limits_at is not None and cap != FETCH_BYTES[0]:
            cap_fetch(edited, at + head.fetch_limits_at, cap)
        end, walk = at + LENGTH_BYTES + head.size, None
        exchange = head.api_key, head.api_version, head.correlation_id, head.size
        if is_produce and walks:
            walk = ProduceWalk(head.api_version, end - at - head.body_at, MOST_ROWS)
            try:
                reached = walk.walk(edited, at + head.body_at, len(edited))
            except MalformedFrame as error:
                exchanges.append((*exchange, False))
                most = min(end, len(edited))
                fault = ("rows" if "limits.max_request_rows" in str(error) else "client", 0)
                return Expected(bytes(edited), (at, most), WAITS, fault, charged, tuple(exchanges))
        if end > len(edited):
            least = len(edited) if walk is None else reached
            exchanges.append((*exchange, False))
            return Expected(bytes(edited), (least, least), WAITS, None, charged, tuple(exchanges))
        exchanges.append((*exchange, True))
        charged += head.size if is_produce else 0
        at = end
        if walk is not None:
            ids = (*(batch.producer_id for batch in walk.batches), *walk.left_out_ids)
            unseen = tuple(number for number in ids if number >= 0 and number != KNOWN_ID)
            if unseen:
                return Expected(bytes(edited), (at, at), CREDIT, None, charged, tuple(exchanges), unseen)
    return Expected(bytes(edited), (at, at), reasons, None, charged, tuple(exchanges))


def _is_usual(stream: bytearray, at: int, head: RequestHead, row: ApiRow) -> bool:
    """Return whether the threads relay a request: the client id is empty or null, and the head has no tagged fields."""
    body_at = 14 + (row[3] == 2)
    has_no_name = stream[at + 12 : at + 14] in (b"\0\0", b"\xff\xff")
    return head.body_at == body_at and has_no_name and not any(stream[at + 14 : at + body_at]) and head.acks != 0


# --- replies ---


def native_replies(data: bytes) -> None:
    """Relay replies to up to three requests in flight, with hints about new leaders and without, and broken ones."""
    choices = Choices(data)
    cuts = choices.cuts()
    credit = choices.number() if choices.byte() >= 200 else UNLIMITED
    asked = []
    for number in range(1 + choices.byte() % 3):
        key = choices.pick(APIS)
        asked.append((int(key), any_version(choices, f"{API_NAMES[key]}Response"), FIRST_ID + number))
    stream = b""
    for number in range(1 + choices.byte() % 4):
        stream += _reply(choices, *asked[number % len(asked)])
    expected = _expected_replies(stream, asked, credit)
    engine, now_ns = _engine(), time.monotonic_ns()
    for meter in (engine.produced, engine.fetched, engine.time):
        engine.settle(meter, credit if meter == engine.fetched else UNLIMITED)
    in_flight = [(*each, 0, 100, now_ns, now_ns, True, False) for each in asked]
    with Relayed("broker", in_flight=in_flight) as relayed:
        back = relayed.relay(pieces(stream, cuts))
        _check(relayed, expected, stream, back)
        rest = relayed.rest
    assert tuple((row[0], row[1], row[2], row[4], row[7]) for row in rest.in_flight) == expected.exchanges
    assert engine.settle(engine.fetched, 0) == expected.charged
    assert rest.fault is not None or rest.reply_left or relayed.progress.hints == expected.hints


def _reply(choices: Choices, key: int, version: int, correlation_id: int) -> bytes:
    decision = choices.byte()
    if decision >= 250:
        return choices.take(choices.byte())
    padding = choices.pick(PADDINGS) if decision >= 220 else 0
    body = message_body(Choices(choices.take(choices.number() % 4096)), f"{API_NAMES[ApiKey(key)]}Response", version)
    if 200 <= decision < 210:
        return framed(choices.take(12) + body)
    return reply_frame(key, version, correlation_id + (decision == 199), body + bytes(padding))


def _expected_replies(stream: bytes, asked: list[tuple[int, int, int]], credit: int) -> Expected:
    engine, edited = _engine(), bytearray(stream)
    at, charged, hints, left = 0, 0, 0, list(asked)
    reasons, fault, most = WAITS, None, None
    while at < len(edited):
        row = engine.rows.get(left[0][:2]) if left else None
        if row is None:
            reasons = REPLY
            break
        read = _read_reply(edited, at, row, left[0][2])
        if isinstance(read, frozenset):
            reasons = read
            break
        size, body_at = read
        end = at + LENGTH_BYTES + size
        if row[2] in {Kind.FETCH, Kind.FETCH_WITH_HINTS}:
            if size + 8 - body_at > credit - charged:
                reasons = CREDIT
                break
            charged += size + 8 - body_at
        if row[2] == Kind.FETCH_WITH_HINTS:
            walk = FetchWalk(end - at - body_at)
            try:
                reached = walk.walk(edited, at + body_at, len(edited))
                while walk.pauses:
                    reached = walk.walk(edited, reached, len(edited))
            except MalformedFrame:
                fault, most = ("upstream", 0), min(end, len(edited))
                break
            hints += walk.hints
        else:
            reached = min(end, len(edited))
        if end > len(edited):
            at = reached
            break
        at = end
        left.pop(0)
    exchanges = tuple((*each, 100, True) for each in left)
    return Expected(bytes(edited), (at, most or at), reasons, fault, charged, exchanges, hints=hints)


def _read_reply(stream: bytearray, at: int, row: ApiRow, correlation_id: int) -> tuple[int, int] | frozenset[str]:
    """Return size and offset of the body of a reply that is relayed; the reasons for which it is not."""
    try:
        head = read_response_head(stream, at, len(stream), LONGEST)
        if head is None:
            return WAITS | REPLY
        size = head[0]
        body_at = response_body_at(stream, at, len(stream), size, row[0], row[1])
    except MalformedFrame:
        return REPLY
    if head[1] != correlation_id:
        return REPLY
    if body_at is None:
        return WAITS | REPLY
    if row[4] and stream[at + 8]:  # tagged fields
        return REPLY
    body = bytes(stream[at + body_at : at + LENGTH_BYTES + size])
    is_whole = len(stream) >= at + LENGTH_BYTES + size
    throttle = body[row[5] : row[5] + 4] if row[5] >= 0 else bytes(4)
    if len(throttle) < 4 and not is_whole:
        return WAITS
    if throttle != bytes(4):
        return REPLY
    if row[2] != Kind.PRODUCE:
        return size, body_at
    if LENGTH_BYTES + size <= WHOLE_REPLY and not is_whole:
        return WAITS
    return (size, body_at) if LENGTH_BYTES + size <= WHOLE_REPLY and _passes(body, row[1]) else REPLY


def _passes(body: bytes, version: int) -> bool:
    """Return whether a reply to a Produce has no throttle time, and no tagged fields at its end."""
    try:
        throttle_at, _ = find_produce_tail(body, version)
    except MalformedMessage:
        return False
    if throttle_at is None:
        return True
    tags_at = throttle_at + 4
    return body[throttle_at:tags_at] == bytes(4) and (version < 9 or body[tags_at] == 0)


def _check(relayed: Relayed, expected: Expected, stream: bytes, back: bytes) -> None:
    rest, came = relayed.rest, bytes(relayed.came)
    found = (
        f"forwarded {len(came)} of {len(stream)} bytes, expected {expected.forwarded}; {rest.reason}, {rest.fault};"
        f" in flight {rest.in_flight}"
    )
    assert rest.fault == expected.fault, found
    assert expected.forwarded[0] <= len(came) <= expected.forwarded[1], found
    assert came == expected.edited[: len(came)], found
    assert len(back) == len(stream) - len(came), found
    if rest.fault is None:
        assert back == stream[len(came) :], found
        assert rest.reason in expected.reasons, found
