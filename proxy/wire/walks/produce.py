"""A walk through a Produce request that collects topic, size and producer id of each record batch.

It serves the producer id quota (KIP-936), and callbacks that count bytes by topic. It changes nothing, and skips the
records. If a window contains complete partitions in the usual form, `ProduceWalk._sweep` reads them in one loop, which
is faster than the steps.

Source: ``ProduceRequest.json``, v0-v13; ``DefaultRecordBatch`` for the header of a batch, ``ByteBufferLogInputStream``
for the sequence of batches.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.proxy.wire.errors import MalformedFrame, UnknownMessage
from headrace.proxy.wire.walks.body import SHORT, UNBOUNDED, BodyWalk

if TYPE_CHECKING:
    from headrace.proxy.wire.heads import Buffer
    from headrace.proxy.wire.walks.body import Step

LAST_VERSION: Final = 13
MAX_BATCHES: Final = 4096
"""Maximum number of batches collected from one request; they take about 600 KiB. A request has one batch per partition,
and a broker leads some thousand partitions at most (Kafka used to recommend up to 4,000 per broker)."""
NO_PRODUCER_ID: Final = -1
"""Kafka's ``RecordBatch.NO_PRODUCER_ID``."""

_FIRST_FLEXIBLE: Final = 9
_FIRST_WITH_TRANSACTIONS: Final = 3
_FIRST_WITH_TOPIC_IDS: Final = 13
_ACKS_AND_TIMEOUT: Final = 6
_TOPIC_ID_BYTES: Final = 16
_MAX_STRING: Final = 0x7FFF  # also applies to compact strings (``MessageGenerator``)

_int16 = Struct(">h").unpack_from
_int32 = Struct(">i").unpack_from

# base offset, batch length, leader epoch, magic, crc, attributes, last offset delta, two timestamps, producer id
_BATCH = Struct(">8xi4xb26xq")
_read_batch_header = _BATCH.unpack_from
_BATCH_BYTES: Final = _BATCH.size
_LOG_OVERHEAD: Final = 12  # base offset and batch length, which the batch length does not include
_SWEPT_BYTES: Final = 4 + 5 + _BATCH_BYTES  # a partition's index, a length of up to 5 bytes, a batch's header
_SHORTEST_BATCH: Final = 14  # ``LegacyRecord.RECORD_OVERHEAD_V0``: a shorter batch is corrupt
_MAGIC_WITH_PRODUCER_ID: Final = 2


class ProducedBatch(NamedTuple):
    """A record batch of a request. It is a tuple, since creating one is fast and happens for every request."""

    topic: str | bytes
    """The topic's name; from v13 on its id of 16 bytes."""
    partition: int
    records_bytes: int
    """Length of the batch in bytes. The last batch of a partition includes all remaining bytes, so that the sum is the
    length of the partition's records."""
    producer_id: int
    """The producer id; -1 if the producer is not idempotent, the message format is older than v2, there are no records,
    or the batch is incomplete."""


