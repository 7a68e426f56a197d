"""A bound for the number of elements and tagged fields in a message, checked before the message is decoded.

Decoding takes time for each element, however few bytes it has: a message of 1 MiB may have 350,000 of them. Called for
requests that are read whole, by `headrace.proxy.connection.whole_requests`.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Final

from headrace.proxy.wire.errors import MalformedFrame
from headrace.proxy.wire.messages.codec import malformed
from headrace.proxy.wire.messages.composites import element_codec, field_codec, too_early
from headrace.proxy.wire.messages.scalars import Broken, Codec, check_count, count_codec
from headrace.proxy.wire.messages.schemas import Field, schema
from headrace.proxy.wire.messages.tagged_fields import read_tag, read_tag_count

if TYPE_CHECKING:
    from headrace.proxy.wire.messages.codec import Buffer
    from headrace.proxy.wire.messages.scalars import LengthReader

_SHORTEST_ROW: Final = 2
"""The least bytes of an element that is counted: a tagged field, or a compact string and the tags of its struct."""


def check_rows(name: str, version: int, body: Buffer, max_rows: int) -> None:
    """Raise `MalformedFrame` if a message has more than ``max_rows`` elements of arrays and tagged fields.

    ``max_rows`` is ``limits.max_request_rows``. Elements of arrays of fixed width count as one together. Raises
    `UnknownMessage` and `MalformedMessage` as `headrace.proxy.wire.messages.codec.decode` does. Takes time for
    ``max_rows`` elements at most.
    """
    if len(body) <= max_rows * _SHORTEST_ROW:
        return
    found = schema(name, version)
    try:
        _Count(bytes(body), max_rows, name).skip_struct(found.fields, 0, flexible=found.flexible)
    except Broken as broken:
        raise malformed(name, version, broken) from broken
    except (IndexError, struct.error):
        raise malformed(name, version, too_early(bytes(body), 0, "body")) from None


class _Count:
    """The elements that may follow."""

    __slots__ = ("_body", "_left", "_max_rows", "_name")

    def __init__(self, body: bytes, max_rows: int, name: str) -> None:
        self._body = body
        self._left = self._max_rows = max_rows
        self._name = name

    def skip_struct(self, fields: tuple[Field, ...], at: int, *, flexible: bool) -> int:
        """Skip a struct at ``at`` and count the elements in it; return the position after it."""
        for field in fields:
            if field.tag is not None:
                continue
            if field.is_array and field.kind == "struct":
                at = self._skip_array(field, at)
            else:
                codec = field_codec(field)
                if field.is_array and element_codec(field).width is None:
                    self._take(_array(field)[0](self._body, at)[0])
                at = codec.skip(self._body, at)
        if flexible:
            count, at = read_tag_count(self._body, at)
            self._take(count)
            for _ in range(count):
                at = read_tag(self._body, at)[2]
        return at

    def _skip_array(self, field: Field, at: int) -> int:
        read_count, codec = _array(field)
        count, start = read_count(self._body, at)
        self._take(count)
        check_count(self._body, at, start, count, codec.min_bytes)
        for _ in range(count):
            start = self.skip_struct(field.fields, start, flexible=field.flexible)
        return start

    def _take(self, count: int) -> None:
        self._left -= max(count, 0)
        if self._left < 0:
            raise MalformedFrame(
                f"a {self._name} has more than limits.max_request_rows = {self._max_rows} topics, partitions and other"
                " rows"
            )


@cache
def _array(field: Field) -> tuple[LengthReader, Codec]:
    """Return what reads the count of an array, and the codec of its elements."""
    return count_codec(flexible=field.flexible, nullable=field.nullable)[0], element_codec(field)
