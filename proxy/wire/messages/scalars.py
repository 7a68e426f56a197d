"""Codecs of single values: integers, strings, bytes, varints. A `Codec` consists of three functions.

Part of `headrace.proxy.wire.messages.codec`. Positions are counted from the first byte of a message's body; ``body`` is
always ``bytes``. A reader or skipper that reaches the end of the body raises ``IndexError`` or ``struct.error``; the
caller raises `MalformedMessage` for these and for `Broken`. No reader allocates memory for a value before it has
checked that the body is long enough.

Source: https://kafka.apache.org/protocol (primitive types), ``ByteUtils``, ``MessageDataGenerator``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, TypeAlias

LONGEST_STRING: Final = 0x7FFF
"""Maximum length of a string in bytes; Kafka's generated code also applies it to compact strings."""

FIXED: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""Types of fixed width, with their `struct` codes."""

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")

Reader: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
"""Takes body and position; returns the value and the position after it."""
LengthReader: TypeAlias = Callable[[bytes, int], tuple[int, int]]
"""Takes body and position; returns a length or count (-1 for null), and the position after it."""
Skipper: TypeAlias = Callable[[bytes, int], int]
"""Takes body and position; returns the position after the value. It may be beyond the body's end, which the next
access detects."""
Writer: TypeAlias = Callable[[bytearray, Any], None]
"""Appends a value to the bytes."""


class Broken(Exception):  # noqa: N818 -- internal: callers of this package get MalformedMessage instead
    """The bytes at ``offset`` violate the schema; each enclosing struct adds its field to ``path``."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset
        self.reason = reason
        self.path: list[str] = []


class TooManyRows(Exception):  # noqa: N818 -- internal, as `Broken`
    """A `BoundedBody` has more elements than it may have."""


class BoundedBody(bytes):
    """A body whose elements are counted when they are skipped."""

    rows_left: int
    """Number of elements and tagged fields that may follow."""
    counts_numbers: bool = False
    """Whether elements of fixed width count, too."""


def count_rows(body: bytes, count: int) -> None:
    """Count ``count`` elements of a `BoundedBody`. Raises `TooManyRows`."""
    if isinstance(body, BoundedBody):
        body.rows_left -= count
        if body.rows_left < 0:
            raise TooManyRows


