"""Reading a few fields of rows gives what decoding the whole message gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.proxy.wire.errors import MalformedMessage
from headrace.proxy.wire.messages.codec import decode, encode
from headrace.proxy.wire.messages.rows import count_elements_in_steps, read_rows
from headrace.proxy.wire.messages.schemas import versions
from headrace.proxy.wire.messages.stepwise import ROWS_A_STEP, finish
from tests.proxy.wire.samples import sample

if TYPE_CHECKING:
    from random import Random


def test_rows_are_those_of_the_whole_message(rng: Random) -> None:
    for version in versions("MetadataResponse"):
        wanted = ("name",) if version < 10 else ("name", "topic_id")
        for _ in range(10):
            body = encode("MetadataResponse", version, sample(rng, "MetadataResponse", version))
            whole = decode("MetadataResponse", version, body)["topics"]
            rows = list(read_rows("MetadataResponse", version, body, "topics", wanted))
            assert rows == [{name: topic[name] for name in wanted} for topic in whole]


def test_elements_are_counted_as_in_the_whole_message(rng: Random) -> None:
    for version in versions("MetadataResponse"):
        for _ in range(10):
            body = encode("MetadataResponse", version, sample(rng, "MetadataResponse", version))
            whole = decode("MetadataResponse", version, body)["topics"]
            counting = count_elements_in_steps("MetadataResponse", version, body, "topics", ("name",), "partitions")
            expected = [{"name": topic["name"], "partitions": len(topic["partitions"])} for topic in whole]
            assert finish(counting) == expected, version


def test_many_elements_of_one_row_are_counted_with_many_pauses() -> None:
    """A broker's topic has thousands of partitions, which anybody may ask for."""
    partitions = [{"partition_index": number, "replica_nodes": [1, 2, 3]} for number in range(1000)]
    body = encode("MetadataResponse", 12, {"topics": [{"name": "wide", "partitions": partitions}]})
    counting = count_elements_in_steps("MetadataResponse", 12, body, "topics", ("name",), "partitions")
    assert sum(1 for _ in counting) >= 1000 // ROWS_A_STEP
    for cut in range(0, len(body) - 10, 97):
        with pytest.raises(MalformedMessage):
            finish(count_elements_in_steps("MetadataResponse", 12, body[:cut], "topics", ("name",), "partitions"))


def test_bytes_that_end_too_early(rng: Random) -> None:
    body = encode("MetadataResponse", 12, {"topics": [{"name": "orders", "topic_id": bytes(16), "partitions": []}]})
    for cut in range(len(body) - 10):
        with pytest.raises(MalformedMessage):
            list(read_rows("MetadataResponse", 12, body[:cut], "topics", ("name", "topic_id")))


def test_fields_that_are_not_there() -> None:
    with pytest.raises(KeyError, match="topics has no topic_id"):
        list(read_rows("MetadataResponse", 9, b"", "topics", ("topic_id",)))
    with pytest.raises(KeyError, match="has no such"):
        list(read_rows("MetadataResponse", 9, b"", "such", ("name",)))
