"""Converts rows to lines, each a JSON object with the fields in the order of
`headrace.quota_callbacks.records.usage_records`. Called by the writer thread."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headrace.quota_callbacks.records.usage_records import SCHEMA_VERSION, Kind, LostRecord, RecordHead, UsageRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.plugins.usage_records.rows import Losses, Row, RowName, Rows


class Encoder:
    """The encoding of the records of one instance, which numbers them."""

    def __init__(self, instance: str) -> None:
        self.instance = instance
        self.cluster: str | None = None
        """The cluster's id; ``None`` until it is known."""
        self.sequence = 0
        """Sequence number of the next record. The writer resets it when lines were not written, since only written
        records have numbers."""

    def lines(self, second: int, rows: Rows) -> Iterator[bytes]:
        """Yield a line for each of ``rows``, without the line feed."""
        for name, row in rows.items():
            yield _line(self._usage(second, name, row))

    def lost(self, *, first_second: int, second: int, reason: str, losses: Losses) -> bytes:
        """Return a line that reports lost records; the losses were found from ``first_second`` to ``second``."""
        record: LostRecord = {
            **self._head(Kind.LOST),
            "first_second": first_second,
            "second": second,
            "records": losses.records,
            "requests": losses.requests,
            "request_bytes": losses.request_bytes,
            "response_bytes": losses.response_bytes,
            "reason": reason,
        }
        return _line(record)

    def end(self) -> bytes:
        """Return the line that ends the records of this instance."""
        return _line(self._head(Kind.END))

    def _usage(self, second: int, name: RowName, row: Row) -> UsageRecord:
        user, client_id, api_key, topic = name
        return {
            **self._head(Kind.USAGE),
            "second": second,
            "cluster": self.cluster,
            "user": user,
            "client_id": client_id,
            "api_key": api_key,
            "topic": topic,
            "requests": row.requests,
            "errors": row.errors,
            "request_bytes": row.request_bytes,
            "response_bytes": row.response_bytes,
            "thread_ms": row.thread_ns / 1e6,
            "broker_ms": round(row.broker_s * 1000, 6),
            "mutations": row.mutations,
            "producer_ids": row.producer_ids,
            "throttle_ms": row.throttle_ms or {},
            "throttled": row.throttled or {},
            "refused": row.refused or {},
        }

    def _head(self, kind: Kind) -> RecordHead:
        sequence, self.sequence = self.sequence, self.sequence + 1
        return {"schema": SCHEMA_VERSION, "kind": kind.value, "instance": self.instance, "sequence": sequence}


def _line(record: RecordHead) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