def count_numbers(body: bytes, count: int) -> None:
    """Count ``count`` elements of fixed width, if they count. Raises `TooManyRows`."""
    if isinstance(body, BoundedBody) and body.counts_numbers:
        count_rows(body, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """The functions that read, skip and write values of one type."""

    read: Reader
    skip: Skipper
    write: Writer
    min_bytes: int
    """Minimum length of a value in bytes, with which an array's count is checked before memory is allocated."""
    width: int | None = None
    """Length of a value in bytes if it is fixed, otherwise ``None``."""
    code: str | None = None
    """The `struct` code of a scalar of fixed width, otherwise ``None``."""


def read_uvarint(body: bytes, at: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 5 bytes and 32 bits; return it and the position after it."""
    value = body[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for index in range(1, 5):
        byte = body[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, at + index + 1
    raise Broken(at, "a varint of more than 32 bits")


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint in the smallest number of bytes."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def count_codec(*, flexible: bool, nullable: bool, short: bool = False) -> tuple[LengthReader, Callable[[int], bytes]]:
    """Return the functions that read and write the length of a string, bytes or an array; -1 is null, if ``nullable``.

    ``short`` selects the INT16 length of strings before KIP-482.
    """
    shortest = -1 if nullable else 0

    def read_compact(body: bytes, at: int) -> tuple[int, int]:
        length = body[at]
        if length < 0x80:
            stop = at + 1
        else:
            length, stop = read_uvarint(body, at)
            if length > 0x7FFFFFFF:
                raise Broken(at, f"a length of {length}")
        if length <= shortest:
            raise Broken(at, "null in a field that is not nullable")
        return length - 1, stop

    if flexible:
        return read_compact, lambda length: uvarint(length + 1)

    layout = _INT16 if short else _INT32
    unpack, width = layout.unpack_from, layout.size

    def read_plain(body: bytes, at: int) -> tuple[int, int]:
        length: int = unpack(body, at)[0]
        if length < 0:  # Kafka's generated code reads every negative length as null
            if not nullable:
                raise Broken(at, "null in a field that is not nullable")
            return -1, at + width
        return length, at + width

    return read_plain, layout.pack


def check_count(body: bytes, at: int, start: int, count: int, min_bytes: int) -> None:
    """Raise `Broken` for an array that cannot be complete, before memory is allocated for it."""
    if count * min_bytes > len(body) - start:
        left = max(len(body) - start, 0)
        raise Broken(at, f"an array of {count} elements needs {count * min_bytes} bytes or more, but {left} are left")


def fixed_codec(kind: str) -> Codec:
    """Return the codec of a type in `FIXED`."""
    layout = Struct(">" + FIXED[kind])
    unpack, width, pack = layout.unpack_from, layout.size, layout.pack

    def write(out: bytearray, value: Any) -> None:
        if kind == "uuid" and len(value) != 16:
            raise ValueError(f"a uuid of {len(value)} bytes")
        out += pack(value)

    return Codec(
        read=lambda body, at: (unpack(body, at)[0], at + width),
        skip=lambda _body, at: at + width,
        write=write,
        min_bytes=width,
        width=width,
        code=FIXED[kind],
    )


def string_codec(*, flexible: bool, nullable: bool) -> Codec:
    """Return the codec of STRING, NULLABLE_STRING or their compact variants: UTF-8, at most `LONGEST_STRING` bytes.

    Invalid UTF-8 is decoded to replacement characters, as by ``ByteBufferAccessor.readString``.
    """
    read_length, pack_length = count_codec(flexible=flexible, nullable=nullable, short=True)

    def read(body: bytes, at: int) -> tuple[str | None, int]:
        length, start = read_length(body, at)
        if length < 0:
            return None, start
        stop = start + length
        if stop > len(body) or length > LONGEST_STRING:
            raise _too_long("string", at, length, len(body) - start)
        try:
            return str(body[start:stop], "utf-8"), stop
        except UnicodeDecodeError:
            text = str(body[start:stop], "utf-8", "replace")
        if len(text.encode()) > LONGEST_STRING:  # it could not be written again
            raise Broken(at, f"a string of more than {LONGEST_STRING} bytes after replacement of invalid UTF-8")
        return text, stop

    def write(out: bytearray, value: Any) -> None:
        if value is None and nullable:
            out += pack_length(-1)
            return
        encoded = value.encode()
        if len(encoded) > LONGEST_STRING:
            raise ValueError(f"a string of {len(encoded)} bytes; at most {LONGEST_STRING} fit")
        out += pack_length(len(encoded))
        out += encoded

    return Codec(read=read, skip=_skip_sized(read_length), write=write, min_bytes=1 if flexible else 2)


def bytes_codec(*, flexible: bool, nullable: bool) -> Codec:
    """Return the codec of BYTES, NULLABLE_BYTES, RECORDS or their compact variants."""
    read_length, pack_length = count_codec(flexible=flexible, nullable=nullable)

    def read(body: bytes, at: int) -> tuple[bytes | None, int]:
        length, start = read_length(body, at)
        if length < 0:
            return None, start
        stop = start + length
        if stop > len(body):
            raise _too_long("bytes", at, length, len(body) - start)
        return body[start:stop], stop

    def write(out: bytearray, value: Any) -> None:
        if value is None and nullable:
            out += pack_length(-1)
            return
        out += pack_length(len(value))
        out += value

    return Codec(read=read, skip=_skip_sized(read_length), write=write, min_bytes=1 if flexible else 4)


def _skip_sized(read_length: LengthReader) -> Skipper:
    def skip(body: bytes, at: int) -> int:
        length, start = read_length(body, at)
        return start + length if length > 0 else start

    return skip


def _too_long(kind: str, at: int, length: int, left: int) -> Broken:
    if length <= left:
        return Broken(at, f"a {kind} of {length} bytes; Kafka allows {LONGEST_STRING}")
    return Broken(at, f"a {kind} of {length} bytes, but {left} are left")
