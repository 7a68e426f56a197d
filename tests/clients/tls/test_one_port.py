"""Several brokers behind one TLS port, certificates that are replaced under load, clients behind a load balancer."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
import warnings
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.proxy.wire.proxy_protocol import Endpoint, write_header
from testbed.kafka.certificates import Authority, ClientTls
from testbed.kafka.properties import MAIN_LISTENER
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import DEADLINE_S, HIGH_QUOTAS, unique
from tests.clients.tls.proxies import listen_tls
from tests.faults import messages
from tests.faults.conftest import leads
from tests.faults.metrics import series
from tests.faults.raw_client import ConnectionEndedError, RawClient, speaking_tls
from tests.faults.waiting import wait_until

with warnings.catch_warnings():
    # kafka-python 3.0.12 reads its schemas, as it is imported, by a function that Python 3.11 deprecates.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from tests.shared_cluster import FirstBroker

DOMAIN: Final = "kafka.example.com"
BROKER_HOST: Final = f"broker-$(node_id).{DOMAIN}"
PARTITIONS: Final = 6
CONNECT_PAUSE_S: Final = 0.02
"""Time between two new connections while certificates are replaced."""


@pytest.fixture
def names_resolve(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the names of brokers, which nobody resolves here, lead to this machine; return those that were looked up."""
    looked_up: list[str] = []
    resolve = socket.getaddrinfo

    def to_loopback(host: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(host, str) and host.endswith(DOMAIN):
            looked_up.append(host)
            host = "127.0.0.1"
        return resolve(host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", to_loopback)
    return looked_up


@pytest.mark.exhaustive
def test_three_brokers_on_one_port(kafka: FirstBroker, authority: Authority, names_resolve: list[str]) -> None:
    topic = unique("one-port")
    admin = AdminClient({"bootstrap.servers": kafka.addresses(MAIN_LISTENER)})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(DEADLINE_S)
    certificate = authority.broker_certificate(hosts=[f"*.{DOMAIN}"])
    config = f'[listen]\nbroker_host = "{BROKER_HOST}"\n{listen_tls(certificate)}{HIGH_QUOTAS}'
    with ProxyProcess(
        kafka.addresses(MAIN_LISTENER), config=config, arguments=["--advertised-host", f"bootstrap.{DOMAIN}"]
    ) as proxy:
        settings = {
            "bootstrap_servers": f"bootstrap.{DOMAIN}:{proxy.port}",
            "security_protocol": "SSL",
            "ssl_context": ClientTls(authority=authority).ssl_context(),
        }
        producer = KafkaProducer(**settings)
        for partition in range(PARTITIONS):
            producer.send(topic, str(partition).encode(), partition=partition).get(DEADLINE_S)
        producer.close()
        consumer = KafkaConsumer(**settings, auto_offset_reset="earliest", consumer_timeout_ms=20_000)
        consumer.assign([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
        found = {record.partition: record.value for record, _ in zip(consumer, range(PARTITIONS), strict=False)}
        consumer.close()
        listening = proxy.output
    assert found == {partition: str(partition).encode() for partition in range(PARTITIONS)}
    assert {f"broker-{node_id}.{DOMAIN}" for node_id in range(3)} <= set(names_resolve)
    assert f"brokers 0-9 as {BROKER_HOST}" in listening


def test_a_broker_that_does_not_exist_is_an_unknown_name(kafka: FirstBroker, authority: Authority) -> None:
    certificate = authority.broker_certificate(hosts=[f"*.{DOMAIN}"])
    config = f'[listen]\nbroker_host = "{BROKER_HOST}"\n{listen_tls(certificate)}'
    context = ClientTls(authority=authority).ssl_context()
    with ProxyProcess(kafka.addresses(MAIN_LISTENER), config=config) as proxy:
        with (
            socket.create_connection(("127.0.0.1", proxy.port), timeout=20) as sock,
            pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name"),
        ):
            context.wrap_socket(sock, server_hostname=f"broker-77.{DOMAIN}")
        proxy.wait_for_log("the client asked for a host name that this listener does not have")


def test_certificates_are_replaced_under_load(kafka: FirstBroker, authority: Authority) -> None:
    """No request fails at its first try, no connection ends, and each new connection is served at every moment."""
    topic = unique("rotated")
    config = listen_tls(authority.broker_certificate()) + HIGH_QUOTAS
    with ProxyProcess(kafka.addresses(MAIN_LISTENER), config=config) as proxy:
        settings = {
            "bootstrap.servers": proxy.bootstrap_servers,
            "security.protocol": "SSL",
            **ClientTls(authority=authority).librdkafka_settings(),
        }
        admin = AdminClient(settings)
        admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(DEADLINE_S)
        wait_until(
            lambda: all(leads(admin, topic, each) for each in range(3)), "the brokers lead the topic", DEADLINE_S
        )
        ended, failed, sent, opened = threading.Event(), list[str](), [0], [0]

        def note(error: KafkaError | None, _: object = None) -> None:
            if error is not None:
                failed.append(str(error))

        def load() -> None:
            producer = Producer({**settings, "linger.ms": 0, "message.send.max.retries": 0, "error_cb": note})
            while not ended.is_set():
                producer.produce(topic, b"x" * 100, on_delivery=note)
                producer.poll(0.001)
                sent[0] += 1
            assert producer.flush(DEADLINE_S) == 0

        def connect() -> None:
            while not ended.wait(CONNECT_PAUSE_S):
                try:
                    with RawClient(proxy.port) as client:
                        assert client.call(messages.API_VERSIONS, 0, b"")
                except (OSError, AssertionError) as error:
                    failed.append(repr(error))
                opened[0] += 1

        with speaking_tls(proxy.port, ClientTls(authority=authority).ssl_context()):
            threads = [threading.Thread(target=run) for run in (load, connect)]
            for thread in threads:
                thread.start()
            try:
                wait_until(lambda: sent[0] > 100 and opened[0] > 2, "records are sent", DEADLINE_S)
                before = serial_of(proxy)
                authority.broker_certificate()  # replaces the files
                proxy.wait_for_log("TLS files loaded again")
                assert serial_of(proxy) != before
                counts = sent[0], opened[0]
                wait_until(
                    lambda: sent[0] > counts[0] + 100 and opened[0] > counts[1] + 2,
                    "records are sent on the old connections, and new ones are opened",
                    DEADLINE_S,
                )
            finally:
                ended.set()
                for thread in threads:
                    thread.join(DEADLINE_S)
        assert series(proxy, 'headrace_tls_handshakes_total{result="failed"}') == 0
        assert proxy.metric("headrace_errors_total") == 0
        assert "connection closed" not in proxy.log
    assert failed == []


def serial_of(proxy: ProxyProcess) -> object:
    """The serial number on a new connection, which reads a reply: else it would be reset, with tickets unread."""
    with RawClient(proxy.port, timeout_s=20) as client:
        assert client.call(messages.API_VERSIONS, 0, b"")
        assert isinstance(client.sock, ssl.SSLSocket)
        certificate = client.sock.getpeercert()
        assert certificate is not None
        return certificate["serialNumber"]


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "TLS"])
def test_a_client_behind_a_load_balancer(kafka: FirstBroker, authority: Authority, *, tls: bool) -> None:
    """Its address is that of the header, for limits per address and for the log."""
    config = '[listen]\nproxy_protocol_from = ["127.0.0.1"]\n[limits]\nmax_connections_per_ip = 1\n'
    if tls:
        config += listen_tls(authority.broker_certificate())
    context = ClientTls(authority=authority).ssl_context()

    def client(proxy: ProxyProcess, address: str | None) -> RawClient:
        raw = RawClient(proxy.port, timeout_s=20)
        source = None if address is None else Endpoint(address=ipaddress.ip_address(address), port=4711)
        raw.send(write_header(source, source))
        if tls:
            raw.sock = context.wrap_socket(raw.sock, server_hostname="localhost")
        return raw

    with ProxyProcess(kafka.addresses(MAIN_LISTENER), config=config) as proxy:
        with client(proxy, "203.0.113.7") as first, client(proxy, "203.0.113.8") as second, client(proxy, None) as own:
            for each in (first, second, own):
                assert each.call(messages.API_VERSIONS, 0, b"")
            with pytest.raises((OSError, ConnectionEndedError)), client(proxy, "203.0.113.7") as third:
                third.call(messages.API_VERSIONS, 0, b"")
            proxy.wait_for_log("the client 203.0.113.7:4711 behind the load balancer 127.0.0.1:")
        wait_until(lambda: proxy.metric("headrace_connections") == 0, "all are closed")
        with client(proxy, "203.0.113.7") as again:
            assert again.call(messages.API_VERSIONS, 0, b""), "the place is free again"
        with RawClient(proxy.port, timeout_s=20) as without:
            without.send(messages.request(messages.API_VERSIONS, 0, 1, b"") * 2)
            proxy.wait_for_log("no header of PROXY protocol version 2")
