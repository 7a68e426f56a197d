"""Changing a message that came from a peer by copying it: the fields in question anew, all else byte for byte.

    edit("MetadataResponse", 12, body, {"throttle_time_ms": lambda _: 40, "brokers": rewrite_broker})

Unknown tagged fields at every level, lengths in more bytes than they need, and tagged fields that spell out their
default come through as they were; an edit that changes nothing returns the same bytes. The walk ends behind the last
field in question and copies the rest unread, bytes behind the last field included: what a peer makes of that part is
between it and the sender.

Called by `headrace.proxy.wire.endpoints`, `headrace.proxy.wire.api_versions` and `headrace.proxy.wire.mutations`.
Compiled per message, version and set of fields on first use, like the codecs of `headrace.proxy.wire.messages.codec`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, Final, TypeAlias

from headrace.proxy.wire.errors import UnencodableValue
from headrace.proxy.wire.messages.codec import Buffer, Message, malformed
from headrace.proxy.wire.messages.composites import UNFIT, element_codec, field_codec, skip_steps, too_early
from headrace.proxy.wire.messages.scalars import Broken, Writer, check_count, count_codec, uvarint
from headrace.proxy.wire.messages.schemas import Field, schema
from headrace.proxy.wire.messages.tagged_fields import TAGS, read_tag, read_tag_count


class Drop(Enum):
    """The type of `DROP`."""

    DROP = "drop"


DROP: Final = Drop.DROP
"""What an edit of an array returns to leave an element out."""

ValueEdit: TypeAlias = Callable[[Any], Any]
"""Takes a field's value (an array's: each element in turn) and returns the value it shall have, or `DROP`.

A value equal to the one given is copied, not written; so the one given must not be changed. A struct comes back as a
new dict in which some fields differ: those are written and the others copied. Tagged fields inside it cannot be
changed so.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An element of an array, as it came."""

    value: Any
    raw: bytes


@dataclass(frozen=True, slots=True)
class Rows:
    """The edit of an array as a whole: from the rows that came to the rows that shall be.

    A `Row` goes out as its raw bytes, a `Message` is encoded. Not called for an array that is null.
    """

    change: Callable[[list[Row]], Sequence[Row | Message]]


Edit: TypeAlias = ValueEdit | Rows


def edit(name: str, version: int, body: Buffer, edits: Mapping[str, Edit]) -> bytes:
    """Copy a message's body and change the named fields of its top level, in the order of the wire.

    A field that this version lacks, a tagged one that is not there and an array that is null are passed over. Raises
    `UnknownMessage` without a schema; `MalformedMessage` for bytes that break it, as far as they are walked (strings
    that are only stepped over may hold anything); `UnencodableValue` for a value that does not fit; and what the edits
    raise.
    """
    data = bytes(body)
    out = _Splice(data, 0)
    at = 0
    try:
        for walk in _steps(name, version, frozenset(edits)):
            at = walk(out, at, edits)
    except Broken as broken:
        raise malformed(name, version, broken) from broken
    if at > len(data):
        raise malformed(name, version, Broken(at, f"the message ends too early, at byte {len(data)}"))
    return out.finish(len(data))


class _Splice:
    """A copy in the making: stretches of the body and what goes in between."""

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


_Walk: TypeAlias = Callable[[_Splice, int, Mapping[str, Edit]], int]
"""(copy in the making, position, edits) to the position behind the field."""


@cache
def _steps(name: str, version: int, wanted: frozenset[str]) -> tuple[_Walk, ...]:
    """How a message is walked for one set of fields."""
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
    """Step over neighbouring fields."""
    if not fields:
        return []
    skips = skip_steps([field_codec(field) for field in fields])
    names = "..".join(dict.fromkeys((fields[0].name, fields[-1].name)))

    def walk(out: _Splice, at: int, _edits: Mapping[str, Edit]) -> int:
        with _reading(out.body, at, names):
            for skip in skips:
                at = skip(out.body, at)
        return at

    return [walk]


class _reading:  # noqa: N801 -- used as a keyword: ``with _reading(...)``
    """Turns what a codec raises at the end of the bytes into `Broken`, and names the field."""

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
    """The walk over one field in question."""
    return _array_step(field) if field.is_array else _value_step(field)


def _value_step(field: Field) -> _Walk:
    codec = field_codec(field)
    name = field.name

    def walk(out: _Splice, at: int, edits: Mapping[str, Edit]) -> int:
        with _reading(out.body, at, name):
            value, stop = codec.read(out.body, at)
        change = edits[name]
        if isinstance(change, Rows):
            raise UnencodableValue(f"{name} is no array")
        new = change(value)
        if new is not value and new != value:
            out.replace(at, stop, _encoded(name, codec.write, new))
        return stop

    return walk


def _array_step(field: Field) -> _Walk:
    read_count, pack_count = count_codec(flexible=field.flexible, nullable=field.nullable)
    element = element_codec(field)

    def rows_of(body: bytes, at: int, start: int, count: int) -> list[Row]:
        check_count(body, at, start, count, element.min_bytes)
        rows = []
        for _ in range(count):
            value, stop = element.read(body, start)
            rows.append(Row(value=value, raw=body[start:stop]))
            start = stop
        return rows

    def walk(out: _Splice, at: int, edits: Mapping[str, Edit]) -> int:
        with _reading(out.body, at, field.name):
            count, start = read_count(out.body, at)
            rows = rows_of(out.body, at, start, count) if count > 0 else []
        stop = start + sum(len(row.raw) for row in rows)
        if count < 0:
            return stop
        change = edits[field.name]
        new = [
            row.raw if isinstance(row, Row) else _encoded(field.name, element.write, row)
            for row in (change.change(rows) if isinstance(change, Rows) else _each(field, change, rows))
        ]
        if len(new) != count:
            out.replace(at, stop, pack_count(len(new)) + b"".join(new))
        elif any(one is not row.raw for one, row in zip(new, rows, strict=True)):
            out.replace(start, stop, b"".join(new))
        return stop

    return walk


def _each(field: Field, change: ValueEdit, rows: list[Row]) -> list[Row | Message]:
    """Every row as a `ValueEdit` wants it, those that are dropped left out."""
    out: list[Row | Message] = []
    for row in rows:
        new = change(row.value)
        if new is row.value or new == row.value:
            out.append(row)
        elif new is not DROP:
            out.append(Row(value=new, raw=_rewritten(field, row, new)))
    return out


def _rewritten(field: Field, row: Row, new: Any) -> bytes:
    """An element with some of its fields changed and the others, unknown tagged fields included, copied."""
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
    """The walk over the tagged fields at the message's end, those in question among them."""
    steps = {tag: _edit_step(field) for tag, field in tagged.items()}

    def walk(out: _Splice, at: int, edits: Mapping[str, Edit]) -> int:
        with _reading(out.body, at, TAGS):
            count, at = read_tag_count(out.body, at)
        for _ in range(count):
            begin = at
            with _reading(out.body, at, TAGS):
                tag, start, at = read_tag(out.body, at)
            if tag in steps:
                inner = _Splice(out.body, start)
                end = steps[tag](inner, start, edits)
                if end != at:
                    raise Broken(start, f"tagged field {tag} says it has {at - start} bytes and takes {end - start}")
                if inner.changed:
                    value = inner.finish(at)
                    out.replace(begin, at, uvarint(tag) + uvarint(len(value)) + value)
        return at

    return walk