class ProduceWalk(BodyWalk):
    """A walk through the body of one Produce request."""

    __slots__ = (
        "_begins_partition",
        "_flexible",
        "_partition",
        "_partitions",
        "_records_left",
        "_topic",
        "_topics",
        "_version",
        "batches",
        "left_out_bytes",
        "left_out_ids",
    )

    what = "a Produce request"
    most_steps = 500  # some 0.5 ms: a batch may have 26 bytes, so that a read can contain 5,000

    def __init__(self, version: int, body_bytes: int, max_rows: int = UNBOUNDED) -> None:
        """Begin a walk through a body of ``body_bytes`` bytes. Raises `UnknownMessage` for an unknown version.

        The walk raises `MalformedFrame` for more than ``max_rows`` topics, partitions and tagged fields.
        """
        if not 0 <= version <= LAST_VERSION:
            raise UnknownMessage(f"no walk for ProduceRequest v{version}: known are 0 to {LAST_VERSION}")
        super().__init__(body_bytes, max_rows)
        self._version = version
        self._flexible = version >= _FIRST_FLEXIBLE
        self._topics = 0
        self._partitions = 0
        self._topic: str | bytes = ""
        self._partition = 0
        self._records_left = 0
        self._begins_partition = False
        self.batches: list[ProducedBatch] = []
        """The batches read so far, in the order of the request; at least one for each partition."""
        self.left_out_bytes: dict[tuple[str | bytes, int], int] = {}
        """Bytes of the batches after the first `MAX_BATCHES`, which are not in `batches`: by topic and partition, of
        which there are fewer than ``max_rows``."""
        self.left_out_ids: list[int] = []
        """Producer ids of those that are the first of their partition; a broker accepts no partition with more than
        one."""
        self._step = self._read_request

    def _read_request(self, buffer: Buffer, at: int, end: int) -> int:
        if self._version >= _FIRST_WITH_TRANSACTIONS:
            length, at = self._read_string_length(buffer, at, end)
            if at == SHORT:
                return SHORT
            at += max(length, 0)
        self._topics, at = self._read_count(buffer, at + _ACKS_AND_TIMEOUT, end)
        if at != SHORT:
            self._next_topic()
        return at

    def _next_topic(self) -> None:
        if self._topics:
            self._topics -= 1
            self._step = self._read_topic
        else:
            self._step = self._read_request_tags if self._flexible else None

    def _read_topic(self, buffer: Buffer, at: int, end: int) -> int:
        length = _TOPIC_ID_BYTES
        if self._version < _FIRST_WITH_TOPIC_IDS:
            length, at = self._read_string_length(buffer, at, end)
            if length < 0 and at != SHORT:
                raise MalformedFrame("a topic without a name in a Produce request")
        name_at = at
        partitions, at = self._read_count(buffer, at + length, end) if at != SHORT else (0, SHORT)
        if at == SHORT:
            return SHORT
        name = bytes(buffer[name_at : name_at + length])
        self._topic = name if self._version >= _FIRST_WITH_TOPIC_IDS else name.decode(errors="replace")
        self._partitions = partitions
        if partitions:
            self._step = self._read_partition
        else:
            self._end_topic()
        return at

    def _end_topic(self) -> None:
        if self._flexible:
            self._step = self._read_topic_tags
        else:
            self._next_topic()

    def _read_partition(self, buffer: Buffer, at: int, end: int) -> int:
        begin = at
        at = self._sweep(buffer, at, end)
        if at != begin:
            return at
        index_at = at
        length, at = self._read_length(buffer, at + 4, end)
        if at == SHORT:
            return SHORT
        self._check_reach(length, at, end)
        self._partition = _int32(buffer, index_at)[0]
        self._records_left = length
        self._begins_partition = True
        if length > 0:
            self._step = self._read_batch
        else:
            self._note(0, NO_PRODUCER_ID)
            self._end_partition()
        return at

    def _sweep(self, buffer: Buffer, at: int, end: int) -> int:
        """Read partitions while each is completely in the window and has exactly one batch of message format v2.

        The steps read all other partitions. This loop is twice as fast as the steps.
        """
        batches = self.batches
        topic = self._topic
        flexible = self._flexible
        partitions = self._partitions
        last_at = end - _SWEPT_BYTES
        while partitions and at <= last_at and len(batches) < MAX_BATCHES:
            if flexible and (compact := buffer[at + 4]) < 0x80:
                length, records_at = compact - 1, at + 5
            else:
                length, records_at = self._read_length(buffer, at + 4, end)
            after = records_at + length
            if length < _BATCH_BYTES or after + flexible > end or (flexible and buffer[after]):
                break
            counted, magic, producer_id = _read_batch_header(buffer, records_at)
            if counted + _LOG_OVERHEAD != length or magic < _MAGIC_WITH_PRODUCER_ID:
                break
            batches.append(ProducedBatch(topic, _int32(buffer, at)[0], length, producer_id))
            if length > self.longest:
                self.longest = length
            at = after + flexible
            partitions -= 1
        self._partitions = partitions
        if not partitions:
            self._end_topic()
        return at

    def _read_batch(self, buffer: Buffer, at: int, end: int) -> int:
        """Read the header of a batch without advancing; the following skip covers the whole batch."""
        left = size = self._records_left
        producer_id = NO_PRODUCER_ID
        if left >= _BATCH_BYTES:
            if end - at < _BATCH_BYTES:
                return SHORT
            length, magic, id_if_v2 = _read_batch_header(buffer, at)
            if _SHORTEST_BATCH <= length <= left - _LOG_OVERHEAD:
                size = length + _LOG_OVERHEAD
                if magic >= _MAGIC_WITH_PRODUCER_ID and size >= _BATCH_BYTES:
                    producer_id = id_if_v2
        self._note(size, producer_id)
        self.skip_left = size
        if size > self.longest:
            self.longest = size
        self._records_left = left - size
        if left == size:
            self._end_partition()
        return at

    def _note(self, records_bytes: int, producer_id: int) -> None:
        if len(self.batches) < MAX_BATCHES:
            self.batches.append(ProducedBatch(self._topic, self._partition, records_bytes, producer_id))
        else:
            partition = (self._topic, self._partition)
            self.left_out_bytes[partition] = self.left_out_bytes.get(partition, 0) + records_bytes
            if self._begins_partition and producer_id > NO_PRODUCER_ID:
                self.left_out_ids.append(producer_id)
        self._begins_partition = False

    def _end_partition(self) -> None:
        self._partitions -= 1
        if self._flexible:
            self._step = self._read_partition_tags
        elif self._partitions:
            self._step = self._read_partition
        else:
            self._next_topic()

    def _read_partition_tags(self, buffer: Buffer, at: int, end: int) -> int:
        return self._read_tags(buffer, at, end, self._read_partition if self._partitions else self._read_topic_tags)

    def _read_topic_tags(self, buffer: Buffer, at: int, end: int) -> int:
        tags, at = self._uvarint(buffer, at, end)
        if at != SHORT:
            self._next_topic()
            self._begin_tags(tags, self._step)
        return at

    def _read_request_tags(self, buffer: Buffer, at: int, end: int) -> int:
        return self._read_tags(buffer, at, end, None)

    def _read_tags(self, buffer: Buffer, at: int, end: int, after: Step | None) -> int:
        tags, at = self._uvarint(buffer, at, end)
        if at != SHORT:
            self._begin_tags(tags, after)
        return at

    def _read_count(self, buffer: Buffer, at: int, end: int) -> tuple[int, int]:
        """Read an array's count; return it and the position of its elements."""
        count, at = self._read_length(buffer, at, end)
        if count < 0 and at != SHORT:
            raise MalformedFrame(f"an array of {count} elements in a Produce request")
        if at != SHORT:
            self._count_rows(max(count, 0))
        return count, at

    def _read_length(self, buffer: Buffer, at: int, end: int) -> tuple[int, int]:
        """Read a length of 4 bytes, or a compact one; return it and the position after it.

        -1 is null, as every negative length is for a broker.
        """
        if self._flexible:
            length, at = self._uvarint(buffer, at, end)
            return length - 1, at
        if end - at < 4:
            return 0, SHORT
        return max(_int32(buffer, at)[0], -1), at + 4

    def _read_string_length(self, buffer: Buffer, at: int, end: int) -> tuple[int, int]:
        """Read a length of 2 bytes, or a compact one; return it (-1 is null) and the position after it."""
        if self._flexible:
            length, at = self._uvarint(buffer, at, end)
            length -= 1
        elif end - at < 2:
            return 0, SHORT
        else:
            length = max(_int16(buffer, at)[0], -1)
            at += 2
        if length > _MAX_STRING:
            raise MalformedFrame(f"a string of {length} bytes in a Produce request")
        return length, at
