"""The walk that sums the bytes of a Fetch response by topic, for every version and with any split into windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.proxy.wire.errors import MalformedFrame, UnknownMessage
from headrace.proxy.wire.messages.codec import TAGS, decode, encode
from headrace.proxy.wire.walks.fetch import HIDDEN_TAG
from headrace.proxy.wire.walks.fetched_topics import LAST_VERSION, FetchedTopicsWalk, read_share_fetched

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSIONS = range(4, LAST_VERSION + 1)
"""Kafka 4's, and all of Kafka 3's that its schema still has; versions 0 to 3 are written by hand below."""
FIRST_WITH_IDS, FIRST_WITH_HINTS = 13, 16
ENDPOINTS = [{"node_id": 3, "host": "broker-3", "port": 9095, "rack": None}]

partitions = st.builds(
    lambda records, aborted: (records, aborted), st.none() | st.binary(max_size=200), st.integers(0, 3)
)
replies = st.lists(st.lists(partitions, max_size=3), max_size=3)


def body_of(version: int, topics: list[list[tuple[bytes | None, int]]], *, hints: bool) -> bytes:
    rows: list[dict[str, Any]] = []
    for number, each in enumerate(topics):
        rows.append(
            {
                **({"topic_id": bytes([number]) * 16} if version >= FIRST_WITH_IDS else {"topic": f"t{number}"}),
                "partitions": [
                    {
                        "partition_index": index,
                        "aborted_transactions": [{"producer_id": n, "first_offset": n} for n in range(aborted)] or None,
                        "records": records,
                    }
                    for index, (records, aborted) in enumerate(each)
                ],
            }
        )
    reply: dict[str, Any] = {"responses": rows}
    if hints and version >= FIRST_WITH_HINTS:
        reply["node_endpoints"] = ENDPOINTS
    return encode("FetchResponse", version, reply)


def expected(version: int, topics: list[list[tuple[bytes | None, int]]]) -> Mapping[str | bytes, int]:
    sums = {
        (bytes([number]) * 16 if version >= FIRST_WITH_IDS else f"t{number}"): sum(
            len(records or b"") for records, _ in each
        )
        for number, each in enumerate(topics)
    }
    return {topic: size for topic, size in sums.items() if size}


def walk(version: int, body: bytes, chunks: list[int], *, splice: bool) -> tuple[bytes, FetchedTopicsWalk]:
    """Walk as a relay does: each window begins with the last one's tail; records after a window may be spliced."""
    walker = FetchedTopicsWalk(version, len(body))
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
    topics=replies,
    version=st.sampled_from(VERSIONS),
    chunks=st.lists(st.integers(1, 80), max_size=40),
    splice=st.booleans(),
    hints=st.booleans(),
)
def test_any_split_of_any_version(
    topics: list[list[tuple[bytes | None, int]]], version: int, chunks: list[int], splice: bool, hints: bool
) -> None:
    body = body_of(version, topics, hints=hints)
    out, walker = walk(version, body, chunks, splice=splice)
    assert walker.done
    assert walker.by_topic == expected(version, topics)
    assert walker.hints == (hints and version >= FIRST_WITH_HINTS)
    if not walker.hints:
        assert out == body
        return
    before, after = decode("FetchResponse", version, body), decode("FetchResponse", version, out)
    assert list(after.pop(TAGS)) == [HIDDEN_TAG]
    assert after == {**before, "node_endpoints": []}


@pytest.mark.parametrize("version", range(4))
def test_versions_of_old_clients(version: int) -> None:
    throttle = bytes(4) if version else b""
    partition = bytes(14) + (5).to_bytes(4, "big") + b"12345"
    null = bytes(14) + b"\xff\xff\xff\xff"
    topic = (3).to_bytes(2, "big") + b"one" + (2).to_bytes(4, "big") + partition + null
    body = throttle + (1).to_bytes(4, "big") + topic
    out, walker = walk(version, body, [7, 3], splice=False)
    assert walker.done
    assert out == body
    assert walker.by_topic == {"one": 5}


def test_fields_that_reach_beyond_the_frame_are_an_error() -> None:
    for version in VERSIONS:
        body = body_of(version, [[(b"abc", 2)]], hints=False)
        with pytest.raises(MalformedFrame):
            FetchedTopicsWalk(version, len(body) - 1).walk(bytearray(body), 0, len(body) - 1)


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(UnknownMessage, match="no walk for FetchResponse v19"):
        FetchedTopicsWalk(LAST_VERSION + 1, 100)


def test_no_topic_is_left_out() -> None:
    """A consumer could otherwise read one topic for nothing, behind many small ones."""
    body = body_of(12, [[(b"abc", 0)]] * 5000, hints=False)
    _, walker = walk(12, body, [len(body)], splice=False)
    assert walker.done
    assert walker.by_topic == {f"t{number}": 3 for number in range(5000)}


def test_a_share_fetch_is_summed_by_topic() -> None:
    for version in (0, 1, 2):
        rows = [
            {"topic_id": bytes([number] * 16), "partitions": [{"records": bytes(size)} for size in sizes]}
            for number, sizes in enumerate(((10, 20), (0,), (5,)))
        ]
        body = encode("ShareFetchResponse", version, {"responses": rows})
        assert read_share_fetched(version, body) == {bytes(16): 30, bytes([2] * 16): 5}, version


@given(st.sampled_from(range(LAST_VERSION + 1)), st.binary(min_size=11, max_size=200))
def test_garbage_ends_in_an_error_or_a_walk(version: int, garbage: bytes) -> None:
    walker = FetchedTopicsWalk(version, len(garbage))
    try:
        walker.walk(bytearray(garbage), 0, len(garbage))
    except MalformedFrame:
        return
    assert walker.done
