"""Changing some fields of a message received from a peer, and copying all others byte for byte.

    edit("MetadataResponse", 12, body, {"throttle_time_ms": lambda _: 40, "brokers": rewrite_broker})

Unknown tagged fields at every level, varints that are longer than necessary, and tagged fields that contain their
default are preserved; an edit that changes nothing returns the same bytes. The message is parsed only up to the last
edited field; the rest is copied without being read, including bytes after the message's last field.

Called by the other modules of `headrace.proxy.wire`. The steps for a message, version and set of fields are built when
they are first used, and then cached, like the codecs of `headrace.proxy.wire.messages.codec`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, Final, TypeAlias

from headrace.proxy.wire.errors import UnencodableValue
from headrace.proxy.wire.messages.codec import Buffer, Message, malformed
from headrace.proxy.wire.messages.composites import UNFIT, element_codec, field_codec, skip_steps, too_early
from headrace.proxy.wire.messages.scalars import Broken, Writer, check_count, count_codec, uvarint
from headrace.proxy.wire.messages.schemas import Field, schema
from headrace.proxy.wire.messages.stepwise import (
    ALL,
    ROWS_A_STEP,
    Steps,
    encode_row_in_steps,
    finish,
    read_row,
    rows_reader,
    skip_plan,
)
from headrace.proxy.wire.messages.tagged_fields import TAGS, read_tag, read_tag_count


class Drop(Enum):
    """The type of `DROP`."""

    DROP = "drop"


DROP: Final = Drop.DROP
"""The value that an edit of an array returns to remove an element."""

ValueEdit: TypeAlias = Callable[[Any], Any]
"""A function that takes a field's value, and returns its new value; for an array it is called with each element, and
may return `DROP`.

