"""Reading the head of a frame in place: the header of a request or response, and the few body fields that quotas need.

A frame is ``length: INT32``, followed by ``length`` bytes of header and body. All functions take a window
``buffer[position:end]`` that begins with a frame, return ``None`` while the window is too short, and raise
`MalformedFrame` as soon as the bytes cannot be a frame. They do not consume or copy the bytes. Called by the relays of
`headrace.proxy.connection`.

Source: ``RequestHeader.json`` (v0-v2), ``ResponseHeader.json`` (v0-v1), ``ProduceRequest.json``, ``FetchRequest.json``,
``ShareFetchRequest.json``.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from headrace.proxy.wire.apis import request_header_version, response_header_version
from headrace.proxy.wire.errors import MalformedFrame, OtherProtocol
from headrace.proxy.wire.other_protocols import other_protocol
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey

Buffer = bytearray | memoryview

LENGTH_BYTES: Final = 4
MAX_HEAD_BYTES: Final = 128 * 1024
"""Longest accepted head: two strings of 32,767 bytes (client id, transactional id), and space for tagged fields.

A whole head must fit in the read buffer."""

RETRIED_HEAD_BYTES: Final = 256
"""An incomplete head that is shorter is read again at every arrival of bytes."""

MAX_HEAD_TAGS: Final = 100
"""Most tagged fields of a head. Kafka 4.4 defines none for the headers of requests and replies."""

LONGEST_CLIENT_ID_BYTES: Final = 0x7FFF

_LENGTH = Struct(">i")
_FIXED = Struct(">ihhi")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_REPLY = Struct(">ii")

_SHORTEST_REQUEST: Final = 8  # api key, api version, correlation id: header v0
_SHORTEST_REPLY: Final = 4  # correlation id
PLAIN_BODY_AT: Final = LENGTH_BYTES + _SHORTEST_REPLY
"""Offset of the body in a response whose header has no tagged fields, otherwise of the number of tagged fields."""
_PRODUCE: Final = ApiKey.PRODUCE.value
_FETCH: Final = ApiKey.FETCH.value
_QUICK_NEEDS: Final = {_PRODUCE: 5, _FETCH: 17}
"""Number of bytes after the client id that `_quick_head` reads, by API key.

They are the number of tagged fields (1), and in Produce the transactional id (up to 2) and acks (2), in Fetch
replica_id, max_wait_ms, min_bytes and max_bytes (4 each)."""
_QUICK_BYTES: Final = 15


class RequestHead:
    """The head of a request: its header, and the few body fields that quotas need."""

    __slots__ = ("acks", "api_key", "api_version", "body_at", "client_id", "correlation_id", "fetch_limits_at", "size")

    def __init__(
        self, size: int, api_key: int, api_version: int, correlation_id: int, client_id: str, body_at: int
    ) -> None:
        self.size = size
        """Number of bytes of header and body, without the length field."""
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        """The client id; "" if it is null, as in Kafka's ``RequestHeader``."""
        self.body_at = body_at
        """Offset of the body in the frame, including the length field."""
        self.acks: int | None = None
        """``acks`` of Produce; ``None`` for other APIs."""
        self.fetch_limits_at: int | None = None
        """Offset in the frame of ``min_bytes``, which ``max_bytes`` follows (both INT32), for Fetch v3+ and ShareFetch;
        otherwise ``None``."""


class TooShort(Exception):  # noqa: N818 -- a signal inside this module, not an error
    """The window ends before the end of the field."""


def frame_size(buffer: Buffer, position: int, end: int, max_frame_bytes: int, shortest: int) -> int | None:
    """Return the length field of a frame, or ``None`` if the window has fewer than 4 bytes.

    Raises `MalformedFrame` for a length outside ``shortest``..``max_frame_bytes``.
    """
    if end - position < LENGTH_BYTES:
        return None
    size: int = _LENGTH.unpack_from(buffer, position)[0]
    if size < shortest or size > max_frame_bytes:
        raise _bad_size(buffer, position, end, size, shortest, max_frame_bytes)
    return size


