"""Bytes that violate their schema raise `MalformedMessage`, in time and memory that are linear in their length."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.wire.errors import MalformedMessage, OurFault, UnencodableValue
from headrace.proxy.wire.messages.codec import TAGS, Message, decode, encode
from headrace.proxy.wire.messages.composites import message_codec, struct_codec
from headrace.proxy.wire.messages.schemas import Field, schema
from tests.proxy.wire.samples import EVERY, LATEST, sample
from tests.proxy.wire.samples import LONG as EXAMPLES

if TYPE_CHECKING:
    from random import Random

REPLACED = "a string of more than 32767 bytes after replacement of invalid UTF-8"
LONG = "a string of 32768 bytes; Kafka allows 32767"

METADATA = {
    "brokers": [{"node_id": 1, "host": "b1", "port": 9092, "rack": None}],
    "cluster_id": "c",
    "controller_id": 1,
    "topics": [],
}


def broken(name: str, version: int, body: bytes) -> MalformedMessage:
    with pytest.raises(MalformedMessage) as caught:
        decode(name, version, body)
    return caught.value


def decoded(name: str, version: int, body: bytes) -> Message | MalformedMessage:
    """Return the message, or the only permitted error."""
    try:
        return decode(name, version, body)
    except MalformedMessage as error:
        return error


def test_every_truncation_is_malformed_and_every_tail_ignored(rng: Random) -> None:
    for name, version in LATEST:
        for _ in range(2):
            body = encode(name, version, sample(rng, name, version))
            for cut in range(len(body)) if len(body) < 40 else rng.sample(range(len(body)), 20):
                broken(name, version, body[:cut])
            # librdkafka sends bytes after Metadata v13 and AlterUserScramCredentials v0, and brokers ignore them.
            assert repr(decode(name, version, body + b"\0\xff\0")) == repr(decode(name, version, body))


def check_any_bytes(name: str, version: int, body: bytes) -> None:
    """Check that bytes are a message, or raise an error with a valid offset."""
    outcome = decoded(name, version, body)
    if isinstance(outcome, MalformedMessage):
        assert (outcome.message, outcome.version) == (name, version)
        assert 0 <= outcome.offset <= len(body)
        assert str(outcome).startswith(f"{name} v{version}: ")
    else:
        again = repr(decode(name, version, encode(name, version, outcome)))
        assert again == repr(outcome), (name, version, body)  # a NaN does not equal itself
        codec = message_codec(name, version)
        assert codec.skip(body, 0) == codec.read(body, 0)[1] <= len(body), (name, version, body)


TAILS = (b"", b"\xff" * 12, b"\x7f\xff\xff\xff", bytes(40))


def test_any_bytes_decode_or_are_malformed(rng: Random) -> None:
    for name, version in LATEST:
        for tail in TAILS:
            check_any_bytes(name, version, rng.randbytes(rng.randint(0, 60)) + tail)


def test_one_changed_byte_decodes_or_is_malformed(rng: Random) -> None:
    for name, version in LATEST:
        for _ in range(4):
            body = bytearray(encode(name, version, sample(rng, name, version)))
            if body:
                body[rng.randrange(len(body))] = rng.randrange(256)
            check_any_bytes(name, version, bytes(body))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "version"), LATEST)
@EXAMPLES
@given(body=st.binary(max_size=60), tail=st.sampled_from(TAILS))
def test_any_bytes_at_length(name: str, version: int, body: bytes, tail: bytes) -> None:
    check_any_bytes(name, version, body + tail)


def test_an_error_names_message_version_field_and_offset() -> None:
    body = encode("MetadataResponse", 12, METADATA)
    error = broken("MetadataResponse", 12, body.replace(b"\x03b1", b"\x7fb1"))
    assert (error.message, error.version, error.field, error.offset) == ("MetadataResponse", 12, "brokers.host", 9)
    assert str(error) == "MetadataResponse v12: brokers.host at byte 9: a string of 126 bytes, but 16 are left"


@pytest.mark.parametrize("count", [b"\x7f\xff\xff\xff", b"\x00\x10\x00\x00"])
def test_an_absurd_count_allocates_nothing(count: bytes) -> None:
    """The count is up to 2**31-1 brokers in four bytes."""
    tracemalloc.start()
    try:
        error = broken("MetadataResponse", 1, count + bytes(8))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert "bytes or more, but 8 are left" in error.reason


def test_an_absurd_compact_count_and_tag_count() -> None:
    assert "elements needs" in broken("MetadataResponse", 9, bytes(4) + b"\xff\xff\xff\xff\x07").reason
    body = encode("HeartbeatResponse", 4, {})
    assert "elements needs" in broken("HeartbeatResponse", 4, body[:-1] + b"\xff\xff\xff\xff\x0f").reason


@pytest.mark.parametrize(
    ("name", "version", "body", "field", "reason"),
    [
        ("HeartbeatRequest", 0, b"\xff\xff", "group_id", "null in a field that is not nullable"),
        ("HeartbeatRequest", 0, b"\xff\xfe", "group_id", "null in a field that is not nullable"),
        ("HeartbeatRequest", 0, b"\x00\x09abc", "group_id", "a string of 9 bytes, but 3 are left"),
        ("HeartbeatRequest", 4, b"\x00", "group_id", "null in a field that is not nullable"),
        ("HeartbeatRequest", 4, b"\x80\x00", "group_id", "null in a field that is not nullable"),
        ("HeartbeatRequest", 4, b"\x81\x80\x01" + b"\xff" * 16384, "group_id", REPLACED),
        ("HeartbeatRequest", 4, b"\xff\xff\xff\xff\xff\x01", "group_id", "a varint of more than 32 bits"),
        ("HeartbeatRequest", 4, b"\xff\xff\xff\xff\x1f", "group_id", "a varint of more than 32 bits"),
        ("HeartbeatRequest", 4, b"\xff\xff\xff\xff\x0f", "group_id", "a length of 4294967295"),
        ("HeartbeatRequest", 4, b"\x81\x80\x02" + b"a" * 32768, "group_id", LONG),
        ("SaslAuthenticateRequest", 0, b"\xff\xff\xff\xff", "auth_bytes", "null in a field that is not nullable"),
        ("SaslAuthenticateRequest", 0, b"\x00\x00\x00\x09abc", "auth_bytes", "a bytes of 9 bytes, but 3 are left"),
        ("MetadataResponse", 0, b"\xff\xff\xff\xff", "brokers", "null in a field that is not nullable"),
    ],
)  # fmt: skip
def test_lengths(name: str, version: int, body: bytes, field: str, reason: str) -> None:
    error = broken(name, version, body)
    assert (error.field, error.reason) == (field, reason)


def heartbeat(*tags: bytes) -> bytes:
    return encode("HeartbeatResponse", 4, {})[:-1] + bytes((len(tags),)) + b"".join(tags)


def test_messages_that_brokers_accept_are_accepted() -> None:
    """``ByteBufferAccessor`` and Kafka's generated code accept these messages."""
    heartbeat_request = bytes(4) + b"\x00\x01m"
    assert (
        decode("HeartbeatRequest", 0, b"\x00\x02\xc3(" + heartbeat_request)["group_id"] == "\N{REPLACEMENT CHARACTER}("
    )
    metadata = bytes(4) + b"\xff\xfe" + bytes(4) + bytes(4)
    assert decode("MetadataResponse", 2, metadata)["cluster_id"] is None


