"""KIP-951: a broker that is not the leader names the leader's address; clients must not go there.

Each request goes as the same bytes to a broker that does not have the partition, and to the proxy's port for that
broker. The broker's direct reply shows that there was something to hide.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from headrace.proxy.wire.messages.codec import TAGS
from headrace.quota_callbacks.api_keys import ApiKey
from tests.clients.fronts import Front, unique
from tests.clients.wire_connection import WireConnection, read_reply, request_frame
from tests.faults.messages import batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.proxy.wire.messages.codec import Message
    from tests.clients.peers import PeerWatch

NOT_LEADER_OR_FOLLOWER: Final = 6
FETCH_HINTS_FROM: Final = 16
PRODUCE_HINTS_FROM: Final = 10
HIDDEN: Final = "headrace_leader_hints_hidden_total"
HIDDEN_TAG: Final = 127
CREATE_TOPICS: Final = 7
METADATA: Final = 12
API_VERSIONS: Final = 3
SOFTWARE: Final = {"client_software_name": "a", "client_software_version": "1"}
MAX_BYTES: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Both ways to a broker that does not lead the partition 0 of a topic, nor follow its leader."""

    front: Front
    direct: WireConnection
    through: WireConnection
    topic: str
    topic_id: bytes
    leader: int

    @property
    def real_endpoint(self) -> Message:
        """The leader as the brokers know it."""
        broker = self.front.cluster.broker(self.leader)
        return {"node_id": self.leader, "host": broker.host, "port": broker.port, "rack": None}

    @property
    def shown_endpoint(self) -> Message:
        """The leader as the proxy shows it."""
        return {**self.real_endpoint, "host": "127.0.0.1", "port": self.front.proxy.broker_port(self.leader)}

    def both_ways(self, api_key: ApiKey, version: int, message: Message) -> tuple[bytes, bytes]:
        """The replies' bytes. The direct one is sure to name the leader's address, and no other."""
        request = request_frame(api_key, version, message)
        replies = self.direct.exchange(request), self.through.exchange(request)
        assert read_reply(api_key, version, replies[0])["node_endpoints"] == [self.real_endpoint]
        return replies

    def check_shown(self, api_key: ApiKey, version: int, message: Message) -> Message:
        """The reply through the proxy is the direct one, with the proxy's address of the leader."""
        direct, through = (read_reply(api_key, version, each) for each in self.both_ways(api_key, version, message))
        assert through == {**direct, "node_endpoints": [self.shown_endpoint]}
        return through

    def versions(self, api_key: ApiKey, first: int = 0) -> range:
        """Those that the proxy offers, which are all the broker's, from ``first`` on."""
        direct, through = (_offered(way)[api_key] for way in (self.direct, self.through))
        assert through == direct
        assert direct.stop > first
        return range(max(first, direct.start), direct.stop)


@pytest.fixture
def ask(front43: Front, watch: PeerWatch) -> Iterator[Ask]:
    topic, topic_id, leader = _topic_of_one_replica(front43)
    other = next(broker for broker in front43.cluster.brokers if broker.node_id != leader)
    with contextlib.ExitStack() as stack:
        direct = stack.enter_context(WireConnection((other.host, other.port)))
        watch.allow(direct.local_port)
        through = stack.enter_context(WireConnection(("127.0.0.1", front43.proxy.broker_port(other.node_id))))
        yield Ask(front=front43, direct=direct, through=through, topic=topic, topic_id=topic_id, leader=leader)


def test_the_hint_of_a_fetch_is_hidden(ask: Ask) -> None:
    versions = ask.versions(ApiKey.FETCH, FETCH_HINTS_FROM)
    assert {16, 17} <= set(versions)
    for version in versions:
        hidden = ask.front.proxy.metric(HIDDEN)
        direct, through = ask.both_ways(ApiKey.FETCH, version, _fetch(ask))

        assert len(direct) == len(through)
        changes = [(old, new) for old, new in zip(direct, through, strict=True) if old != new]
        assert changes == [(0, HIDDEN_TAG)]

        direct_reply, reply = (read_reply(ApiKey.FETCH, version, each) for each in (direct, through))
        assert reply[TAGS].keys() == {HIDDEN_TAG}
        assert not reply["node_endpoints"]
        without = {"node_endpoints", TAGS}
        assert _rest(reply, without) == _rest(direct_reply, without)
        [row] = reply["responses"][0]["partitions"]
        assert row["error_code"] == NOT_LEADER_OR_FOLLOWER
        assert row["current_leader"]["leader_id"] == ask.leader
        assert ask.front.proxy.metric(HIDDEN) == hidden + 1


