"""Quotas that bind hard, twice: at a proxy for some client ids, and at the broker behind it for others.

A client id has its quotas at one of the two and none at the other, so what is seen through the proxy can be compared
with what the broker's own quotas do to the same client.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.proxy.wire.apis import ApiKey
from testbed.kafka.cluster import KafkaCluster
from testbed.kafka.jvm import start_jvm
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import DEADLINE_S, SLOW_CALLS, Coordinates, Front, eventually, unique
from tests.clients.peers import ACCEPTED
from tests.clients.quotas.quota_client import Behind
from tests.clients.wire_connection import WireConnection
from tests.shared_cluster import NOT_FENCED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from testbed.kafka.broker import Broker
    from tests.shared_cluster import FirstBroker

QUOTAS: Final = {
    "producer_byte_rate": 100_000.0,
    "consumer_byte_rate": 100_000.0,
    "request_percentage": 40.0,
    "controller_mutation_rate": 4.0,
}
"""Quotas of each client id: bytes per second, percent of one thread, partitions per second."""

OF_ADMINS: Final = {**QUOTAS, "request_percentage": 1.0}
"""The quotas of the scenario in which the request percentage has to bind. A broker measures wall time, so on a busy
machine this quota would stop its clients most of the time, and the other quotas would not be seen to bind."""

OF_PROXIED_ADMINS: Final = {**OF_ADMINS, "request_percentage": 0.25}
"""The quotas of this scenario at the proxy, which measures processor time: three listings a second exceed them."""
ADMIN_IDS: Final = 40

PRODUCER_IDS: Final = "producer_ids_rate"
"""A quota that brokers do not have. It is of users, and all clients here are of one: one id is free."""

BROKER_WINDOWS: Final = {
    "quota.window.num": 3,
    "quota.window.size.seconds": 1,
    "controller.quota.window.num": 2,
    "controller.quota.window.size.seconds": 1,
}
"""200 kB, 20 ms of an administrator's requests and eight partitions at once: scenarios of seconds are throttled."""

PROXY_WINDOWS: Final = """
[quota.window]
num = 3
[controller.quota.window]
num = 2
[[quotas]]
entity = { user = "<default>" }
producer_ids_rate = 1
longest_throttle = "400ms"
"""

SENSORS: Final = {
    "producer_byte_rate": "Produce",
    "consumer_byte_rate": "Fetch",
    "request_percentage": "Request",
    "controller_mutation_rate": "ControllerMutation",
}
"""The type of the MBean in which a broker shows a quota."""

WARM_UP_PRODUCERS: Final = 4
"""The number of partitions of the transaction topic; a transactional id determines one of them."""

WARM_UP_PARTITIONS: Final = 100
"""Topics that make the list of all topics so large that a few requests exceed `OF_PROXIED_ADMINS`."""

_TOKENS_OF: Final = SENSORS["controller_mutation_rate"]
_ALTER_CLIENT_QUOTAS: Final = 1
_INIT_PRODUCER_ID: Final = 2
_UNLIMITED: Final = "unlimited"


def config() -> str:
    """The proxy's configuration, in which each client id has buckets of its own."""
    entities = {"<default>": QUOTAS, **dict.fromkeys(_admin_ids(), OF_PROXIED_ADMINS)}
    tables = [
        "\n".join(["[[quotas]]", f'entity = {{ client-id = "{name}" }}', *(f"{key} = {quotas[key]}" for key in quotas)])
        for name, quotas in entities.items()
    ]
    return "\n".join([SLOW_CALLS, PROXY_WINDOWS, *tables])


