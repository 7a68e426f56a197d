"""Edits change the named fields, and copy the rest byte for byte, including unknown tagged fields at every level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.wire.errors import MalformedMessage, UnencodableValue, UnknownMessage
from headrace.proxy.wire.messages.codec import TAGS, decode, encode
from headrace.proxy.wire.messages.composites import default_value
from headrace.proxy.wire.messages.editing import DROP, Edit, Row, Rows, edit
from headrace.proxy.wire.messages.schemas import Field, schema
from tests.proxy.wire.oracle import through_java
from tests.proxy.wire.samples import EVERY, LATEST, LONG, sample, sample_element, sample_field

if TYPE_CHECKING:
    from random import Random


def same(value: Any) -> Any:
    return value


def check_the_identity(rng: Random, name: str, version: int) -> None:
    """Check that edits that change nothing return the same bytes."""
    body = encode(name, version, sample(rng, name, version))
    fields = [field.name for field in schema(name, version).fields]
    some = [each for each in (fields or ["none"]) if rng.randrange(2)]
    arrays = {field.name: Rows(lambda rows: rows) for field in schema(name, version).fields if field.is_array}
    for names in ([], fields, some):
        assert edit(name, version, body, dict.fromkeys(names, same)) == body, (name, version, body)
    assert edit(name, version, memoryview(body), arrays) == body, (name, version, body)


def test_an_edit_that_changes_nothing_is_the_identity(rng: Random) -> None:
    for name, version in EVERY:
        check_the_identity(rng, name, version)


def changed(rng: Random, field: Field, value: Any) -> Any:
    """Return another value for a field, or for a row of it; in a struct only fields without a tag are changed."""
    if field.kind != "struct":
        return sample_element(rng, field)
    placed = [one for one in field.fields if one.tag is None]
    return {**value, **{one.name: sample_field(rng, one) for one in placed if rng.randrange(2)}}


def check_against_the_generic_way(rng: Random, name: str, version: int) -> None:
    """Check that an edit equals decoding, changing and encoding, and that Kafka decodes and encodes the same bytes."""
    message = sample(rng, name, version)
    body = encode(name, version, message)
    expected = dict(message)
    edits: dict[str, Edit] = {}
    for field in schema(name, version).fields:
        old = message[field.name]
        absent = old is None or (field.tag is not None and old == default_value(field))
        if absent or (field.kind == "struct" and not field.is_array) or not rng.randrange(2):
            continue
        if field.is_array:
            new = [DROP if rng.randrange(4) == 0 else changed(rng, field, row) for row in old]
            expected[field.name] = [row for row in new if row is not DROP]
            answers = iter(new)
            edits[field.name] = lambda _row, answers=answers: next(answers)
        else:
            expected[field.name] = changed(rng, field, old)
            edits[field.name] = lambda _old, new=expected[field.name]: new
    edited = edit(name, version, body, edits)
    assert decode(name, version, edited) == expected, (name, version, message)
    if not any(field.tag is not None for field in schema(name, version).fields):
        assert edited == encode(name, version, expected), (name, version, message)
        assert through_java(name, version, edited) == edited, (name, version, message)


def test_an_edit_equals_decoding_changing_and_encoding(rng: Random) -> None:
    for name, version in LATEST:
        for _ in range(2):
            check_against_the_generic_way(rng, name, version)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "version"), EVERY)
@LONG
@given(rng=st.randoms(use_true_random=False))
def test_edits_at_length(name: str, version: int, rng: Random) -> None:
    check_the_identity(rng, name, version)
    check_against_the_generic_way(rng, name, version)


def brokers(*ids: int) -> dict[str, Any]:
    return {
        "brokers": [{"node_id": one, "host": f"b{one}", "port": 9092, "rack": "r", TAGS: {40: b"row"}} for one in ids],
        "cluster_id": "c",
        "controller_id": 1,
        "topics": [],
        TAGS: {41: b"top"},
    }


def test_rows_are_changed_dropped_and_kept() -> None:
    body = encode("MetadataResponse", 12, brokers(1, 2, 3))

    def change(row: dict[str, Any]) -> Any:
        return DROP if row["node_id"] == 2 else {**row, "host": "a much longer name"} if row["node_id"] == 3 else row

    expected = brokers(1, 3)
    expected["brokers"][1]["host"] = "a much longer name"
    assert edit("MetadataResponse", 12, body, {"brokers": change}) == encode("MetadataResponse", 12, expected)


def test_varints_that_are_longer_than_necessary_are_kept() -> None:
    body = encode("MetadataResponse", 12, brokers(1, 2))
    wide = body.replace(b"\x03b1", b"\x83\x00b1")
    assert edit("MetadataResponse", 12, wide, {"brokers": same, "controller_id": same}) == wide

    def change(row: dict[str, Any]) -> Any:
        return {**row, "port": 1}

    assert b"\x83\x00b1\x00\x00\x00\x01" in edit("MetadataResponse", 12, wide, {"brokers": change})


def test_tagged_fields_that_contain_their_default_are_kept() -> None:
    body = encode("ProduceResponse", 10, {})
    explicit = body[:-1] + b"\x01\x00\x01\x01"  # node_endpoints: an empty array
    assert edit("ProduceResponse", 10, explicit, {"node_endpoints": same, "throttle_time_ms": same}) == explicit


def test_a_tagged_fields_size_follows_its_value() -> None:
    rows = [{"node_id": one, "host": "h" * 10, "port": 1, "rack": None} for one in range(20)]
    body = encode("ProduceResponse", 13, {"node_endpoints": rows, TAGS: {7: b"kept"}})

    def change(row: dict[str, Any]) -> Any:
        return DROP if row["node_id"] else {**row, "host": "x"}

    expected = {"node_endpoints": [{**rows[0], "host": "x"}], TAGS: {7: b"kept"}}
    assert edit("ProduceResponse", 13, body, {"node_endpoints": change}) == encode("ProduceResponse", 13, expected)


def test_what_stands_behind_the_last_edit_is_copied_unread() -> None:
    body = encode("MetadataResponse", 12, brokers(1)) + b"\xff\xff"
    assert edit("MetadataResponse", 12, body, {"throttle_time_ms": lambda _: 5}) == bytes(3) + b"\x05" + body[4:]


def test_a_whole_array_is_changed() -> None:
    body = encode("MetadataResponse", 12, brokers(1, 2))

    def change(rows: list[Row]) -> list[Any]:
        return [rows[1], {"node_id": 9, "host": "new", "port": 1}, rows[0]]

    ids = [
        row["node_id"]
        for row in decode("MetadataResponse", 12, edit("MetadataResponse", 12, body, {"brokers": Rows(change)}))[
            "brokers"
        ]
    ]
    assert ids == [2, 9, 1]


def test_fields_of_other_versions_and_null_arrays_are_passed_over() -> None:
    def never(_value: Any) -> Any:
        raise AssertionError

    old = encode("MetadataResponse", 0, {})
    assert edit("MetadataResponse", 0, old, {"throttle_time_ms": never, "brokers": never}) == old
    every_topic = encode("MetadataRequest", 12, {"topics": None})
    assert edit("MetadataRequest", 12, every_topic, {"topics": never}) == every_topic
    assert edit("MetadataRequest", 12, every_topic, {"topics": Rows(never)}) == every_topic


def test_edits_that_cannot_be() -> None:
    body = encode("MetadataResponse", 12, brokers(1))
    with pytest.raises(UnencodableValue, match=r"brokers\.port: "):
        edit("MetadataResponse", 12, body, {"brokers": lambda row: {**row, "port": 1 << 40}})
    with pytest.raises(UnencodableValue, match="cannot change no_such in a copy"):
        edit("MetadataResponse", 12, body, {"brokers": lambda row: {**row, "no_such": 1}})
    with pytest.raises(UnencodableValue, match="controller_id is not an array"):
        edit("MetadataResponse", 12, body, {"controller_id": Rows(lambda rows: rows)})
    with pytest.raises(UnknownMessage):
        edit("MetadataResponse", 99, body, {})
    with pytest.raises(LookupError, match="the caller's own"):
        edit("MetadataResponse", 12, body, {"brokers": raising})


def raising(_row: Any) -> Any:
    raise IndexError("the caller's own")


def test_any_bytes_are_edited_or_malformed(rng: Random) -> None:
    for name, version in LATEST:
        for _ in range(4):
            whole = encode(name, version, sample(rng, name, version))
            body = bytearray(whole[: rng.randint(0, len(whole))])
            if body and rng.randrange(2):
                body[rng.randrange(len(body))] = rng.randrange(256)
            some = [field.name for field in schema(name, version).fields if rng.randrange(2)]
            try:
                edited = edit(name, version, body, dict.fromkeys(some, same))
            except MalformedMessage:
                continue
            assert edited == body, (name, version, body, some)
