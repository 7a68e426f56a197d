"""Workloads of `benchmarks.request_costs`: records, offsets in logs, and the cluster's metadata."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.request_cost_client import MeasuredClient, Work, asking
from headrace.quota_callbacks.api_keys import ApiKey
from tests.faults.messages import batch

if TYPE_CHECKING:
    from headrace.proxy.wire.messages.codec import Message

# The topics of single workloads, see `TOPICS`.
SINK, SOURCE, SHARED, WIDE = "sink", "source", "shared", "wide"
MANY = [f"many-{number:03}" for number in range(100)]
WIDE_PARTITIONS = 100
# Limits the disk usage to about 128 MiB, although gigabytes are produced.
RETENTION = {"retention.bytes": str(64 << 20), "segment.bytes": str(64 << 20), "file.delete.delay.ms": "1000"}
TOPICS: list[Message] = [
    {"name": SINK, "num_partitions": 1, "configs": [{"name": name, "value": RETENTION[name]} for name in RETENTION]},
    {"name": SOURCE, "num_partitions": 1},
    {"name": SHARED, "num_partitions": 1},
    {"name": WIDE, "num_partitions": WIDE_PARTITIONS},
    *({"name": name, "num_partitions": 1} for name in MANY),
]
# Batches of one record of a kilobyte: enough for the largest fetch, and for different start offsets.
SOURCE_BATCHES = 2000
RECORD = bytes(1000)
COUNTS = (1, 10, 100)


def produce_message(topic: str, records: bytes) -> Message:
    """Return a Produce with one batch for one partition, acks=1."""
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    return {"acks": 1, "timeout_ms": 30_000, "topic_data": rows}


def fill_source(client: MeasuredClient) -> None:
    """Produce the records for the fetches."""
    message = produce_message(SOURCE, batch(RECORD))
    for _ in range(SOURCE_BATCHES):
        client.ask(ApiKey.PRODUCE, 11, message)


def works() -> list[Work]:
    """Return all workloads; the topics must exist."""
    return [*_produce(), *_fetch(), *_logs(), *_metadata()]


def _produce() -> list[Work]:
    works = []
    for name, value, count in (
        ("100 B", bytes(100), 1),
        ("1 KB", RECORD, 1),
        ("4 x 1 KB", RECORD, 4),
        ("16 x 1 KB", RECORD, 16),
        ("64 x 1 KB", RECORD, 64),
        ("256 x 1 KB", RECORD, 256),
        ("1,000 x 1 KB", RECORD, 1000),
    ):
        run = asking(ApiKey.PRODUCE, 11, produce_message(SINK, batch(value, count)))
        works.append(Work(name=f"produce {name}", run=run, share=min(1.0, 100 / count)))
    return works


def _fetch() -> list[Work]:
    works = [Work(name="fetch nothing", run=asking(ApiKey.FETCH, 12, _fetch_message(SOURCE_BATCHES, 1 << 20)))]
    for kib in (1, 4, 16, 64, 256, 1024):
        run = partial(_fetch_somewhere, max_bytes=kib << 10)
        works.append(Work(name=f"fetch {kib} KiB", run=run, share=1.0 if kib < 256 else 0.3))
    return works


def _fetch_somewhere(client: MeasuredClient, number: int, max_bytes: int) -> None:
    client.ask(ApiKey.FETCH, 12, _fetch_message(37 * number % (SOURCE_BATCHES // 3), max_bytes))


def _fetch_message(offset: int, max_bytes: int) -> Message:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": max_bytes}
    return {"min_bytes": 1, "max_bytes": max_bytes, "topics": [{"topic": SOURCE, "partitions": [partition]}]}


def _logs() -> list[Work]:
    works = []
    for count in COUNTS:
        rows = range(count)
        listed: Message = {"name": WIDE, "partitions": [{"partition_index": row, "timestamp": -1} for row in rows]}
        message: Message = {"replica_id": -1, "topics": [listed]}
        works.append(Work(name=f"end of {count} logs", run=asking(ApiKey.LIST_OFFSETS, 10, message)))
        epochs = {"topic": WIDE, "partitions": [{"partition": row, "leader_epoch": 0} for row in rows]}
        run = asking(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, {"topics": [epochs]})
        works.append(Work(name=f"epochs of {count} logs", run=run))
        producers = {"name": WIDE, "partition_indexes": list(rows)}
        run = asking(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": [producers]})
        works.append(Work(name=f"producers of {count} logs", run=run))
        deleted = {"name": WIDE, "partitions": [{"partition_index": row, "offset": -1} for row in rows]}
        run = asking(ApiKey.DELETE_RECORDS, 2, {"timeout_ms": 30_000, "topics": [deleted]})
        works.append(Work(name=f"delete records of {count} logs", run=run, share=0.5))
    timestamp = [{"name": SOURCE, "partitions": [{"partition_index": 0, "timestamp": 1}]}]
    run = asking(ApiKey.LIST_OFFSETS, 10, {"replica_id": -1, "topics": timestamp})
    return [*works, Work(name="offset of a timestamp", run=run)]


def _metadata() -> list[Work]:
    works = [
        Work(name="no topics", run=asking(ApiKey.METADATA, 12, {"topics": []})),
        Work(name="wide topic", run=asking(ApiKey.METADATA, 12, {"topics": [{"name": WIDE}]})),
        Work(name="describe a wide topic", run=asking(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, _described([WIDE]))),
        Work(name="describe cluster", run=asking(ApiKey.DESCRIBE_CLUSTER, 1)),
    ]
    for count in COUNTS:
        names = MANY[:count]
        message: Message = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": False}
        works.append(Work(name=f"{count} topics", run=asking(ApiKey.METADATA, 12, message)))
        run = asking(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, _described(names))
        works.append(Work(name=f"describe {count} topics", run=run))
        for key_type, kind in enumerate(("group", "transaction")):
            keys: Message = {"key_type": key_type, "coordinator_keys": [f"key-{row}" for row in range(count)]}
            run = asking(ApiKey.FIND_COORDINATOR, 4, keys)
            works.append(Work(name=f"find {count} {kind} coordinators", run=run))
    versions: Message = {"client_software_name": "headrace", "client_software_version": "1"}
    return [*works, Work(name="api versions", run=asking(ApiKey.API_VERSIONS, 4, versions))]


def _described(names: list[str]) -> Message:
    return {"topics": [{"name": name} for name in names], "cursor": None}
