"""What clients send in these tests, and what lies in the broker's log afterwards."""

from __future__ import annotations

import hashlib
import random
import struct
from typing import TYPE_CHECKING, Final

import pytest

from headrace.quota_callbacks.api_keys import ApiKey
from tests.clients.wire_connection import WireConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.clients.fronts import Front

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""Every compression type, at its number in the attributes of a record batch."""
CODEC_CASES: Final = [*(pytest.param(codec, marks=pytest.mark.exhaustive) for codec in CODECS[:-1]), CODECS[-1]]
"""For all clients but Java's, which send with each codec in ``make test``."""

SMALL: Final = tuple(b"a small message that repeats itself, itself, itself, %d" % number for number in range(1000))
"""Compressible, and each its own."""

LARGE_BYTES: Final = (pytest.param(900_000, marks=pytest.mark.exhaustive), 5_000_000)
"""Below the default limit of a message, and above all defaults."""
LARGE_LIMIT: Final = 6_000_000

SPLICED: Final = "headrace_spliced_bytes_total"
"""The proxy's count of bytes that never entered user space."""

_METADATA: Final = 4
_FETCH: Final = 11
_FETCH_BYTES: Final = 16 * 1024 * 1024
_BEFORE_LENGTH: Final = 8
_ATTRIBUTES_AT: Final = 21
_CODEC: Final = 7


def large(size: int) -> bytes:
    """So many bytes that do not compress, the same each time."""
    return random.Random(size).randbytes(size)  # noqa: S311


def digest(data: bytes) -> str:
    """The SHA-256 of ``data``: comparing those keeps megabytes out of a failed assertion's text."""
    return hashlib.sha256(data).hexdigest()


def codecs_in_log(front: Front, topic: str) -> set[str]:
    """The compression types of all batches in partition 0 of ``topic``, as a Fetch through the proxy finds them."""
    with WireConnection(("127.0.0.1", front.proxy.port)) as connection:
        found = connection.ask(ApiKey.METADATA, _METADATA, {"topics": [{"name": topic}]})["topics"][0]
    leader = next(each["leader_id"] for each in found["partitions"] if each["partition_index"] == 0)
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": _FETCH_BYTES}
    with WireConnection(("127.0.0.1", front.proxy.broker_port(leader))) as connection:
        request = {"max_bytes": _FETCH_BYTES, "topics": [{"topic": topic, "partitions": [partition]}]}
        reply = connection.ask(ApiKey.FETCH, _FETCH, request)
    records = reply["responses"][0]["partitions"][0]["records"]
    return {CODECS[attributes & _CODEC] for attributes in _attributes(records)}


def _attributes(records: bytes) -> Iterator[int]:
    """The attributes of each batch of format 2; the last may be cut short."""
    at = 0
    while at + _ATTRIBUTES_AT + 2 <= len(records):
        yield struct.unpack_from(">h", records, at + _ATTRIBUTES_AT)[0]
        at += _BEFORE_LENGTH + 4 + struct.unpack_from(">i", records, at + _BEFORE_LENGTH)[0]
