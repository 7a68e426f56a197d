"""Finds the ends of TLS records in received bytes, and limits the number of records without data. Pure.

Used by `headrace.proxy.network.tls.tls_socket`, since OpenSSL handles all records without data that it finds, such as
changes of keys, in one call that nothing interrupts.
"""

from __future__ import annotations

from typing import Final

HEADER_BYTES: Final = 5
"""Type, version and length of a record (RFC 8446 section 5.1)."""

SLICE_BYTES: Final = 16 * 1024
"""The most bytes that OpenSSL gets at a time, unless a single record is longer. Its buffers keep their largest size."""

SLICE_RECORDS: Final = 32
"""The most records that OpenSSL gets at a time. A change of the peer's keys takes 12 to 40 us, so that 32 take about
1 ms."""

MAX_ANSWER_BYTES: Final = 4 * 1024
"""The most bytes that a peer makes TLS itself send while it sends `COUNTED_BYTES`. A refusal of a renegotiation has
31 bytes."""

MAX_EMPTY_RECORDS: Final = 64
"""The most records without data that a peer may send while it sends `COUNTED_BYTES`: changes of keys, alerts, session
tickets. Java changes its keys every 128 GiB, and brokers send one or two tickets."""

ALIGNED_FROM_BYTES: Final = 8 * 1024
"""The size from which records are so large that reads end with them: a record in two parts costs one call more."""

COUNTED_BYTES: Final = 1024 * 1024

MAX_EMPTY_BYTES: Final = 32 * 1024
"""The most bytes without data that a peer may send, in excess of what `BYTES_PER_DATA_BYTE` permits. A record that has
arrived in part, or was not read to its end, has at most 16 KiB of them."""

BYTES_PER_DATA_BYTE: Final = 4
"""Encrypted bytes for each byte of data, at most. A request of 15 bytes in two records, as Java sends it, has three;
records of one byte have more than twenty."""

EMPTY: Final = "TLS: too many records without data, such as changes of keys"
ANSWERS: Final = "TLS: too many requests for new keys, or for a renegotiation"


class RecordEnds:
    """A scanner of the headers of the records of one direction, however the bytes are cut."""

    __slots__ = ("_header", "_left", "records", "size")

    def __init__(self) -> None:
        self._header = b""
        """The header of a record that has arrived in part."""
        self._left = 0
        """Number of bytes of the current record that have not arrived."""
        self.size = 0
        """Size of the last record, of which the header at least has arrived, with its header."""
        self.records = 0
        """Number of records that began in the last slice, or in each of the last `slices`."""

    @property
    def is_incomplete(self) -> bool:
        """Whether the last slice ended in the middle of a record."""
        return self._left > 0 or len(self._header) > 0

    @property
    def missing(self) -> int:
        """Number of bytes that complete the current record, or 0 if there is none or its header is incomplete."""
        return self._left

    @property
    def begun(self) -> int:
        """Number of bytes of the current record that have arrived, if it is incomplete."""
        return self.size - self._left if self._left else len(self._header)

    def to_read(self, most: int) -> int:
        """Return how many bytes to read, at most ``most``, so that they end with a record.

        This holds if the next records have the size of the last one, as those of large messages.
        """
        size = self.size
        if size < ALIGNED_FROM_BYTES or not HEADER_BYTES < size <= most:
            return most
        begun = self.begun
        records = most // size
        return records * size - begun

    def slices(self, data: memoryview, at: int) -> tuple[int, int]:
        """Return the size of the next slices of ``data``, which begin at ``at``, and the end of the last of them.

        The complete records of a large message are slices of the same size; else it is one slice, as of `slice_end`.
        """
        size = self.size
        if size >= ALIGNED_FROM_BYTES and not self.is_incomplete:
            end, last, length = at, len(data) - size, size - HEADER_BYTES
            while end <= last and data[end + 3] << 8 | data[end + 4] == length:
                end += size
            if end > at:
                self.records = 1
                return size, end
        end = self.slice_end(data, at)
        return end - at, end

    def slice_end(self, data: memoryview, at: int) -> int:
        """Return the end of the next slice of ``data``, which begins at ``at``; slices are asked for in order.

        It has at most `SLICE_RECORDS`, and at most `SLICE_BYTES` unless it is a single record. It ends with a record,
        unless ``data`` does not, since OpenSSL needs one more call for each record that it gets in two parts.
        """
        self.records = 0
        last = len(data)
        most = at + SLICE_BYTES
        position = at + self._left if not self._header else self._behind_begun(data, at)
        self._left = 0
        if self._header:
            return last
        while position + HEADER_BYTES <= last and self.records < SLICE_RECORDS:
            size = HEADER_BYTES + (data[position + 3] << 8 | data[position + 4])
            if position + size > most and position > at:
                return position
            position += size
            self.size = size
            self.records += 1
        if position > last:
            self._left = position - last
        elif self.records < SLICE_RECORDS:
            self._header = bytes(data[position:])
        else:
            return position
        return last

    def _behind_begun(self, data: memoryview, at: int) -> int:
        """Continue a header that has arrived in part; return the end of its record, which may be behind the data."""
        missing = HEADER_BYTES - len(self._header)
        header = self._header + data[at : at + missing]
        if len(header) < HEADER_BYTES:
            self._header = header
            return at
        self._header = b""
        self.records = 1
        rest = int.from_bytes(header[3:], "big")
        self.size = HEADER_BYTES + rest
        return at + missing + rest


class PeerLimits:
    """The bounds of what a peer makes this side compute without sending data.

    `count_answer` and `count_data` return the reason to end the connection, or an empty string.
    """

    __slots__ = ("_answer_bytes", "_counted_from", "_empty_bytes", "_empty_records")

    def __init__(self) -> None:
        self._counted_from = 0
        """Number of bytes that had been received when counting began."""
        self._answer_bytes = 0
        self._empty_records = 0
        self._empty_bytes = 0
        """Number of bytes without data, as far as they exceed `BYTES_PER_DATA_BYTE`."""

    def count_answer(self, count: int, received: int) -> str | None:
        """Count ``count`` bytes that TLS itself has to send."""
        self._begin_again(received)
        self._answer_bytes += count
        return ANSWERS if self._answer_bytes > MAX_ANSWER_BYTES else None

    def count_records(self, count: int, received: int) -> None:
        """Count ``count`` records that have begun to arrive. ``received`` is the number of all bytes of the peer."""
        self._begin_again(received)
        self._empty_records += count

    def count_data(self, records: int, consumed: int, count: int) -> str | None:
        """Count ``count`` bytes of data in ``records`` records, for which ``consumed`` encrypted bytes were read."""
        self._empty_records = max(0, self._empty_records - records)
        empty = self._empty_bytes + consumed - BYTES_PER_DATA_BYTE * count
        self._empty_bytes = max(0, empty)
        return EMPTY if empty > MAX_EMPTY_BYTES or self._empty_records > MAX_EMPTY_RECORDS else None

    def _begin_again(self, received: int) -> None:
        if received - self._counted_from > COUNTED_BYTES:
            self._counted_from, self._answer_bytes, self._empty_records = received, 0, 0
