"""A walk through a Fetch response that skips the records, and hides the addresses of new leaders.

From v16 on, a response can end with *NodeEndpoints* (KIP-951): the addresses of new leaders, after all records. The
walk replaces the tag of that field, in place, by one that no client knows, so that clients skip the field and the
length of the response stays the same. The leader's id in *CurrentLeader* is not changed: clients find the address of
that node with Metadata.

Source: ``FetchResponse.json``, v16-v18.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.proxy.wire.walks.body import SHORT, BodyWalk

if TYPE_CHECKING:
    from headrace.proxy.wire.heads import Buffer

FIRST_VERSION_WITH_HINTS: Final = 16
NODE_ENDPOINTS_TAG: Final = 0
HIDDEN_TAG: Final = 0x7F
"""The highest tag that is encoded in one byte, like the tag that it replaces, so that tags remain in order."""

_INT32 = Struct(">i")
_BEFORE_TOPICS: Final = 10  # throttle_time_ms, error_code, session_id
_TOPIC_ID: Final = 16
_BEFORE_ABORTED: Final = 30  # partition_index, error_code, high_watermark, last_stable_offset, log_start_offset
_ABORTED: Final = 16  # producer_id, first_offset


class FetchWalk(BodyWalk):
    """A walk through the body of one Fetch response, v16 or later."""

    __slots__ = ("_count", "_partitions", "_topics", "hints")

    what = "a Fetch reply"
    most_steps = 1500  # some 1.5 ms: a partition without records may have 36 bytes, so that a read can contain 1,800

    def __init__(self, body_bytes: int) -> None:
        super().__init__(body_bytes)
        self._topics = 0
        self._partitions = 0
        self._count = 0
        self.hints = 0
        """Number of NodeEndpoints fields that were hidden: 0 or 1."""
        self._step = self._read_reply

    def _read_reply(self, buffer: Buffer, at: int, end: int) -> int:
        count, at = self._uvarint(buffer, at + _BEFORE_TOPICS, end)
        if at == SHORT:
            return SHORT
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
        count, at = self._uvarint(buffer, at + _TOPIC_ID, end)
        if at == SHORT:
            return SHORT
        self._partitions = _array_length(count)
        self._step = self._read_partition if self._partitions else self._read_topic_tags
        return at

    def _read_partition(self, buffer: Buffer, at: int, end: int) -> int:
        count, at = self._uvarint(buffer, at + _BEFORE_ABORTED, end)
        if at == SHORT:
            return SHORT
        self._count = _array_length(count)
        self._step = self._read_aborted if self._count else self._read_records
        return at

    def _read_aborted(self, buffer: Buffer, at: int, end: int) -> int:
        tags, at = self._uvarint(buffer, at + _ABORTED, end)
        if at == SHORT:
            return SHORT
        self._count -= 1
        self._begin_tags(tags, self._read_aborted if self._count else self._read_records)
        return at

    def _read_records(self, buffer: Buffer, at: int, end: int) -> int:
        length, at = self._uvarint(buffer, at + 4, end)  # preferred_read_replica precedes the length
        if at == SHORT:
            return SHORT
        length = max(length - 1, 0)
        self._check_reach(length, at, end)
        self.skip_left = length
        if length > self.longest:
            self.longest = length
        self._step = self._read_partition_tags
        return at

    def _read_partition_tags(self, buffer: Buffer, at: int, end: int) -> int:
        tags, at = self._uvarint(buffer, at, end)
        if at == SHORT:
            return SHORT
        self._partitions -= 1
        self._begin_tags(tags, self._read_partition if self._partitions else self._read_topic_tags)
        return at

    def _read_topic_tags(self, buffer: Buffer, at: int, end: int) -> int:
        tags, at = self._uvarint(buffer, at, end)
        if at == SHORT:
            return SHORT
        self._next_topic()
        self._begin_tags(tags, self._step)
        return at

    def _read_last_tag_count(self, buffer: Buffer, at: int, end: int) -> int:
        self._tags, at = self._uvarint(buffer, at, end)
        if at == SHORT:
            return SHORT
        self._step = self._read_last_tag if self._tags else None
        return at

    def _read_last_tag(self, buffer: Buffer, at: int, end: int) -> int:
        tag_at = at
        tag, at = self._uvarint(buffer, at, end)
        length, at = self._uvarint(buffer, at, end) if at != SHORT else (0, SHORT)
        if at == SHORT:
            return SHORT
        if tag == NODE_ENDPOINTS_TAG:
            buffer[tag_at] |= HIDDEN_TAG  # a tag that takes more bytes than necessary keeps their number
            self.hints += 1
        self._skip_tag(length, at, end)
        if not self._tags:
            self._step = None
        return at


def _array_length(count: int) -> int:
    return max(count - 1, 0)  # COMPACT_ARRAY: 0 is null
