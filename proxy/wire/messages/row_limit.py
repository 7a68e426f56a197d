"""A bound for the number of elements and tagged fields in a message, checked before the message is decoded.

Decoding takes time for each element, however few bytes it has: a message of 1 MiB may have 350,000 of them. Called for
requests that are read whole, by `headrace.proxy.connection.whole_requests`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from headrace.proxy.wire.errors import MalformedFrame
from headrace.proxy.wire.messages.codec import malformed
from headrace.proxy.wire.messages.composites import message_codec, too_early
from headrace.proxy.wire.messages.scalars import BoundedBody, Broken, TooManyRows

if TYPE_CHECKING:
    from headrace.proxy.wire.messages.codec import Buffer

_SHORTEST_ROW: Final = 2
"""The least bytes of an element that is counted: a tagged field, or a compact string and the tags of its struct."""


def check_rows(name: str, version: int, body: Buffer, max_rows: int) -> None:
    """Raise `MalformedFrame` if a message has more than ``max_rows`` elements of arrays and tagged fields.

    ``max_rows`` is ``limits.max_request_rows``. Elements of fixed width do not count. Raises `UnknownMessage` and
    `MalformedMessage` as `headrace.proxy.wire.messages.codec.decode` does. Takes time for ``max_rows`` elements at
    most.
    """
    if len(body) <= max_rows * _SHORTEST_ROW:
        return
    codec = message_codec(name, version)
    data = BoundedBody(body)
    data.rows_left = max_rows
    try:
        codec.skip(data, 0)
    except TooManyRows:
        raise MalformedFrame(
            f"a {name} has more than limits.max_request_rows = {max_rows} topics, partitions and other rows"
        ) from None
    except Broken as broken:
        raise malformed(name, version, broken) from broken
    except (IndexError, struct.error):
        raise malformed(name, version, too_early(data, 0, "body")) from None