def test_unknown_tagged_fields_are_kept_in_any_order() -> None:
    message = decode("HeartbeatResponse", 4, heartbeat(b"\x05\x00", b"\x03\x01x", b"\x80\x02\x02yz"))
    assert message[TAGS] == {3: b"x", 5: b"", 256: b"yz"}


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ((b"\x05\x09x",), "tagged field 5 of 9 bytes, but 1 are left"),
    ],
)
def test_invalid_tagged_fields(tags: tuple[bytes, ...], reason: str) -> None:
    error = broken("HeartbeatResponse", 4, heartbeat(*tags))
    assert (error.field, error.reason) == (TAGS, reason)


def test_a_defined_tagged_field_must_have_its_size() -> None:
    body = encode("ProduceResponse", 10, {})[:-1]
    endpoints = encode("ProduceResponse", 10, {"node_endpoints": [{"node_id": 1, "host": "h", "port": 1}]})[
        len(body) + 3 :
    ]
    good = b"\x01\x00" + bytes((len(endpoints),)) + endpoints
    assert decode("ProduceResponse", 10, body + good)["node_endpoints"][0]["host"] == "h"
    error = broken("ProduceResponse", 10, body + b"\x01\x00" + bytes((len(endpoints) + 1,)) + endpoints + b"\0")
    assert error.reason == f"node_endpoints has a size of {len(endpoints) + 1} bytes, but takes {len(endpoints)}"


def test_no_element_is_empty_so_that_counts_bound_the_work() -> None:
    def elements(fields: tuple[Field, ...]) -> list[tuple[Field, ...]]:
        inner = [field.fields for field in fields if field.is_array and field.kind == "struct"]
        return inner + [one for field in fields for one in elements(field.fields)]

    for name, version in EVERY:
        found = schema(name, version)
        for fields in elements(found.fields):
            assert struct_codec(fields, flexible=found.flexible).min_bytes >= 1, (name, version)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"no_such": 1}, "has no no_such"),
        ({"error_code": 1 << 15}, "error_code: "),
        ({"topics": [{"name": 5}]}, "topics: name: "),
        ({"topics": [{"name": "a" * 32768}]}, "at most 32767 fit"),
        ({"topics": [{"topic_id": b"short"}]}, "a uuid of 5 bytes"),
        ({"brokers": None}, "brokers: "),
        ({TAGS: {0: b""}}, ""),
    ],
)
def test_values_that_do_not_fit_are_our_fault(message: dict[str, object], reason: str) -> None:
    if TAGS in message:
        encode("MetadataResponse", 13, message)  # this message does not define a tagged field with that tag
        with pytest.raises(UnencodableValue, match="tag 0 is node_endpoints"):
            encode("ProduceResponse", 13, message)
        return
    with pytest.raises(UnencodableValue, match=reason) as caught:
        encode("MetadataResponse", 13, message)
    assert isinstance(caught.value, OurFault)
    assert str(caught.value).startswith("MetadataResponse v13: ")


def test_any_buffer_is_read() -> None:
    body = encode("MetadataResponse", 12, METADATA)
    assert decode("MetadataResponse", 12, memoryview(body)) == decode("MetadataResponse", 12, bytearray(body))
