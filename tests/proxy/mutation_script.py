"""Steps of the scripts about mutations: messages of the client and the broker, and checks of what each received."""

from __future__ import annotations

from typing import Any

import trio

from headrace.proxy.wire.messages.codec import decode
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.policies import Quota, QuotaPolicy
from tests.proxy.playbook import Book, read_reply, reply, request

METADATA, CREATE, DELETE, ADD, HEARTBEAT = (
    ApiKey.METADATA,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.HEARTBEAT,
)
KEY = QuotaKey.CONTROLLER_MUTATION_RATE
ADMIN = QuotaEntity(client_id="c")
WINDOWS = {KEY: Window(samples=10, seconds=1)}


def quota(rate: float, policy: QuotaPolicy | None = None) -> list[tuple[QuotaKey, QuotaEntity, Quota]]:
    return [(KEY, ADMIN, Quota(value=rate) if policy is None else Quota(value=rate, policy=policy))]


def create(version: int, *topics: tuple[str, int], number: int = 1, **fields: Any) -> bytes:
    rows = [{"name": name, "num_partitions": count, "replication_factor": 1} for name, count in topics]
    return request(CREATE, version, number, topics=rows, **fields)


def created(version: int, *topics: str | tuple[str, int], number: int = 1, **fields: Any) -> bytes:
    rows = [
        {"name": topic} if isinstance(topic, str) else {"name": topic[0], "error_code": topic[1]} for topic in topics
    ]
    return reply(CREATE, version, number, topics=rows, **fields)


def asked(frame: bytes, api_key: int, version: int) -> dict[str, Any]:
    """Decode a request that reached the broker, with a header of v1 or v2 and the client id ``c``."""
    flexible = {CREATE: 5, DELETE: 4, ADD: 2, METADATA: 9}[ApiKey(api_key)] <= version
    assert int.from_bytes(frame[4:6], "big") == api_key
    assert int.from_bytes(frame[6:8], "big") == version
    names = {CREATE: "CreateTopics", DELETE: "DeleteTopics", ADD: "CreatePartitions", METADATA: "Metadata"}
    return decode(f"{names[ApiKey(api_key)]}Request", version, frame[12 + 3 + (1 if flexible else 0) :])


def outcome(frame: bytes, api_key: int, version: int) -> tuple[dict[str, int], int]:
    """Return the error codes by topic, in order, and the throttle time."""
    fields = read_reply(api_key, version, frame)
    rows = fields.get("topics") or fields.get("responses") or fields.get("results") or []
    return {row["name"]: row["error_code"] for row in rows}, fields["throttle_time_ms"]


async def validates(book: Book, *topics: tuple[str, int], number: int = 1) -> None:
    """Answer the proxy's ValidateOnly request: the broker would create all topics."""
    await book.upstream.wait_for_dial(1)
    assert asked(await book.broker.receives(), CREATE, 6)["validate_only"] is True
    rows = [{"name": name, "num_partitions": count} for name, count in topics]
    await book.broker.sends(reply(CREATE, 6, number, topics=rows))


async def next_at_s(book: Book) -> float:
    """Return the time on the fake clock at which the client's next request reaches the broker."""
    await book.client.sends(request(HEARTBEAT, 4, 99))
    await book.broker.receives()
    return trio.current_time()
