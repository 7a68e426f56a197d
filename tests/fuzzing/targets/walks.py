"""Targets: the walks through the bodies of Produce requests and Fetch replies, and the end of a Produce reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.proxy.wire.errors import MalformedFrame, MalformedMessage
from headrace.proxy.wire.messages.codec import TAGS, decode
from headrace.proxy.wire.walks.fetch import FIRST_VERSION_WITH_HINTS, HIDDEN_TAG, FetchWalk
from headrace.proxy.wire.walks.fetched_topics import FetchedTopicsWalk
from headrace.proxy.wire.walks.produce import LAST_VERSION, ProduceWalk
from headrace.proxy.wire.walks.produce_reply import find_produce_tail
from tests.fuzzing.choices import Choices
from tests.fuzzing.wire_messages import message_body

if TYPE_CHECKING:
    from headrace.proxy.wire.walks.body import BodyWalk


def _walk(walk: BodyWalk, body: bytearray, cuts: list[int]) -> bool:
    """Walk through a body that arrives in pieces; return whether its fields are those of such a body."""
    position = end = 0
    try:
        for size in [*cuts, len(body)]:
            end = min(len(body), end + size)
            position = walk.walk(body, position, end)
            while walk.pauses:
                position = walk.walk(body, position, end)
    except MalformedFrame:
        return False
    assert walk.done
    assert position == len(body)
    return True


def walk_produce(data: bytes) -> None:
    """Walk through a Produce request: any split has the same result, and it agrees with the codec."""
    choices = Choices(data)
    version = LAST_VERSION - choices.byte() % (LAST_VERSION + 1)
    cuts = choices.cuts()
    body = bytearray(message_body(choices, "ProduceRequest", version))
    original = bytes(body)
    whole, split = ProduceWalk(version, len(body)), ProduceWalk(version, len(body))
    found = _walk(whole, body, [])
    assert _walk(split, body, cuts) == found
    assert body == original
    try:
        message = decode("ProduceRequest", version, original)
    except MalformedMessage:
        message = None
    if found:
        assert (split.batches, split.left_out_bytes, split.left_out_ids, split.longest) == (
            whole.batches,
            whole.left_out_bytes,
            whole.left_out_ids,
            whole.longest,
        )
    if message is not None:
        assert found, "a message that a broker reads is refused"
        sums: dict[tuple[Any, int], int] = {}
        for batch in whole.batches:
            key = batch.topic, batch.partition
            sums[key] = sums.get(key, 0) + batch.records_bytes
        expected: dict[tuple[Any, int], int] = {}
        for topic in message["topic_data"]:
            for partition in topic["partition_data"]:
                key = topic["topic_id"] if version >= 13 else topic["name"], partition["index"]
                expected[key] = expected.get(key, 0) + len(partition["records"] or b"")
        assert sums == expected


def walk_fetch(data: bytes) -> None:
    """Walk through a Fetch reply: only the tag of the leader hints changes, however the reply is split."""
    choices = Choices(data)
    version = FIRST_VERSION_WITH_HINTS + choices.byte() % 3
    cuts = choices.cuts()
    original = message_body(choices, "FetchResponse", version)
    whole, split = bytearray(original), bytearray(original)
    whole_walk, split_walk = FetchWalk(len(original)), FetchWalk(len(original))
    found = _walk(whole_walk, whole, [])
    assert _walk(split_walk, split, cuts) == found
    try:
        before = decode("FetchResponse", version, original)
    except MalformedMessage:
        before = None
    if found:
        assert split == whole
        assert (split_walk.hints, split_walk.longest) == (whole_walk.hints, whole_walk.longest)
    if before is None:
        return
    assert found, "a reply that a client reads is refused"
    after = decode("FetchResponse", version, whole)
    assert after["node_endpoints"] == []
    unknown_before, unknown = before.get(TAGS, {}), after.get(TAGS, {})
    assert HIDDEN_TAG in unknown or not whole_walk.hints
    assert {**unknown, HIDDEN_TAG: b""} == {**unknown_before, HIDDEN_TAG: b""}
    assert _without(after, "node_endpoints", TAGS) == _without(before, "node_endpoints", TAGS)


def walk_fetched_topics(data: bytes) -> None:
    """Sum the bytes of a Fetch reply by topic: any split has the same result, and it agrees with the codec."""
    choices = Choices(data)
    version = 18 - choices.byte() % 15  # the codec knows versions from 4 on
    cuts = choices.cuts()
    original = message_body(choices, "FetchResponse", version)
    whole, split = (FetchedTopicsWalk(version, len(original)) for _ in range(2))
    found = _walk(whole, bytearray(original), [])
    assert _walk(split, bytearray(original), cuts) == found
    if found:
        assert (split.by_topic, split.hints, split.longest) == (whole.by_topic, whole.hints, whole.longest)
    try:
        message = decode("FetchResponse", version, original)
    except MalformedMessage:
        return
    assert found, "a reply that a client reads is refused"
    expected: dict[str | bytes, int] = {}
    for topic in message["responses"]:
        for partition in topic["partitions"]:
            name = topic["topic_id"] if version >= 13 else topic["topic"]
            expected[name] = expected.get(name, 0) + len(partition["records"] or b"")
    assert whole.by_topic == {topic: count for topic, count in expected.items() if count}


def _without(message: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name not in names}


def produce_reply_tail(data: bytes) -> None:
    """Find throttle time and leader hints of a Produce reply: at the positions that the codec gives."""
    choices = Choices(data)
    version = LAST_VERSION - choices.byte() % (LAST_VERSION + 1)
    body = message_body(choices, "ProduceResponse", version)
    try:
        throttle_at, hints_at = find_produce_tail(body, version)
    except MalformedMessage:
        throttle_at = hints_at = None
        refused = True
    else:
        refused = False
    try:
        message = decode("ProduceResponse", version, body)
    except MalformedMessage:
        return
    assert not refused, "a reply that a client reads is refused"
    if throttle_at is not None:
        assert int.from_bytes(body[throttle_at : throttle_at + 4], "big", signed=True) == message["throttle_time_ms"]
    assert (throttle_at is not None) == (version >= 1)
    assert hints_at is not None or not message.get("node_endpoints")