If the new value equals the old one, the bytes are copied; so the function must not modify its argument. To edit a
struct, return a new dict: fields that differ are encoded, and the others copied. Tagged fields in a struct cannot be
changed in this way.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An element of an array, as a value and as the bytes received."""

    value: Any
    raw: bytes


@dataclass(frozen=True, slots=True)
class Rows:
    """An edit of an array as a whole: a function from the old rows to the new rows.

    The raw bytes of a `Row` are copied; a `Message` is encoded. The function is not called for an array that is null.
    """

    change: Callable[[list[Row]], Sequence[Row | Message] | Steps[Sequence[Row | Message]]]
    """Returns the rows that replace those of the array. It may be a generator, which yields between its steps."""
    fields: frozenset[str] | None = None
    """The fields that values of rows have, if they are structs, where decoding all would cost too much; ``None`` is
    all."""


Edit: TypeAlias = ValueEdit | Rows


def edit(name: str, version: int, body: Buffer, edits: Mapping[str, Edit]) -> bytes:
    """Copy a message's body, and change the named fields of its top level; edits are called in the order of fields.

    Edits of fields that the version does not have, of missing tagged fields and of null arrays are not called. Raises
    `UnknownMessage` if there is no schema, `MalformedMessage` for a body that violates it up to the last edited field
    (the contents of skipped strings are not checked), `UnencodableValue` for a new value that does not fit its field,
    and the exceptions of the edits.
    """
    return finish(edit_in_steps(name, version, body, edits))


def edit_in_steps(name: str, version: int, body: Buffer, edits: Mapping[str, Edit]) -> Steps[bytes]:
    """Edit a message as `edit` does, in steps of some rows of an array."""
    data = bytes(body)
    out = _Splice(data, 0)
    at = 0
    try:
        for walk in _steps(name, version, frozenset(edits)):
            at = yield from walk(out, at, edits)
    except Broken as broken:
        raise malformed(name, version, broken) from broken
    if at > len(data):
        raise malformed(name, version, Broken(at, f"the message ends too early, at byte {len(data)}"))
    return out.finish(len(data))


class _Splice:
    """A copy that is being built from parts of the body and the bytes that replace other parts."""

    __slots__ = ("_chunks", "_kept", "body")

    def __init__(self, body: bytes, start: int) -> None:
        self.body = body
        self._kept = start
        self._chunks: list[bytes | memoryview] = []

    @property
    def changed(self) -> bool:
        return bool(self._chunks)

    def replace(self, start: int, stop: int, new: bytes) -> None:
        self._chunks.append(memoryview(self.body)[self._kept : start])
        self._chunks.append(new)
        self._kept = stop

    def finish(self, stop: int) -> bytes:
        if not self._chunks:
            return self.body[self._kept : stop]
        return b"".join((*self._chunks, memoryview(self.body)[self._kept : stop]))


_Walk: TypeAlias = Callable[[_Splice, int, Mapping[str, Edit]], Steps[int]]
"""A generator that processes one field, or several: takes the copy, the position and the edits, and returns the
position after the field."""


@cache
def _steps(name: str, version: int, wanted: frozenset[str]) -> tuple[_Walk, ...]:
    """Return the steps that edit a set of fields of a message."""
    found = schema(name, version)
    placed = [field for field in found.fields if field.tag is None]
    tagged = {field.tag: field for field in found.fields if field.tag is not None and field.name in wanted}
    stop = len(placed) if tagged else max((i + 1 for i, field in enumerate(placed) if field.name in wanted), default=0)
    steps: list[_Walk] = []
    passed: list[Field] = []
    for field in placed[:stop]:
        if field.name not in wanted:
            passed.append(field)
            continue
        steps += _pass(passed)
        passed = []
        steps.append(_edit_step(field))
    steps += _pass(passed)
    if tagged:
        steps.append(_tags_step(tagged))
    return tuple(steps)


def _pass(fields: list[Field]) -> list[_Walk]:
    """Return the step, if any, that skips adjacent fields; arrays are skipped a few rows at a time."""
    if not fields:
        return []
    plan = skip_plan(tuple(fields)) if any(field.is_array for field in fields) else None
    skips = skip_steps([field_codec(field) for field in fields])
    names = "..".join(dict.fromkeys((fields[0].name, fields[-1].name)))

    def walk(out: _Splice, at: int, _edits: Mapping[str, Edit]) -> Steps[int]:
        with _reading(out.body, at, names):
            if plan is not None:
                _, at = yield from read_row(plan, out.body, at)
            else:
                for skip in skips:
                    at = skip(out.body, at)
        yield
        return at

    return [walk]


class _reading:  # noqa: N801 -- used as a keyword: ``with _reading(...)``
    """A context manager that raises `Broken` for the exceptions of codecs at the end of the bytes, and adds the field's
    name."""

    __slots__ = ("_at", "_body", "_name")

    def __init__(self, body: bytes, at: int, name: str) -> None:
        self._body, self._at, self._name = body, at, name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Broken):
            error.path.insert(0, self._name)
        elif isinstance(error, (IndexError, struct.error)):
            raise too_early(self._body, self._at, self._name) from None


def _encoded(name: str, write: Writer, value: Any) -> bytes:
    out = bytearray()
    try:
        write(out, value)
    except (UnencodableValue, *UNFIT) as error:
        raise UnencodableValue(f"{name}: {error}") from error
    return bytes(out)


def _edit_step(field: Field) -> _Walk:
    """Return the step that edits one field."""
    return _array_step(field) if field.is_array else _value_step(field)


def _value_step(field: Field) -> _Walk:
    codec = field_codec(field)
    name = field.name

    def walk(out: _Splice, at: int, edits: Mapping[str, Edit]) -> Steps[int]:
        with _reading(out.body, at, name):
            value, stop = codec.read(out.body, at)
        yield
        change = edits[name]
        if isinstance(change, Rows):
            raise UnencodableValue(f"{name} is not an array")
        new = change(value)
        if new is not value and new != value:
            out.replace(at, stop, _encoded(name, codec.write, new))
        return stop

    return walk


def _array_step(field: Field) -> _Walk:
    _, pack_count = count_codec(flexible=field.flexible, nullable=field.nullable)

    def walk(out: _Splice, at: int, edits: Mapping[str, Edit]) -> Steps[int]:
        change = edits[field.name]
        with _reading(out.body, at, field.name):
            rows, start, stop = yield from _read_rows(field, out.body, at, change)
        if rows is None:
            return stop
        if isinstance(change, Rows):
            changed = change.change(rows)
            new = (yield from changed) if isinstance(changed, Generator) else changed
        else:
            new = yield from _each(field, change, rows)
        raws: list[bytes] = []
        same = len(new) == len(rows)
        for number, row in enumerate(new):
            raw = row.raw if isinstance(row, Row) else (yield from encode_row_in_steps(field, row))
            raws.append(raw)
            same = same and raw is rows[number].raw
            if number % ROWS_A_STEP == ROWS_A_STEP - 1:
                yield
        if len(raws) != len(rows):
            out.replace(at, stop, pack_count(len(raws)) + b"".join(raws))
        elif not same:
            out.replace(start, stop, b"".join(raws))
        return stop

    return walk


def _read_rows(field: Field, body: bytes, at: int, change: Edit) -> Steps[tuple[list[Row] | None, int, int]]:
    """Return the rows of an array, none if it is null, and the positions where they begin and end."""
    fields = change.fields if isinstance(change, Rows) else None
    reader = rows_reader(field, ALL if fields is None else fields)
    count, first = reader.read_count(body, at)
    if count < 0:
        return None, first, first
    check_count(body, at, first, count, reader.min_bytes)
    rows: list[Row] = []
    start = first
    for _ in range(count):
        value, stop = (
            reader.read_one(body, start) if reader.struct is None else (yield from read_row(reader.struct, body, start))
        )
        rows.append(Row(value=value, raw=body[start:stop]))
        start = stop
        if len(rows) % ROWS_A_STEP == 0:
            yield
    return rows, first, start


def _each(field: Field, change: ValueEdit, rows: list[Row]) -> Steps[list[Row | Message]]:
    """Apply a `ValueEdit` to each row, and leave out the dropped ones."""
    out: list[Row | Message] = []
    for number, row in enumerate(rows):
        new = change(row.value)
        if new is row.value or new == row.value:
            out.append(row)
        elif new is not DROP:
            out.append(Row(value=new, raw=_rewritten(field, row, new)))
        if number % ROWS_A_STEP == ROWS_A_STEP - 1:
            yield
    return out


def _rewritten(field: Field, row: Row, new: Any) -> bytes:
    """Return an element's bytes with the changed fields encoded, and the others copied, also unknown tagged fields."""
    if field.kind != "struct":
        return _encoded(field.name, element_codec(field).write, new)
    placed = [one for one in field.fields if one.tag is None]
    changed = {name for name in row.value.keys() | new.keys() if row.value.get(name) != new.get(name)}
    if not_placed := changed - {one.name for one in placed}:
        raise UnencodableValue(f"{field.name}: cannot change {', '.join(sorted(not_placed))} in a copy")
    out = _Splice(row.raw, 0)
    at = 0
    for one in placed:
        codec = field_codec(one)
        stop = codec.skip(row.raw, at)
        if one.name in changed:
            out.replace(at, stop, _encoded(f"{field.name}.{one.name}", codec.write, new[one.name]))
        at = stop
    return out.finish(len(row.raw))


def _tags_step(tagged: Mapping[int, Field]) -> _Walk:
    """Return the step that processes the tagged fields at the message's end, and edits the given ones."""
    steps = {tag: _edit_step(field) for tag, field in tagged.items()}

    def walk(out: _Splice, at: int, edits: Mapping[str, Edit]) -> Steps[int]:
        with _reading(out.body, at, TAGS):
            count, at = read_tag_count(out.body, at)
        for _ in range(count):
            begin = at
            with _reading(out.body, at, TAGS):
                tag, start, at = read_tag(out.body, at)
            if tag in steps:
                inner = _Splice(out.body, start)
                end = yield from steps[tag](inner, start, edits)
                if end != at:
                    raise Broken(start, f"tagged field {tag} has a size of {at - start} bytes, but takes {end - start}")
                if inner.changed:
                    value = inner.finish(at)
                    out.replace(begin, at, uvarint(tag) + uvarint(len(value)) + value)
        return at

    return walk
