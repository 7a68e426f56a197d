"""The content of a cluster for read-only requests: a topic with records, groups, a transactional id.

All of it is made through the proxy, but for the client quotas, which are to be the brokers' own.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from confluent_kafka import Producer

from headrace.quota_callbacks.api_keys import ApiKey
from tests.clients.fronts import DEADLINE_S, NOT_LOADED, Coordinates, Front, eventually, unique
from tests.clients.wire_connection import WireConnection

if TYPE_CHECKING:
    from headrace.proxy.wire.messages.codec import Message
    from tests.clients.peers import PeerWatch

RECORDS: Final = 3
COMMITTED: Final = 2
MEMBER_STAYS_MS: Final = 1_800_000
"""The longest session timeout that brokers grant: the member of the classic group shall outlive the tests."""

_SCRAM_SHA_256: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The names of the topic, groups and ids, and the broker to ask for each."""

    topic: str
    topic_id: bytes
    leader: int
    """Of the topic's only partition."""
    transactional_id: str
    transaction_coordinator: int
    classic_group: str
    """With one member and an offset committed; shares its coordinator with the other groups."""
    consumer_group: str
    share_group: str | None
    """``None`` where the brokers have no share groups."""
    group_coordinator: int
    scram_user: str


def set_up(front: Front, watch: PeerWatch) -> Scene:
    """Make it; takes half a second."""
    topic, topic_id, leader = _topic(front)
    transactional_id = unique("scene-transaction")
    _transaction(front, topic, transactional_id)
    coordinator = 0
    groups = [_group_at(front, kind, coordinator) for kind in ("classic", "consumer", "share")]
    classic, consumer, share = groups
    with WireConnection(("127.0.0.1", front.proxy.broker_port(coordinator))) as connection:
        _classic_group(connection, classic, topic)
        _consumer_group(connection, consumer, topic)
        if front.version != "3.9.1":
            _share_group(connection, share, topic)
    scram_user = unique("scene-scram")
    with WireConnection(("127.0.0.1", front.proxy.port)) as connection:
        _scram_user(connection, scram_user)
    for each in front.cluster.brokers:
        with WireConnection(("127.0.0.1", front.proxy.broker_port(each.node_id))) as connection:
            eventually(partial(_knows_user, connection, scram_user), f"broker {each.node_id} knows {scram_user}")
    broker = front.cluster.brokers[0]
    with WireConnection((broker.host, broker.port)) as connection:
        watch.allow(connection.local_port)
    return Scene(
        topic=topic,
        topic_id=topic_id,
        leader=leader,
        transactional_id=transactional_id,
        transaction_coordinator=front.coordinator(Coordinates.TRANSACTION, transactional_id),
        classic_group=classic,
        consumer_group=consumer,
        share_group=share if front.version != "3.9.1" else None,
        group_coordinator=coordinator,
        scram_user=scram_user,
    )


def _topic(front: Front) -> tuple[str, bytes, int]:
    name = front.create_topic("scene")
    with WireConnection(("127.0.0.1", front.proxy.port)) as connection:
        topic = connection.ask(ApiKey.METADATA, 12, {"topics": [{"name": name}]})["topics"][0]
    return name, topic["topic_id"], topic["partitions"][0]["leader_id"]


def _transaction(front: Front, topic: str, transactional_id: str) -> None:
    with Producer({"bootstrap.servers": front.bootstrap_servers, "transactional.id": transactional_id}) as producer:
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        for number in range(RECORDS):
            producer.produce(topic, b"record %d" % number)
        producer.commit_transaction(DEADLINE_S)


def _group_at(front: Front, kind: str, coordinator: int) -> str:
    """The name of a group that this broker coordinates."""
    while True:
        name = unique(f"scene-{kind}")
        if front.coordinator(Coordinates.GROUP, name) == coordinator:
            return name


def _classic_group(connection: WireConnection, group: str, topic: str) -> None:
    """With version 2, which needs no second request for a member id."""
    subscription = struct.pack(f">hih{len(topic)}si", 0, 1, len(topic), topic.encode(), -1)
    joined = _loaded(
        connection,
        ApiKey.JOIN_GROUP,
        2,
        {
            "group_id": group,
            "session_timeout_ms": MEMBER_STAYS_MS,
            "rebalance_timeout_ms": 1000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": subscription}],
        },
    )
    _accepted([joined])
    member = {"group_id": group, "generation_id": joined["generation_id"], "member_id": joined["member_id"]}
    assignment = struct.pack(f">hih{len(topic)}siii", 0, 1, len(topic), topic.encode(), 1, 0, -1)
    assignments = [{"member_id": joined["member_id"], "assignment": assignment}]
    _accepted([connection.ask(ApiKey.SYNC_GROUP, 1, {**member, "assignments": assignments})])
    offset = {"partition_index": 0, "committed_offset": COMMITTED, "committed_metadata": "of the scene"}
    commit = {
        "group_id": group,
        "generation_id_or_member_epoch": joined["generation_id"],
        "member_id": joined["member_id"],
        "topics": [{"name": topic, "partitions": [offset]}],
    }
    _accepted(connection.ask(ApiKey.OFFSET_COMMIT, 7, commit)["topics"][0]["partitions"])


def _consumer_group(connection: WireConnection, group: str, topic: str) -> None:
    member = {
        "group_id": group,
        "member_id": "",
        "rebalance_timeout_ms": 1000,
        "subscribed_topic_names": [topic],
        "topic_partitions": [],
    }
    _accepted([_loaded(connection, ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, member)])


def _share_group(connection: WireConnection, group: str, topic: str) -> None:
    member = {"group_id": group, "member_id": str(uuid.uuid4()), "subscribed_topic_names": [topic]}
    _accepted([_loaded(connection, ApiKey.SHARE_GROUP_HEARTBEAT, 1, member)])


def _scram_user(connection: WireConnection, name: str) -> None:
    user = {"name": name, "mechanism": _SCRAM_SHA_256, "iterations": 4096, "salt": bytes(16)}
    request = {"deletions": [], "upsertions": [{**user, "salted_password": bytes(32)}]}
    _accepted(connection.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, request)["results"])


def _knows_user(connection: WireConnection, name: str) -> bool:
    """Return whether a broker describes the user: brokers learn of users behind the controller."""
    reply = connection.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": [{"name": name}]})
    return [row["error_code"] for row in reply["results"]] == [0]


def _loaded(connection: WireConnection, api_key: ApiKey, version: int, message: Message) -> Message:
    """The reply of a coordinator that has loaded its state: FindCoordinator names it before that."""

    def answer() -> Message | None:
        reply = connection.ask(api_key, version, message)
        return None if reply["error_code"] in NOT_LOADED else reply

    return eventually(answer, f"the coordinator answers {api_key.name}")


def _accepted(rows: list[Message]) -> None:
    assert [(row["error_code"], row.get("error_message")) for row in rows] == [(0, None)] * len(rows)
