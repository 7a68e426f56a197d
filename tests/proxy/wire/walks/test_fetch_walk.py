"""Walks through Fetch responses hide the hints and change nothing else, with any split into windows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.proxy.wire.errors import MalformedFrame
from headrace.proxy.wire.messages.codec import TAGS, decode, encode
from headrace.proxy.wire.walks.fetch import HIDDEN_TAG, FetchWalk

ENDPOINTS = [{"node_id": 3, "host": "broker-3", "port": 9095, "rack": None}]


def partition(index: int, records: bytes | None, aborted: int, leader: int) -> dict[str, Any]:
    return {
        "partition_index": index,
        "high_watermark": 5,
        "last_stable_offset": 5,
        "log_start_offset": 0,
        "current_leader": {"leader_id": leader, "leader_epoch": 1},
        "aborted_transactions": [{"producer_id": n, "first_offset": n} for n in range(aborted)] or None,
        "preferred_read_replica": -1,
        "records": records,
    }


partitions = st.builds(
    partition, st.integers(0, 9), st.none() | st.binary(max_size=200), st.integers(0, 3), st.integers(-1, 3)
)
replies = st.builds(
    lambda topics, hints: {
        "throttle_time_ms": 7,
        "responses": [{"topic_id": bytes([n]) * 16, "partitions": each} for n, each in enumerate(topics)],
        "node_endpoints": ENDPOINTS if hints else [],
    },
    st.lists(st.lists(partitions, max_size=3), max_size=3),
    st.booleans(),
)


def walk(body: bytes, chunks: list[int], *, splice: bool) -> tuple[bytes, FetchWalk]:
    """Walk as a relay does: each window begins with the last one's tail; records after a window may be spliced."""
    walker = FetchWalk(len(body))
    out, tail, rest = bytearray(), b"", body
    sizes = iter(chunks)
    while rest or tail:
        if splice and not tail and walker.skip_left:
            count = walker.skip_left
            out += rest[:count]
            rest = rest[count:]
            walker.passed_outside(count)
            continue
        size = max(next(sizes, 1), 1)
        window = bytearray(tail + rest[:size])
        rest = rest[size:]
        at = walker.walk(window, 0, len(window))
        out += window[:at]
        tail = bytes(window[at:])
    return bytes(out), walker


@settings(deadline=None)
@given(
    reply=replies,
    version=st.sampled_from([16, 17, 18]),
    chunks=st.lists(st.integers(1, 80), max_size=40),
    splice=st.booleans(),
)
def test_any_split_hides_the_hint_and_nothing_else(
    reply: dict[str, Any], version: int, chunks: list[int], splice: bool
) -> None:
    body = encode("FetchResponse", version, reply)
    out, walker = walk(body, chunks, splice=splice)
    assert walker.done
    assert len(out) == len(body)
    before, after = decode("FetchResponse", version, body), decode("FetchResponse", version, out)
    assert walker.hints == (1 if reply["node_endpoints"] else 0)
    if walker.hints:
        assert list(after.pop(TAGS)) == [HIDDEN_TAG]
    assert after.pop("node_endpoints") == []
    before.pop("node_endpoints")
    assert after == before


def test_a_reply_without_hints_is_untouched() -> None:
    body = encode(
        "FetchResponse", 17, {"responses": [{"topic_id": bytes(16), "partitions": [partition(0, b"abc", 1, -1)]}]}
    )
    out, _ = walk(body, [1000], splice=False)
    assert out == body


def test_fields_that_reach_beyond_the_frame_are_an_error() -> None:
    body = encode(
        "FetchResponse", 17, {"responses": [{"topic_id": bytes(16), "partitions": [partition(0, b"abc", 1, -1)]}]}
    )
    with pytest.raises(MalformedFrame):
        FetchWalk(len(body) - 1).walk(bytearray(body), 0, len(body) - 1)


def test_records_that_reach_beyond_the_reply_are_an_error() -> None:
    body = bytearray(
        encode(
            "FetchResponse", 17, {"responses": [{"topic_id": bytes(16), "partitions": [partition(0, b"abc", 0, -1)]}]}
        )
    )
    at = body.index(b"\x04abc")
    body[at] = 0x7F
    with pytest.raises(MalformedFrame, match="reaches beyond it"):
        FetchWalk(len(body)).walk(body, 0, len(body))


@given(st.binary(min_size=11, max_size=200))
def test_garbage_ends_in_an_error_or_a_walk(garbage: bytes) -> None:
    walker = FetchWalk(len(garbage))
    try:
        walker.walk(bytearray(garbage), 0, len(garbage))
    except MalformedFrame:
        return
    assert walker.done


@pytest.mark.parametrize("tag", [b"\x00", b"\x80\x00", b"\x80\x80\x00"])
def test_a_hint_whose_tag_takes_more_bytes_than_necessary(tag: bytes) -> None:
    message = {"responses": [], "node_endpoints": ENDPOINTS}
    encoded = encode("FetchResponse", 17, message)
    at = encoded.index(b"\x01\x00", 11)  # the number of tagged fields, and the tag
    body = bytearray(encoded[: at + 1] + tag + encoded[at + 2 :])
    assert decode("FetchResponse", 17, body)["node_endpoints"] == ENDPOINTS
    assert FetchWalk(len(body)).walk(body, 0, len(body)) == len(body)
    walked = decode("FetchResponse", 17, body)
    assert walked["node_endpoints"] == []
    assert walked[TAGS] == {HIDDEN_TAG: encoded[at + 3 :]}
