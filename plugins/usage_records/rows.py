"""The sums of one second, by user, client id, API and topic. Used on the event loop; bounded.

Adding the sums of a connection and API, or a single request, takes one look-up and some additions.
Requests beyond the maximum number of rows in a second are summed by API only: totals stay exact, and only the user and
client id are missing. When the writer does not keep up, the second that has just ended is dropped, and its rows are
counted as lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.quota_callbacks.entities import bounded_name
from headrace.quota_callbacks.requests import is_time_exempt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.quota_callbacks.request_sums import RequestSums
    from headrace.quota_callbacks.requests import RecordBatch, Request

RowName: TypeAlias = tuple[str | None, str | None, int, str | None]
"""User, client id, API key, topic."""

WAITING_SECONDS: Final = 30
"""Full seconds (of ``max_rows`` rows) that may wait for the writer; if a disk hangs for longer, records are lost."""


class Row:
    """The sums of one usage record; see `headrace.quota_callbacks.records.usage_records.UsageRecord`."""

    __slots__ = (
        "broker_s",
        "errors",
        "mutations",
        "producer_ids",
        "refused",
        "request_bytes",
        "requests",
        "response_bytes",
        "thread_ns",
        "throttle_ms",
        "throttled",
    )

    def __init__(self) -> None:
        self.requests = 0
        self.errors = 0
        self.request_bytes = 0
        self.response_bytes = 0
        self.mutations = 0
        self.producer_ids = 0
        self.thread_ns = 0
        self.broker_s = 0.0
        self.throttle_ms: dict[str, int] | None = None
        self.throttled: dict[str, int] | None = None
        self.refused: dict[str, int] | None = None


Rows: TypeAlias = dict[RowName, Row]


class Losses:
    """The sums of lost rows."""

    __slots__ = ("records", "request_bytes", "requests", "response_bytes")

    def __init__(self) -> None:
        self.records = 0
        self.requests = 0
        self.request_bytes = 0
        self.response_bytes = 0

    def add(self, row: Row) -> None:
        """Count ``row`` as lost."""
        self.records += 1
        self.requests += row.requests
        self.request_bytes += row.request_bytes
        self.response_bytes += row.response_bytes

    def merge(self, other: Losses) -> None:
        """Add the sums of ``other``."""
        self.records += other.records
        self.requests += other.requests
        self.request_bytes += other.request_bytes
        self.response_bytes += other.response_bytes


class Seconds:
    """The rows of the current second, and of the finished seconds that the writer has not taken yet."""

    def __init__(self, max_rows: int, request_time_ms: Callable[[Request], float | None]) -> None:
        self.max_rows = max_rows
        """Maximum number of rows in a second, without the rows that have no user, of which there is one per API."""
        self.second = 0
        self.rows: Rows = {}
        self.finished: list[tuple[int, Rows]] = []
        self.waiting_rows = 0
        self.dropped: Losses | None = None
        """Sums of the rows dropped since the last `take`."""
        self.unattributed = 0
        """Number of requests recorded without user and client id, because of `max_rows`."""
        self._request_time_ms = request_time_ms

    def add(self, request: Request, second: int) -> None:
        """Add ``request``, which was completed in ``second``."""
        if second != self.second:
            self.turn(second)
        user, client_id, api_key = request.connection.user, request.client_id, request.api_key
        row = self._row(self.rows, (user, client_id, api_key, None), 1)
        row.requests += 1
        row.request_bytes += request.request_bytes
        row.response_bytes += request.response_bytes
        if request.reply_s is not None and request.forwarded_s is not None:
            row.broker_s += request.reply_s - request.forwarded_s
        charged_ns = request.charged_thread_ns
        row.thread_ns += self._thread_ns(request) if charged_ns is None else charged_ns
        if request.error is not None or request.refused_code:
            row.errors += 1
        if request.mutations is not None and request.forwarded_s is not None and not request.validate_only:
            row.mutations += _mutations(request)
        if request.new_producer_ids:
            row.producer_ids += request.new_producer_ids
        if request.reason is not None:
            _limited(row, request, request.reason.quota)

    def add_sums(self, sums: RequestSums) -> None:
        """Add sums; those of a second that was taken already count for the present one."""
        if sums.second > self.second:
            self.turn(sums.second)
        rows = self.rows
        for second, finished in reversed(self.finished):
            if second == sums.second < self.second:
                rows = finished
                break
        before = len(rows)
        row = self._row(rows, (sums.user, sums.client_id, sums.api_key, None), sums.requests)
        if rows is not self.rows:
            self.waiting_rows += len(rows) - before
        row.requests += sums.requests
        row.request_bytes += sums.request_bytes
        row.response_bytes += sums.response_bytes
        row.broker_s += sums.broker_s
        row.thread_ns += sums.thread_ns
        row.producer_ids += sums.new_producer_ids

    def add_topics(self, user: str, client_id: str, api_key: int, batches: Sequence[RecordBatch]) -> None:
        """Move the bytes of ``batches`` from the sender's row without a topic to the rows of their topics.

        The bytes of topics beyond `max_rows` stay in the row without a topic. Called after `add`, for the same request.
        """
        rows = self.rows
        rest = rows.get((user, client_id, api_key, None)) or rows[None, None, api_key, None]
        topic: str | bytes | None = None
        row: Row | None = None
        for batch in batches:
            if batch[0] is not topic:  # the batches of a topic follow each other; a long name takes long
                topic = batch[0]
                name = (user, client_id, api_key, bounded_name(topic) if isinstance(topic, str) else topic.hex())
                row = rows.get(name)
                if row is None and len(rows) < self.max_rows:
                    row = rows[name] = Row()
            if row is not None:
                row.request_bytes += batch[2]
                rest.request_bytes -= batch[2]

    def turn(self, second: int) -> None:
        """Finish the current second and begin ``second``."""
        rows = self.rows
        if rows:
            if self.waiting_rows and self.waiting_rows + len(rows) > self.max_rows * WAITING_SECONDS:
                if self.dropped is None:
                    self.dropped = Losses()
                for row in rows.values():
                    self.dropped.add(row)
            else:
                self.finished.append((self.second, rows))
                self.waiting_rows += len(rows)
            self.rows = {}
        self.second = second

    def take(self, second: int) -> tuple[list[tuple[int, Rows]], Losses | None]:
        """Remove and return the finished seconds, all before the current ``second``, and the sums of dropped rows."""
        if second != self.second:
            self.turn(second)
        finished, self.finished, self.waiting_rows = self.finished, [], 0
        dropped, self.dropped = self.dropped, None
        return finished, dropped

    def _thread_ns(self, request: Request) -> int:
        """Return the nanoseconds that ``request_percentage`` would have charged if the sender had such a quota."""
        if request.forwarded_s is None or (request.reply_s is None and request.acks != 0):
            return 0
        connection = request.connection
        own_ns, connection.thread_ns = connection.thread_ns, 0
        return 0 if is_time_exempt(request) else round((self._request_time_ms(request) or 0.0) * 1e6) + own_ns

    def _row(self, rows: Rows, name: RowName, requests: int) -> Row:
        """Return the row for so many requests."""
        row = rows.get(name)
        if row is not None:
            return row
        if len(rows) >= self.max_rows:
            self.unattributed += requests
            name = (None, None, name[2], None)
            row = rows.get(name)
            if row is not None:
                return row
        row = rows[name] = Row()
        return row


def _mutations(request: Request) -> int:
    """Return the number of partitions that the request has changed, without topics that the broker refused."""
    errors = request.topic_errors or {}
    return sum(each.partitions for each in request.mutations or () if not errors.get(each.topic))


def _limited(row: Row, request: Request, quota: str) -> None:
    """Count the throttling or refusal by ``quota``; one that was only observed (shadow mode) is not counted."""
    throttle_ms = request.throttle_ms
    if throttle_ms:
        if row.throttle_ms is None or row.throttled is None:
            row.throttle_ms, row.throttled = {}, {}
        row.throttle_ms[quota] = row.throttle_ms.get(quota, 0) + throttle_ms
        row.throttled[quota] = row.throttled.get(quota, 0) + 1
    if request.refused_code:
        if row.refused is None:
            row.refused = {}
        row.refused[quota] = row.refused.get(quota, 0) + 1
