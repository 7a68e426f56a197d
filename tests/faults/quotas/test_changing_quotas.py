"""Quotas that are changed while the proxy runs: in force on live connections, in all processes, and after a crash."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Self

import pytest

from headrace.proxy.kafka_client.errors import KafkaClientError
from headrace.proxy.kafka_client.quotas import QuotaAlteration
from headrace.proxy.kafka_client.settings import ClientSettings, parse_addresses
from headrace.proxy.kafka_client.sync import SyncAdminClient
from headrace.quota_callbacks.entities import QuotaEntity
from testbed.errors import TestbedError
from testbed.proxy_process import ProxyProcess
from tests.clients.client_quotas.java_quotas import java_quotas
from tests.clients.fronts import eventually, unique
from tests.clients.users.sasl_clients import java_settings
from tests.faults.messages import API_VERSIONS, PRODUCE, PRODUCE_VERSION, batch, produce_body, read_produce_reply
from tests.faults.raw_client import ConnectionEndedError, RawClient
from tests.shared_cluster import LISTENER, SECRETS

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    from tests.clients.client_quotas.java_quotas import JavaQuotas
    from tests.shared_cluster import FirstBroker

WINDOW: Final = "[quota.window]\nsize.seconds = 60\n"
"""Eleven minutes: nothing of a test is forgotten."""
BYTES: Final = 120_000
LOW: Final = 500.0
"""A limit that three requests of `BYTES` exceed, in a window of ten minutes."""
HIGH: Final = 10.0**9
CONNECTIONS: Final = 60
"""Made within a second; even a busy machine makes them in less than a minute."""


def config(folder: Path, more: str = "") -> str:
    return f'[client_quotas]\nfile = "{folder / "quotas.sqlite"}"\n{more}{WINDOW}'


def short_throttles(client_id: str) -> str:
    """A quota of the file that is never exceeded, and whose policy the stored one has, so that tests wait less.

    Replies have what is left of the throttle time, so that it must be longer than a busy broker takes.
    """
    entity = f'entity = {{ client-id = "{client_id}" }}'
    return f'[[quotas]]\n{entity}\nproducer_byte_rate = {HIGH:.0f}\nlongest_throttle = "1s"\n'


def changes(proxy: ProxyProcess) -> list[dict[str, object]]:
    """The audit records, newest first."""
    status, body = proxy.get("/quotas/audit?newest=1000")
    assert status == 200, body
    found: list[dict[str, object]] = json.loads(body)["changes"]
    return found


class Writers:
    """Connections that produce, with a client id of their own."""

    def __init__(self, port: int, client_id: str, topic: str, count: int = 1) -> None:
        self._clients = [RawClient(port, client_id=client_id) for _ in range(count)]
        self._body = produce_body(topic, batch(bytes(BYTES)))

    def throttles_ms(self) -> list[int]:
        """Produce once on each connection; the throttle times of the replies."""
        replies = [client.call(PRODUCE, PRODUCE_VERSION, self._body) for client in self._clients]
        return [read_produce_reply(reply).throttle_ms for reply in replies]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture
def at_proxy(proxy: ProxyProcess) -> Iterator[JavaQuotas]:
    with java_quotas(f"127.0.0.1:{proxy.port}") as quotas:
        yield quotas


@pytest.fixture(scope="module")
def proxy(kafka: FirstBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    of_file = short_throttles("follows") + short_throttles("of-the-file")
    with ProxyProcess(kafka.bootstrap_servers, config=config(tmp_path_factory.mktemp("quotas"), of_file)) as process:
        yield process


def test_a_change_applies_to_the_next_request(proxy: ProxyProcess, at_proxy: JavaQuotas, topic: str) -> None:
    name = "follows"

    def throttled() -> bool:
        """Produce once, and return whether it was throttled. The reply has only what is left of the time."""
        before = proxy.metric("headrace_throttled_requests_total")
        writer.throttles_ms()
        return proxy.metric("headrace_throttled_requests_total") > before

    at_proxy.describe([])  # connects: the three requests have to be in one window
    with Writers(proxy.port, name, topic) as writer:
        assert not throttled()
        at_proxy.alter([({"client-id": name}, {"producer_byte_rate": LOW})])
        assert [throttled() for _ in range(2)] == [False, True]
        at_proxy.alter([({"client-id": name}, {"producer_byte_rate": HIGH})])
        assert not throttled()
        at_proxy.alter([({"client-id": name}, {"producer_byte_rate": LOW})])
        assert throttled()
        at_proxy.alter([({"client-id": name}, {"producer_byte_rate": None})])
        assert not throttled()


def test_every_change_has_an_audit_record(proxy: ProxyProcess, at_proxy: JavaQuotas) -> None:
    name = unique("audited")
    at_proxy.alter([({"user": name}, {"request_percentage": 150.5})])
    at_proxy.alter([({"user": name}, {"request_percentage": 200.0})], validate_only=True)
    at_proxy.alter([({"user": name}, {"request_percentage": None})])
    entity = [{"type": "user", "name": name}]
    found = [(each["old"], each["new"]) for each in changes(proxy) if each["entity"] == entity]
    assert found == [(150.5, None), (None, 150.5)]
    assert changes(proxy)[0]["principal"] == "ANONYMOUS"
    assert changes(proxy)[0]["address"] == "127.0.0.1"
    proxy.wait_for_log("every client can change quotas, also its own")
    proxy.wait_for_log(f"address=127.0.0.1 entity='user={name}' key=request_percentage old=150.5")


def test_a_quota_of_the_file_can_be_overridden_but_not_removed(proxy: ProxyProcess, at_proxy: JavaQuotas) -> None:
    entity = {"client-id": "of-the-file"}
    wanted = at_proxy.component("client-id", "of-the-file")
    (refused,) = at_proxy.alter([(entity, {"producer_byte_rate": None})])
    assert "producer_byte_rate of client-id=of-the-file is set in the proxy's configuration file" in refused
    at_proxy.alter([(entity, {"producer_byte_rate": LOW})])
    assert f"producer_byte_rate={LOW}" in str(at_proxy.describe([wanted]))
    (removed,) = at_proxy.alter([(entity, {"producer_byte_rate": None})])
    assert removed.endswith("done")
    assert "producer_byte_rate=1.0E9" in str(at_proxy.describe([wanted]))


@pytest.mark.exhaustive
def test_the_rate_of_connections_from_an_address(kafka: FirstBroker, tmp_path: Path) -> None:
    """In the default window, which a connection a second fills in ten seconds."""
    source = "127.0.0.77"

    def served() -> int:
        """Return how many of so many connections are served before one is refused."""
        for count in range(CONNECTIONS):
            with RawClient(proxy.port, source=source, distinct=False) as each:
                try:
                    each.call(API_VERSIONS, 0)
                except ConnectionEndedError:
                    return count
        return CONNECTIONS

    text = config(tmp_path).removesuffix(WINDOW)
    with ProxyProcess(kafka.bootstrap_servers, config=text) as proxy, java_quotas(f"127.0.0.1:{proxy.port}") as quotas:
        quotas.alter([({"ip": source}, {"connection_creation_rate": 1.0})])
        assert 10 <= served() < CONNECTIONS
        quotas.alter([({"ip": source}, {"connection_creation_rate": None})])
        assert served() == CONNECTIONS


def test_what_was_acknowledged_is_in_force_after_a_crash(kafka: FirstBroker, tmp_path: Path, topic: str) -> None:
    name = unique("survives")
    limits = {"producer_byte_rate": LOW, "consumer_byte_rate": HIGH}
    text = config(tmp_path, short_throttles(name))
    with ProxyProcess(kafka.bootstrap_servers, config=text) as proxy:
        with java_quotas(f"127.0.0.1:{proxy.port}") as quotas, Writers(proxy.port, name, topic, 6) as writers:
            assert not any(writers.throttles_ms())
            (result,) = quotas.alter([({"client-id": name}, {**limits})])
            assert result.endswith("done")
            eventually(lambda: all(writers.throttles_ms()), "every connection is throttled")
        proxy.signal(signal.SIGKILL)
    with ProxyProcess(kafka.bootstrap_servers, config=config(tmp_path)) as proxy:
        with java_quotas(f"127.0.0.1:{proxy.port}") as quotas:
            described = quotas.describe([quotas.component("client-id", name)])
            assert "{consumer_byte_rate=1.0E9, producer_byte_rate=500.0}" in str(described)
        with Writers(proxy.port, name, topic) as writer:
            assert [writer.throttles_ms()[0] > 0 for _ in range(3)] == [False, False, True]


def test_two_proxies_share_a_file(kafka: FirstBroker, tmp_path: Path, topic: str) -> None:
    name = unique("shared")
    text = config(tmp_path, short_throttles(name))
    with (
        ProxyProcess(kafka.bootstrap_servers, config=text) as one,
        ProxyProcess(kafka.bootstrap_servers, config=text) as other,
        java_quotas(f"127.0.0.1:{one.port}") as at_one,
        java_quotas(f"127.0.0.1:{other.port}") as at_other,
        Writers(other.port, name, topic) as writer,
    ):
        at_one.alter([({"client-id": name}, {"producer_byte_rate": LOW})])
        assert f"producer_byte_rate={LOW}" in str(at_other.describe([at_other.component("client-id", name)]))
        eventually(lambda: writer.throttles_ms()[0] > 0, "the other proxy throttles")
        assert changes(one) == changes(other)


@pytest.mark.exhaustive
def test_two_proxies_share_a_topic(kafka: FirstBroker, topic: str) -> None:
    name, quota_topic = unique("shared"), unique("quotas")
    text = f'[client_quotas]\nstore = "topic"\ntopic = "{quota_topic}"\n{short_throttles(name)}'
    servers = kafka.cluster.bootstrap_servers
    with (
        ProxyProcess(servers, config=text) as one,
        ProxyProcess(servers, config=text) as other,
        java_quotas(f"127.0.0.1:{one.port}") as at_one,
        java_quotas(f"127.0.0.1:{other.port}") as at_other,
        Writers(other.broker_port(0), name, topic, 6) as writers,
    ):
        (result,) = at_one.alter([({"client-id": name}, {"producer_byte_rate": LOW})])
        assert result.endswith("done")
        assert f"producer_byte_rate={LOW}" in str(at_other.describe([at_other.component("client-id", name)]))
        eventually(lambda: all(writers.throttles_ms()), "every connection of the other proxy is throttled")
        assert changes(one) == changes(other)
        (result,) = at_other.alter([({"client-id": name}, {"producer_byte_rate": None})])
        assert result.endswith("done")
        assert "producer_byte_rate=1.0E9" in str(at_one.describe([at_one.component("client-id", name)]))
        one.wait_for_log(f"also its own, by writing to the topic of quotas topic={quota_topic}")


def test_only_administrators_may(kafka: FirstBroker, tmp_path: Path) -> None:
    administrators = config(tmp_path, 'administrators = ["alice"]\n')
    with ProxyProcess(kafka.addresses(LISTENER), config=administrators) as proxy:

        def quotas_of(user: str) -> contextlib.AbstractContextManager[JavaQuotas]:
            return java_quotas(f"127.0.0.1:{proxy.port}", **java_settings("PLAIN", user, SECRETS[user]))

        with quotas_of("alice") as alice, quotas_of("bob") as bob:
            change = ({"user": "bob"}, {"producer_byte_rate": HIGH})
            (denied,) = bob.alter([change])
            assert "ClusterAuthorizationException" in denied
            assert "ClusterAuthorizationException" in str(bob.describe([]))
            assert alice.describe([]) == {}
            (made,) = alice.alter([change])
            assert made.endswith("done")
            assert changes(proxy)[0]["principal"] == "alice"


@pytest.mark.exhaustive
def test_without_a_file_quotas_are_described_only(kafka: FirstBroker) -> None:
    of_file = f'[[quotas]]\nentity = {{ user = "<default>" }}\nproducer_byte_rate = {HIGH:.0f}\n'
    with (
        ProxyProcess(kafka.bootstrap_servers, config=of_file) as proxy,
        java_quotas(f"127.0.0.1:{proxy.port}") as quotas,
    ):
        assert "producer_byte_rate=1.0E9" in str(quotas.describe([]))
        (refused,) = quotas.alter([({"user": "alice"}, {"producer_byte_rate": LOW})])
        assert "neither client_quotas.file is set nor a topic is used" in refused
        assert proxy.get("/quotas/audit")[0] == 503


def test_anonymous_clients_can_be_excluded(kafka: FirstBroker, tmp_path: Path) -> None:
    with (
        ProxyProcess(kafka.bootstrap_servers, config=config(tmp_path, 'alter = "administrators"\n')) as proxy,
        java_quotas(f"127.0.0.1:{proxy.port}") as quotas,
    ):
        (denied,) = quotas.alter([({"user": "alice"}, {"producer_byte_rate": LOW})])
        assert "ClusterAuthorizationException" in denied
        assert quotas.describe([]) == {}


@pytest.fixture
def of_the_brokers(kafka: FirstBroker) -> Iterator[str]:
    """A client id with a quota at the brokers."""
    name = unique("at-brokers")
    with java_quotas(kafka.bootstrap_servers) as at_broker:
        at_broker.alter([({"client-id": name}, {"producer_byte_rate": HIGH})])
        yield name
        at_broker.alter([({"client-id": name}, {"producer_byte_rate": None})])


def test_quotas_of_the_brokers_can_be_shown(kafka: FirstBroker, tmp_path: Path, of_the_brokers: str) -> None:
    name = of_the_brokers
    with (
        ProxyProcess(kafka.bootstrap_servers, config=config(tmp_path, f'brokers = "show"\n{of_file(name)}')) as proxy,
        java_quotas(f"127.0.0.1:{proxy.port}") as quotas,
    ):
        proxy.wait_for_log("brokers have the same quotas")
        described = quotas.describe([quotas.component("client-id", name)])
        assert "{brokers.producer_byte_rate=1.0E9, producer_byte_rate=1.0E9}" in str(described)
        (refused,) = quotas.alter([({"client-id": name}, {"brokers.producer_byte_rate": HIGH})])
        assert "Invalid configuration key brokers.producer_byte_rate" in refused


def test_quotas_of_the_brokers_can_be_imported_once(kafka: FirstBroker, tmp_path: Path, of_the_brokers: str) -> None:
    name, text = of_the_brokers, config(tmp_path, 'brokers = "import"\n')
    with ProxyProcess(kafka.bootstrap_servers, config=text) as proxy:
        proxy.wait_for_log("the brokers' quotas are imported")
        assert changes(proxy)[0]["address"] == "client_quotas.brokers"
        with java_quotas(f"127.0.0.1:{proxy.port}") as quotas:
            wanted = quotas.component("client-id", name)
            assert "producer_byte_rate=1.0E9" in str(quotas.describe([wanted]))
            quotas.alter([({"client-id": name}, {"producer_byte_rate": None})])
    with ProxyProcess(kafka.bootstrap_servers, config=text) as proxy, java_quotas(f"127.0.0.1:{proxy.port}") as quotas:
        assert quotas.describe([quotas.component("client-id", name)]) == {}


def of_file(client_id: str) -> str:
    return f'[[quotas]]\nentity = {{ client-id = "{client_id}" }}\nproducer_byte_rate = {HIGH:.0f}\n'


def test_a_store_that_does_not_answer_times_out(kafka: FirstBroker, tmp_path: Path) -> None:
    """Another program holds the lock of the file."""
    change = ({"user": "alice"}, {"producer_byte_rate": HIGH})
    with (
        ProxyProcess(kafka.bootstrap_servers, config=config(tmp_path, 'timeout = "500ms"\n')) as proxy,
        java_quotas(f"127.0.0.1:{proxy.port}", request_timeout_ms=5000, default_api_timeout_ms=8000) as quotas,
        contextlib.closing(sqlite3.connect(tmp_path / "quotas.sqlite", isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        (result,) = quotas.alter([change])
        assert "TimeoutException" in result
        other.execute("ROLLBACK")
        eventually(lambda: quotas.alter([change])[0].endswith("done"), "the change is made")


def test_a_file_that_is_no_store_prevents_the_start(kafka: FirstBroker, tmp_path: Path) -> None:
    (tmp_path / "quotas.sqlite").write_bytes(b"not a database, but a text" * 100)
    with pytest.raises(TestbedError, match=r"quotas\.sqlite.*client_quotas\.file"):
        ProxyProcess(kafka.bootstrap_servers, config=config(tmp_path)).close()


class Storm(threading.Thread):
    """Alters the quotas of one user without a pause until `end`. An alteration that fails is made again."""

    def __init__(self, proxy: ProxyProcess, user: str, first: int) -> None:
        super().__init__(name=user)
        self._servers = f"127.0.0.1:{proxy.port}"
        self._entity = QuotaEntity(user=user)
        self.acknowledged = first
        """The last number that was acknowledged; the next one may be stored, too."""
        self._ended = threading.Event()

    def has_changed(self, number: int) -> bool:
        return self.acknowledged > number

    def end(self) -> None:
        """End after the alteration that is under way."""
        self._ended.set()

    def run(self) -> None:
        settings = ClientSettings(bootstrap_servers=parse_addresses(self._servers), default_api_timeout_ms=1000)
        with SyncAdminClient(settings) as client:
            while not self._ended.is_set():
                values = dict.fromkeys(("producer_byte_rate", "consumer_byte_rate"), float(self.acknowledged + 1))
                with contextlib.suppress(KafkaClientError):
                    client.alter_client_quotas([QuotaAlteration(entity=self._entity, values=values)])
                    self.acknowledged += 1


def check_stored(proxy: ProxyProcess, acknowledged: dict[str, int]) -> None:
    """Check the quotas of each user: those that were acknowledged last, or those of the alteration in flight.

    ``acknowledged`` has them afterwards.
    """
    with SyncAdminClient(f"127.0.0.1:{proxy.port}") as client:
        stored = {str(entity.user): values for entity, values in client.describe_client_quotas().items()}
    for user, number in acknowledged.items():
        values = stored.get(user, {"producer_byte_rate": 0.0, "consumer_byte_rate": 0.0})
        assert len(values) == 2, "an alteration was made by half"
        assert len(set(values.values())) == 1, "an alteration was made by half"
        assert values["producer_byte_rate"] in (number, number + 1), user
        acknowledged[user] = int(values["producer_byte_rate"])


def kill_in_a_storm(kafka: FirstBroker, folder: Path, rounds: int, rng: random.Random) -> None:
    storms: list[Storm] = []
    acknowledged = dict.fromkeys(("one", "other", "third"), 0)
    for kills in range(rounds + 1):
        with ProxyProcess(kafka.bootstrap_servers, config=config(folder)) as proxy:
            for storm in storms:  # those of the former proxy, which have ended while this one has started
                storm.join()
                acknowledged[storm.name] = storm.acknowledged
            check_stored(proxy, acknowledged)
            if kills == rounds:
                return
            storms = [Storm(proxy, user, number) for user, number in acknowledged.items()]
            for storm in storms:
                storm.start()
            for storm in storms:
                eventually(partial(storm.has_changed, acknowledged[storm.name]), "a change is acknowledged")
            time.sleep(rng.uniform(0, 0.1))  # the instant of the crash is random
            proxy.signal(signal.SIGKILL)
            for storm in storms:
                storm.end()


def test_a_proxy_that_is_killed_loses_no_acknowledged_change(
    kafka: FirstBroker, tmp_path: Path, rng: random.Random
) -> None:
    kill_in_a_storm(kafka, tmp_path, 2, rng)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_proxy_that_is_killed_two_hundred_times(kafka: FirstBroker, tmp_path: Path, rng: random.Random) -> None:
    kill_in_a_storm(kafka, tmp_path, 200, rng)
