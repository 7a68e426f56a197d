"""Walking a Fetch reply from partition head to partition head, with the records between them left unread.

From v16 a reply can end with *NodeEndpoints* (KIP-951): the addresses of new leaders, behind all records. The walk
finds that field and makes it inert in place, by giving it a tag number that no client knows, so that the reply keeps
its length and clients skip it. The leader's id in *CurrentLeader* stays: it names a node that clients find through
Metadata.

A walk is fed windows; it stops before an atom (a fixed group of fields) that is not there whole, and says how many
bytes of records can go by unseen (by splice, if need be). State is the method that reads the next atom.

Source: ``FetchResponse.json``, v16-v18.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from proxy.wire.errors import MalformedFrame

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.wire.heads import Buffer

FIRST_VERSION_WITH_HINTS: Final = 16
NODE_ENDPOINTS_TAG: Final = 0
INERT_TAG: Final = 0x7F
"""One byte long, as the tag that it replaces, and the highest of those: the order of tags is kept."""

_SHORT: Final = -1
_INT32 = Struct(">i")
_BEFORE_TOPICS: Final = 10  # throttle_time_ms, error_code, session_id
_TOPIC_ID: Final = 16
_BEFORE_ABORTED: Final = 30  # partition_index, error_code, high_watermark, last_stable_offset, log_start_offset
_ABORTED: Final = 16  # producer_id, first_offset


class FetchWalk:
    """The walk through one reply's body, v16 or later."""

    __slots__ = (
        "_after_tags",
        "_begin",
        "_count",
        "_left",
        "_partitions",
        "_step",
        "_tags",
        "_topics",
        "hints",
        "skip_left",
    )

    def __init__(self, body_bytes: int) -> None:
        self._left = body_bytes
        self._begin = 0
        self._topics = 0
        self._partitions = 0
        self._count = 0
        self._tags = 0
        self.skip_left = 0
        """Bytes of records (or of fields nobody reads) that come next."""
        self.hints = 0
        """How many NodeEndpoints fields were made inert: 0 or 1."""
        self._step: Callable[[Buffer, int, int], int] | None = self._read_reply
        self._after_tags: Callable[[Buffer, int, int], int] | None = None

    @property
    def done(self) -> bool:
        """Whether the reply has been walked to its end."""
        return self._step is None and self.skip_left == 0

    def walk(self, buffer: Buffer, position: int, end: int) -> int:
        """Walk on in ``buffer[position:end]``; return where the walk stands. All before it can be sent.

        Raises `MalformedFrame` when the fields do not fill the reply exactly.
        """
        begin = self._begin = position
        end = min(end, position + self._left)
        whole = end - position == self._left
        while True:
            if self.skip_left:
                count = min(self.skip_left, end - position)
                self.skip_left -= count
                position += count
                if self.skip_left:
                    break
            if self._step is None:
                break
            after = self._step(buffer, position, end)
            if after == _SHORT:
                break
            position = after
        self._left -= position - begin
        if whole and not (self.done and self._left == 0):
            raise MalformedFrame("a Fetch reply's fields do not fill its frame")
        if self.done and self._left:
            raise MalformedFrame(f"a Fetch reply has {self._left} bytes behind its last field")
        return position

    def passed_outside(self, count: int) -> None:
        """``count`` bytes of `skip_left` went by without coming through a window."""
        self.skip_left -= count
        self._left -= count

    def _read_reply(self, buffer: Buffer, at: int, end: int) -> int:
        count, at = _uvarint(buffer, at + _BEFORE_TOPICS, end)
        if at == _SHORT:
            return _SHORT
        self._topics = _array_length(count)
        self._next_topic()
        return at

    def _next_topic(self) -> None:
        if self._topics:
            self._topics -= 1
            self._step = self._read_topic
        else:
            self._step = self._read_last_tag_count

    def _read_topic(self, buffer: Buffer, at: int, end: int) -> int:
        count, at = _uvarint(buffer, at + _TOPIC_ID, end)
        if at == _SHORT:
            return _SHORT
        self._partitions = _array_length(count)
        self._step = self._read_partition if self._partitions else self._read_topic_tags
        return at

    def _read_partition(self, buffer: Buffer, at: int, end: int) -> int:
        count, at = _uvarint(buffer, at + _BEFORE_ABORTED, end)
        if at == _SHORT:
            return _SHORT
        self._count = _array_length(count)
        self._step = self._read_aborted if self._count else self._read_records
        return at

    def _read_aborted(self, buffer: Buffer, at: int, end: int) -> int:
        tags, at = _uvarint(buffer, at + _ABORTED, end)
        if at == _SHORT:
            return _SHORT
        self._count -= 1
        return self._begin_tags(tags, self._read_aborted if self._count else self._read_records, at)

    def _read_records(self, buffer: Buffer, at: int, end: int) -> int:
        length, at = _uvarint(buffer, at + 4, end)  # preferred_read_replica stands before the length
        if at == _SHORT:
            return _SHORT
        self.skip_left = max(length - 1, 0)
        self._step = self._read_partition_tags
        self._check_skip(at, end)
        return at

    def _read_partition_tags(self, buffer: Buffer, at: int, end: int) -> int:
        tags, at = _uvarint(buffer, at, end)
        if at == _SHORT:
            return _SHORT
        self._partitions -= 1
        return self._begin_tags(tags, self._read_partition if self._partitions else self._read_topic_tags, at)

    def _read_topic_tags(self, buffer: Buffer, at: int, end: int) -> int:
        tags, at = _uvarint(buffer, at, end)
        if at == _SHORT:
            return _SHORT
        self._next_topic()
        return self._begin_tags(tags, self._step, at)

    def _begin_tags(self, tags: int, after: Callable[[Buffer, int, int], int] | None, at: int) -> int:
        self._step = after
        if tags:
            self._tags = tags
            self._after_tags = after
            self._step = self._read_tag
        return at

    def _read_tag(self, buffer: Buffer, at: int, end: int) -> int:
        _, at = _uvarint(buffer, at, end)
        length, at = _uvarint(buffer, at, end) if at != _SHORT else (0, _SHORT)
        if at == _SHORT:
            return _SHORT
        self._skip_tag(length, at, end)
        if not self._tags:
            self._step = self._after_tags
        return at

    def _read_last_tag_count(self, buffer: Buffer, at: int, end: int) -> int:
        self._tags, at = _uvarint(buffer, at, end)
        if at == _SHORT:
            return _SHORT
        self._step = self._read_last_tag if self._tags else None
        return at

    def _read_last_tag(self, buffer: Buffer, at: int, end: int) -> int:
        tag_at = at
        tag, at = _uvarint(buffer, at, end)
        length, at = _uvarint(buffer, at, end) if at != _SHORT else (0, _SHORT)
        if at == _SHORT:
            return _SHORT
        if tag == NODE_ENDPOINTS_TAG:
            buffer[tag_at] = INERT_TAG
            self.hints += 1
        self._skip_tag(length, at, end)
        if not self._tags:
            self._step = None
        return at

    def _skip_tag(self, length: int, at: int, end: int) -> None:
        self._tags -= 1
        self.skip_left = length
        self._check_skip(at, end)

    def _check_skip(self, at: int, end: int) -> None:
        if self.skip_left > self._left - (at - self._begin):
            raise MalformedFrame(
                f"a field of {self.skip_left} bytes in a Fetch reply reaches beyond it ({end - at} here)"
            )


def _array_length(count: int) -> int:
    return max(count - 1, 0)  # COMPACT_ARRAY: 0 is null


def _uvarint(buffer: Buffer, at: int, end: int) -> tuple[int, int]:
    """An UNSIGNED_VARINT and where it ends; `_SHORT` for an end when the window ends first."""
    value = shift = 0
    while at < end:
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 28:
            raise MalformedFrame("a varint of more than 5 bytes in a Fetch reply")
    return 0, _SHORT
