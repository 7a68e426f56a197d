"""Reading and writing long messages in steps, between which the caller can do other work.

Every function with a name that ends in ``_in_steps`` is a generator. It yields after every `ROWS_A_STEP` elements of an
array at any depth, and returns its result; `finish` runs it without pauses. What is not an array of structs or of
strings is read and written at once, as are tagged fields; arrays in a struct that is not itself in an array are read in
steps, and written at once. The plans of structs are built when they are first used, and
then cached, like the codecs of `headrace.proxy.wire.messages.codec`.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from headrace.proxy.wire.errors import UnencodableValue
from headrace.proxy.wire.messages.codec import malformed
from headrace.proxy.wire.messages.composites import (
    UNFIT,
    default_value,
    element_codec,
    field_codec,
    known_tags,
    too_early,
)
from headrace.proxy.wire.messages.projection import struct_reader, whole_or_parts
from headrace.proxy.wire.messages.scalars import (
    Broken,
    LengthReader,
    Reader,
    Skipper,
    Writer,
    check_count,
    count_codec,
    count_rows,
)
from headrace.proxy.wire.messages.schemas import Field, schema
from headrace.proxy.wire.messages.tagged_fields import TAGS, skip_tags, tags_reader, tags_writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.wire.messages.codec import Buffer, Message

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""A computation in steps: yields between two of them, and returns its result."""

ROWS_A_STEP: Final = 16
"""Elements that are read or written between two yields: some tens of microseconds, unless they contain long strings."""

_NULL: Final = 0x80
"""The lowest byte before a struct that is null: an INT8 that is negative (KIP-893)."""

ALL: Final = frozenset({""})
"""The fields wanted of a message of which all are wanted."""
NOTHING: Final[frozenset[str]] = frozenset()


