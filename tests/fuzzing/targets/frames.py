"""Targets: splitting a stream into frames, and the heads of requests and replies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.proxy.wire.apis import request_header_version, response_header_version
from headrace.proxy.wire.errors import MalformedFrame, MalformedMessage, UnknownMessage
from headrace.proxy.wire.heads import (
    LENGTH_BYTES,
    read_request_head,
    read_response_head,
    response_body_at,
)
from headrace.proxy.wire.messages.codec import decode
from headrace.proxy.wire.messages.composites import message_codec
from headrace.proxy.wire.messages.scalars import Broken
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey
from tests.fuzzing.choices import Choices, pieces
from tests.fuzzing.wire_messages import API_KEYS, any_version, message_body, request_frame
from tests.proxy.wire.test_frames import LIMIT, Driver

if TYPE_CHECKING:
    from headrace.proxy.wire.heads import RequestHead


def _a_request(choices: Choices) -> bytes:
    key = choices.pick(API_KEYS)
    version = any_version(choices, f"{API_NAMES[key]}Request")
    return request_frame(
        choices, key, version, choices.byte(), message_body(choices, f"{API_NAMES[key]}Request", version)
    )


def scan_frames(data: bytes) -> None:
    """Split a stream of requests into frames: any split has the same result as the whole."""
    choices = Choices(data)
    collected = frozenset(choices.take(3))
    cuts = choices.cuts()
    stream = b"".join(_a_request(choices) for _ in range(choices.byte() % 4)) + choices.rest()
    whole, split = Driver(collected), Driver(collected)
    fault_of_whole = _fault(whole, [stream])
    fault_of_split = _fault(split, pieces(stream, cuts))
    assert fault_of_split == fault_of_whole
    assert split.heads == whole.heads
    assert split.collected == whole.collected
    if fault_of_whole is None:
        assert split.passed == whole.passed
        assert split.tail == whole.tail
        assert split.scanner.left == whole.scanner.left


def _fault(driver: Driver, chunks: list[bytes]) -> str | None:
    try:
        for chunk in chunks:
            driver.receive(chunk)
    except MalformedFrame as fault:
        return str(fault)
    return None


def request_heads(data: bytes) -> None:
    """Read the head of a request: as the codec of Kafka's schemas does, and the same from any part of the frame."""
    choices = Choices(data)
    ends = [choices.number() for _ in range(3)]
    frame = bytearray(choices.rest() if choices.flag() else _a_request(choices))
    try:
        head = read_request_head(frame, 0, len(frame), LIMIT)
    except MalformedFrame:
        return
    for end in ends:
        part = read_request_head(frame, 0, end % (len(frame) + 1), LIMIT)
        assert part is None or (head is not None and _values(part) == _values(head))
    if head is None or len(frame) < LENGTH_BYTES + head.size:
        return
    body = bytes(frame[LENGTH_BYTES : LENGTH_BYTES + head.size])
    try:
        header, header_bytes = message_codec(
            "RequestHeader", request_header_version(head.api_key, head.api_version)
        ).read(body, 0)
    except Broken:
        return
    assert (head.api_key, head.api_version) == (header["request_api_key"], header["request_api_version"])
    assert head.client_id == (header.get("client_id") or "")
    assert head.correlation_id == header["correlation_id"]
    assert head.body_at == LENGTH_BYTES + header_bytes
    _check_body_fields(head, frame, body[header_bytes:])


def _values(head: RequestHead) -> tuple[object, ...]:
    return tuple(getattr(head, name) for name in head.__slots__)


def _check_body_fields(head: RequestHead, frame: bytearray, body: bytes) -> None:
    """Compare the fields of the body that the head contains with those of the whole message."""
    if head.api_key not in {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.SHARE_FETCH}:
        return
    try:
        message = decode(f"{API_NAMES[head.api_key]}Request", head.api_version, body)
    except (MalformedMessage, UnknownMessage):
        return
    if head.api_key == ApiKey.PRODUCE:
        assert head.acks == message["acks"]
    elif head.fetch_limits_at is not None:
        at = head.fetch_limits_at
        limits = (
            int.from_bytes(frame[at : at + 4], "big", signed=True),
            int.from_bytes(frame[at + 4 : at + 8], "big", signed=True),
        )
        assert limits == (message["min_bytes"], message["max_bytes"])


def reply_heads(data: bytes) -> None:
    """Read the head of a reply as the codec does, and the same from any part of the frame."""
    choices = Choices(data)
    key = choices.pick(API_KEYS)
    version = any_version(choices, f"{API_NAMES[key]}Response")
    ends = [choices.number() for _ in range(3)]
    frame = bytearray(choices.rest())
    try:
        head = read_response_head(frame, 0, len(frame), LIMIT)
        body_at = None if head is None else response_body_at(frame, 0, len(frame), head[0], key, version)
    except MalformedFrame:
        return
    for end in (end % (len(frame) + 1) for end in ends):
        part = read_response_head(frame, 0, end, LIMIT)
        assert part in (None, head)
        if part is not None:
            assert response_body_at(frame, 0, end, part[0], key, version) in (None, body_at)
    if head is None or body_at is None or len(frame) < LENGTH_BYTES + head[0]:
        return
    header_version = response_header_version(key, version)
    try:
        header, header_bytes = message_codec("ResponseHeader", header_version).read(bytes(frame[LENGTH_BYTES:]), 0)
    except Broken:
        return
    assert (header["correlation_id"], LENGTH_BYTES + header_bytes) == (head[1], body_at)
