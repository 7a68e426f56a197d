"""Tagged fields (KIP-482): the optional fields at the end of a flexible struct, known to the schema or not.

A section is a count and then, in ascending order of tags, ``tag, size, value``. Unknown ones are kept as their bytes.
Part of `proxy.wire.walker`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from proxy.wire.errors import UnencodableValue
from proxy.wire.scalars import Broken, Codec, Writer, check_count, read_uvarint, uvarint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TAGS: Final = "_tags"
"""Where a struct keeps the tagged fields that its schema does not know: ``{tag: bytes}``, absent when there are
none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTag:
    """A tagged field that the schema knows."""

    name: str
    codec: Codec
    new_default: Callable[[], Any]
    """Makes what the field holds when it is not there."""


def read_tag(body: bytes, at: int, last: int) -> tuple[int, int, int]:
    """A tagged field's number, and where its value begins and ends; ``last`` is the tag of the one before, or -1."""
    tag, start = read_uvarint(body, at)
    if tag <= last:
        raise Broken(at, f"tagged field {tag} stands behind {last}")
    size, start = read_uvarint(body, start)
    if size > len(body) - start:
        raise Broken(at, f"tagged field {tag} of {size} bytes, but {len(body) - start} are left")
    return tag, start, start + size


def read_tag_count(body: bytes, at: int) -> tuple[int, int]:
    """The number of tagged fields that follow; each takes two bytes or more."""
    count, start = read_uvarint(body, at)
    check_count(body, at, start, count, 2)
    return count, start


def skip_tags(body: bytes, at: int) -> int:
    """Step over the tagged fields at the end of a struct."""
    if body[at] == 0:
        return at + 1
    count, at = read_tag_count(body, at)
    tag = -1
    for _ in range(count):
        tag, _start, at = read_tag(body, at, tag)
    return at


def tags_reader(known: Mapping[int, KnownTag]) -> Callable[[bytes, int, dict[str, Any]], int]:
    """Make the reader of a struct's tagged fields; it puts what it finds into the struct's values."""

    def read(body: bytes, at: int, values: dict[str, Any]) -> int:
        for field in known.values():
            values[field.name] = field.new_default()
        count, at = read_tag_count(body, at)
        tag = -1
        unknown: dict[int, bytes] = {}
        for _ in range(count):
            tag, start, at = read_tag(body, at, tag)
            if tag in known:
                values[known[tag].name] = read_exactly(known[tag], body, start, at)
            else:
                unknown[tag] = body[start:at]
        if unknown:
            values[TAGS] = unknown
        return at

    return read


def read_exactly(field: KnownTag, body: bytes, start: int, stop: int) -> Any:
    """The value of a tagged field, which must fill its size."""
    try:
        value, end = field.codec.read(body, start)
    except Broken as broken:
        broken.path.insert(0, field.name)
        raise
    if end != stop:
        raise Broken(start, f"{field.name} says it has {stop - start} bytes and takes {end - start}")
    return value


def tags_writer(known: Mapping[int, KnownTag]) -> Writer:
    """Make the writer of a struct's tagged fields: known ones that differ from their default, and the unknown ones."""
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