def read_request_head(buffer: Buffer, position: int, end: int, max_frame_bytes: int) -> RequestHead | None:
    """Read the head of the request that begins at ``position``; return ``None`` while it is incomplete.

    Raises `MalformedFrame` for a length outside 8..``max_frame_bytes``, for an unknown API key (a broker closes the
    connection then, too), and for fields that extend beyond their frame.
    """
    available = end - position
    if available < LENGTH_BYTES + _SHORTEST_REQUEST:
        frame_size(buffer, position, end, max_frame_bytes, _SHORTEST_REQUEST)
        return None
    size, api_key, api_version, correlation_id = _FIXED.unpack_from(buffer, position)
    if size < _SHORTEST_REQUEST or size > max_frame_bytes:
        raise _bad_size(buffer, position, end, size, _SHORTEST_REQUEST, max_frame_bytes)
    if api_key not in API_NAMES:
        raise _not_kafka(buffer, position, end) or MalformedFrame(
            f"api key {api_key} is unknown (frame of {size} bytes)"
        )
    if api_version < 0:
        raise MalformedFrame(f"{API_NAMES[api_key]} version {api_version} is negative")
    frame_end = position + LENGTH_BYTES + size
    header_version = request_header_version(api_key, api_version)
    limit = min(end, frame_end)
    if header_version and limit - position >= _QUICK_BYTES:
        quick = _quick_head(buffer, position, limit, size, api_key, api_version, correlation_id)
        if quick is not None:
            return quick
    cursor = _Cursor(buffer, position + 12, limit)
    try:
        client_id = cursor.string() if header_version >= 1 else ""
        if header_version >= 2:
            cursor.skip_tagged_fields()
        head = RequestHead(size, api_key, api_version, correlation_id, client_id, cursor.at - position)
        skim = _SKIMS.get(api_key)
        if skim is not None:
            skim(cursor, head, position)
    except TooShort:
        if cursor.limit == frame_end:
            raise MalformedFrame(f"{API_NAMES[api_key]} v{api_version}: the head reaches beyond its frame") from None
        if available >= MAX_HEAD_BYTES:
            raise MalformedFrame(
                f"{API_NAMES[api_key]} v{api_version}: the head is over {MAX_HEAD_BYTES} bytes"
            ) from None
        return None
    return head


def _quick_head(
    buffer: Buffer, position: int, limit: int, size: int, api_key: int, api_version: int, correlation_id: int
) -> RequestHead | None:
    """Read the head of a usual request quickly: one that is completely in the window, without unusual fields.

    Returns ``None`` for any other request, which `read_request_head` then reads field by field.
    """
    length: int = _INT16.unpack_from(buffer, position + 12)[0]
    body_at = position + 14 + max(length, 0)
    if length < -1 or body_at + _QUICK_NEEDS.get(api_key, 1) > limit:
        return None
    if request_header_version(api_key, api_version) == 2:
        if buffer[body_at]:  # tagged fields
            return None
        body_at += 1
    client_id = str(buffer[position + 14 : position + 14 + length], "utf-8", "replace") if length > 0 else ""
    head = RequestHead(size, api_key, api_version, correlation_id, client_id, body_at - position)
    if api_key == _PRODUCE:
        head.acks = _quick_acks(buffer, body_at, api_version)
        if head.acks is None:
            return None
    elif api_key == _FETCH:
        if api_version >= 3:
            head.fetch_limits_at = body_at + (4 if api_version >= 15 else 8) - position
    elif api_key in _SKIMS:
        return None
    return head


def _quick_acks(buffer: Buffer, at: int, api_version: int) -> int | None:
    """Return ``acks`` of a Produce request, or ``None`` if it follows a transactional id."""
    if api_version >= 9:
        return None if buffer[at] > 1 else int(_INT16.unpack_from(buffer, at + 1)[0])
    if api_version >= 3:
        if _INT16.unpack_from(buffer, at)[0] > 0:
            return None
        at += 2
    return int(_INT16.unpack_from(buffer, at)[0])


def bytes_to_continue(buffer: Buffer, position: int, end: int) -> int:
    """Return how many bytes the window must have before an incomplete head at ``position`` is read again.

    A head is read from its beginning each time. If the window must double first, the work for a head that arrives byte
    by byte grows with its length, and not with the square of it.
    """
    available = end - position
    if available < RETRIED_HEAD_BYTES:
        return 0
    frame_end: int = LENGTH_BYTES + _LENGTH.unpack_from(buffer, position)[0]
    return min(2 * available, frame_end, MAX_HEAD_BYTES)


def read_response_head(buffer: Buffer, position: int, end: int, max_frame_bytes: int) -> tuple[int, int] | None:
    """Return size (without the length field) and correlation id of the response at ``position``.

    Returns ``None`` while the window is too short. Raises `MalformedFrame` for a length outside 4..``max_frame_bytes``.
    """
    if end - position < LENGTH_BYTES + _SHORTEST_REPLY:
        frame_size(buffer, position, end, max_frame_bytes, _SHORTEST_REPLY)
        return None
    size, correlation_id = _REPLY.unpack_from(buffer, position)
    if size < _SHORTEST_REPLY or size > max_frame_bytes:
        raise _bad_size(buffer, position, end, size, _SHORTEST_REPLY, max_frame_bytes)
    return size, correlation_id


def response_body_at(buffer: Buffer, position: int, end: int, size: int, api_key: int, api_version: int) -> int | None:
    """Return the offset of the body in the response at ``position``, including the length field.

    Returns ``None`` while the window is too short. Raises `MalformedFrame` for a header longer than its frame.
    """
    if response_header_version(api_key, api_version) == 0:
        return PLAIN_BODY_AT
    frame_end = position + LENGTH_BYTES + size
    cursor = _Cursor(buffer, position + LENGTH_BYTES + _SHORTEST_REPLY, min(end, frame_end))
    try:
        cursor.skip_tagged_fields()
    except TooShort:
        if cursor.limit == frame_end:
            raise MalformedFrame(f"{API_NAMES[api_key]} v{api_version}: the reply's header reaches beyond it") from None
        if end - position >= MAX_HEAD_BYTES:
            raise MalformedFrame(f"{API_NAMES[api_key]} v{api_version}: the reply's header is too long") from None
        return None
    return cursor.at - position


