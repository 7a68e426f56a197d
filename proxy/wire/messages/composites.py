"""Codecs of arrays and structs, built from their schemas. Part of `headrace.proxy.wire.messages.codec`."""

from __future__ import annotations

import struct
from functools import cache, partial
from struct import Struct
from typing import Any, Final, TypeAlias

from headrace.proxy.wire.errors import UnencodableValue
from headrace.proxy.wire.messages.scalars import (
    FIXED,
    Broken,
    Codec,
    Reader,
    Skipper,
    Writer,
    bytes_codec,
    check_count,
    count_codec,
    count_numbers,
    count_rows,
    fixed_codec,
    string_codec,
)
from headrace.proxy.wire.messages.schemas import Field, schema
from headrace.proxy.wire.messages.tagged_fields import TAGS, KnownTag, skip_tags, tags_reader, tags_writer

UNFIT: Final = (ValueError, TypeError, AttributeError, OverflowError, struct.error)
"""The exceptions that writing a value raises if it does not fit its field."""


@cache
def message_codec(name: str, version: int) -> Codec:
    """Return the codec of a whole message. Raises `UnknownMessage`."""
    found = schema(name, version)
    return struct_codec(found.fields, flexible=found.flexible)


@cache
def field_codec(field: Field) -> Codec:
    """Return the codec of a field's value, for an array of the whole array; without a tagged field's tag and size."""
    codec = element_codec(field)
    if field.is_array:
        return _array_codec(codec, field)
    return _nullable(codec) if field.kind == "struct" and field.nullable else codec


@cache
def element_codec(field: Field) -> Codec:
    """Return the codec of an array's elements, or of the field itself if it is not an array."""
    nullable = field.nullable and not field.is_array
    if field.kind == "struct":
        return struct_codec(field.fields, flexible=field.flexible)
    if field.kind == "string":
        return string_codec(flexible=field.flexible, nullable=nullable)
    if field.kind in {"bytes", "records"}:
        return bytes_codec(flexible=field.flexible, nullable=nullable)
    return fixed_codec(field.kind)


def _nullable(codec: Codec) -> Codec:
    """Return the codec of a nullable struct: an INT8 precedes it, which is negative for null (KIP-893)."""
    inner_read, inner_skip, inner_write = codec.read, codec.skip, codec.write

    def read(body: bytes, at: int) -> tuple[Any, int]:
        return (None, at + 1) if body[at] >= 0x80 else inner_read(body, at + 1)

    def skip(body: bytes, at: int) -> int:
        return at + 1 if body[at] >= 0x80 else inner_skip(body, at + 1)

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            inner_write(out, value)

    return Codec(read=read, skip=skip, write=write, min_bytes=1)


def _array_codec(element: Codec, field: Field) -> Codec:
    read_count, pack_count = count_codec(flexible=field.flexible, nullable=field.nullable)
    read_one, skip_one, write_one = element.read, element.skip, element.write
    width, min_bytes, code = element.width, element.min_bytes, element.code

    def read(body: bytes, at: int) -> tuple[list[Any] | None, int]:
        count, start = read_count(body, at)
        if count < 0:
            return None, start
        check_count(body, at, start, count, min_bytes)
        if code is not None and code != "16s":
            return list(struct.unpack_from(f">{count}{code}", body, start)), start + count * min_bytes
        values = []
        position = start
        for _ in range(count):
            value, position = read_one(body, position)
            values.append(value)
        return values, position

    def skip(body: bytes, at: int) -> int:
        count, start = read_count(body, at)
        if count <= 0:
            return start
        check_count(body, at, start, count, min_bytes)
        if width is not None:
            count_numbers(body, count)
            return start + count * width
        count_rows(body, count)
        for _ in range(count):
            start = skip_one(body, start)
        return start

    def write(out: bytearray, value: Any) -> None:
        if value is None and field.nullable:
            out += pack_count(-1)
            return
        out += pack_count(len(value))
        for one in value:
            write_one(out, one)

    return Codec(read=read, skip=skip, write=write, min_bytes=1 if field.flexible else 4)


def default_value(field: Field) -> Any:
    """Return the value of a field that is missing, as a new object."""
    if field.default_is_null:
        return None
    if field.is_array:
        return []
    if field.kind == "struct":
        return {one.name: default_value(one) for one in field.fields}
    return field.default


def known_tags(fields: tuple[Field, ...]) -> dict[int, KnownTag]:
    """Return the tagged fields of a struct, by tag."""
    return {
        field.tag: KnownTag(name=field.name, codec=field_codec(field), new_default=partial(default_value, field))
        for field in fields
        if field.tag is not None
    }


