"""The records of the topic of quotas: their form, and what anybody with write access may put there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.quotas.store import Author
from headrace.proxy.quotas.topic.records import (
    UNKNOWN_AUTHOR,
    Header,
    LogRecord,
    exact_number,
    new_record,
    parse_header,
    parse_record_key,
    parse_value,
    record_key,
)
from headrace.proxy.quotas.topic.state import TopicState
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity, bounded_name
from tests.proxy.quotas.store_contract import ALICE, entities

if TYPE_CHECKING:
    from collections.abc import Sequence

KEY = record_key(ALICE, "producer_byte_rate")


def record(offset: int, key: bytes | None, value: bytes | None, header: bytes | None = b"{}") -> LogRecord:
    return LogRecord(offset, 0, key, value, header)


def applied(records: Sequence[LogRecord]) -> dict[QuotaEntity, dict[str, float]]:
    """Return the quotas after the records, which are the same after a replay of them."""
    state, replayed = TopicState(), TopicState()
    for each in records:
        state.apply(each)
        replayed.replay(each)
    assert replayed.snapshot() == state.snapshot()
    assert list(replayed.latest()) == []
    return {entity: dict(values) for entity, values in state.snapshot().quotas.items()}


def test_a_record_can_be_read_by_people() -> None:
    written = new_record(
        QuotaEntity(user="alice", client_id=DEFAULT),
        "producer_byte_rate",
        1024.0,
        Header("7f", Author(principal="admin", address="192.0.2.1"), None),
    )
    assert written.key == b'{"entity":{"client-id":null,"user":"alice"},"key":"producer_byte_rate"}'
    assert written.value == b"1024.0"
    assert json.loads(written.header) == {
        "version": 1,
        "alter": "7f",
        "principal": "admin",
        "address": "192.0.2.1",
        "old": None,
    }


@given(
    entity=entities,
    key=st.text(),
    new=st.none() | st.floats(allow_nan=False),
    old=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    names=st.tuples(st.text(max_size=60), st.text(max_size=60)),  # longer ones are shortened
)
def test_what_is_written_is_read(
    entity: QuotaEntity, key: str, new: float | None, old: float | None, names: tuple[str, str]
) -> None:
    header = Header("0a", Author(principal=names[0], address=names[1]), old)
    written = new_record(entity, key, new, header)
    assert parse_record_key(written.key) == (entity, key)
    assert parse_value(written.value) == new
    assert parse_header(written.header) == header
    assert written.size >= len(written.key) + len(written.value or b"") + len(written.header)


@pytest.mark.parametrize(
    "key",
    [
        None,
        b"",
        b"alice",
        b"\xff",
        KEY + b" ",
        KEY.replace(b":", b": ", 1),
        KEY.replace(b"alice", b"\\u0061lice"),
        KEY.replace(b'"alice"', b"7"),
        KEY.replace(b'"alice"', b'""'),
        KEY.replace(b'"producer_byte_rate"', b"7"),
        KEY.replace(b'"producer_byte_rate"', b"[" * 100_000),
        b'{"entity":' + b"[" * 100_000 + b',"key":"a"}',
        b'{"entity":{"user":"a","user":"alice"},"key":"producer_byte_rate"}',
        b'{"entity":{},"key":"a"}',
        b'{"entity":{"user":"a","ip":"b"},"key":"a"}',
        b'{"key":"a","entity":{"user":"alice"}}',
    ],
    ids=lambda key: repr(key)[:40],
)
def test_a_record_with_another_key_is_ignored(key: bytes | None) -> None:
    """Compaction compares bytes, so a second form of a key would be a second record of the same quota."""
    with pytest.raises((ValueError, RecursionError)):
        parse_record_key(key)
    assert applied([record(0, KEY, b"1"), record(1, key, b"2")]) == {ALICE: {"producer_byte_rate": 1.0}}


@pytest.mark.parametrize(
    "value", [b"", b"NaN", b"-nan", b"{}", b"null", b"\xff", b"1" * 401, b"1,5", b"[1]", b"0x1", b"1_0"]
)
def test_an_invalid_value_removes_the_quota_as_it_does_after_compaction(value: bytes) -> None:
    before, invalid = record(0, KEY, b"1"), record(1, KEY, value)
    assert applied([before, invalid]) == applied([invalid]) == {}
    assert applied([before, invalid, record(2, KEY, b"2")]) == {ALICE: {"producer_byte_rate": 2.0}}


def test_a_value_that_must_not_be_in_force_removes_the_quota() -> None:
    def positive(entity: QuotaEntity, key: str, value: float) -> None:
        if value <= 0:
            raise ValueError("must be above 0")

    state = TopicState(check=positive)
    for offset, value in enumerate([b"1", b"0", b"2", b"-1"]):
        state.apply(record(offset, KEY, value))
    assert state.snapshot().quotas == {}
    assert [each.new for each in state.latest()] == [None, 2.0, None, 1.0]


@pytest.mark.parametrize(
    "header", [None, b"", b"\xff", b"[" * 100_000, b"7", b"[]", b"{}", b'{"principal":7,"address":"a"}', b'"a"']
)
def test_a_record_without_a_readable_header_has_an_unknown_author(header: bytes | None) -> None:
    """Such as one of kafka-console-producer."""
    assert parse_header(header).author == UNKNOWN_AUTHOR
    assert applied([record(0, KEY, b"1", header)]) == {ALICE: {"producer_byte_rate": 1.0}}


def test_odd_old_values_are_left_out() -> None:
    for old in ("true", '"1"', "[]", "1" + "0" * 400, "NaN", "Infinity"):
        header = parse_header(f'{{"principal":"a","address":"b","old":{old}}}'.encode())
        assert (header.author.principal, header.old) == ("a", None)


def test_a_long_author_is_shortened() -> None:
    header = parse_header(f'{{"principal":"{"x" * 100_000}","address":"b"}}'.encode())
    assert header.author.principal == bounded_name("x" * 100_000)


def test_a_quota_with_a_later_header_counts() -> None:
    """Its author is unknown. A forged header must not stop the proxies that read it."""
    header = b'{"version":2,"principal":"a","address":"b"}'
    assert parse_header(header).author == UNKNOWN_AUTHOR
    assert applied([record(0, KEY, b"1", header)]) == {ALICE: {"producer_byte_rate": 1.0}}


@given(records=st.lists(st.tuples(st.sampled_from([KEY, b"x"]) | st.binary(), st.none() | st.binary(), st.binary())))
def test_no_record_ends_the_process(records: list[tuple[bytes, bytes | None, bytes]]) -> None:
    applied([record(offset, *each) for offset, each in enumerate(records)])


def test_numbers() -> None:
    assert exact_number(2**53 + 1, "a") == float(2**53)
    with pytest.raises(ValueError, match="must be a number"):
        exact_number(float("nan"), "a")
    with pytest.raises(ValueError, match="too large"):
        exact_number(10**400, "a")
