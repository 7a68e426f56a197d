"""A socket with a client id of its own, which notes when it sent and received, and what it may receive.

Called by the tests of quotas. A quota for the default client id gives every client id a bucket, so each test has its
own.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.proxy.wire.apis import APIS
from headrace.proxy.wire.heads import request_frame
from headrace.proxy.wire.messages.codec import encode
from headrace.quota_callbacks.api_keys import ApiKey
from testbed.kafka.properties import MAIN_LISTENER
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import Front, eventually, unique
from tests.clients.wire_connection import CORRELATION_ID, WireConnection, fitting, read_reply

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.proxy.wire.messages.codec import Message
    from testbed.kafka.cluster import KafkaCluster
    from tests.shared_cluster import FirstBroker

ROUNDING_MS: Final = 2
"""The proxy takes its clock in whole milliseconds, once when it charges and once when it answers."""

REFUSED: Final = "headrace_refused_requests_total"
THROTTLED: Final = "headrace_throttled_requests_total"

UNKNOWN_TOPIC_OR_PARTITION: Final = 3
THROTTLING_QUOTA_EXCEEDED: Final = 89
QUOTA_MESSAGE: Final = "The throttling quota has been exceeded."

_METADATA: Final = 12
_CREATE_TOPICS: Final = 7
_LIST_OFFSETS: Final = 4
_LATEST: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A reply, and the times of this process's monotonic clock at which its request was sent and it was received."""

    sent_s: float
    received_s: float
    message: Message

    @property
    def throttle_ms(self) -> int:
        """``throttle_time_ms``; 0 where the version has none."""
        throttle_ms: int = self.message.get("throttle_time_ms", 0)
        return throttle_ms

    @property
    def rows(self) -> list[Any]:
        """The results by topic."""
        found: list[Any] = next(self.message[key] for key in ("topics", "responses", "results") if key in self.message)
        return found

    @property
    def errors(self) -> dict[str, int]:
        """Error codes by the topics' names, in the reply's order."""
        return {row["name"]: row["error_code"] for row in self.rows}


class QuotaClient(WireConnection):
    """A connection with a client id, a unique one unless it is given."""

    def __init__(self, front: Front, client_id: str | None = None) -> None:
        super().__init__(("127.0.0.1", front.proxy.port))
        self.client_id = client_id or unique("quota-client")
        self.began_s = time.monotonic()
        """Open the connection; a unique client id has no earlier charges."""

    def sends(self, api_key: ApiKey, version: int, message: Message | None = None) -> None:
        """Send a request and wait for nothing; the fields that the version lacks are left out."""
        name = f"{APIS[api_key].name}Request"
        body = encode(name, version, fitting(name, version, message or {}))
        self._socket.sendall(request_frame(api_key, version, CORRELATION_ID, self.client_id, body))

    def asks(self, api_key: ApiKey, version: int, message: Message | None = None) -> Answer:
        """Send a request and wait for the reply."""
        sent_s = time.monotonic()
        self.sends(api_key, version, message)
        reply = self.exchange(b"")
        return Answer(sent_s=sent_s, received_s=time.monotonic(), message=read_reply(api_key, version, reply))

    def creates(self, version: int, *topics: tuple[str, int], **fields: Any) -> Answer:
        """CreateTopics, names and counts of partitions."""
        rows = [{"name": name, "num_partitions": count, "replication_factor": 1} for name, count in topics]
        return self.asks(ApiKey.CREATE_TOPICS, version, {"topics": rows, "timeout_ms": 30_000, **fields})

    def deletes(self, version: int, *topics: str | bytes) -> Answer:
        """DeleteTopics, by names or by ids."""
        rows = [{"topic_id": each} if isinstance(each, bytes) else {"name": each} for each in topics]
        rows = [{"name": None, **row} for row in rows]
        return self.asks(ApiKey.DELETE_TOPICS, version, {"topics": rows, "topic_names": topics, "timeout_ms": 30_000})

    def adds(self, version: int, *topics: tuple[str, int], **fields: Any) -> Answer:
        """CreatePartitions, names and how many partitions there are to be in all."""
        rows = [{"name": name, "count": count, "assignments": None} for name, count in topics]
        return self.asks(ApiKey.CREATE_PARTITIONS, version, {"topics": rows, "timeout_ms": 30_000, **fields})

    def wants(self, version: int, *topics: str) -> Answer:
        """Metadata that may create topics."""
        rows = [{"name": name} for name in topics]
        return self.asks(ApiKey.METADATA, version, {"topics": rows, "allow_auto_topic_creation": True})

    def is_read_again(self) -> Answer:
        """Return the reply to a request that no quota throttles, which arrives when the mute has ended."""
        return self.asks(ApiKey.API_VERSIONS, 0)