def struct_codec(fields: tuple[Field, ...], *, flexible: bool) -> Codec:
    """Return the codec of a struct with these fields."""
    placed = tuple(field for field in fields if field.tag is None)
    tagged = known_tags(fields)
    codecs = [field_codec(field) for field in placed]
    widths = [codec.width for codec in codecs]
    return Codec(
        read=_struct_reader(placed, tagged, flexible=flexible),
        skip=_struct_skipper(codecs, flexible=flexible),
        write=_struct_writer(fields, placed, tagged, flexible=flexible),
        min_bytes=sum(codec.min_bytes for codec in codecs) + flexible,
        width=sum(width or 0 for width in widths) if None not in widths and not flexible else None,
    )


def _struct_reader(placed: tuple[Field, ...], tagged: dict[int, KnownTag], *, flexible: bool) -> Reader:
    steps = _read_steps(placed)
    read_tags = tags_reader(tagged)

    def read(body: bytes, at: int) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        name, start = "", at
        try:
            for names, unpack, width, one in steps:
                name, start = names[0], at
                if one is None:
                    values.update(zip(names, unpack(body, at), strict=True))
                    at += width
                else:
                    values[name], at = one(body, at)
            if flexible:
                name, start = TAGS, at
                at = read_tags(body, at, values)
        except Broken as broken:
            broken.path.insert(0, name)
            raise
        except (IndexError, struct.error):
            raise too_early(body, start, name) from None
        return values, at

    return read


def too_early(body: bytes, start: int, name: str) -> Broken:
    """Return the error for a field that begins at ``start`` and extends beyond the message."""
    broken = Broken(start, f"the message ends too early, at byte {len(body)}")
    broken.path.append(name)
    return broken


_Step: TypeAlias = tuple[tuple[str, ...], Any, int, Reader | None]
"""Several names, ``unpack_from`` of their common layout and its width; or one name and its reader."""


def _read_steps(placed: tuple[Field, ...]) -> list[_Step]:
    """Return the steps that read a struct's fields: one `struct` call for adjacent fields of fixed width, otherwise
    the field's own reader."""
    steps: list[_Step] = []
    run: list[Field] = []

    def close() -> None:
        if run:
            layout = Struct(">" + "".join(FIXED[field.kind] for field in run))
            steps.append((tuple(field.name for field in run), layout.unpack_from, layout.size, None))
            run.clear()

    for field in placed:
        if not field.is_array and field.kind in FIXED:
            run.append(field)
        else:
            close()
            steps.append(((field.name,), None, 0, field_codec(field).read))
    close()
    return steps


def _struct_skipper(codecs: list[Codec], *, flexible: bool) -> Skipper:
    steps = skip_steps(codecs)
    if flexible:
        steps.append(skip_tags)

    def skip(body: bytes, at: int) -> int:
        for step in steps:
            at = step(body, at)
        return at

    return steps[0] if len(steps) == 1 else skip


def skip_steps(codecs: list[Codec]) -> list[Skipper]:
    """Return the codecs' skippers, with those of adjacent fields of fixed width combined into one."""
    steps: list[Skipper] = []
    width = 0
    for codec in codecs:
        if codec.width is not None:
            width += codec.width
            continue
        if width:
            steps.append(_skip_fixed(width))
            width = 0
        steps.append(codec.skip)
    if width:
        steps.append(_skip_fixed(width))
    return steps


def _skip_fixed(width: int) -> Skipper:
    return lambda _body, at: at + width


def _struct_writer(
    fields: tuple[Field, ...], placed: tuple[Field, ...], tagged: dict[int, KnownTag], *, flexible: bool
) -> Writer:
    steps = [(field, field.name, field_codec(field).write) for field in placed]
    names = {field.name for field in fields} | ({TAGS} if flexible else set())
    write_tags = tags_writer(tagged)

    def write(out: bytearray, values: Any) -> None:
        if not values.keys() <= names:
            raise UnencodableValue(f"has no {', '.join(sorted(map(str, values.keys() - names)))}")
        name = ""
        try:
            for field, name, write_one in steps:
                write_one(out, values[name] if name in values else default_value(field))
            if flexible:
                name = TAGS
                write_tags(out, values)
        except UnencodableValue as error:
            raise UnencodableValue(f"{name}: {error}") from error
        except UNFIT as error:
            raise UnencodableValue(f"{name}: {error}") from error

    return write