def request_frame(api_key: int, version: int, correlation_id: int, client_id: str, body: bytes) -> bytes:
    """Return a request of the proxy's own as a frame with length and header; not for ControlledShutdown v0.

    A client id is cut off after the longest that fits, since replaced characters may take more bytes than were read.
    """
    name = client_id.encode()[:LONGEST_CLIENT_ID_BYTES]
    header = _FIXED.pack(0, api_key, version, correlation_id)[4:] + _INT16.pack(len(name)) + name
    if request_header_version(api_key, version) >= 2:
        header += b"\x00"
    return _LENGTH.pack(len(header) + len(body)) + header + body


def _not_kafka(buffer: Buffer, position: int, end: int) -> OtherProtocol | None:
    protocol = other_protocol(buffer, position, end)
    return None if protocol is None else OtherProtocol(protocol)


def _bad_size(buffer: Buffer, position: int, end: int, size: int, shortest: int, longest: int) -> MalformedFrame:
    not_kafka = _not_kafka(buffer, position, end)
    if not_kafka is not None:
        return not_kafka
    if size > longest:
        return MalformedFrame(f"a frame of {size} bytes is longer than limits.max_frame_bytes = {longest}")
    return MalformedFrame(f"a frame of {size} bytes is shorter than a header ({shortest} bytes)")


class _Cursor:
    """A reader of consecutive fields in a window."""

    __slots__ = ("at", "buffer", "limit")

    def __init__(self, buffer: Buffer, at: int, limit: int) -> None:
        self.buffer = buffer
        self.at = at
        self.limit = limit

    def advance(self, count: int) -> int:
        """Skip ``count`` bytes, and return the position of the first of them."""
        begin = self.at
        if count < 0:
            raise MalformedFrame(f"a length of {count} in a request's head")
        if begin + count > self.limit:
            raise TooShort
        self.at = begin + count
        return begin

    def int16(self) -> int:
        value: int = _INT16.unpack_from(self.buffer, self.advance(2))[0]
        return value

    def string(self) -> str:
        """Read a NULLABLE_STRING as a broker does: null (a negative length) is "", and invalid UTF-8 is replaced."""
        length = self.int16()
        if length < 0:
            return ""
        begin = self.advance(length)
        return str(self.buffer[begin : self.at], "utf-8", "replace")

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.buffer[self.advance(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise MalformedFrame("a varint of more than 5 bytes in a head")

    def skip_compact_string(self) -> None:
        length = self.uvarint()
        if length > 1:
            self.advance(length - 1)

    def skip_tagged_fields(self) -> None:
        count = self.uvarint()
        if count > MAX_HEAD_TAGS:
            raise MalformedFrame(f"{count} tagged fields in a head; the most are {MAX_HEAD_TAGS}")
        for _ in range(count):
            self.uvarint()
            self.advance(self.uvarint())


def _skim_produce(cursor: _Cursor, head: RequestHead, _position: int) -> None:
    if head.api_version >= 9:
        cursor.skip_compact_string()
    elif head.api_version >= 3:
        length = cursor.int16()
        if length > 0:
            cursor.advance(length)
    head.acks = cursor.int16()


def _skim_fetch(cursor: _Cursor, head: RequestHead, position: int) -> None:
    if head.api_version < 3:
        return  # max_bytes exists since v3
    cursor.advance(4 if head.api_version >= 15 else 8)  # replica_id (until v14), max_wait_ms
    head.fetch_limits_at = cursor.advance(8) - position


def _skim_share_fetch(cursor: _Cursor, head: RequestHead, position: int) -> None:
    cursor.skip_compact_string()  # group_id
    cursor.skip_compact_string()  # member_id
    cursor.advance(8)  # share_session_epoch, max_wait_ms
    head.fetch_limits_at = cursor.advance(8) - position


_SKIMS: Final = {
    ApiKey.PRODUCE.value: _skim_produce,
    ApiKey.FETCH.value: _skim_fetch,
    ApiKey.SHARE_FETCH.value: _skim_share_fetch,
}


def cap_fetch(buffer: Buffer, limits_at: int, max_bytes: int) -> None:
    """Limit ``max_bytes`` and ``min_bytes`` of a Fetch request to ``max_bytes``, in place.

    ``limits_at`` is the position of ``min_bytes`` in ``buffer``. Source: ``KafkaApis.handleFetchRequest``.
    """
    requested_min: int = _INT32.unpack_from(buffer, limits_at)[0]
    requested_max: int = _INT32.unpack_from(buffer, limits_at + 4)[0]
    max_allowed = min(requested_max, max_bytes)
    if max_allowed != requested_max:
        _INT32.pack_into(buffer, limits_at + 4, max_allowed)
    if requested_min > max_allowed:
        _INT32.pack_into(buffer, limits_at, max_allowed)
