"""Messages that are read and written in steps are those that are read and written at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.proxy.wire.authorization.table import TABLE
from headrace.proxy.wire.errors import MalformedMessage, UnencodableValue
from headrace.proxy.wire.messages.codec import decode, encode
from headrace.proxy.wire.messages.projection import project
from headrace.proxy.wire.messages.schemas import schema, versions
from headrace.proxy.wire.messages.stepwise import (
    ALL,
    ROWS_A_STEP,
    decode_in_steps,
    encode_in_steps,
    finish,
    project_in_steps,
)
from headrace.quota_callbacks.api_keys import API_NAMES
from tests.proxy.wire.samples import sample

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random


def test_decoding_in_steps_gives_the_whole_message(rng: Random) -> None:
    for name in (
        *("CreateTopicsRequest", "DeleteTopicsRequest", "CreatePartitionsRequest", "MetadataResponse"),
        "StreamsGroupHeartbeatRequest",
    ):
        for version in versions(name):
            body = encode(name, version, sample(rng, name, version))
            assert finish(decode_in_steps(name, version, body)) == decode(name, version, body), (name, version)
            for cut in range(0, len(body), 7):
                in_steps = is_refused(finish, decode_in_steps(name, version, body[:cut]))
                assert in_steps == is_refused(decode, name, version, body[:cut]), (name, version, cut)


def is_refused(read: Callable[..., object], *arguments: object) -> bool:
    try:
        read(*arguments)
    except MalformedMessage:
        return True
    return False


def test_many_rows_are_decoded_with_many_pauses() -> None:
    topics = [{"name": str(number), "num_partitions": 1, "replication_factor": 1} for number in range(1000)]
    body = encode("CreateTopicsRequest", 7, {"topics": topics})
    assert sum(1 for _ in decode_in_steps("CreateTopicsRequest", 7, body)) >= 1000 // ROWS_A_STEP


def test_every_message_is_read_and_written_in_steps_as_at_once(rng: Random) -> None:
    for api_key, name in API_NAMES.items():
        for message in (f"{name}Request", f"{name}Response"):
            for version in versions(message):
                body = encode(message, version, sample(rng, message, version))
                whole = finish(decode_in_steps(message, version, body))
                assert whole == decode(message, version, body), (message, version)
                marked = next((each.name for each in schema(message, version).fields if each.tag is None), "")
                written, at = finish(encode_in_steps(message, version, whole, mark=marked))
                assert written == encode(message, version, whole), (message, version)
                assert at == (0 if marked else None)
                if message.endswith("Request") and api_key in TABLE:
                    wanted = TABLE[api_key].wanted
                    in_steps = finish(project_in_steps(message, version, body, wanted))
                    assert in_steps == project(message, version, body, wanted), (message, version)


def test_arrays_in_a_struct_are_read_with_pauses_too() -> None:
    parts = [{"subtopology_id": str(number), "source_topics": ["a", "b"]} for number in range(1000)]
    body = encode("StreamsGroupHeartbeatRequest", 0, {"topology": {"subtopologies": parts}})
    for wanted in (ALL, frozenset({"topology"}), frozenset({"topology", "group_id"}), frozenset({"group_id"})):
        steps = project_in_steps("StreamsGroupHeartbeatRequest", 0, body, wanted)
        assert sum(1 for _ in steps) >= 1000 // ROWS_A_STEP, wanted


def test_partitions_of_one_topic_are_read_with_pauses() -> None:
    topic = {"topic": "one", "partitions": [{"partition": number} for number in range(1000)]}
    body = encode("FetchRequest", 12, {"topics": [topic]})
    for steps in (
        decode_in_steps("FetchRequest", 12, body),
        project_in_steps("FetchRequest", 12, body, frozenset({"topics.topic"})),
        encode_in_steps("FetchRequest", 12, {"topics": [topic]}),
    ):
        assert sum(1 for _ in steps) >= 1000 // ROWS_A_STEP


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"topics": [{"name": "t", "such": 1}]}, "such"),
        ({"topics": [{"name": "t", "partitions": [{"partition_index": "one"}]}]}, "partition_index"),
        ({"such": 1}, "such"),
    ],
)
def test_a_value_that_does_not_fit_is_named(message: dict[str, object], reason: str) -> None:
    with pytest.raises(UnencodableValue, match=f"OffsetCommitRequest v8: .*{reason}"):
        finish(encode_in_steps("OffsetCommitRequest", 8, message))
