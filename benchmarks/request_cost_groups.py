"""Workloads of `benchmarks.request_costs`: groups of all three kinds, their offsets, and transactions."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from benchmarks.request_cost_client import MeasuredClient, Work, asking
from benchmarks.request_cost_data import COUNTS, RECORD, SHARED, WIDE, produce_message
from headrace.quota_callbacks.api_keys import ApiKey
from tests.faults.messages import batch

if TYPE_CHECKING:
    from headrace.proxy.wire.messages.codec import Message

HEARTBEATS = 5
MEMBER_ID_REQUIRED = 79
CONCURRENT_TRANSACTIONS = 51
# COORDINATOR_LOAD_IN_PROGRESS: a broker requests producer ids in blocks of a thousand, and has to wait for the next.
NO_IDS_LEFT = 14
TIMEOUT_MS = 30_000
SHARE_GROUP = "readers"
# Time-out for writing a transaction's markers: it takes milliseconds, but seconds if it has to be retried.
TRANSACTION_TIMEOUT_S = 60.0
TRANSACTION_POLL_S = 0.001
# Time-out for the creation of a share group's state.
SHARE_FETCHES = 100
# Sizes of a classic group member's metadata in bytes: for a few topics, and for very many.
SUBSCRIPTION_BYTES = (50, 1000, 20_000)


def works(share_topic_id: bytes) -> list[Work]:
    """Return all workloads; the coordinators must be available."""
    return [*_classic(), *_offsets(), *_consumer(), *_share(share_topic_id), *_transactions()]


def _classic() -> list[Work]:
    sizes = SUBSCRIPTION_BYTES
    works = [Work(name=f"classic, {size:,} B", run=partial(_classic_life, size=size), share=0.3) for size in sizes]
    described = asking(ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["offsets-1"]})
    return [
        *works,
        Work(name="a group", run=described),
        Work(name="all groups", run=asking(ApiKey.LIST_GROUPS, 5)),
    ]


def _classic_life(client: MeasuredClient, _: int, size: int) -> None:
    group: Message = {"group_id": f"classic-{size}"}
    joining: Message = {
        **group,
        "session_timeout_ms": TIMEOUT_MS,
        "rebalance_timeout_ms": TIMEOUT_MS,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": bytes(size)}],
    }
    member_id = client.ask(ApiKey.JOIN_GROUP, 9, joining, expect={MEMBER_ID_REQUIRED})["member_id"]
    joined = client.ask(ApiKey.JOIN_GROUP, 9, {**joining, "member_id": member_id})
    member: Message = {**group, "member_id": member_id, "generation_id": joined["generation_id"]}
    assignments = [{"member_id": member_id, "assignment": bytes(size)}]
    protocol: Message = {"protocol_type": "consumer", "protocol_name": "range", "assignments": assignments}
    client.ask(ApiKey.SYNC_GROUP, 5, {**member, **protocol})
    for _ in range(HEARTBEATS):
        client.ask(ApiKey.HEARTBEAT, 4, member)
    client.ask(ApiKey.LEAVE_GROUP, 5, {**group, "members": [{"member_id": member_id}]})


def _offsets() -> list[Work]:
    works = [Work(name="one group's end", run=_group_end, share=0.3)]
    for count in COUNTS:
        works.append(Work(name=f"commit {count} offsets", run=partial(_commit, count=count)))
        asked = [{"group_id": f"offsets-{count}", "topics": [{"name": WIDE, "partition_indexes": list(range(count))}]}]
        works.append(Work(name=f"fetch {count} offsets", run=asking(ApiKey.OFFSET_FETCH, 9, {"groups": asked})))
    return works


def _commit(client: MeasuredClient, number: int, count: int) -> None:
    client.ask(ApiKey.OFFSET_COMMIT, 9, commit_message(f"offsets-{count}", count, number))


def commit_message(group_id: str, count: int, offset: int) -> Message:
    """Return a request that commits one offset for many partitions, as from a consumer without group membership."""
    partitions = [{"partition_index": index, "committed_offset": offset} for index in range(count)]
    topics = [{"name": WIDE, "partitions": partitions}]
    return {"group_id": group_id, "generation_id_or_member_epoch": -1, "topics": topics}


def _group_end(client: MeasuredClient, number: int) -> None:
    group_id = f"ended-{number}"
    client.ask(ApiKey.OFFSET_COMMIT, 9, commit_message(group_id, 2, 1))
    deleted = [{"name": WIDE, "partitions": [{"partition_index": 0}]}]
    client.ask(ApiKey.OFFSET_DELETE, 0, {"group_id": group_id, "topics": deleted})
    client.ask(ApiKey.DELETE_GROUPS, 2, {"groups_names": [group_id]})


def _consumer() -> list[Work]:
    run = partial(_heartbeat_life, api_key=ApiKey.CONSUMER_GROUP_HEARTBEAT)
    described = asking(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, {"group_ids": ["consumer"]})
    return [Work(name="consumer group", run=run, share=0.3), Work(name="a consumer group", run=described)]


def _heartbeat_life(client: MeasuredClient, number: int, api_key: ApiKey) -> None:
    name = "consumer" if api_key == ApiKey.CONSUMER_GROUP_HEARTBEAT else "sharers"
    member: Message = {"group_id": name, "member_id": str(UUID(int=number))}
    joining: Message = {**member, "member_epoch": 0, "subscribed_topic_names": [WIDE]}
    if api_key == ApiKey.CONSUMER_GROUP_HEARTBEAT:
        joining |= {"rebalance_timeout_ms": TIMEOUT_MS, "topic_partitions": []}
    epoch = client.ask(api_key, 1, joining)["member_epoch"]
    for _ in range(HEARTBEATS):
        steady: Message = {**member, "member_epoch": epoch, "subscribed_topic_names": None}
        if api_key == ApiKey.CONSUMER_GROUP_HEARTBEAT:
            steady["topic_partitions"] = None
        epoch = client.ask(api_key, 1, steady)["member_epoch"]
    client.ask(api_key, 1, {**member, "member_epoch": -1, "subscribed_topic_names": None})


def _share(topic_id: bytes) -> list[Work]:
    run = partial(_heartbeat_life, api_key=ApiKey.SHARE_GROUP_HEARTBEAT)
    described = asking(ApiKey.SHARE_GROUP_DESCRIBE, 1, {"group_ids": ["sharers"]})
    works = [Work(name="share group", run=run, share=0.3), Work(name="a share group", run=described)]
    for count in (1, 16, 64):
        reader = partial(_read_shared, topic_id=topic_id, count=count)
        works.append(Work(name=f"share {count} x 1 KB", run=reader, share=0.2))
    return works


def _read_shared(client: MeasuredClient, number: int, topic_id: bytes, count: int) -> None:
    """Join a share group, fetch a batch, acknowledge it, and leave; only fetch and acknowledgement are sampled."""
    session: Message = {"group_id": SHARE_GROUP, "member_id": str(UUID(int=number))}
    joining: Message = {**session, "member_epoch": 0, "subscribed_topic_names": [SHARED]}
    leaving: Message = {**session, "member_epoch": -1, "subscribed_topic_names": None}
    client.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, joining, sampled=False)
    client.ask(ApiKey.PRODUCE, 11, produce_message(SHARED, batch(RECORD, count)), sampled=False)
    asked = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500}
    topics = [{"topic_id": topic_id, "partitions": [{"partition_index": 0}]}]
    acquired: list[Message] = []
    for epoch in range(SHARE_FETCHES):
        message: Message = {**session, **asked, "share_session_epoch": epoch, "topics": [] if epoch else topics}
        answer = client.ask(ApiKey.SHARE_FETCH, 1, message)
        rows = [row for topic in answer["responses"] for row in topic["partitions"]]
        acquired = [each for row in rows for each in row["acquired_records"]]
        if acquired:
            break
    accepted = [
        {"first_offset": each["first_offset"], "last_offset": each["last_offset"], "acknowledge_types": [1]}
        for each in acquired
    ]
    acknowledged = {"topic_id": topic_id, "partitions": [{"partition_index": 0, "acknowledgement_batches": accepted}]}
    client.ask(ApiKey.SHARE_ACKNOWLEDGE, 1, {**session, "share_session_epoch": epoch + 1, "topics": [acknowledged]})
    client.ask(ApiKey.SHARE_ACKNOWLEDGE, 1, {**session, "share_session_epoch": -1}, sampled=False)
    client.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, leaving, sampled=False)


def _transactions() -> list[Work]:
    works = [Work(name=f"transaction, {count}", run=partial(_transaction, count=count), share=0.3) for count in COUNTS]
    return [
        *works,
        Work(name="idempotent producer", run=_new_producer_id),
        Work(name="all transactions", run=asking(ApiKey.LIST_TRANSACTIONS, 1)),
        Work(
            name="a transaction",
            run=asking(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["txn-1"]}),
        ),
    ]


def _new_producer_id(client: MeasuredClient, _: int) -> None:
    idempotent: Message = {"transactional_id": None, "transaction_timeout_ms": TIMEOUT_MS}
    client.ask(ApiKey.INIT_PRODUCER_ID, 4, idempotent, expect={NO_IDS_LEFT})


def _transaction(client: MeasuredClient, _: int, count: int) -> None:
    """Run a transaction of a new producer, with offsets and partitions, and commit it."""
    name = f"txn-{count}"
    begun: Message = {"transactional_id": name, "transaction_timeout_ms": TIMEOUT_MS}
    producer = _until_free(client, ApiKey.INIT_PRODUCER_ID, 4, begun)
    known: Message = {"producer_id": producer["producer_id"], "producer_epoch": producer["producer_epoch"]}
    added = {f"v3_and_below_{key}": value for key, value in {"transactional_id": name, **known}.items()}
    added["v3_and_below_topics"] = [{"name": WIDE, "partitions": list(range(count))}]
    _until_free(client, ApiKey.ADD_PARTITIONS_TO_TXN, 3, added)
    mine: Message = {"transactional_id": name, **known}
    client.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, {**mine, "group_id": name})
    committed = commit_message(name, count, 1)
    committed["generation_id_or_member_epoch"] = -1
    client.ask(ApiKey.TXN_OFFSET_COMMIT, 3, {**mine, **committed})
    client.ask(ApiKey.END_TXN, 3, {**mine, "committed": True})


def _until_free(client: MeasuredClient, api_key: ApiKey, version: int, message: Message) -> Message:
    deadline = time.monotonic() + TRANSACTION_TIMEOUT_S
    while time.monotonic() < deadline:
        answer = client.ask(api_key, version, message, expect={CONCURRENT_TRANSACTIONS})
        if not _concurrent(answer):
            return answer
        time.sleep(TRANSACTION_POLL_S)
    raise TimeoutError(f"the transaction of {message} does not end")


def _concurrent(answer: Message) -> bool:
    if "error_code" in answer:
        return bool(answer["error_code"])
    topics = answer["results_by_topic_v3_and_below"]
    return any(row["partition_error_code"] for topic in topics for row in topic["results_by_partition"])
