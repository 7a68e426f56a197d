"""The raw clients, against a broker that answers everything with one reply."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench import raw
from benchmarks.bench.errors import BenchError
from tests.benchmarks.answering import answering, frame

TOPIC = "t"


def produced(error: int) -> bytes:
    """A Produce reply of version 8 with its correlation id: one partition."""
    row = struct.pack(">ihqqqih", 0, error, 7, -1, 0, 0, -1)
    return struct.pack(">ii", 1, 1) + struct.pack(">h", 1) + TOPIC.encode() + struct.pack(">i", 1) + row + bytes(4)


@given(st.lists(st.binary(min_size=4, max_size=40), max_size=6), st.lists(st.integers(0, 300), max_size=8))
def test_replies_are_cut_wherever_the_stream_was_split(payloads: list[bytes], places: list[int]) -> None:
    stream = b"".join(frame(payload) for payload in payloads)
    cuts = sorted({0, len(stream), *(min(place, len(stream)) for place in places)})
    replies = raw.Replies()
    counted = sum(replies.feed(stream[a:b]) for a, b in itertools.pairwise(cuts))
    assert counted == len(payloads)
    assert replies.latest == (payloads[-1][4:] if payloads else b"")


def test_latencies_ascend_and_every_request_is_sent_once() -> None:
    with answering(produced(0)) as broker:
        took_s = raw.latencies_s(broker.address, raw.small_produce(TOPIC), 2000.0, 100)
        assert len(took_s) == 100
        assert took_s == sorted(took_s)
        assert took_s[0] > 0
    assert broker.requests == 101  # the first makes a proxy dial


def test_connections_ask_in_turns_as_often_as_wanted() -> None:
    with answering(produced(0)) as broker, raw.open_connections(broker.address, 7) as connections:
        raw.ask_in_turns(connections, raw.small_produce(TOPIC), 50)
        assert (broker.connections, broker.requests) == (7, 7 + 50)


def test_fewer_requests_than_connections() -> None:
    with answering(produced(0)) as broker, raw.open_connections(broker.address, 5) as connections:
        raw.ask_in_turns(connections, raw.small_produce(TOPIC), 3)
        assert broker.requests == 5 + 3


def test_connections_are_made_one_after_the_other() -> None:
    with answering(produced(0)) as broker:
        raw.connect_in_turns(broker.address, 30, 4)
        assert (broker.connections, broker.requests) == (30, 30)


def test_a_refused_produce_ends_the_run() -> None:
    with answering(produced(3)) as broker:
        with raw.open_connections(broker.address, 1) as connections, pytest.raises(BenchError, match="error 3"):
            raw.ask_in_turns(connections, raw.small_produce(TOPIC), 1)
        with pytest.raises(BenchError, match="error 3"):
            raw.latencies_s(broker.address, raw.small_produce(TOPIC), 1000.0, 1)
