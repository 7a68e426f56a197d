"""Reading some fields of each struct in a long array of a message, where decoding all fields would cost too much.

Called by `headrace.proxy.wire.topic_lookups`. What has to be read and skipped is computed once for each message,
version and selection of fields, at its first use, as the codecs are.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING

from headrace.proxy.wire.messages.codec import malformed
from headrace.proxy.wire.messages.composites import element_codec, field_codec, skip_steps, too_early
from headrace.proxy.wire.messages.scalars import Broken, Codec, LengthReader, Skipper, check_count, count_codec
from headrace.proxy.wire.messages.schemas import schema
from headrace.proxy.wire.messages.stepwise import ROWS_A_STEP
from headrace.proxy.wire.messages.tagged_fields import skip_tags

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.proxy.wire.messages.codec import Buffer, Message
    from headrace.proxy.wire.messages.stepwise import Steps


def read_rows(name: str, version: int, body: Buffer, array: str, wanted: tuple[str, ...]) -> Iterator[Message]:
    """Yield the ``wanted`` fields of each struct in the top-level ``array`` of a message.

    Raises `UnknownMessage` without a schema, `KeyError` for a field that this version lacks, and `MalformedMessage` for
    bytes that break the schema as far as they are walked.
    """
    return (row for row in _rows(name, version, bytes(body), array, wanted) if row is not None)


def count_elements_in_steps(
    name: str, version: int, body: Buffer, array: str, wanted: tuple[str, ...], counted: str
) -> Steps[list[Message]]:
    """Return the ``wanted`` fields of each struct as `read_rows`, and how many elements its array ``counted`` has.

    The elements are stepped over. Yields after every `ROWS_A_STEP` structs or elements.
    """
    rows: list[Message] = []
    for row in _rows(name, version, bytes(body), array, (*wanted, counted), counted):
        if row is not None:
            rows.append(row)
        if row is None or len(rows) % ROWS_A_STEP == 0:
            yield
    return rows


def _rows(
    name: str, version: int, data: bytes, array: str, wanted: tuple[str, ...], counted: str | None = None
) -> Iterator[Message | None]:
    """Yield each struct, and ``None`` after every `ROWS_A_STEP` elements of its array ``counted``."""
    before, read_count, steps, min_bytes = _steps(name, version, array, wanted)
    at = 0
    try:
        for skip in before:
            at = skip(data, at)
        count, start = read_count(data, at)
        check_count(data, at, start, count, min_bytes)
        at = start
        for _ in range(count):
            row: Message = {}
            for field, codec, skips in steps:
                for skip in skips:
                    at = skip(data, at)
                if field == counted:
                    row[field], at = yield from _count_elements(*_counting(name, version, array, field), data, at)
                elif codec is not None:
                    row[field], at = codec.read(data, at)
            yield row
    except Broken as broken:
        raise malformed(name, version, broken) from broken
    except (IndexError, struct.error):
        raise malformed(name, version, too_early(data, at, array)) from None
    if counted is not None and at > len(data):
        raise malformed(name, version, too_early(data, len(data), array))


@cache
def _counting(name: str, version: int, array: str, counted: str) -> tuple[LengthReader, Codec]:
    """Return what reads the length of the array ``counted`` of each struct, and what skips one of its elements."""
    [outer] = [field for field in schema(name, version).fields if field.name == array]
    [inner] = [field for field in outer.fields if field.name == counted]
    return count_codec(flexible=inner.flexible, nullable=inner.nullable)[0], element_codec(inner)


def _count_elements(read_count: LengthReader, element: Codec, data: bytes, at: int) -> Steps[tuple[int, int]]:
    count, start = read_count(data, at)
    check_count(data, at, start, count, element.min_bytes)
    for number in range(count):
        start = element.skip(data, start)
        if number % ROWS_A_STEP == 0:
            yield
    return max(count, 0), start


_Step = tuple[str, Codec | None, list[Skipper]]
"""The name and the codec of a wanted field, and what skips the fields before it. The last step has an empty name and no
codec: it skips the fields after the last wanted one."""


@cache
def _steps(
    name: str, version: int, array: str, wanted: tuple[str, ...]
) -> tuple[list[Skipper], LengthReader, list[_Step], int]:
    found = schema(name, version)
    placed = [field for field in found.fields if field.tag is None]
    position = next((index for index, field in enumerate(placed) if field.name == array), None)
    if position is None:
        raise KeyError(f"{name} v{version} has no {array}")
    field = placed[position]
    read_count, _ = count_codec(flexible=field.flexible, nullable=field.nullable)
    before = skip_steps([field_codec(one) for one in placed[:position]])
    columns = [one for one in field.fields if one.tag is None]
    if missing := set(wanted) - {one.name for one in columns}:
        raise KeyError(f"{name} v{version}: {array} has no {', '.join(sorted(missing))}")
    steps: list[_Step] = []
    passed: list[Codec] = []
    for one in columns:
        if one.name in wanted:
            steps.append((one.name, field_codec(one), skip_steps(passed)))
            passed = []
        else:
            passed.append(field_codec(one))
    rest = skip_steps(passed)
    if field.flexible:
        rest.append(skip_tags)
    steps.append(("", None, rest))
    min_bytes = sum(field_codec(one).min_bytes for one in columns) + field.flexible
    return before, read_count, steps, min_bytes
