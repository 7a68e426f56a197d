"""Requests by hand, in versions without tagged fields: fault tests must not trust the code that they test."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PRODUCE, FETCH, LIST_OFFSETS, METADATA, HEARTBEAT, SASL_HANDSHAKE, API_VERSIONS = 0, 1, 2, 3, 12, 17, 18

PRODUCE_VERSION = 8
FETCH_VERSION = 11
METADATA_VERSION = 2
HEARTBEAT_VERSION = 1

UNSUPPORTED_VERSION = 35

TIMESTAMP_MS = time.time_ns() // 1_000_000
"""Of every record. Records of long ago would be deleted by the broker's retention, half a minute after its start."""

NO_TOPICS = struct.pack(">i", 0)
ALL_TOPICS = struct.pack(">i", -1)


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def plain_token(user: str, password: str) -> bytes:
    """The body of a SaslAuthenticate v0 or v1 with the token of PLAIN."""
    return frame(f"\0{user}\0{password}".encode())


def request(api_key: int, version: int, correlation_id: int, body: bytes = b"", client_id: str = "raw") -> bytes:
    """A whole frame with a header of version 1."""
    return frame(struct.pack(">hhi", api_key, version, correlation_id) + string(client_id) + body)


def batch(value: bytes, count: int = 1, *, timestamp_ms: int = TIMESTAMP_MS, deltas: Sequence[int] = (0,)) -> bytes:
    """A record batch (format v2) of `count` records, each with `value` and no key, of no producer id. Their timestamps
    are `timestamp_ms` and the `deltas` in turn."""
    records = b"".join(_record(number, value, deltas[number % len(deltas)]) for number in range(count))
    latest_ms = timestamp_ms + max(deltas)
    checked = struct.pack(">hiqqqhii", 0, count - 1, timestamp_ms, latest_ms, -1, -1, -1, count) + records
    behind_length = struct.pack(">ibI", -1, 2, _crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(behind_length)) + behind_length


def _record(number: int, value: bytes, delta_ms: int) -> bytes:
    body = b"\0" + _varint(delta_ms) + _varint(number) + _varint(-1) + _varint(len(value)) + value + _varint(0)
    return _varint(len(body)) + body


def _varint(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 63)
    data = bytearray()
    while rest > 0x7F:
        data.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*data, rest])


def _crc32c_table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc32c_table()


def _crc32c(data: bytes) -> int:
    """A megabyte takes a tenth of a second; a batch is made once and sent often."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def produce_body(topic: str, records: bytes, *, acks: int = -1, partition: int = 0) -> bytes:
    return (
        struct.pack(">hhii", -1, acks, 30_000, 1)
        + string(topic)
        + struct.pack(">iii", 1, partition, len(records))
        + records
    )


def fetch_body(
    topic: str,
    offset: int = 0,
    *,
    max_bytes: int = 55 * 2**20,
    min_bytes: int = 1,
    max_wait_ms: int = 500,
    partition: int = 0,
) -> bytes:
    return (
        struct.pack(">iiiibii", -1, max_wait_ms, min_bytes, max_bytes, 0, 0, -1)
        + struct.pack(">i", 1)
        + string(topic)
        + struct.pack(">iiiqqi", 1, partition, -1, offset, -1, max_bytes)
        + struct.pack(">i", 0)
        + string("")
    )


def heartbeat_body() -> bytes:
    return string("no-such-group") + struct.pack(">i", 1) + string("nobody")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceReply:
    error_code: int
    base_offset: int
    throttle_ms: int


def read_produce_reply(body: bytes) -> ProduceReply:
    """One topic of one partition, as `produce_body` asks for; the record errors are passed over by the end."""
    (name_length,) = struct.unpack_from(">h", body, 4)
    _, _, error_code, base_offset = struct.unpack_from(">iihq", body, 6 + name_length)
    (throttle_ms,) = struct.unpack_from(">i", body, len(body) - 4)
    return ProduceReply(error_code=error_code, base_offset=base_offset, throttle_ms=throttle_ms)


def read_fetch_reply(body: bytes) -> tuple[int, int]:
    """The throttle time in ms, and the error of the only partition."""
    (throttle_ms,) = struct.unpack_from(">i", body)
    (name_length,) = struct.unpack_from(">h", body, 14)
    (error_code,) = struct.unpack_from(">h", body, 16 + name_length + 8)
    return throttle_ms, error_code
