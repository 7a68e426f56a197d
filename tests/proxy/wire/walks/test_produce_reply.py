"""The partitions of a Produce response to which a broker has appended nothing; the codec is the reference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.wire.errors import UnknownMessage
from headrace.proxy.wire.messages.codec import MalformedMessage, encode
from headrace.proxy.wire.walks.produce_reply import read_refused

APPENDED = {0, 7, 20}
"""NONE, REQUEST_TIMED_OUT and NOT_ENOUGH_REPLICAS_AFTER_APPEND: the leader has the records."""

partitions = st.lists(
    st.tuples(
        st.integers(0, 9), st.sampled_from([0, 3, 7, 20, 29]), st.none() | st.text(max_size=5), st.integers(0, 2)
    ),
    max_size=4,
)


def body_of(version: int, topics: list[list[tuple[int, int, str | None, int]]]) -> bytes:
    rows = []
    for number, found in enumerate(topics):
        topic = {"topic_id": bytes([number] * 16)} if version >= 13 else {"name": f"t{number}"}
        errors = [
            {"index": index, "error_code": code}
            | (
                {
                    "error_message": text,
                    "record_errors": [{"batch_index": 1, "batch_index_error_message": text}] * count,
                }
                if version >= 8
                else {}
            )
            for index, code, text, count in found
        ]
        rows.append(topic | {"partition_responses": errors})
    return encode("ProduceResponse", version, {"responses": rows})


@given(st.integers(0, 13), st.lists(partitions, max_size=4))
def test_what_was_refused(version: int, topics: list[list[tuple[int, int, str | None, int]]]) -> None:
    expected = {
        (bytes([number] * 16) if version >= 13 else f"t{number}", index)
        for number, found in enumerate(topics)
        for index, code, _, _ in found
        if code not in APPENDED
    }
    assert read_refused(body_of(version, topics), version) == expected


def test_a_response_that_ends_too_early_is_malformed() -> None:
    for version in range(14):
        body = body_of(version, [[(1, 29, None, 0)]])
        with pytest.raises(MalformedMessage):
            read_refused(body[:12], version)


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(UnknownMessage, match="ProduceResponse v14"):
        read_refused(b"", 14)
