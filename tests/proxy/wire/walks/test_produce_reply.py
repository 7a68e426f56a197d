"""The partitions of a Produce response to which a broker has appended nothing; the codec is the reference."""

from __future__ import annotations

import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.wire.errors import UnknownMessage
from headrace.proxy.wire.messages.codec import MalformedMessage, encode
from headrace.proxy.wire.messages.scalars import TooManyRows
from headrace.proxy.wire.walks import produce_reply
from headrace.proxy.wire.walks.produce_reply import find_produce_tail, read_refused

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
        (bytes([number] * 16) if version >= 13 else f"t{number}", index): code
        for number, found in enumerate(topics)
        for index, code, _, _ in found
        if code not in APPENDED
    }
    assert read_refused(body_of(version, topics), version) == expected


def tail_of(body: bytes, version: int, max_rows: int = sys.maxsize) -> tuple[int | None, int | None] | str:
    try:
        return find_produce_tail(body, version, max_rows)
    except (MalformedMessage, TooManyRows) as error:
        return repr(error)


@pytest.mark.parametrize("version", range(9, 14))
def test_a_response_about_one_partition_is_read_in_one_step_as_in_many(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with any byte changed, cut off, or with one behind its end."""
    plain = body_of(version, [[(5, 0, None, 0)]])
    bodies = [plain, plain[:-1], plain + b"\0", b"", b"\2"]
    values = (0, 1, 2, 3, 0x7F, 0x80, 0xFF)
    bodies += [plain[:at] + bytes([value]) + plain[at + 1 :] for at in range(len(plain)) for value in values]
    in_one_step = [produce_reply._is_of_one_partition(body, version) for body in bodies if len(body) > 1]
    assert in_one_step[0]
    assert not all(in_one_step)
    found = [tail_of(body, version, rows) for body in bodies for rows in (1, 2)]
    assert found[1] == (len(plain) - 5, None)
    monkeypatch.setattr(produce_reply, "_is_of_one_partition", lambda *_: False)
    assert found == [tail_of(body, version, rows) for body in bodies for rows in (1, 2)]


def test_a_response_that_ends_too_early_is_malformed() -> None:
    for version in range(14):
        body = body_of(version, [[(1, 29, None, 0)]])
        with pytest.raises(MalformedMessage):
            read_refused(body[:12], version)


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(UnknownMessage, match="ProduceResponse v14"):
        read_refused(b"", 14)


def with_errors(version: int, messages: list[str | None]) -> bytes:
    errors = [{"batch_index": index, "batch_index_error_message": each} for index, each in enumerate(messages)]
    partition: dict[str, Any] = {"index": 1, "error_code": 87, "record_errors": errors}
    topic: dict[str, Any] = {"topic_id": bytes(16)} if version >= 13 else {"name": "t"}
    response = {"responses": [topic | {"partition_responses": [partition]}], "throttle_time_ms": 77}
    return encode("ProduceResponse", version, response)


runs_of_messages = st.lists(st.tuples(st.none() | st.text(max_size=200), st.integers(1, 9)), max_size=6)


@given(st.integers(8, 13), runs_of_messages)
def test_record_errors_are_skipped(version: int, runs: list[tuple[str | None, int]]) -> None:
    body = with_errors(version, [message for message, count in runs for _ in range(count)])
    throttle_at, _ = find_produce_tail(body, version)
    assert throttle_at is not None
    assert body[throttle_at : throttle_at + 4] == b"\0\0\0\x4d"
    assert throttle_at == len(body) - (4 if version == 8 else 5)


@pytest.mark.parametrize("version", [8, 13])
@pytest.mark.parametrize("message", [None, "no key", "a long reason " * 20])
def test_many_record_errors_are_skipped_together(version: int, message: str | None) -> None:
    body = with_errors(version, [message] * 10_000)
    calls = 0

    def count_call(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count_call)
    try:
        find_produce_tail(body, version)
    finally:
        sys.setprofile(None)
    assert calls < 200


@pytest.mark.parametrize("version", [pytest.param(8, marks=pytest.mark.exhaustive), 13])
@pytest.mark.parametrize(
    "lengths",
    [(20, 21), *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ((20, 20, 21), (20, 20, 20, 20, 21)))],
)
def test_record_errors_of_many_lengths_are_rows_and_take_no_time_for_those_behind_them(
    version: int, lengths: tuple[int, ...]
) -> None:
    """A comparison copies bytes of all elements that it concerns, so the memory shows how many they are."""
    body = with_errors(version, ["x" * lengths[index % len(lengths)] for index in range(20_000)])
    tracemalloc.start()
    try:
        for read in (find_produce_tail, read_refused):
            with pytest.raises(TooManyRows):
                read(body, version, 5_000)
            read(body, version, 20_010)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4000
