"""Reading heads of every API and version as Kafka's schemas encode them, at once and byte by byte, and of invalid
frames."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.wire.apis import APIS, request_header_version, response_header_version
from headrace.proxy.wire.errors import MalformedFrame
from headrace.proxy.wire.heads import (
    MAX_HEAD_BYTES,
    MAX_HEAD_TAGS,
    cap_fetch,
    read_request_head,
    read_response_head,
    request_frame,
    response_body_at,
)
from headrace.proxy.wire.messages.codec import encode
from headrace.quota_callbacks.api_keys import ApiKey

EVERY_VERSION = [(api.key, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)]
LIMIT = 10_000_000


def framed(api_key: int, version: int, body: bytes, client_id: str | None = "app-1") -> bytes:
    header = encode(
        "RequestHeader",
        request_header_version(api_key, version),
        {"request_api_key": api_key, "request_api_version": version, "correlation_id": 77}
        | ({"client_id": client_id} if request_header_version(api_key, version) else {}),
    )
    return (len(header) + len(body)).to_bytes(4, "big") + header + body


def test_the_head_of_every_api_and_version() -> None:
    for api_key, version in EVERY_VERSION:
        check_the_head_of_a_request(api_key, version)


def check_the_head_of_a_request(api_key: ApiKey, version: int) -> None:
    body = encode(f"{APIS[api_key].name}Request", version, {})
    frame = bytearray(framed(api_key, version, body))
    head = read_request_head(frame, 0, len(frame), LIMIT)
    assert head is not None
    assert (head.api_key, head.api_version, head.correlation_id, head.size) == (api_key, version, 77, len(frame) - 4)
    assert head.client_id == ("app-1" if request_header_version(api_key, version) else ""), (api_key, version)
    assert head.body_at == len(frame) - len(body), (api_key, version)


def test_the_head_of_a_reply() -> None:
    for api_key, version in EVERY_VERSION:
        check_the_head_of_a_reply(api_key, version)


def check_the_head_of_a_reply(api_key: ApiKey, version: int) -> None:
    header = encode("ResponseHeader", response_header_version(api_key, version), {"correlation_id": 9})
    frame = bytearray((len(header) + 3).to_bytes(4, "big") + header + b"abc")
    assert read_response_head(frame, 0, len(frame), LIMIT) == (len(frame) - 4, 9), (api_key, version)
    body_at = response_body_at(frame, 0, len(frame), len(frame) - 4, api_key, version)
    assert body_at == len(frame) - 3, (api_key, version)


@pytest.mark.parametrize("api_key", [ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.SHARE_FETCH, ApiKey.METADATA])
def test_an_incomplete_head_is_none(api_key: ApiKey) -> None:
    version = APIS[api_key].max_version
    frame = bytearray(framed(api_key, version, encode(f"{APIS[api_key].name}Request", version, {}), "x" * 300))
    found = [read_request_head(frame, 0, end, LIMIT) is not None for end in range(len(frame) + 1)]
    assert found == sorted(found), "a head that was complete is incomplete with more bytes"
    assert not found[300]
    assert found[-1]


@pytest.mark.parametrize("version", range(14))
def test_acks_of_produce(version: int) -> None:
    for acks, transactional_id in itertools.product((-1, 0, 1), (None, "", "tx-1")):
        message = {"acks": acks} | ({"transactional_id": transactional_id} if version >= 3 else {})
        frame = bytearray(framed(ApiKey.PRODUCE, version, encode("ProduceRequest", version, message)))
        head = read_request_head(frame, 0, len(frame), LIMIT)
        assert head is not None
        assert head.acks == acks, transactional_id


@pytest.mark.parametrize("version", range(3, 19))
def test_fetch_is_capped_in_place(version: int) -> None:
    body = encode("FetchRequest", version, {"max_wait_ms": 500, "min_bytes": 100, "max_bytes": 5000})
    frame = bytearray(framed(ApiKey.FETCH, version, body))
    head = read_request_head(frame, 0, len(frame), LIMIT)
    assert head is not None
    assert head.fetch_limits_at is not None
    cap_fetch(frame, head.fetch_limits_at, 60)
    capped = encode("FetchRequest", version, {"max_wait_ms": 500, "min_bytes": 60, "max_bytes": 60})
    assert frame == framed(ApiKey.FETCH, version, capped)
    cap_fetch(frame, head.fetch_limits_at, 2**31 - 1)
    assert frame == framed(ApiKey.FETCH, version, capped), "a cap above the requested size changes nothing"


@pytest.mark.parametrize("version", range(12, 19))
def test_fetch_is_capped_behind_tagged_fields_of_its_header(version: int) -> None:
    """Such a head is read field by field."""
    body = encode("FetchRequest", version, {"max_wait_ms": 500, "min_bytes": 100, "max_bytes": 5000})
    header = framed(ApiKey.FETCH, version, b"")[4:-1] + b"\x01\x05\x01x"
    frame = bytearray((len(header) + len(body)).to_bytes(4, "big") + header + body)
    head = read_request_head(frame, 0, len(frame), LIMIT)
    assert head is not None
    assert head.fetch_limits_at is not None
    cap_fetch(frame, head.fetch_limits_at, 60)
    assert frame[4:] == header + encode("FetchRequest", version, {"max_wait_ms": 500, "min_bytes": 60, "max_bytes": 60})


@pytest.mark.parametrize("version", [1, 2])
def test_share_fetch_is_capped_in_place(version: int) -> None:
    asked = {"group_id": "g", "member_id": "m" * 22, "max_wait_ms": 500, "min_bytes": 1, "max_bytes": 5000}
    frame = bytearray(framed(ApiKey.SHARE_FETCH, version, encode("ShareFetchRequest", version, asked)))
    head = read_request_head(frame, 0, len(frame), LIMIT)
    assert head is not None
    assert head.fetch_limits_at is not None
    cap_fetch(frame, head.fetch_limits_at, 60)
    capped = encode("ShareFetchRequest", version, asked | {"max_bytes": 60})
    assert frame == framed(ApiKey.SHARE_FETCH, version, capped)


@pytest.mark.parametrize(
    ("client_id", "read"),
    [(b"\xff\xff", ""), (b"\x80\x00", ""), (b"\x00\x03\xff\xfea", "\N{REPLACEMENT CHARACTER}" * 2 + "a")],
)
def test_a_client_id_is_read_as_a_broker_reads_it(client_id: bytes, read: str) -> None:
    """Every negative length is null, and invalid UTF-8 is replaced (``ByteBufferAccessor.readString``)."""
    frame = bytearray((8 + len(client_id)).to_bytes(4, "big") + b"\x00\x03\x00\x01" + bytes(4) + client_id)
    head = read_request_head(frame, 0, len(frame), LIMIT)
    assert head is not None
    assert head.client_id == read


def test_a_null_client_id_is_empty() -> None:
    frame = bytearray(framed(ApiKey.METADATA, 1, b"", None))
    head = read_request_head(frame, 0, len(frame), LIMIT)
    assert head is not None
    assert head.client_id == ""


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (b"\xff\xff\xff\xff" + bytes(8), "a frame of -1 bytes is shorter than a header"),
        (b"\x00\x00\x00\x07" + bytes(8), "a frame of 7 bytes is shorter than a header"),
        (b"\x7f\xff\xff\xff" + bytes(8), "longer than limits.max_frame_bytes = 10000000"),
        (b"\x00\x00\x00\x20\x27\x0f" + bytes(8), "api key 9999 is unknown"),
        (b"\x00\x00\x00\x20\x00\x03\xff\xff" + bytes(8), "Metadata version -1 is negative"),
        (
            b"\x00\x00\x00\x0a\x00\x03\x00\x01" + bytes(4) + b"\x00\x09",
            "Metadata v1: the head reaches beyond its frame",
        ),
    ],
)
def test_an_invalid_frame_is_an_error_that_names_the_reason(start: bytes, reason: str) -> None:
    with pytest.raises(MalformedFrame, match=reason):
        read_request_head(bytearray(start), 0, len(start), LIMIT)


def test_the_length_of_a_head_is_limited() -> None:
    start = (MAX_HEAD_BYTES * 4).to_bytes(4, "big") + b"\x00\x03\x00\x0c" + bytes(4) + b"\x00\x00" + b"\x01"
    frame = bytearray(start + b"\x00\xff\xff\x7f" + bytes(MAX_HEAD_BYTES))
    with pytest.raises(MalformedFrame, match=f"the head is over {MAX_HEAD_BYTES} bytes"):
        read_request_head(frame, 0, MAX_HEAD_BYTES, LIMIT)


def test_the_number_of_tagged_fields_in_a_head_is_limited() -> None:
    frame = bytearray(b"\x00\x00\x10\x00\x00\x03\x00\x0c" + bytes(6) + bytes([MAX_HEAD_TAGS + 1]) + bytes(100))
    with pytest.raises(MalformedFrame, match=f"101 tagged fields in a head; the most are {MAX_HEAD_TAGS}"):
        read_request_head(frame, 0, len(frame), LIMIT)


@given(st.binary(max_size=64))
def test_garbage_is_a_head_or_too_short_or_malformed_and_nothing_else(garbage: bytes) -> None:
    frame = bytearray(garbage)
    try:
        head = read_request_head(frame, 0, len(frame), LIMIT)
    except MalformedFrame:
        return
    assert head is None or head.api_key in APIS


def test_a_request_of_the_proxys_own_fits_any_client_id() -> None:
    """Invalid UTF-8 is read as replacement characters, which take three bytes each."""
    asked = bytearray(framed(ApiKey.METADATA, 1, b"", "x" * 20_000).replace(b"x", b"\xff"))
    head = read_request_head(asked, 0, len(asked), LIMIT)
    assert head is not None
    frame = bytearray(request_frame(ApiKey.METADATA, 4, 7, head.client_id, b"body"))
    own = read_request_head(frame, 0, len(frame), LIMIT)
    assert own is not None
    assert own.client_id[:10_000] == "\N{REPLACEMENT CHARACTER}" * 10_000
    assert frame[own.body_at :] == b"body"
