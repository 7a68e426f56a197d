"""Codecs of tagged fields (KIP-482): the optional fields at the end of a flexible struct.

They consist of a count, followed by ``tag, size, value`` for each field. They are written in ascending order of tags
and, as by brokers, read in any order. Fields that the schema does not define are kept as bytes. The value of a defined
field must have exactly the given size. Brokers do not check this, but the proxy must not forward a message that a
broker would read differently. Part of `headrace.proxy.wire.messages.codec`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.proxy.wire.errors import UnencodableValue
from headrace.proxy.wire.messages.scalars import Broken, Codec, Writer, check_count, count_rows, read_uvarint, uvarint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TAGS: Final = "_tags"
"""The key under which a struct keeps tagged fields that its schema does not define, as ``{tag: bytes}``.

The key is missing if there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTag:
    """A tagged field that the schema defines."""

    name: str
    codec: Codec
    new_default: Callable[[], Any]
    """Returns the value of the field if it is missing, as a new object."""


def read_tag(body: bytes, at: int) -> tuple[int, int, int]:
    """Read a tagged field's tag and size; return the tag, and the positions where its value begins and ends."""
    tag, start = read_uvarint(body, at)
    size, start = read_uvarint(body, start)
    if size > len(body) - start:
        raise Broken(at, f"tagged field {tag} of {size} bytes, but {len(body) - start} are left")
    return tag, start, start + size


def read_tag_count(body: bytes, at: int) -> tuple[int, int]:
    """Read the number of tagged fields, each of which takes at least two bytes; return it and the position after it."""
    count, start = read_uvarint(body, at)
    check_count(body, at, start, count, 2)
    return count, start


def skip_tags(body: bytes, at: int) -> int:
    """Skip the tagged fields at the end of a struct, and return the position after them."""
    if body[at] == 0:
        return at + 1
    count, at = read_tag_count(body, at)
    count_rows(body, count)
    for _ in range(count):
        _tag, _start, at = read_tag(body, at)
    return at


def tags_reader(known: Mapping[int, KnownTag]) -> Callable[[bytes, int, dict[str, Any]], int]:
    """Return the function that reads a struct's tagged fields and adds them to the struct's values."""

    def read(body: bytes, at: int, values: dict[str, Any]) -> int:
        for field in known.values():
            values[field.name] = field.new_default()
        count, at = read_tag_count(body, at)
        unknown: dict[int, bytes] = {}
        for _ in range(count):
            tag, start, at = read_tag(body, at)
            if tag in known:
                values[known[tag].name] = read_exactly(known[tag], body, start, at)
            else:
                unknown[tag] = body[start:at]
        if unknown:
            values[TAGS] = dict(sorted(unknown.items()))
        return at

    return read


def read_exactly(field: KnownTag, body: bytes, start: int, stop: int) -> Any:
    """Read the value of a tagged field. Raises `Broken` if its length differs from the field's size."""
    try:
        value, end = field.codec.read(body, start)
    except Broken as broken:
        broken.path.insert(0, field.name)
        raise
    if end != stop:
        raise Broken(start, f"{field.name} has a size of {stop - start} bytes, but takes {end - start}")
    return value


def tags_writer(known: Mapping[int, KnownTag]) -> Writer:
    """Return the function that writes a struct's tagged fields: unknown ones, and others that differ from defaults."""
    defaults: dict[int, bytes] = {}
    for tag, field in known.items():
        payload = bytearray()
        field.codec.write(payload, field.new_default())
        defaults[tag] = bytes(payload)

    def write(out: bytearray, values: Any) -> None:
        unknown: Mapping[int, bytes] = values.get(TAGS, {})
        if not known and not unknown:
            out.append(0)
            return
        payloads: dict[int, bytes | bytearray] = dict(unknown)
        for tag, field in known.items():
            if tag in unknown:
                raise UnencodableValue(f"{TAGS}: tag {tag} is {field.name}")
            if field.name in values:
                payload = bytearray()
                field.codec.write(payload, values[field.name])
                if payload != defaults[tag]:
                    payloads[tag] = payload
        out += uvarint(len(payloads))
        for tag in sorted(payloads):
            out += uvarint(tag)
            out += uvarint(len(payloads[tag]))
            out += payloads[tag]

    return write
