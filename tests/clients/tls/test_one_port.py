"""Several brokers behind one TLS port, certificates that are replaced under load, clients behind a load balancer."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from cryptography import x509

from headrace.proxy.wire.proxy_protocol import Endpoint, write_header
from headrace.quota_callbacks.api_keys import ApiKey
from testbed.kafka.certificates import Authority, ClientTls
from testbed.kafka.properties import MAIN_LISTENER
from testbed.processes.ports import reserve_ports
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import DEADLINE_S, HIGH_QUOTAS, unique
from tests.clients.tls.proxies import listen_tls
from tests.clients.wire_connection import WireConnection
from tests.faults import messages
from tests.faults.conftest import leads
from tests.faults.metrics import series
from tests.faults.raw_client import ConnectionEndedError, RawClient, speaking_tls
from tests.faults.waiting import wait_until
from tests.secure_cluster import Port

with warnings.catch_warnings():
    # kafka-python 3.0.12 reads its schemas, as it is imported, by a function that Python 3.11 deprecates.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from confluent_kafka import KafkaError

    from tests.secure_cluster import SecureKafka
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


def test_a_listener_by_names_beside_one_by_ports(
    kafka: FirstBroker, authority: Authority, names_resolve: list[str]
) -> None:
    """Each shows the brokers at its own addresses, whichever broker a client asks."""
    bootstrap, first = f"bootstrap.{DOMAIN}", f"broker-0.{DOMAIN}"
    context = ClientTls(authority=authority).ssl_context()
    with reserve_ports(1) as block:
        config = (
            f'[listeners.named]\naddress = "127.0.0.1:{block.first}"\nadvertised_host = "{bootstrap}"\n'
            f'broker_host = "{BROKER_HOST}"\nnode_ids = "0-2"\n'
            + listen_tls(authority.broker_certificate(hosts=[f"*.{DOMAIN}"])).replace("[listen.", "[listeners.named.")
        )
        with ProxyProcess(kafka.addresses(MAIN_LISTENER), config=config) as proxy:
            for port in (proxy.port, proxy.broker_port(0)):
                by_ports = {("127.0.0.1", proxy.broker_port(node_id)) for node_id in range(3)}
                assert brokers_at("127.0.0.1", port) == by_ports
            for name in (bootstrap, first):
                by_names = {(f"broker-{node_id}.{DOMAIN}", block.first) for node_id in range(3)}
                assert brokers_at(name, block.first, context) == by_names
    assert {bootstrap, first} <= set(names_resolve)


def brokers_at(host: str, port: int, context: ssl.SSLContext | None = None) -> set[tuple[str, int]]:
    with WireConnection((host, port), context) as connection:
        reply = connection.ask(ApiKey.METADATA, 12, {"topics": []})
    return {(row["host"], row["port"]) for row in reply["brokers"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Files that are replaced while a proxy uses them."""

    port: Port
    """The listener of the brokers."""
    config: str
    client: ClientTls | None
    """What clients use throughout; None: they do not speak TLS."""
    replace: Callable[[], object]
    is_in_force: Callable[[ProxyProcess], bool]
    """Whether a new connection shows that the new files are used."""


def of_the_listener(kafka: SecureKafka, folder: Path) -> Rotation:
    authority = Authority(folder)
    certificate = authority.broker_certificate()
    before = serial_in(certificate.certificate_file)
    client = ClientTls(authority=authority)
    return Rotation(
        port=Port.PLAINTEXT,
        config=listen_tls(certificate),
        client=client,
        replace=authority.broker_certificate,
        is_in_force=lambda proxy: serial_of(proxy, client) == serial_in(certificate.certificate_file) != before,
    )


def of_authorities_of_clients(kafka: SecureKafka, folder: Path) -> Rotation:
    """Another authority is added, whose clients are then served."""
    authority, added = Authority(folder), Authority(folder, "added")
    trusted = folder / "trusted.pem"
    trusted.write_bytes(authority.ca_file.read_bytes())
    newcomer = ClientTls(authority=authority, certificate=added.client_certificate("CN=newcomer"))
    return Rotation(
        port=Port.PLAINTEXT,
        config=listen_tls(authority.broker_certificate(), clients=trusted),
        client=ClientTls(authority=authority, certificate=authority.client_certificate("CN=client")),
        replace=lambda: in_one_step(trusted, authority, added),
        is_in_force=lambda proxy: serial_of(proxy, newcomer) != "",
    )


