"""Finding the throttle time and the leader hints (KIP-951) at the end of a Produce response, and refused partitions.

They follow an array of variable length, which is skipped without decoding it. Since Produce is on the hot path, this is
a hand-written equivalent of `headrace.proxy.wire.messages.codec` for one message. Called by
`headrace.proxy.wire.endpoints`, and by `headrace.proxy.connection` to set the throttle time. Source:
``ProduceResponse.json``; the tests compare the results with those of the generic codec.
"""

from __future__ import annotations

import struct
import sys
from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.proxy.wire.errors import UnknownMessage
from headrace.proxy.wire.messages.codec import malformed
from headrace.proxy.wire.messages.scalars import Broken, TooManyRows, check_count, read_uvarint
from headrace.proxy.wire.messages.tagged_fields import read_tag, read_tag_count, skip_tags
from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from headrace.proxy.wire.messages.codec import Buffer

NODE_ENDPOINTS_TAG: Final = 0
"""Tag of ``NodeEndpoints`` in ``ProduceResponse.json``, from version 10."""

_NO_ERRORS: Final = b"\x01\x00\x00"
"""The end of a partition without errors, message and hint, from version 9: no elements, null, no tagged fields."""
_NO_ERRORS_AND_TAGS: Final = b"\x01\x00\x00\x00"
"""`_NO_ERRORS` of a topic's last partition, and the number of the topic's tagged fields, 0."""

_COUNT_TO_ERRORS: Final = 31
"""Bytes of the number of partitions (1) and of a partition up to its errors (`_PARTITION_BYTES`), from version 9."""

_COUNT_TO_END: Final = 40
"""Bytes from the number of partitions to the end of a response about one partition, from version 9: those above,
`_NO_ERRORS_AND_TAGS`, the throttle time (4), and the number of tagged fields (1)."""

_APPENDED: Final = frozenset(
    each.value for each in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
)
"""No error, and errors of a leader that has appended the records, but has not seen enough replicas do so."""

_MAX_VERSION: Final = 13
_INT16: Final = Struct(">h").unpack_from
_INT32: Final = Struct(">i").unpack_from

# index, error code, base offset (0+), log append time (2+), log start offset (5+)
_PARTITION_BYTES: Final = tuple(
    30 if version >= 5 else 22 if version >= 2 else 14 for version in range(_MAX_VERSION + 1)
)


def find_produce_tail(body: Buffer, version: int, max_rows: int = sys.maxsize) -> tuple[int | None, int | None]:
    """Return the offsets in a response's body of throttle_time_ms (INT32), and of the tagged field with the hints.

    An offset is in bytes, and ``None`` if the field is missing (version 0 has no throttle time). Raises
    `UnknownMessage` for a version above 13, `MalformedMessage` for a body that violates the schema, and `TooManyRows`
    for more than ``max_rows`` topics, partitions, and record errors of other lengths than the one before, each of which
    takes time.
    """
    if not 0 <= version <= _MAX_VERSION:
        raise UnknownMessage(f"no schema for ProduceResponse v{version}: known are 0 to {_MAX_VERSION}")
    data = bytes(body)
    if version >= 9 and max_rows > 1 and _is_of_one_partition(data, version):
        return len(data) - 5, None
    try:
        at = _skip_flexible(data, version, max_rows) if version >= 9 else _skip_plain(data, version, max_rows)
        throttle_at = at if version >= 1 else None
        at += 4 if version >= 1 else 0
        hints_at = None
        if version >= 9:
            hints_at, at = _find_hints(data, at, version)
    except Broken as broken:
        raise malformed("ProduceResponse", version, broken) from broken
    except (IndexError, struct.error):
        at = len(data) + 1
    if at > len(data):
        raise malformed("ProduceResponse", version, Broken(len(data), "the message ends too early"))
    return throttle_at, hints_at


def _is_of_one_partition(data: bytes, version: int) -> bool:
    """Return whether a response from version 9 on has one topic with one partition, no record errors, no message, no
    tagged fields, and nothing behind its end. Most are like this."""
    at = len(data) - _COUNT_TO_END
    return (
        2 <= at <= 0x80
        and data[0] == data[at] == 2
        and at == (17 if version >= 13 else data[1] + 1)
        and data.startswith(_NO_ERRORS_AND_TAGS, at + _COUNT_TO_ERRORS)
        and data[-1] == 0
    )


