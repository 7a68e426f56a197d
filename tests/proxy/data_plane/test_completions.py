"""Requests that the threads complete: each is in the sums once, however and whenever it is handed over."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest

from headrace.quota_callbacks.api_keys import ApiKey
from tests.proxy.data_plane.wire import Wire, needs_engine, new_engine
from tests.proxy.playbook import reply, request

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = needs_engine

BEAT, BEATEN = request(ApiKey.HEARTBEAT, 4), reply(ApiKey.HEARTBEAT, 4)
PRODUCED, STORED = request(ApiKey.PRODUCE, 10, 7, acks=1, padding=100), reply(ApiKey.PRODUCE, 10, 7)
BOUNDS_NS = [1, 60_000_000_000]


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    engine = new_engine(latency_bounds_ns=BOUNDS_NS, sample_ratio=1.0)
    yield engine
    engine.stop()


def collected(wire: Wire) -> tuple[list[Any], list[Any]]:
    """Return what the connection has completed, collected from the thread."""
    expected = wire.engine.collect()
    wire.until(lambda: wire.engine.collections() >= expected)
    found = dict(wire.engine.completed())
    assert found.keys() <= {wire.progress.id}
    rows: tuple[list[Any], list[Any]] = found.get(wire.progress.id, ([], []))
    return rows


def counts(*parts: tuple[list[Any], list[Any]]) -> dict[int, tuple[int, int, int]]:
    """Return the numbers of requests, and their bytes and those of the replies, by API; and check the sample."""
    found: dict[int, tuple[int, int, int]] = {}
    for sums, samples in parts:
        assert sum(row[2] for row in sums) == len(samples)
        for api_key, _, requests, request_bytes, reply_bytes, _, _, latencies in sums:
            assert (sum(latencies), len(latencies)) == (requests, len(BOUNDS_NS) + 1)
            before = found.get(api_key, (0, 0, 0))
            added = (requests, request_bytes, reply_bytes)
            found[api_key] = tuple(map(sum, zip(before, added, strict=True)))  # type: ignore[assignment]
    return found


def beats(count: int) -> tuple[int, int, int]:
    return count, count * (len(BEAT) - 4), count * (len(BEATEN) - 4)


def work(wire: Wire, count: int = 1) -> None:
    for _ in range(count):
        wire.send_read("client", BEAT)
        wire.send_read("broker", BEATEN)


def test_sums_of_a_connection_that_stays_and_returns(engine: Any) -> None:
    with Wire(engine) as wire:
        assert collected(wire) == ([], [])
        work(wire, 3)
        first = collected(wire)
        assert counts(first) == {ApiKey.HEARTBEAT: beats(3)}
        assert collected(wire) == ([], [])
        work(wire, 2)
        wire.send_read("client", PRODUCED)
        wire.send_read("broker", STORED)
        handed = engine.collect()
        wire.until(lambda: engine.collections() >= handed)
        work(wire, 4)
        rest = wire.recalled()
        produced = (1, len(PRODUCED) - 4, len(STORED) - 4)
        assert counts(rest.completed) == {ApiKey.HEARTBEAT: beats(6), ApiKey.PRODUCE: produced}
        assert engine.completed() == [], "what was handed over before is in the rest"


def test_a_connection_is_taken_back_with_what_was_handed_over(engine: Any) -> None:
    with Wire(engine) as wire:
        work(wire, 2)
        handed = engine.collect()
        wire.until(lambda: engine.collections() >= handed)
        wire.send_read("client", BEAT * 2)
        wire.send_read("broker", BEATEN + BEATEN[:-1])
        wire.rest = rest = engine.take_back(wire.progress.id)
        assert counts(rest.completed) == {ApiKey.HEARTBEAT: beats(2 + 1)}
        assert engine.completed() == []
        assert (len(rest.in_flight), rest.reply_left) == (1, 1)
        assert rest.begun_reply[1] == len(BEATEN) - 4


def test_a_request_that_is_not_completed_is_in_no_sum(engine: Any) -> None:
    with Wire(engine) as wire:
        wire.send_read("client", BEAT * 2)
        wire.send_read("broker", BEATEN)
        rest = wire.recalled()
        assert counts(rest.completed) == {ApiKey.HEARTBEAT: beats(1)}
        assert (len(rest.in_flight), rest.begun_reply) == (1, None)


def test_a_reply_counts_when_the_client_has_accepted_it(engine: Any) -> None:
    rows = [{"partitions": [{"records": bytes(30_000_000)}]}]
    with Wire(engine, longest_frame=10**8) as wire:
        wire.reads = {"broker"}
        wire.send("client", request(ApiKey.FETCH, 12, 1, max_bytes=2**20))
        wire.until(lambda: wire.progress.in_flight == 1)
        stream = memoryview(reply(ApiKey.FETCH, 12, 1, responses=rows))
        with contextlib.suppress(BlockingIOError):
            while stream:
                stream = stream[wire.broker.send(stream) :]
        assert collected(wire) == ([], [])
        wire.reads = {"client", "broker"}
        wire.send("broker", bytes(stream))
        wire.until(lambda: wire.progress.in_flight == 0)
        assert counts(wire.recalled().completed)[ApiKey.FETCH][0] == 1


def test_the_times_of_a_sampled_request(engine: Any) -> None:
    began_ns, second = time.monotonic_ns(), int(time.time())  # noqa: TID251 -- the second is that of the wall clock
    with Wire(engine, measures_time=True) as wire:
        wire.send_read("client", PRODUCED)
        wire.send_read("broker", STORED)
        sums, [(draw, exchange, answer, completed_ns)] = wire.recalled().completed
    assert 0 <= draw < 1
    assert exchange[:5] == (ApiKey.PRODUCE, 10, 7, 1, len(PRODUCED) - 4)
    received_ns, forwarded_ns = exchange[5:7]
    reply_ns, size, header_bytes, thread_ns = answer
    assert began_ns < received_ns <= forwarded_ns < reply_ns <= completed_ns < time.monotonic_ns()
    assert (size, header_bytes) == (len(STORED) - 4, 5)
    [(_, at, _, _, _, summed_ns, broker_ns, _)] = sums
    assert second <= at <= int(time.time())  # noqa: TID251
    assert (summed_ns, broker_ns) == (thread_ns, reply_ns - forwarded_ns)
    assert thread_ns > 0


def test_nothing_is_kept_that_nobody_wants() -> None:
    engine = new_engine()
    with Wire(engine) as wire:
        work(wire, 2)
        assert engine.collect() == 0
        assert wire.recalled().completed == ([], [])
    engine.stop()