def test_the_hint_of_a_produce_names_the_proxy(ask: Ask) -> None:
    versions = ask.versions(ApiKey.PRODUCE, PRODUCE_HINTS_FROM)
    assert {10, 11, 12, 13} <= set(versions)
    for version in versions:
        reply = ask.check_shown(ApiKey.PRODUCE, version, _produce(ask))
        [row] = reply["responses"][0]["partition_responses"]
        assert row["error_code"] == NOT_LEADER_OR_FOLLOWER
        assert row["current_leader"]["leader_id"] == ask.leader


def test_the_hint_of_a_share_fetch_names_the_proxy(ask: Ask) -> None:
    """These brokers give none with ShareAcknowledge: on one that does not lead, there is nothing to acknowledge."""
    for version in ask.versions(ApiKey.SHARE_FETCH):
        reply = ask.check_shown(ApiKey.SHARE_FETCH, version, _share_fetch(ask))
        [row] = reply["responses"][0]["partitions"]
        assert row["error_code"] == NOT_LEADER_OR_FOLLOWER
        assert row["current_leader"]["leader_id"] == ask.leader


def test_clients_reach_the_leader_that_the_hint_names(ask: Ask) -> None:
    version = ask.versions(ApiKey.PRODUCE).stop - 1
    reply = ask.through.ask(ApiKey.PRODUCE, version, _produce(ask))
    [endpoint] = reply["node_endpoints"]
    with WireConnection((endpoint["host"], endpoint["port"])) as leader:
        [row] = leader.ask(ApiKey.PRODUCE, version, _produce(ask))["responses"][0]["partition_responses"]
        assert (row["error_code"], row["base_offset"]) == (0, 0)


def _topic_of_one_replica(front: Front) -> tuple[str, bytes, int]:
    """With more than one, a consumer may fetch from followers. Its name, its id, and its only broker's node id."""
    name = unique("hints")
    wanted = {"name": name, "num_partitions": 1, "replication_factor": 1}
    with WireConnection(("127.0.0.1", front.proxy.port)) as connection:
        reply = connection.ask(ApiKey.CREATE_TOPICS, CREATE_TOPICS, {"topics": [wanted]})
        assert [row["error_code"] for row in reply["topics"]] == [0]
        front.wait_for_topic(name)
        topic = connection.ask(ApiKey.METADATA, METADATA, {"topics": [{"name": name}]})["topics"][0]
    return name, topic["topic_id"], topic["partitions"][0]["leader_id"]


def _fetch(ask: Ask) -> Message:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": MAX_BYTES}
    return {"max_bytes": MAX_BYTES, "topics": [{"topic_id": ask.topic_id, "partitions": [partition]}]}


def _produce(ask: Ask) -> Message:
    partition = {"index": 0, "records": batch(b"for the leader")}
    topic = {"name": ask.topic, "topic_id": ask.topic_id, "partition_data": [partition]}
    return {"acks": 1, "timeout_ms": 1000, "topic_data": [topic]}


def _share_fetch(ask: Ask) -> Message:
    """Of a member that begins a session."""
    topic = {"topic_id": ask.topic_id, "partitions": [{"partition_index": 0, "acknowledgement_batches": []}]}
    limits = {"max_bytes": MAX_BYTES, "max_records": 10, "batch_size": 10}
    return {"group_id": unique("hints"), "member_id": str(uuid.uuid4()), **limits, "topics": [topic]}


def _offered(connection: WireConnection) -> dict[int, range]:
    reply = connection.ask(ApiKey.API_VERSIONS, API_VERSIONS, SOFTWARE)
    return {row["api_key"]: range(row["min_version"], row["max_version"] + 1) for row in reply["api_keys"]}


def _rest(message: Message, without: set[str]) -> Message:
    return {name: value for name, value in message.items() if name not in without}