def read_refused(body: Buffer, version: int, max_rows: int = sys.maxsize) -> dict[tuple[str | bytes, int], int]:
    """Return the error codes of the partitions that the broker did not append to, by topic (name, or from v13 on id)
    and index.

    The errors of `_APPENDED` occur after the leader has appended the records. Raises the errors of `find_produce_tail`.
    """
    if not 0 <= version <= _MAX_VERSION:
        raise UnknownMessage(f"no schema for ProduceResponse v{version}: known are 0 to {_MAX_VERSION}")
    data = bytes(body)
    try:
        return _read_refused(data, version, max_rows)
    except Broken as broken:
        raise malformed("ProduceResponse", version, broken) from broken
    except (IndexError, struct.error) as error:
        raise malformed("ProduceResponse", version, Broken(len(data), "the message ends too early")) from error


def _read_refused(data: bytes, version: int, max_rows: int) -> dict[tuple[str | bytes, int], int]:
    width, flexible = _PARTITION_BYTES[version], version >= 9
    refused: dict[tuple[str | bytes, int], int] = {}
    left = max_rows
    topics, at = _read_count(data, 0, version)
    for _ in range(topics):
        name_at = at
        if version >= 13:
            at += 16
        elif flexible:
            length, name_at = _count(data, at)
            at = name_at + length
        else:
            name_at, at = at + 2, _skip_plain_string(data, at)
        partitions, partition_at = _read_count(data, at, version)
        name = data[name_at:at]
        topic = name if version >= 13 else name.decode(errors="replace")
        at = partition_at
        for _ in range(partitions):
            error_code: int = _INT16(data, at + 4)[0]
            if error_code not in _APPENDED:
                refused[topic, _INT32(data, at)[0]] = error_code
            at += width
            if version >= 8:
                at, errors = _skip_flexible_errors(data, at, left) if flexible else _skip_plain_errors(data, at, left)
                left -= errors
        if flexible:
            at = skip_tags(data, at)
    return refused


def _read_count(data: bytes, at: int, version: int) -> tuple[int, int]:
    return _count(data, at) if version >= 9 else (_INT32(data, at)[0], at + 4)


def _check_rows(rows: int, max_rows: int) -> None:
    if rows > max_rows:
        raise TooManyRows


def _skip_plain(data: bytes, version: int, max_rows: int) -> int:
    """Skip ``responses`` of versions 0 to 8."""
    width = _PARTITION_BYTES[version]
    topics: int = _INT32(data, 0)[0]
    _check(data, 0, 4, topics, 6)
    rows, at = topics, 4
    _check_rows(rows, max_rows)
    for _ in range(topics):
        length: int = _INT16(data, at)[0]
        if length < 0:
            raise Broken(at, "a topic without a name")
        at += 2 + length
        count: int = _INT32(data, at)[0]
        _check(data, at, at + 4, count, width)
        rows += count
        _check_rows(rows, max_rows)
        at += 4
        if version < 8:
            at += count * width
            continue
        for _ in range(count):
            at, errors = _skip_plain_errors(data, at + width, max_rows - rows)
            rows += errors
    return at


def _skip_plain_errors(data: bytes, at: int, max_rows: int) -> tuple[int, int]:
    """Skip ``record_errors`` and ``error_message`` of version 8; return as `_skip_record_errors`."""
    errors: int = _INT32(data, at)[0]
    _check(data, at, at + 4, errors, 6)
    at, rows = _skip_record_errors(data, at + 4, errors, max_rows, flexible=False)
    return _skip_plain_string(data, at), rows


def _skip_plain_string(data: bytes, at: int) -> int:
    length: int = _INT16(data, at)[0]
    return at + 2 + max(length, 0)


