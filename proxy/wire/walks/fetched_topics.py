"""A walk through a Fetch response of any version that sums the bytes of the records by topic.

It serves callbacks that charge topics, and is used only if one of them asks for it, as is `read_share_fetched`, which
reads a ShareFetch response: that is small and has been collected. The walk skips the records, and hides the
addresses of new leaders, as `headrace.proxy.wire.walks.fetch` does.

Source: ``FetchResponse.json``, v0-v18.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.proxy.wire.errors import MalformedFrame, UnknownMessage
from headrace.proxy.wire.messages.rows import read_rows
from headrace.proxy.wire.walks.body import SHORT
from headrace.proxy.wire.walks.fetch import FetchWalk

if TYPE_CHECKING:
    from headrace.proxy.wire.heads import Buffer

LAST_VERSION: Final = 18

_FIRST_WITH_THROTTLE: Final = 1
_FIRST_WITH_ABORTED: Final = 4
_FIRST_WITH_LOG_START: Final = 5
_FIRST_WITH_SESSION: Final = 7
_FIRST_WITH_REPLICA: Final = 11
_FIRST_FLEXIBLE: Final = 12
_FIRST_WITH_TOPIC_IDS: Final = 13
_TOPIC_ID_BYTES: Final = 16
_ABORTED_BYTES: Final = 16

_int16 = Struct(">h").unpack_from
_int32 = Struct(">i").unpack_from


def read_share_fetched(version: int, body: Buffer) -> dict[str | bytes, int]:
    """Return the bytes of the records in a whole ShareFetch response by topic id. Raises `UnknownMessage` and
    `MalformedMessage`."""
    by_topic: dict[str | bytes, int] = {}
    for row in read_rows("ShareFetchResponse", version, body, "responses", ("topic_id", "partitions")):
        fetched = sum(len(partition["records"] or b"") for partition in row["partitions"])
        if fetched:
            by_topic[row["topic_id"]] = by_topic.get(row["topic_id"], 0) + fetched
    return by_topic


class FetchedTopicsWalk(FetchWalk):
    """A walk through the body of one Fetch response."""

    __slots__ = ("_before_aborted", "_before_records", "_before_topics", "_flexible", "_topic", "_version", "by_topic")

    def __init__(self, version: int, body_bytes: int) -> None:
        """Begin a walk through a body of ``body_bytes`` bytes. Raises `UnknownMessage` for an unknown version."""
        if not 0 <= version <= LAST_VERSION:
            raise UnknownMessage(f"no walk for FetchResponse v{version}: known are 0 to {LAST_VERSION}")
        super().__init__(body_bytes)
        self._version = version
        self._flexible = version >= _FIRST_FLEXIBLE
        self._before_topics = 10 if version >= _FIRST_WITH_SESSION else 4 if version >= _FIRST_WITH_THROTTLE else 0
        self._before_aborted = 14  # partition_index, error_code, high_watermark; then 8 bytes for each further offset
        self._before_aborted += 8 * ((version >= _FIRST_WITH_ABORTED) + (version >= _FIRST_WITH_LOG_START))
        self._before_records = 4 if version >= _FIRST_WITH_REPLICA else 0
        self._topic: str | bytes = ""
        self.by_topic: dict[str | bytes, int] = {}
        """Bytes of records by topic: its name, or from v13 on its id of 16 bytes. Topics without records are
        missing, so the sums take no more memory than the records."""

    def _read_reply(self, buffer: Buffer, at: int, end: int) -> int:
        self._topics, at = self._read_count(buffer, at + self._before_topics, end)
        if at == SHORT:
            return SHORT
        self._next_topic()
        return at

    def _next_topic(self) -> None:
        if self._topics:
            self._topics -= 1
            self._step = self._read_topic
        else:
            self._step = self._read_last_tag_count if self._flexible else None

    def _read_topic(self, buffer: Buffer, at: int, end: int) -> int:
        length = _TOPIC_ID_BYTES
        if self._version < _FIRST_WITH_TOPIC_IDS:
            length, at = self._read_name_length(buffer, at, end)
            if at == SHORT:
                return SHORT
        name_at = at
        self._partitions, at = self._read_count(buffer, at + length, end)
        if at == SHORT:
            return SHORT
        name = bytes(buffer[name_at : name_at + length])
        self._topic = name if self._version >= _FIRST_WITH_TOPIC_IDS else name.decode(errors="replace")
        self._next_partition()
        return at

    def _next_partition(self) -> None:
        if self._partitions:
            self._step = self._read_partition
        elif self._flexible:
            self._step = self._read_topic_tags
        else:
            self._next_topic()

    def _read_partition(self, buffer: Buffer, at: int, end: int) -> int:
        at += self._before_aborted
        if self._version < _FIRST_WITH_ABORTED:
            if at > end:
                return SHORT
            self._step = self._read_records
            return at
        self._count, at = self._read_count(buffer, at, end)
        if at == SHORT:
            return SHORT
        if self._flexible and self._count:
            self._step = self._read_aborted
        else:
            self._check_reach(self._count * _ABORTED_BYTES, at, end)
            self.skip_left = self._count * _ABORTED_BYTES
            self._step = self._read_records
        return at

    def _read_records(self, buffer: Buffer, at: int, end: int) -> int:
        length, at = self._read_count(buffer, at + self._before_records, end)
        if at == SHORT:
            return SHORT
        self._check_reach(length, at, end)
        self.skip_left = length
        if length > self.longest:
            self.longest = length
        by_topic = self.by_topic
        if self._topic in by_topic:
            by_topic[self._topic] += length
        elif length:
            by_topic[self._topic] = length
        if self._flexible:
            self._step = self._read_partition_tags
        else:
            self._partitions -= 1
            self._next_partition()
        return at

    def _read_count(self, buffer: Buffer, at: int, end: int) -> tuple[int, int]:
        """Read the number of elements or bytes that follow, 0 if they are null; return it and the position after it."""
        if self._flexible:
            count, at = self._uvarint(buffer, at, end)
            return max(count - 1, 0), at
        if end - at < 4:
            return 0, SHORT
        return max(_int32(buffer, at)[0], 0), at + 4

    def _read_name_length(self, buffer: Buffer, at: int, end: int) -> tuple[int, int]:
        if self._flexible:
            return self._read_count(buffer, at, end)
        if end - at < 2:
            return 0, SHORT
        length: int = _int16(buffer, at)[0]
        if length < 0:
            raise MalformedFrame("a topic without a name in a Fetch reply")
        return length, at + 2
