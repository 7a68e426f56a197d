"""Quotas of teams and topics in front of a real broker: set in the file and while the proxy runs, for real clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.quota_callbacks.api_keys import ApiKey
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import DEADLINE_S, HIGH_QUOTAS_OF_ANONYMOUS, unique
from tests.clients.wire_connection import WireConnection
from tests.faults.conftest import leads
from tests.faults.waiting import wait_until
from tests.shared_cluster import new_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.shared_cluster import FirstBroker

INVALID_REQUEST: Final = 42
CONFIG: Final = """
[client_quotas]
file = "{file}"

[plugins.options.topic_quotas]
enabled = true

[plugins.options.team_quotas.teams.payments]
client_ids = ["pay-*"]

[plugins.options.team_quotas.teams.search]
users = ["nobody-here"]
"""
RECORD_BYTES: Final = 10_000
LARGE_BYTES: Final = 100_000
"""With a limit of 15 kB a second, Kafka's arithmetic lets 160 kB pass in a window: one of these, but not two, between
which less time passes than between twenty small ones."""


@pytest.fixture(scope="module")
def proxy(kafka: FirstBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    file = tmp_path_factory.mktemp("quotas") / "quotas.sqlite"
    with ProxyProcess(kafka.bootstrap_servers, config=CONFIG.format(file=file) + HIGH_QUOTAS_OF_ANONYMOUS) as process:
        yield process


@pytest.fixture
def topic(kafka: FirstBroker) -> str:
    name = unique("limited")
    client = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    client.create_topics([new_topic(name)])[name].result(DEADLINE_S)
    wait_until(lambda: leads(client, name), "the broker leads the topic")
    return name


def alter(proxy: ProxyProcess, entity: dict[str, str | None], **values: float | None) -> tuple[int, str | None]:
    """Set quotas, remove those that are ``None``, and return the error's code and message."""
    entry = {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()],
    }
    with WireConnection(("127.0.0.1", proxy.port)) as connection:
        answer = connection.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, {"entries": [entry], "validate_only": False})
    (row,) = answer["entries"]
    return row["error_code"], row["error_message"]


def describe(proxy: ProxyProcess, entity_type: str, name: str) -> dict[str, float]:
    """Return the quotas of one entity."""
    components = [{"entity_type": entity_type, "match_type": 0, "match": name}]
    with WireConnection(("127.0.0.1", proxy.port)) as connection:
        answer = connection.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": components, "strict": True})
    assert answer["error_code"] == 0
    return {value["key"]: value["value"] for entry in answer["entries"] for value in entry["values"]}


class Client:
    """A producer of librdkafka, and the throttle times that it reported."""

    def __init__(self, proxy: ProxyProcess, client_id: str) -> None:
        self.throttles_ms: list[int] = []
        settings: dict[str, Any] = {
            "bootstrap.servers": proxy.bootstrap_servers,
            "client.id": client_id,
            "linger.ms": 0,
            "throttle_cb": lambda event: self.throttles_ms.append(round(event.throttle_time * 1000)),
        }
        self._producer = Producer(settings)

    def produce(self, topic: str, records: int, size: int = RECORD_BYTES) -> int:
        """Produce records of that size one after the other; return the longest throttle time that it reported."""
        self.throttles_ms.clear()
        for _ in range(records):
            self._producer.produce(topic, bytes(size))
            assert self._producer.flush(DEADLINE_S) == 0
        return max(self.throttles_ms, default=0)


def test_a_topic_is_limited_for_all_clients_while_they_are_connected(proxy: ProxyProcess, topic: str) -> None:
    clients = [Client(proxy, name) for name in ("one", "two")]
    assert [client.produce(topic, 4) for client in clients] == [0, 0]
    assert alter(proxy, {"topic": topic}, producer_byte_rate=15_000.0) == (0, None)
    assert describe(proxy, "topic", topic) == {"producer_byte_rate": 15_000.0}
    for client in clients:
        client.produce(topic, 1, LARGE_BYTES)
    proxy.wait_for_log(f"entity='topic={topic}'")
    assert alter(proxy, {"topic": topic}, producer_byte_rate=None) == (0, None)
    assert describe(proxy, "topic", topic) == {}
    clients[0].produce(topic, 1)  # it may have to wait for the last throttle
    assert [client.produce(topic, 20) for client in clients] == [0, 0]


@pytest.mark.exhaustive
def test_a_pattern_limits_fetches(proxy: ProxyProcess, topic: str) -> None:
    Client(proxy, "writer").produce(topic, 20)
    assert alter(proxy, {"topic": f"{topic[:-2]}*"}, consumer_byte_rate=10_000.0) == (0, None)
    settings = {"bootstrap.servers": proxy.bootstrap_servers, "group.id": topic, "fetch.wait.max.ms": 100}
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = consumer.consume(20, DEADLINE_S)
        assert [len(message.value() or b"") for message in messages] == [RECORD_BYTES] * 20
        proxy.wait_for_log(f"entity='topic={topic}'")
        proxy.wait_for_log("quota=consumer_byte_rate")
    finally:
        consumer.close()
        alter(proxy, {"topic": f"{topic[:-2]}*"}, consumer_byte_rate=None)