def _skip_flexible(data: bytes, version: int, max_rows: int) -> int:
    """Skip ``responses`` from version 9 on."""
    width = _PARTITION_BYTES[version]
    rows, at = _count(data, 0)
    _check_rows(rows, max_rows)
    for _ in range(rows):
        if version >= 13:
            at += 16
        else:
            length, at = _count(data, at)
            at += length
        partitions, at = _count(data, at)
        rows += partitions
        _check_rows(rows, max_rows)
        for _ in range(partitions):
            at += width
            if data.startswith(_NO_ERRORS, at):
                at += 3
            else:
                at, errors = _skip_flexible_errors(data, at, max_rows - rows)
                rows += errors
        at = skip_tags(data, at)
    return at


def _skip_flexible_errors(data: bytes, at: int, max_rows: int) -> tuple[int, int]:
    """Skip ``record_errors``, ``error_message`` and tagged fields of a partition, from version 9 on; return as
    `_skip_record_errors`."""
    errors, at = _count(data, at)
    at, rows = _skip_record_errors(data, at, errors, max_rows, flexible=True)
    return skip_tags(data, _skip_compact(data, at)), rows


def _skip_record_errors(data: bytes, at: int, count: int, max_rows: int, *, flexible: bool) -> tuple[int, int]:
    """Skip ``count`` record errors: an index and a message each. Return the position after them, and how many had to be
    skipped by themselves, which are rows.

    A batch of a million invalid records has as many, with messages of a few lengths. After two of the same length,
    those that follow are skipped together: the bytes that determine an element's length are compared over 2, 4, 8, ...
    of them until one differs. Raises `TooManyRows` for more than ``max_rows`` rows.
    """
    rows = width = 0
    while count:
        rows += 1
        _check_rows(rows, max_rows)
        begin, last_width = at, width
        at = skip_tags(data, _skip_compact(data, at + 4)) if flexible else _skip_plain_string(data, at + 4)
        width, count = at - begin, count - 1
        if width != last_width:
            continue
        shape = _shape(data, begin, at, flexible=flexible)
        compared = alike = 1
        while alike == compared and (compared := min(2 * compared, count, max(len(data) - at, 0) // width)):
            alike = compared
            for offset in shape:
                column = data[at + offset : at + alike * width : width]
                alike = len(column) - len(column.lstrip(data[begin + offset : begin + offset + 1]))
            at, count = at + alike * width, count - alike
    return at, rows


def _shape(data: bytes, begin: int, end: int, *, flexible: bool) -> tuple[int, ...]:
    """Return the offsets of the bytes that determine the length of a record error: those of its message's length, and
    the number of tagged fields. An element with tagged fields is like no other: all its bytes are compared."""
    if not flexible:
        return 4, 5
    start = begin + 4
    while data[start] >= 0x80:
        start += 1
    has_tags = _skip_compact(data, begin + 4) + 1 != end
    return tuple(range(end - begin)) if has_tags else (*range(4, start - begin + 1), end - begin - 1)


def _count(data: bytes, at: int) -> tuple[int, int]:
    """Read a compact length that is not nullable; return it and the position after it."""
    count = data[at]
    if 0 < count < 0x80:
        return count - 1, at + 1
    count, start = read_uvarint(data, at)
    if count == 0:
        raise Broken(at, "null in a field that is not nullable")
    check_count(data, at, start, count - 1, 1)
    return count - 1, start


def _skip_compact(data: bytes, at: int) -> int:
    """Skip a compact nullable string."""
    length = data[at]
    if length < 0x80:
        return at + (length or 1)
    length, start = read_uvarint(data, at)
    return start + max(length - 1, 0)


def _check(data: bytes, at: int, start: int, count: int, min_bytes: int) -> None:
    if count < 0:
        raise Broken(at, f"a count of {count}")
    check_count(data, at, start, count, min_bytes)


def _find_hints(data: bytes, at: int, version: int) -> tuple[int | None, int]:
    """Return the offset of the tagged field ``node_endpoints``, or ``None``, and the end of the message."""
    if data[at] == 0:
        return None, at + 1
    count, at = read_tag_count(data, at)
    hints_at = None
    for _ in range(count):
        begin = at
        tag, _start, at = read_tag(data, at)
        if tag == NODE_ENDPOINTS_TAG and version >= 10:
            hints_at = begin
    return hints_at, at
