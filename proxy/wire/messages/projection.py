"""Reading a few fields of a message at any depth, where decoding all of it would cost too much.

    project("FetchRequest", 17, body, frozenset({"topics.topic_id", "replica_state.replica_id"}))

Called by `headrace.proxy.wire.authorization.requirements`, for every request of a proxy that authorizes, and by the
admin client for long replies. The reader of a message, version and set of fields is built when it is first used, and
then cached, like the codecs.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headrace.proxy.wire.errors import MalformedFrame
from headrace.proxy.wire.messages.codec import malformed
from headrace.proxy.wire.messages.composites import element_codec, field_codec, known_tags, skip_steps, too_early
from headrace.proxy.wire.messages.scalars import Broken, Codec, Reader, Skipper, TooManyRows, check_count, count_codec
from headrace.proxy.wire.messages.schemas import schema
from headrace.proxy.wire.messages.tagged_fields import skip_tags, tags_reader

if TYPE_CHECKING:
    from headrace.proxy.wire.messages.codec import Buffer, Message
    from headrace.proxy.wire.messages.schemas import Field

_Step: TypeAlias = "tuple[list[Skipper], str, Reader | None]"
"""The fields to skip, and the name and reader of the field after them; the last step has no such field."""

_ALL: Final[frozenset[str]] = frozenset({""})
"""The fields wanted of a struct that is wanted as a whole."""


def project(name: str, version: int, body: Buffer, wanted: frozenset[str], *, max_rows: int | None = None) -> Message:
    """Return the ``wanted`` fields of a message, named by their path; those that the version lacks are left out.

    The whole message is read to find where its fields end, but only wanted fields are decoded, tagged ones included,
    and others take no memory. Raises `UnknownMessage` without a schema, `MalformedMessage` for bytes that violate it,
    and `MalformedFrame` for an array of more than ``max_rows`` structs of which fields are wanted.
    """
    data = bytes(body)
    if max_rows is not None:
        data = _RowLimited(data)
        data.max_rows = max_rows
    try:
        message, end = _reader(name, version, wanted)(data, 0)
    except Broken as broken:
        raise malformed(name, version, broken) from broken
    except TooManyRows:
        raise MalformedFrame(f"a {name} has more than {max_rows} rows") from None
    except (IndexError, struct.error):
        raise malformed(name, version, too_early(data, 0, "body")) from None
    if end > len(data):
        raise malformed(name, version, too_early(data, 0, "body"))
    found: Message = message
    return found


class _RowLimited(bytes):
    """A body whose arrays may have so many structs, if fields of these are wanted."""

    max_rows: int


@cache
def _reader(name: str, version: int, wanted: frozenset[str]) -> Reader:
    found = schema(name, version)
    return struct_reader(found.fields, wanted, flexible=found.flexible)


def struct_reader(fields: tuple[Field, ...], wanted: frozenset[str], *, flexible: bool) -> Reader:
    """Return a reader of the ``wanted`` of these fields of a struct, named by their paths."""
    parts = whole_or_parts(fields, wanted)
    steps: list[_Step] = []
    passed: list[Codec] = []
    for field in fields:
        if field.tag is not None:
            continue
        if field.name in parts:
            steps.append((skip_steps(passed), field.name, _field_reader(field, parts[field.name])))
            passed = []
        else:
            passed.append(field_codec(field))
    last = skip_steps(passed)
    tagged = known_tags(tuple(field for field in fields if field.tag is not None and field.name in parts))
    if flexible and not tagged:
        last.append(skip_tags)
    steps.append((last, "", None))
    read_tags = tags_reader(tagged) if flexible and tagged else None

    def read(body: bytes, at: int) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        for skips, name, read_one in steps:
            for skip in skips:
                at = skip(body, at)
            if read_one is not None:
                values[name], at = read_one(body, at)
        if read_tags is not None:
            at = read_tags(body, at, values)
        return values, at

    return read


def whole_or_parts(fields: tuple[Field, ...], wanted: frozenset[str]) -> dict[str, frozenset[str]]:
    """Return the fields of a struct that are wanted by their paths, and of each what is wanted of it."""
    if wanted == _ALL:
        return {field.name: _ALL for field in fields}
    parts: dict[str, set[str]] = {}
    for path in wanted:
        first, _, rest = path.partition(".")
        parts.setdefault(first, set()).add(rest)
    return {name: frozenset(rest) for name, rest in parts.items()}


def _field_reader(field: Field, wanted: frozenset[str]) -> Reader:
    if field.kind != "struct" or wanted == _ALL or (field.nullable and not field.is_array):
        return field_codec(field).read
    read_one = struct_reader(field.fields, wanted, flexible=field.flexible)
    if not field.is_array:
        return read_one
    read_count, _ = count_codec(flexible=field.flexible, nullable=field.nullable)
    min_bytes = element_codec(field).min_bytes

    def read(body: bytes, at: int) -> tuple[list[Any] | None, int]:
        count, at = read_count(body, at)
        if count < 0:
            return None, at
        check_count(body, at, at, count, min_bytes)
        if isinstance(body, _RowLimited) and count > body.max_rows:
            raise TooManyRows
        rows = []
        for _ in range(count):
            row, at = read_one(body, at)
            rows.append(row)
        return rows, at

    return read