def _admin_ids() -> list[str]:
    return [f"proxied-admin-{number}" for number in range(ADMIN_IDS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two ways to be limited: where clients connect, and the id by which they have their quotas there."""

    name: str
    bootstrap_servers: str
    client_id: str


class BindingFront:
    """One broker, a proxy in front of it, and the quotas of both."""

    def __init__(self, cluster: KafkaCluster | FirstBroker, proxy: ProxyProcess) -> None:
        self._cluster = cluster
        self.proxy = proxy
        self.behind = Behind(cluster)
        self._admin_ids = itertools.cycle(_admin_ids())
        self._management = start_jvm().JPackage("javax").management
        url = f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{cluster.brokers[0].ports['JMX']}/jmxrmi"
        address = self._management.remote.JMXServiceURL(url)
        self._jmx = self._management.remote.JMXConnectorFactory.connect(address)
        self._beans = self._jmx.getMBeanServerConnection()

    def close(self) -> None:
        """Leave the broker's JMX port."""
        self._jmx.close()

    def sides(self, name: str, quotas: Mapping[str, float] = QUOTAS) -> tuple[Side, Side]:
        """A client id that is limited by the proxy, and one that is limited by the broker."""
        limited = unique(f"direct-{name}")
        self._limit(limited, quotas)
        direct = Side(name="direct", bootstrap_servers=self._cluster.bootstrap_servers, client_id=limited)
        return self.proxied_side(name, quotas), direct

    def proxied_side(self, name: str, quotas: Mapping[str, float] = QUOTAS) -> Side:
        """A client id that is limited by the proxy."""
        limited = next(self._admin_ids) if quotas is OF_ADMINS else unique(f"proxied-{name}")
        return Side(name="proxied", bootstrap_servers=self.proxy.bootstrap_servers, client_id=limited)

    def throttled(self, side: Side) -> set[str]:
        """The quotas that throttle a side's client id or have done so in the last half minute.

        A broker forwards mutations to the controller, and counts the throttle that comes back as one of the request's
        time. So for mutations there is only the controller's bucket to look at while it is overdrawn.
        """
        if side.name == "direct":
            return {key for key, kind in SENSORS.items() if self._is_throttled(kind, side.client_id)}
        page = self.proxy.get("/metrics")[1].splitlines()
        own = f'client_id="{side.client_id}"'
        return {key for key in QUOTAS if _sum(page, "headrace_quota_throttle_time", own, f'quota="{key}"') > 0}

    def producer_ids_throttled(self) -> float:
        """How often a new producer id was throttled at the proxy."""
        page = self.proxy.get("/metrics")[1].splitlines()
        return _sum(page, "headrace_throttled_requests_total", f'quota="{PRODUCER_IDS}"')

    def accepted(self) -> float:
        """How many connections the proxy has accepted."""
        return self.proxy.metric(ACCEPTED)

    def topic(self, prefix: str, partitions: int = 1) -> str:
        """Create a topic without a charge to any client id, and return its name."""
        name = unique(prefix)
        self.behind.makes((name, partitions))
        return name

    def fill(self, topic: str, partitions: int, values: Sequence[bytes]) -> None:
        """Produce to the partitions in turn, unlimited."""
        with Producer({"bootstrap.servers": self._cluster.bootstrap_servers, "client.id": _UNLIMITED}) as producer:
            for number, value in enumerate(values):
                producer.produce(topic, value, partition=number % partitions)
            assert producer.flush(DEADLINE_S) == 0

    def read(self, topic: str, isolation: str = "read_uncommitted") -> list[bytes]:
        """All that partition 0 of a topic has now, unlimited."""
        with self._reader(unique("reader"), **{"isolation.level": isolation, "enable.partition.eof": True}) as consumer:
            consumer.assign([TopicPartition(topic, 0, 0)])
            found: list[bytes] = []
            while (message := consumer.poll(DEADLINE_S)) is not None and message.error() is None:
                found.append(message.value() or b"")
        return found

    def committed(self, group: str, topic: str) -> int:
        """The offset that a group has committed for partition 0."""
        with self._reader(group) as consumer:
            (found,) = consumer.committed([TopicPartition(topic, 0)], DEADLINE_S)
        return int(found.offset)

    def faults(self) -> list[str]:
        """What the proxy logged as wrong, be it in itself, in the broker or in a client."""
        return [line for line in self.proxy.log.splitlines() if _is_fault(line)]

    def _limit(self, client_id: str, quotas: Mapping[str, float]) -> None:
        """Give a client id its quotas at the broker, by AlterClientQuotas, and wait until the broker has them."""
        entity = [{"entity_type": "client-id", "entity_name": client_id}]
        ops = [{"key": key, "value": value} for key, value in quotas.items()]
        request = {"entries": [{"entity": entity, "ops": ops}]}
        reply = self.behind.ask(ApiKey.ALTER_CLIENT_QUOTAS, _ALTER_CLIENT_QUOTAS, request)
        assert [row["error_code"] for row in reply["entries"]] == [0]
        wanted = {"entity_type": "client-id", "match_type": 0, "match": client_id}

        def known() -> bool:
            described = self.behind.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": [wanted], "strict": True})
            return bool(described["entries"]) and len(described["entries"][0]["values"]) == len(quotas)

        eventually(known, f"the broker knows the quotas of {client_id}")

    def _is_throttled(self, kind: str, client_id: str) -> bool:
        """Whether a broker's MBean has a ``throttle-time``, which is an average over half a minute and more, or NaN; or
        an overdrawn bucket."""
        name = self._management.ObjectName(f"kafka.server:type={kind},client-id={client_id}")
        if not self._beans.isRegistered(name):
            return False
        if kind == _TOKENS_OF:
            return float(self._beans.getAttribute(name, "tokens")) < 0
        return float(self._beans.getAttribute(name, "throttle-time")) > 0

    @contextlib.contextmanager
    def _reader(self, group: str, **config: Any) -> Iterator[Consumer]:
        settings = {"bootstrap.servers": self._cluster.bootstrap_servers, "client.id": _UNLIMITED, "group.id": group}
        consumer = Consumer({**settings, "enable.auto.commit": False, **config})
        try:
            yield consumer
        finally:
            consumer.close()


@contextlib.contextmanager
def binding_front() -> Iterator[BindingFront]:
    """Start both; coordinators are elected when the block begins."""
    with (
        KafkaCluster(config={**BROKER_WINDOWS, **NOT_FENCED}, jmx=True) as cluster,
        ProxyProcess(cluster.bootstrap_servers, config=config(), arguments=("--log-format", "json")) as proxy,
    ):
        front = Front(cluster=cluster, proxy=proxy)
        for kind in Coordinates:
            front.wait_for_coordinators(kind)
        _warm_up(cluster)
        with contextlib.closing(BindingFront(cluster, proxy)) as running:
            yield running


@contextlib.contextmanager
def proxied_front(kafka: FirstBroker) -> Iterator[BindingFront]:
    """Start a proxy in front of the shared cluster, whose quotas bind; the brokers have none. When the block begins,
    coordinators are elected, and each broker has producer ids to give."""
    with ProxyProcess(kafka.bootstrap_servers, config=config(), arguments=("--log-format", "json")) as proxy:
        front = Front(cluster=kafka, proxy=proxy)
        for kind in Coordinates:
            front.wait_for_coordinators(kind)
        for broker in kafka.cluster.brokers:
            eventually(partial(_gives_producer_ids, broker), f"broker {broker.node_id} gives producer ids")
        with contextlib.closing(BindingFront(kafka, proxy)) as running:
            yield running


def _gives_producer_ids(broker: Broker) -> bool:
    """Return whether a broker has a block of producer ids: with its first one, it has to ask the controller."""
    request = {"transactional_id": None, "transaction_timeout_ms": 60_000}
    with WireConnection((broker.host, broker.port)) as connection:
        return bool(connection.ask(ApiKey.INIT_PRODUCER_ID, _INIT_PRODUCER_ID, request)["error_code"] == 0)


def _warm_up(cluster: KafkaCluster) -> None:
    """Let the broker load its coordinators' state and compile what the tests measure the time of."""
    config = {"bootstrap.servers": cluster.bootstrap_servers, "client.id": _UNLIMITED, "log_level": 3}
    topic = unique("binding-warm-up")
    Behind(cluster).makes((topic, WARM_UP_PARTITIONS))
    for number in range(WARM_UP_PRODUCERS):
        with Producer({**config, "transactional.id": f"{topic}-{number}"}) as producer:
            producer.init_transactions(DEADLINE_S)
            producer.begin_transaction()
            for _ in range(100):
                producer.produce(topic, b"value")
            producer.commit_transaction(DEADLINE_S)


def _sum(page: Sequence[str], name: str, *labels: str) -> float:
    """The sum over the series of a metric of the proxy that have these labels."""
    found = [line for line in page if line.startswith(name + "{") and all(label in line for label in labels)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def _is_fault(line: str) -> bool:
    """Return whether a line of the log reports an error of the proxy, the broker or a client."""
    if not line.startswith("{"):
        return True
    event = json.loads(line)
    return event["level"] in ("warning", "error", "critical")