@contextlib.contextmanager
def quota_front(cluster: KafkaCluster | FirstBroker, config: str, listener: str = MAIN_LISTENER) -> Iterator[Front]:
    """A proxy with quotas in front of a cluster, by the listener of that name. At the end, it must have logged no error
    and no plugin's failure."""
    with ProxyProcess(cluster.addresses(listener), config=config) as proxy:
        yield Front(cluster=cluster, proxy=proxy)
        assert proxy.metric("headrace_plugin_errors_total") == 0
        errors = [line for line in proxy.log.splitlines() if re.search(r"\[(error|critical)|Traceback", line)]
        assert not errors, errors


def has_throttle_time(owed_ms: float, charged: Answer, answer: Answer, throttle_ms: float | None = None) -> bool:
    """Return whether ``answer`` has the throttle time of a client that owed so much when ``charged`` was served.

    Both may be the same answer: the time shrinks with the clock. Fails with the numbers otherwise.
    """
    found = answer.throttle_ms if throttle_ms is None else throttle_ms
    shortest = owed_ms - (answer.received_s - charged.sent_s) * 1000 - ROUNDING_MS
    longest = owed_ms - max(answer.sent_s - charged.received_s, 0.0) * 1000 + ROUNDING_MS
    assert max(shortest, 0) <= found <= max(longest, 0), f"{found} ms, not {shortest:.1f} to {longest:.1f}"
    return True


def is_muted_for(owed_ms: float, charged: Answer, later: Answer) -> bool:
    """Return whether ``later`` came no sooner than the mute of ``charged`` allows; fail with the numbers otherwise."""
    passed_ms = (later.received_s - charged.sent_s) * 1000
    assert passed_ms >= owed_ms - ROUNDING_MS, f"answered after {passed_ms:.1f} ms of {owed_ms}"
    return True


class Behind:
    """The broker itself, without a proxy: reads topics, and creates topics that no quota charges."""

    def __init__(self, cluster: KafkaCluster | FirstBroker) -> None:
        broker = cluster.brokers[0]
        self._address = (broker.host, broker.port)
        self._node_id = broker.node_id

    def ask(self, api_key: ApiKey, version: int, message: Message) -> Message:
        """One request over a connection of its own."""
        with WireConnection(self._address) as connection:
            return connection.ask(api_key, version, message)

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; 0 when there is no such topic."""
        return len(self._described(topic)["partitions"])

    def topic_id(self, topic: str) -> bytes:
        """Its id."""
        found: bytes = self._described(topic)["topic_id"]
        return found

    def makes(self, *topics: tuple[str, int]) -> None:
        """Create topics and wait until the broker knows and leads all of their partitions."""
        rows = [
            {
                "name": name,
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [{"partition_index": each, "broker_ids": [self._node_id]} for each in range(count)],
            }
            for name, count in topics
        ]
        reply = self.ask(ApiKey.CREATE_TOPICS, _CREATE_TOPICS, {"topics": rows, "timeout_ms": 30_000})
        assert [row["error_code"] for row in reply["topics"]] == [0] * len(rows)
        for name, count in topics:
            self.will_have(name, count)
            eventually(partial(self._leads, name, count), f"the broker leads the partitions of {name}")

    def will_have(self, topic: str, partitions: int) -> None:
        """Wait until a topic has so many partitions; 0 for one that is to go."""
        eventually(lambda: self.partitions(topic) == partitions, f"{topic} has {partitions} partitions")

    def has_caught_up(self) -> None:
        """Wait until everything that the controller was asked to create before now has been created."""
        self.makes((unique("sentinel"), 1))

    def _leads(self, topic: str, partitions: int) -> bool:
        """Return whether the leaders answer: a partition appears in Metadata before its log can be written."""
        rows = [{"partition_index": number, "timestamp": _LATEST} for number in range(partitions)]
        request = {"replica_id": -1, "topics": [{"name": topic, "partitions": rows}]}
        answered = self.ask(ApiKey.LIST_OFFSETS, _LIST_OFFSETS, request)["topics"][0]["partitions"]
        return all(row["error_code"] == 0 for row in answered)

    def _described(self, topic: str) -> Message:
        request = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        found: Message = self.ask(ApiKey.METADATA, _METADATA, request)["topics"][0]
        return found