def of_the_proxy_at_brokers(kafka: SecureKafka, folder: Path) -> Rotation:
    """Both the proxy's own certificate and the authorities of brokers."""
    trusted = folder / "brokers.pem"
    trusted.write_bytes(kafka.authority.ca_file.read_bytes())
    own = kafka.authority.client_certificate("CN=before", name=folder.name)

    def replace() -> None:
        in_one_step(trusted, kafka.stranger, kafka.authority)
        kafka.authority.client_certificate("CN=after", name=folder.name)

    return Rotation(
        port=Port.MUTUAL_TLS,
        config=f'[upstream.tls]\nenabled = true\nca_file = "{trusted}"\ncertificate_file = "{own.keystore_file}"\n',
        client=None,
        replace=replace,
        is_in_force=lambda proxy: "CN=after" in proxy.log,
    )


def in_one_step(file: Path, *authorities: Authority) -> None:
    draft = file.with_name("draft.pem")
    draft.write_bytes(b"".join(authority.ca_file.read_bytes() for authority in authorities))
    draft.replace(file)


class Load:
    """A producer, and clients that connect and ask a question, until the `with` block ends."""

    def __init__(self, proxy: ProxyProcess, settings: Mapping[str, object], topic: str) -> None:
        self.failed: list[str] = []
        self.sent = self.opened = 0
        self._port, self._settings, self._topic = proxy.port, settings, topic
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=run) for run in (self._produce, self._connect)]

    def _note(self, error: KafkaError | None, _: object = None) -> None:
        if error is not None:
            self.failed.append(str(error))

    def _produce(self) -> None:
        settings = {**self._settings, "linger.ms": 0, "message.send.max.retries": 0, "error_cb": self._note}
        producer = Producer(settings)
        while not self._ended.is_set():
            producer.produce(self._topic, b"x" * 100, on_delivery=self._note)
            producer.poll(0.001)
            self.sent += 1
        assert producer.flush(DEADLINE_S) == 0

    def _connect(self) -> None:
        while not self._ended.wait(CONNECT_PAUSE_S):
            try:
                with RawClient(self._port) as client:
                    assert client.call(messages.API_VERSIONS, 0, b"")
            except (OSError, AssertionError) as error:
                self.failed.append(repr(error))
            self.opened += 1

    def goes_on(self) -> None:
        """Wait until records were sent on old connections, and new ones were opened."""
        sent, opened = self.sent, self.opened
        wait_until(lambda: self.sent > sent + 100 and self.opened > opened + 2, "the load goes on", DEADLINE_S)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)


@pytest.mark.exhaustive
@pytest.mark.parametrize("data_plane", ["auto", "python"])
@pytest.mark.parametrize("rotation_of", [of_the_listener, of_authorities_of_clients, of_the_proxy_at_brokers])
def test_certificates_are_replaced_under_load(
    secure_kafka: SecureKafka, tmp_path: Path, rotation_of: Callable[[SecureKafka, Path], Rotation], data_plane: str
) -> None:
    """No request fails at its first try, no connection ends, and each new connection is served at every moment.

    By rustls, where the native data plane is installed, and by OpenSSL.
    """
    rotation = rotation_of(secure_kafka, tmp_path)
    topic = unique("rotated")
    servers = secure_kafka.address(rotation.port)
    with ExitStack() as stack:
        config = f'data_plane = "{data_plane}"\n{rotation.config}{HIGH_QUOTAS}'
        proxy = stack.enter_context(ProxyProcess(servers, config=config))
        settings: dict[str, str | int | float | bool] = {"bootstrap.servers": proxy.bootstrap_servers}
        if rotation.client is not None:
            settings |= {"security.protocol": "SSL", **rotation.client.librdkafka_settings()}
            stack.enter_context(speaking_tls(proxy.port, rotation.client.ssl_context()))
        admin = AdminClient(settings)
        admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(DEADLINE_S)
        wait_until(
            lambda: all(leads(admin, topic, each) for each in range(3)), "the brokers lead the topic", DEADLINE_S
        )
        with Load(proxy, settings, topic) as load:
            load.goes_on()
            rotation.replace()
            proxy.wait_for_log("TLS files loaded again")
            wait_until(lambda: rotation.is_in_force(proxy), "the new files are used", DEADLINE_S)
            load.goes_on()
        assert series(proxy, 'headrace_tls_handshakes_total{result="failed"}') == 0
        assert proxy.metric("headrace_errors_total") == 0
        assert "connection closed" not in proxy.log
    assert load.failed == []


def serial_in(file: Path) -> str:
    """The serial number of a certificate, as `ssl` writes it."""
    return f"{x509.load_pem_x509_certificate(file.read_bytes()).serial_number:X}"


def serial_of(proxy: ProxyProcess, client: ClientTls) -> str:
    """The serial number on a new connection, which reads a reply: else it would be reset, with tickets unread."""
    with WireConnection(("127.0.0.1", proxy.port), client.ssl_context()) as connection:
        assert connection.ask(ApiKey.API_VERSIONS, 0)["error_code"] == 0
        assert isinstance(connection._socket, ssl.SSLSocket)
        certificate = connection._socket.getpeercert()
        assert certificate is not None
        return str(certificate["serialNumber"]).lstrip("0")


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
