"""Tagged fields (KIP-482): the optional fields at the end of a flexible struct, known to the schema or not.

A section is a count and then ``tag, size, value``, written in ascending order of tags and, as by brokers, read in any.
Unknown ones are kept as their bytes. A known field must fill its size exactly, although brokers do not check it: a
message that the proxy and the broker would read differently must not pass.
Part of `headrace.proxy.wire.messages.codec`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.proxy.wire.errors import UnencodableValue
from headrace.proxy.wire.messages.scalars import Broken, Codec, Writer, check_count, read_uvarint, uvarint

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


def read_tag(body: bytes, at: int) -> tuple[int, int, int]:
    """Read a tagged field's number, and where its value begins and ends."""
    tag, start = read_uvarint(body, at)
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
    for _ in range(count):
        _tag, _start, at = read_tag(body, at)
    return at


def tags_reader(known: Mapping[int, KnownTag]) -> Callable[[bytes, int, dict[str, Any]], int]:
    """Make the reader of a struct's tagged fields; it puts what it finds into the struct's values."""

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
