"""What the tests of ``producer_ids_rate`` share: logins, and Produce requests of any producer id."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from headrace.quota_callbacks.api_keys import ApiKey
from tests.clients.fronts import unique
from tests.clients.quotas.quota_client import QuotaClient
from tests.shared_cluster import PRODUCERS_SECRET

if TYPE_CHECKING:
    from tests.clients.fronts import Front
    from tests.clients.quotas.quota_client import Answer

_PRODUCE: Final = 9


def librdkafka_login(user: str) -> dict[str, Any]:
    """Settings of librdkafka."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PRODUCERS_SECRET,
    }


def java_login(user: str) -> dict[str, Any]:
    """Settings of Java's clients, as `JavaClients` takes them."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_jaas_config": f'{module} required username="{user}" password="{PRODUCERS_SECRET}";',
    }


class RawProducer(QuotaClient):
    """A connection that produces with whatever ids it likes; the broker takes every id that begins with sequence 0."""

    def __init__(self, front: Front, topic: str, user: str | None = None) -> None:
        super().__init__(front)
        self._topic = topic
        if user is not None:
            self.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
            token = f"\0{user}\0{PRODUCERS_SECRET}".encode()
            assert self.ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token})["error_code"] == 0

    def produces(self, *producer_ids: int, sequence: int = 0, nothing_to: int = 0) -> Answer:
        """One batch for each id, each to a partition of its own, and the reply. Before them, the request has no records
        for as many partitions as ``nothing_to`` of a topic that does not exist."""
        request = self._request(producer_ids, sequence, acks=-1)
        if nothing_to:
            partitions = [{"index": number, "records": None} for number in range(nothing_to)]
            request["topic_data"].insert(0, {"name": unique("nothing"), "partition_data": partitions})
        answer = self.asks(ApiKey.PRODUCE, _PRODUCE, request)
        (rows,) = (
            topic["partition_responses"] for topic in answer.message["responses"] if topic["name"] == self._topic
        )
        assert [row["error_code"] for row in rows] == [0] * len(producer_ids)
        return answer

    def produces_unheard(self, *producer_ids: int) -> None:
        """The same without acks: there is no reply."""
        self.sends(ApiKey.PRODUCE, _PRODUCE, self._request(producer_ids, 0, acks=0))

    def _request(self, producer_ids: tuple[int, ...], sequence: int, *, acks: int) -> dict[str, Any]:
        partitions = [
            {"index": number, "records": _batch(producer_id, sequence)}
            for number, producer_id in enumerate(producer_ids)
        ]
        topic = {"name": self._topic, "partition_data": partitions}
        return {"acks": acks, "timeout_ms": 30_000, "topic_data": [topic]}


def _batch(producer_id: int, sequence: int) -> bytes:
    without_id = producer_id < 0
    builder = DefaultRecordBatchBuilder(
        2, 0, 0, producer_id, -1 if without_id else 0, -1 if without_id else sequence, 1024
    )
    builder.append(0, time.time_ns() // 1_000_000, b"", b"value", [])
    return bytes(builder.build())
