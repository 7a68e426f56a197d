"""Constructors of usage records for tests."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from headrace.pipeline.lake import schemas
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

NOON = 1_789_995_600
"""The start of an hour: 2026-09-21 13:00 UTC."""

_numbers = itertools.count()


def record(second: int = NOON, **members: Any) -> dict[str, Any]:
    """Return a usage record; by default a Produce of 1,000 bytes by alice's app-1."""
    return {
        "schema": 1,
        "kind": "usage",
        "instance": "proxy-a-1",
        "sequence": next(_numbers),
        "second": second,
        "cluster": "cluster-1",
        "user": "alice",
        "client_id": "app-1",
        "api_key": ApiKey.PRODUCE.value,
        "topic": None,
        "requests": 1,
        "errors": 0,
        "request_bytes": 1000,
        "response_bytes": 50,
        "thread_ms": 0.1,
        "broker_ms": 1.0,
        "mutations": 0,
        "producer_ids": 0,
        "throttle_ms": {},
        "throttled": {},
        "refused": {},
    } | {name: int(value) if isinstance(value, ApiKey) else value for name, value in members.items()}


def usage(spark: SparkSession, records: Iterable[dict[str, Any]]) -> DataFrame:
    """Return the table `usage` with these records."""
    rows = [tuple(each.get(name) for name in schemas.RECORD.names) for each in records]
    frame = spark.createDataFrame(rows, schemas.RECORD)
    when = sf.timestamp_seconds("second")
    return frame.withColumns({"date": sf.to_date(when), "hour": sf.hour(when)}).select(*schemas.USAGE.names)


def write_lines(path: Path, *records: dict[str, Any] | str) -> None:
    """Write a finished file of a proxy, which appears as a whole, since a job may look into the folder meanwhile."""
    lines = [each if isinstance(each, str) else json.dumps(each) for each in records]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    part.replace(path)
