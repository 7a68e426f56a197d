"""The messages of the client-quota APIs: what is read is what was sent, and Kafka reads what is written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.wire.client_quotas import (
    AlterEntry,
    AlterRequest,
    AlterResult,
    DescribeResponse,
    FilterComponent,
    MatchType,
    QuotaFilter,
    QuotaOp,
    alterations_in_steps,
    describe_error,
    filter_in_steps,
)
from headrace.proxy.wire.errors import MalformedFrame, MalformedMessage, UnencodableValue, UnknownMessage
from headrace.proxy.wire.messages.codec import decode, encode
from headrace.proxy.wire.messages.scalars import LONGEST_STRING, uvarint
from headrace.proxy.wire.messages.stepwise import ROWS_A_STEP, finish
from tests.proxy.quotas.in_one_step import alter_response, read_alterations
from tests.proxy.wire.oracle import through_java

VERSIONS = (0, 1)
TEXTS = st.text(max_size=6) | st.sampled_from(["user", "client-id", "ip", "<default>", "%2A"])
NAMES = st.none() | TEXTS
PARTS = st.lists(st.tuples(TEXTS, NAMES), max_size=3).map(tuple)
FILTERS = st.builds(
    QuotaFilter,
    components=st.lists(
        st.builds(FilterComponent, entity_type=TEXTS, match_type=st.integers(-128, 127), match=NAMES), max_size=3
    ).map(tuple),
    strict=st.booleans(),
)
OPS = st.builds(QuotaOp, key=TEXTS, value=st.floats(allow_nan=False), remove=st.booleans())
REQUESTS = st.builds(
    AlterRequest,
    entries=st.lists(st.builds(AlterEntry, entity=PARTS, ops=st.lists(OPS, max_size=3).map(tuple)), max_size=3).map(
        tuple
    ),
    validate_only=st.booleans(),
)


def filter_message(wanted: QuotaFilter) -> dict[str, Any]:
    rows = [
        {"entity_type": each.entity_type, "match_type": each.match_type, "match": each.match}
        for each in wanted.components
    ]
    return {"components": rows, "strict": wanted.strict}


def alter_message(asked: AlterRequest) -> dict[str, Any]:
    rows = [
        {
            "entity": [{"entity_type": each, "entity_name": name} for each, name in entry.entity],
            "ops": [{"key": op.key, "value": op.value, "remove": op.remove} for op in entry.ops],
        }
        for entry in asked.entries
    ]
    return {"entries": rows, "validate_only": asked.validate_only}


@given(FILTERS)
def test_a_filter_is_read_as_it_was_sent(wanted: QuotaFilter) -> None:
    for version in VERSIONS:
        body = encode("DescribeClientQuotasRequest", version, filter_message(wanted))
        found = finish(filter_in_steps(version, body))
        assert found == wanted
        assert all(isinstance(each.match_type, MatchType) == (0 <= each.match_type <= 2) for each in found.components)
        for end in range(len(body)):
            with pytest.raises(MalformedMessage):
                finish(filter_in_steps(version, body[:end]))


@given(REQUESTS)
def test_alterations_are_read_as_they_were_sent(asked: AlterRequest) -> None:
    for version in VERSIONS:
        body = encode("AlterClientQuotasRequest", version, alter_message(asked))
        assert read_alterations(version, body) == asked
        for end in range(len(body)):
            with pytest.raises(MalformedMessage):
                read_alterations(version, body[:end])


@given(st.lists(st.tuples(PARTS, st.dictionaries(TEXTS, st.floats(allow_nan=False), max_size=3)), max_size=4))
def test_kafka_reads_a_description(entries: list[tuple[Any, dict[str, float]]]) -> None:
    for version in VERSIONS:
        response = DescribeResponse(version)
        for entity, values in entries:
            response.add(entity, values)
        body = response.body(77)
        assert through_java("DescribeClientQuotasResponse", version, body) == body
        assert response.body(77) == body
        message = decode("DescribeClientQuotasResponse", version, body)
        rows = message.pop("entries")
        assert message == {"throttle_time_ms": 77, "error_code": 0, "error_message": ""}
        assert [tuple((part["entity_type"], part["entity_name"]) for part in row["entity"]) for row in rows] == [
            entity for entity, _ in entries
        ]
        assert [{value["key"]: value["value"] for value in row["values"]} for row in rows] == [
            values for _, values in entries
        ]


def test_a_filter_of_many_components_is_read_in_steps() -> None:
    component = FilterComponent(entity_type="user", match_type=MatchType.SPECIFIED, match=None)
    wanted = QuotaFilter(components=(component,) * 9999, strict=True)
    body = encode("DescribeClientQuotasRequest", 1, filter_message(wanted))
    assert sum(1 for _ in filter_in_steps(1, body)) >= 2 * len(wanted.components) // ROWS_A_STEP
    assert finish(filter_in_steps(1, body)) == wanted


def test_the_tagged_fields_of_the_request_count_as_rows() -> None:
    tags = uvarint(1001) + b"".join(uvarint(tag) + uvarint(0) for tag in range(1001))
    body = uvarint(1) + b"\0" + tags
    assert finish(alterations_in_steps(1, body, 1001)).entries == ()
    with pytest.raises(MalformedFrame, match="more than 1000 entities, parts of entities, keys and tagged fields"):
        finish(alterations_in_steps(1, body, 1000))


def test_counts_of_several_bytes() -> None:
    for version in VERSIONS:
        response = DescribeResponse(version)
        for number in range(20_000):
            response.add([("user", f"u{number}")], {"producer_byte_rate": 1.0})
        rows = decode("DescribeClientQuotasResponse", version, response.body())["entries"]
        assert len(rows) == 20_000
        assert rows[-1]["entity"] == [{"entity_type": "user", "entity_name": "u19999"}]


@given(st.lists(st.builds(AlterResult, entity=PARTS, error_code=st.integers(-1, 120), error_message=NAMES), max_size=4))
def test_kafka_reads_an_answer_to_alterations(results: list[AlterResult]) -> None:
    for version in VERSIONS:
        body = alter_response(version, results, 77)
        assert through_java("AlterClientQuotasResponse", version, body) == body
        message = decode("AlterClientQuotasResponse", version, body)
        assert message["throttle_time_ms"] == 77
        assert [
            AlterResult(
                entity=tuple((part["entity_type"], part["entity_name"]) for part in row["entity"]),
                error_code=row["error_code"],
                error_message=row["error_message"],
            )
            for row in message["entries"]
        ] == results


def test_an_error_has_no_entries() -> None:
    for version in VERSIONS:
        body = describe_error(version, 42, "Unknown match type 7", 5)
        assert through_java("DescribeClientQuotasResponse", version, body) == body
        assert decode("DescribeClientQuotasResponse", version, body) == {
            "throttle_time_ms": 5,
            "error_code": 42,
            "error_message": "Unknown match type 7",
            "entries": None,
        }


@pytest.mark.parametrize("character", ["k", "\N{SNOWMAN}", "\N{GRINNING FACE}", "\ud800"])
def test_long_messages_are_shortened(character: str) -> None:
    for length in (1, LONGEST_STRING // 4, LONGEST_STRING // 4 + 1, LONGEST_STRING, 2 * LONGEST_STRING):
        message = character * length
        if character == "\ud800" and length <= LONGEST_STRING // 4:
            continue
        body = describe_error(1, 42, message)
        written = decode("DescribeClientQuotasResponse", 1, body)["error_message"]
        assert message.replace("\ud800", "?").startswith(written)
        assert len(written.encode()) > LONGEST_STRING - 4 or len(written) == length


def test_an_entity_that_cannot_be_written_leaves_nothing_behind() -> None:
    response = DescribeResponse(1)
    response.add([("user", "a")], {"x": 1.0})
    before = response.body()
    for name in ("n" * (LONGEST_STRING + 1), "\ud800"):
        with pytest.raises(UnencodableValue):
            response.add([("user", "b"), ("client-id", name)], {"x": 1.0})
    assert response.body() == before


def test_an_unknown_version() -> None:
    with pytest.raises(UnknownMessage):
        finish(filter_in_steps(2, b""))
    with pytest.raises(UnknownMessage):
        read_alterations(2, b"")
    with pytest.raises(UnknownMessage):
        DescribeResponse(2)
