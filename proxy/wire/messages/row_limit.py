"""A bound for the number of elements and tagged fields in a message, checked before the message is decoded.

Decoding takes time for each element, however few bytes it has: a message of 1 MiB may have 350,000 of them. Called for
requests that are read whole, by `headrace.proxy.connection.whole_requests`.
"""

from __future__ import annotations

import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from headrace.proxy.wire.errors import MalformedFrame
from headrace.proxy.wire.messages.codec import malformed
from headrace.proxy.wire.messages.composites import message_codec, too_early
from headrace.proxy.wire.messages.scalars import BoundedBody, Broken, TooManyRows
from headrace.proxy.wire.messages.stepwise import skip_in_steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.proxy.wire.messages.codec import Buffer
    from headrace.proxy.wire.messages.stepwise import Steps

_SHORTEST_ROW: Final = 2
"""The least bytes of an element that is counted: a tagged field, or a compact string and the tags of its struct."""


def check_rows(name: str, version: int, body: Buffer, max_rows: int, *, numbers: bool = False) -> None:
    """Raise `MalformedFrame` if a message has more than ``max_rows`` elements of arrays and tagged fields.

    ``max_rows`` is ``limits.max_request_rows``. Elements of fixed width count only with ``numbers``, which is for
    requests that are answered with a row for each partition number. Raises `UnknownMessage` and
    `MalformedMessage` as `headrace.proxy.wire.messages.codec.decode` does. Takes time for ``max_rows`` elements at
    most.
    """
    if len(body) <= max_rows * _SHORTEST_ROW:
        return
    with _checking(name, version, body, max_rows, numbers=numbers) as data:
        message_codec(name, version).skip(data, 0)


def check_rows_in_steps(name: str, version: int, body: Buffer, max_rows: int, *, numbers: bool = False) -> Steps[None]:
    """Check the number of rows as `check_rows` does, in steps."""
    if len(body) <= max_rows * _SHORTEST_ROW:
        return
    with _checking(name, version, body, max_rows, numbers=numbers) as data:
        yield from skip_in_steps(name, version, data)


def has_more_rows(name: str, version: int, body: Buffer, most: int) -> bool:
    """Return whether a message has more than ``most`` elements and tagged fields, those of fixed width not counted.

    Takes time for ``most`` elements at most. Raises `UnknownMessage` and `MalformedMessage` as `check_rows`.
    """
    if len(body) <= most * _SHORTEST_ROW:
        return False
    try:
        with _reading(name, version, body, most) as data:
            message_codec(name, version).skip(data, 0)
    except TooManyRows:
        return True
    return False


@contextmanager
def _checking(name: str, version: int, body: Buffer, max_rows: int, *, numbers: bool) -> Iterator[BoundedBody]:
    try:
        with _reading(name, version, body, max_rows, numbers=numbers) as data:
            yield data
    except TooManyRows:
        raise MalformedFrame(
            f"a {name} has more than limits.max_request_rows = {max_rows} topics, partitions and other rows"
        ) from None


@contextmanager
def _reading(name: str, version: int, body: Buffer, max_rows: int, *, numbers: bool = False) -> Iterator[BoundedBody]:
    """Provide the body, whose rows are counted as they are read. Raises `TooManyRows` and `MalformedMessage`."""
    data = BoundedBody(body)
    data.rows_left, data.counts_numbers = max_rows, numbers
    try:
        yield data
    except Broken as broken:
        raise malformed(name, version, broken) from broken
    except (IndexError, struct.error):
        raise malformed(name, version, too_early(data, 0, "body")) from None