def test_a_team_is_limited_beside_its_members(proxy: ProxyProcess, topic: str) -> None:
    members, stranger = [Client(proxy, f"pay-{number}") for number in range(2)], Client(proxy, "other")
    assert [client.produce(topic, 2) for client in (*members, stranger)] == [0, 0, 0]
    assert alter(proxy, {"team": "payments"}, producer_byte_rate=15_000.0) == (0, None)
    assert alter(proxy, {"client-id": "pay-0"}, producer_byte_rate=10.0**9) == (0, None)
    for client in members:
        client.produce(topic, 1, LARGE_BYTES)
    assert stranger.produce(topic, 20) == 0
    proxy.wait_for_log("entity='team=payments'")
    _, page = proxy.get("/metrics")
    assert 'headrace_quota_limit{quota="producer_byte_rate",team="payments"} 15000' in page
    assert alter(proxy, {"team": "payments"}, producer_byte_rate=None) == (0, None)
    assert alter(proxy, {"client-id": "pay-0"}, producer_byte_rate=None) == (0, None)


@pytest.mark.exhaustive
def test_a_team_has_every_key_that_users_have(proxy: ProxyProcess, topic: str) -> None:
    """Three partitions are more than a window of 11 s lets pass; librdkafka is muted, as all old clients are."""
    keys = {"request_percentage": 0.001, "controller_mutation_rate": 0.1, "producer_ids_rate": 1.0}
    assert alter(proxy, {"team": "payments"}, **keys) == (0, None)
    assert describe(proxy, "team", "payments") == keys
    try:
        member = AdminClient({"bootstrap.servers": proxy.bootstrap_servers, "client.id": "pay-admin"})
        name = f"{topic}-wide"
        made = member.create_topics([NewTopic(name, num_partitions=3, replication_factor=1)])
        assert made[name].result(DEADLINE_S) is None
        proxy.wait_for_log("quota=controller_mutation_rate")
        proxy.wait_for_log("quota=request_percentage")
        # Otherwise each request of the producers would wait for a whole window.
        assert alter(proxy, {"team": "payments"}, request_percentage=1000.0) == (0, None)
        for number in range(2):
            producer = Producer(
                {
                    "bootstrap.servers": proxy.bootstrap_servers,
                    "client.id": f"pay-{number}",
                    "enable.idempotence": True,
                }
            )
            producer.produce(topic, b"x")
            assert producer.flush(DEADLINE_S) == 0
        proxy.wait_for_log("quota=producer_ids_rate")
    finally:
        assert alter(proxy, {"team": "payments"}, **dict.fromkeys(keys)) == (0, None)


@pytest.mark.parametrize(
    ("entity", "values", "message"),
    [
        ({"topic": "orders"}, {"request_percentage": 50.0}, "Invalid configuration key request_percentage"),
        ({"team": "payments", "user": "a"}, {"producer_byte_rate": 5.0}, "Invalid quota entity combination: "),
        ({"topic": "or*ers"}, {"producer_byte_rate": 5.0}, "or*ers is neither the name of a topic nor a prefix"),
        ({"topic": ""}, {"producer_byte_rate": 5.0}, "Empty topic not supported"),
        ({"topic": "orders"}, {"producer_byte_rate": 0.5}, "producer_byte_rate cannot be a fractional value."),
        ({"group": "orders"}, {"producer_byte_rate": 5.0}, "Unhandled client quota entity type: group"),
    ],
)
def test_what_the_definitions_refuse(
    proxy: ProxyProcess, entity: dict[str, str | None], values: dict[str, float], message: str
) -> None:
    code, text = alter(proxy, entity, **values)
    assert code == INVALID_REQUEST
    assert (text or "").startswith(message)


def test_quotas_of_the_file_are_checked_and_follow_a_reload(kafka: FirstBroker, tmp_path: Path, topic: str) -> None:
    before = CONFIG.format(file=tmp_path / "quotas.sqlite")
    table = '[[quotas]]\nentity = {{ {} = "{}" }}\nproducer_byte_rate = "15kB"\n'
    with ProxyProcess(kafka.bootstrap_servers, config=before) as proxy:
        client = Client(proxy, "pay-0")
        assert client.produce(topic, 4) == 0
        proxy.reload(before + table.format("taem", "payments"))
        proxy.wait_for_log("unknown entity type; did you mean team?")
        proxy.reload(before + table.format("team", "payments"))
        proxy.wait_for_log("quota producer_byte_rate of team=payments: none -> 15000")
        client.produce(topic, 2, LARGE_BYTES)
        proxy.wait_for_log("entity='team=payments'")