def finish(steps: Steps[T]) -> T:
    """Run a generator to its end without a pause, and return its value."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            value: T = done.value
            return value


# --- reading ---


class _Part(NamedTuple):
    """A field of a struct, and how it is read."""

    name: str
    read: Reader | None
    """Reads its value at once; ``None`` for a field that is skipped or read in steps."""
    skip: Skipper | None
    rows: RowsReader | None
    struct: StructPlan | None = None
    """How to read a struct that contains arrays and is not an element of an array."""
    nullable: bool = False
    """Whether the struct may be null."""


class StructPlan(NamedTuple):
    """A struct, and how `read_row` reads it."""

    parts: tuple[_Part, ...]
    read_tags: Callable[[bytes, int, dict[str, Any]], int] | None
    """``None`` if there are none."""


class RowsReader(NamedTuple):
    """An array, and how its elements are read."""

    read_count: LengthReader
    min_bytes: int
    read_one: Reader
    """Reads an element at once."""
    struct: StructPlan | None
    """How `read_row` reads an element in steps; ``None`` if it contains no array that is read in steps."""


def decode_in_steps(name: str, version: int, body: Buffer) -> Steps[Message]:
    """Decode a message as `headrace.proxy.wire.messages.codec.decode` does."""
    return project_in_steps(name, version, body, ALL)


def project_in_steps(name: str, version: int, body: Buffer, wanted: frozenset[str]) -> Steps[Message]:
    """Read fields of a message as `headrace.proxy.wire.messages.projection.project` does; `ALL` are all fields."""
    message: Message
    data = bytes(body)
    plan = _message_plan(name, version, wanted)
    try:
        message, end = yield from read_row(plan, data, 0)
    except Broken as broken:
        raise malformed(name, version, broken) from broken
    except (IndexError, struct.error):
        raise malformed(name, version, too_early(data, 0, "body")) from None
    if end > len(data):
        raise malformed(name, version, too_early(data, 0, "body"))
    return message


def skip_in_steps(name: str, version: int, data: bytes) -> Steps[None]:
    """Skip all of a message. Raises `Broken`, ``IndexError`` and ``struct.error`` as a `Skipper`."""
    yield from read_row(_message_plan(name, version, NOTHING), data, 0)


@cache
def skip_plan(fields: tuple[Field, ...]) -> StructPlan:
    """Return the plan by which `read_row` skips adjacent fields, which are not tagged fields."""
    return StructPlan(tuple(_part(field, None) for field in fields), None)


@cache
def _message_plan(name: str, version: int, wanted: frozenset[str]) -> StructPlan:
    found = schema(name, version)
    return _struct_plan(found.fields, wanted, flexible=found.flexible)


def _struct_plan(fields: tuple[Field, ...], wanted: frozenset[str], *, flexible: bool) -> StructPlan:
    inner = whole_or_parts(fields, wanted)
    parts = tuple(_part(field, inner.get(field.name)) for field in fields if field.tag is None)
    tagged = tuple(field for field in fields if field.tag is not None and field.name in inner)
    if not flexible:
        return StructPlan(parts, None)
    return StructPlan(parts, tags_reader(known_tags(tagged)) if tagged or wanted == ALL else _skip_tags)


def _skip_tags(body: bytes, at: int, _values: dict[str, Any]) -> int:
    return skip_tags(body, at)


def _part(field: Field, wanted: frozenset[str] | None) -> _Part:
    """Return the plan of a field; ``wanted`` is ``None`` if it is skipped."""
    codec = field_codec(field)
    in_steps = field.is_array and (field.kind == "string" or field.kind == "struct")
    if in_steps and (wanted is not None or element_codec(field).width is None):
        return _Part(field.name if wanted is not None else "", None, None, rows_reader(field, wanted or NOTHING))
    if field.kind == "struct" and not field.is_array:
        whole = ALL if field.nullable and wanted is not None else wanted or NOTHING  # as `project` reads it
        plan = _struct_plan(field.fields, whole, flexible=field.flexible)
        if _has_rows(plan):
            return _Part(field.name if wanted is not None else "", None, None, None, plan, field.nullable)
    if wanted is None:
        return _Part("", None, codec.skip, None)
    if field.kind == "struct" and wanted != ALL and not field.nullable:
        return _Part(field.name, struct_reader(field.fields, wanted, flexible=field.flexible), None, None)
    return _Part(field.name, codec.read, None, None)


@cache
def rows_reader(field: Field, wanted: frozenset[str]) -> RowsReader:
    """Return how to read an array; of elements that are structs, only the ``wanted`` fields are read."""
    element = element_codec(field)
    read_count, _ = count_codec(flexible=field.flexible, nullable=field.nullable)
    if field.kind != "struct":
        read = element.read if wanted else _skipper(element.skip)
        return RowsReader(read_count, element.min_bytes, read, None)
    plan = _struct_plan(field.fields, wanted, flexible=field.flexible)
    if wanted == ALL:
        read = element.read
    else:
        read = struct_reader(field.fields, wanted, flexible=field.flexible) if wanted else _skipper(element.skip)
    return RowsReader(read_count, element.min_bytes, read, plan if _has_rows(plan) else None)


def _has_rows(plan: StructPlan) -> bool:
    return any(each.rows or each.struct for each in plan.parts)


def _skipper(skip: Skipper) -> Reader:
    def read(body: bytes, at: int) -> tuple[None, int]:
        return None, skip(body, at)

    return read


def read_row(plan: StructPlan, data: bytes, at: int) -> Steps[tuple[dict[str, Any], int]]:
    """Read a struct, and return its values and the position after it."""
    values: dict[str, Any] = {}
    for part in plan.parts:
        name, read, skip = part.name, part.read, part.skip
        try:
            if skip is not None:
                at = skip(data, at)
                continue
            value, at = read(data, at) if read is not None else (yield from _read_in_steps(part, data, at))
        except Broken as broken:
            if name:
                broken.path.insert(0, name)
            raise
        except (IndexError, struct.error):
            raise too_early(data, at, name) from None
        if name:
            values[name] = value
    if plan.read_tags is not None:
        try:
            at = plan.read_tags(data, at, values)
        except Broken as broken:
            broken.path.insert(0, TAGS)
            raise
        except (IndexError, struct.error):
            raise too_early(data, at, TAGS) from None
    return values, at


def _read_in_steps(part: _Part, data: bytes, at: int) -> Steps[tuple[Any, int]]:
    if part.struct is None:
        return (yield from _read_rows(part.rows, data, at))
    if part.nullable and data[at] >= _NULL:
        return None, at + 1
    return (yield from read_row(part.struct, data, at + part.nullable))


def _read_rows(reader: RowsReader | None, data: bytes, start: int) -> Steps[tuple[list[Any] | None, int]]:
    if reader is None:
        raise AssertionError("a field that is neither read, skipped nor an array")
    count, at = reader.read_count(data, start)
    if count < 0:
        return None, at
    check_count(data, start, at, count, reader.min_bytes)
    count_rows(data, count)
    rows = []
    read_one, plan = reader.read_one, reader.struct
    for number in range(count):
        row, at = read_one(data, at) if plan is None else (yield from read_row(plan, data, at))
        rows.append(row)
        if number % ROWS_A_STEP == ROWS_A_STEP - 1:
            yield
    return rows, at


# --- writing ---


class _Written(NamedTuple):
    """A field, and how it is written."""

    field: Field
    write: Writer
    pack_count: Callable[[int], bytes] | None
    """For an array that is written in steps, writes its count."""
    structs: bool
    """Whether its elements contain arrays that are written in steps."""


def encode_in_steps(name: str, version: int, message: Message, mark: str = "") -> Steps[tuple[bytes, int | None]]:
    """Encode a message as `headrace.proxy.wire.messages.codec.encode` does.

    Return also the position of the field ``mark``, or ``None`` if the message has none of this name.
    """
    found = schema(name, version)
    out = bytearray()
    try:
        position = yield from _write_struct(found.fields, out, message, mark, flexible=found.flexible)
    except (UnencodableValue, *UNFIT) as error:
        raise UnencodableValue(f"{name} v{version}: {error}") from error
    return bytes(out), position


def encode_row_in_steps(field: Field, value: Any) -> Steps[bytes]:
    """Encode an element of an array."""
    out = bytearray()
    try:
        if _has_arrays(field):
            yield from _write_struct(field.fields, out, value, flexible=field.flexible)
        else:
            element_codec(field).write(out, value)
    except (UnencodableValue, *UNFIT) as error:
        raise UnencodableValue(f"{field.name}: {error}") from error
    return bytes(out)


@cache
def _has_arrays(field: Field) -> bool:
    return any(_is_written_in_steps(each) for each in field.fields)


def _is_written_in_steps(field: Field) -> bool:
    return field.is_array and field.kind in {"struct", "string"} and field.tag is None


@cache
def _written(fields: tuple[Field, ...]) -> tuple[_Written, ...]:
    plan = []
    for field in fields:
        if _is_written_in_steps(field):
            _, pack_count = count_codec(flexible=field.flexible, nullable=field.nullable)
            plan.append(_Written(field, element_codec(field).write, pack_count, _has_arrays(field)))
        elif field.tag is None:
            plan.append(_Written(field, field_codec(field).write, None, structs=False))
    return tuple(plan)


@cache
def _names(fields: tuple[Field, ...]) -> frozenset[str]:
    return frozenset(field.name for field in fields)


@cache
def _tags_writer(fields: tuple[Field, ...]) -> Writer:
    return tags_writer(known_tags(fields))


def _write_struct(
    fields: tuple[Field, ...], out: bytearray, values: Message, mark: str = "", *, flexible: bool
) -> Steps[int | None]:
    names = _names(fields)
    if not (values.keys() <= names or (flexible and values.keys() <= names | {TAGS})):
        raise UnencodableValue(f"has no {', '.join(sorted(map(str, values.keys() - names)))}")
    position: int | None = None
    for field, write, pack_count, structs in _written(fields):
        if field.name == mark:
            position = len(out)
        value = values[field.name] if field.name in values else default_value(field)
        if pack_count is None:
            write(out, value)
        elif value is None and field.nullable:
            out += pack_count(-1)
        else:
            out += pack_count(len(value))
            for number, row in enumerate(value):
                if structs:
                    yield from _write_struct(field.fields, out, row, flexible=field.flexible)
                else:
                    write(out, row)
                if number % ROWS_A_STEP == ROWS_A_STEP - 1:
                    yield
    if flexible:
        _tags_writer(fields)(out, values)
    return position
