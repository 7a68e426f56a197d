"""GSSAPI through the proxy: Java's client, a broker and a real key distribution center.

Tickets are encrypted for the broker, so that all these clients are the fallback user of the plugin sasl_identity.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from headrace.quota_callbacks.api_keys import ApiKey
from testbed.kafka.cluster import KafkaCluster
from testbed.kafka.jvm import start_jvm
from testbed.kafka.kerberos import KeyDistributionCenter
from testbed.kafka.launch import STARTING_OPTIONS
from testbed.kafka.properties import Listener
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import HIGH_QUOTAS, unique
from tests.clients.java_clients import JavaClients, done
from tests.clients.users.sasl_clients import JAVA_VERSION
from tests.clients.wire_connection import WireConnection
from tests.shared_cluster import NOT_FENCED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.exhaustive

SERVICE, OTHER_SERVICE = "kafka", "other"
BROKER: Final = f"{SERVICE}/localhost"
PORT: Final = "KERBEROS"
VALUES: Final = [b"value %d" % number for number in range(10)]
SESSION_MS: Final = 2000
METADATA: Final = 12
CONFIG: Final = """
[plugins.options.sasl_identity]
fallback_user = "kerberos"
"""
SLOW_USER: Final = """
[[quotas]]
entity = { user = "kerberos" }
producer_byte_rate = 1000
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Realm:
    """The center, and a broker that accepts its tickets; by the listener `PORT`, sessions of `SESSION_MS` at most."""

    kdc: KeyDistributionCenter
    cluster: KafkaCluster

    @property
    def address(self) -> str:
        return self.cluster.addresses(PORT)

    def settings(self, **more: str) -> dict[str, str]:
        """The settings of the Java client of the user alice."""
        return {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "GSSAPI",
            "sasl_jaas_config": self.kdc.jaas("alice"),
            "sasl_kerberos_service_name": SERVICE,
            **more,
        }


@pytest.fixture(scope="module")
def realm() -> Iterator[Realm]:
    system = start_jvm().java.lang.System
    with KeyDistributionCenter(BROKER, f"{OTHER_SERVICE}/localhost", "alice") as kdc:
        listener = Listener(
            name=PORT,
            protocol="SASL_PLAINTEXT",
            sasl={"GSSAPI": kdc.jaas(BROKER)},
            properties={"sasl.kerberos.service.name": SERVICE, "connections.max.reauth.ms": SESSION_MS},
        )
        options = (*STARTING_OPTIONS, f"-Djava.security.krb5.conf={kdc.krb5_conf}")
        system.setProperty("java.security.krb5.conf", str(kdc.krb5_conf))
        with KafkaCluster(listeners=[listener], jvm_options=options, config=NOT_FENCED) as cluster:
            yield Realm(kdc=kdc, cluster=cluster)
        system.clearProperty("java.security.krb5.conf")


def proxy_before(realm: Realm, quotas: str = HIGH_QUOTAS) -> ProxyProcess:
    return ProxyProcess(realm.address, config=CONFIG + quotas, arguments=("--log-level", "debug"))


def test_a_client_produces_and_consumes_over_several_sessions(realm: Realm) -> None:
    with proxy_before(realm) as proxy:
        java, topic = JavaClients(JAVA_VERSION, proxy.bootstrap_servers), unique("kerberos")
        with java.admin(**realm.settings()) as admin:
            java.create_topic(admin, topic, 1, {})
        with java.producer(**realm.settings()) as producer:
            for value in VALUES:
                java.send(producer, topic, [value])
                start_jvm().java.lang.Thread.sleep(2 * SESSION_MS // len(VALUES))
        assert java.received(topic, len(VALUES), **realm.settings()) == VALUES
        adopted = [line for line in proxy.log.splitlines() if "user adopted" in line]
        assert len(adopted) > 4, "each connection, and the producer's again"
        assert all("mechanism=GSSAPI" in line and "user=kerberos" in line for line in adopted)


def test_its_quota_is_that_of_the_fallback_user(realm: Realm) -> None:
    with proxy_before(realm, SLOW_USER) as proxy:
        java, topic = JavaClients(JAVA_VERSION, proxy.bootstrap_servers), unique("kerberos")
        with java.admin(**realm.settings()) as admin:
            java.create_topic(admin, topic, 1, {})
        with java.producer(**realm.settings()) as producer:
            java.send(producer, topic, [bytes(30_000)])
        assert proxy.metric("headrace_throttled_requests_total") == 1


def test_a_ticket_for_another_service_is_refused_as_by_the_broker(realm: Realm) -> None:
    settings = realm.settings(sasl_kerberos_service_name=OTHER_SERVICE)
    with proxy_before(realm) as proxy:
        reasons = []
        for address in (realm.address, proxy.bootstrap_servers):
            java = JavaClients(JAVA_VERSION, address)
            with (
                java.admin(**settings) as admin,
                pytest.raises(Exception, match="SaslAuthenticationException") as raised,
            ):
                done(admin.describeCluster().nodes())
            reasons.append(str(raised.value))
        assert reasons[0] == reasons[1]
        assert "GSSAPI" in proxy.wait_for_log("login refused")
        assert "user adopted" not in proxy.log


def test_tokens_without_headers(realm: Realm, tmp_path: Path) -> None:
    """SaslHandshake v0 has no last answer to a token, so the answer to a request shows that the client is accepted."""
    with proxy_before(realm) as proxy, WireConnection(("127.0.0.1", proxy.port)) as connection:
        assert connection.ask(ApiKey.SASL_HANDSHAKE, 0, {"mechanism": "GSSAPI"})["error_code"] == 0
        with gssapi_client(realm.kdc, tmp_path / "jaas.conf") as exchange:
            token = bytes(exchange.evaluateChallenge(b""))
            while not exchange.isComplete():
                answer = connection.exchange(struct.pack(">i", len(token)) + token)
                token = bytes(exchange.evaluateChallenge(answer))
        connection._socket.sendall(struct.pack(">i", len(token)) + token)
        (broker,) = connection.ask(ApiKey.METADATA, METADATA, {"topics": []})["brokers"]
        assert broker["port"] == proxy.broker_port(broker["node_id"])
        assert "user=kerberos" in proxy.wait_for_log("user adopted")


@contextlib.contextmanager
def gssapi_client(kdc: KeyDistributionCenter, login: Path) -> Iterator[Any]:
    """Java's SaslClient for the user alice, whose login is in the file ``login``."""
    jpype = start_jvm()
    login.write_text(f"com.sun.security.jgss.initiate {{ {kdc.jaas('alice')} }};", encoding="utf-8")
    system = jpype.java.lang.System
    system.setProperty("javax.security.auth.useSubjectCredsOnly", "false")
    system.setProperty("java.security.auth.login.config", str(login))
    try:
        names = jpype.JArray(jpype.java.lang.String)(["GSSAPI"])
        sasl = jpype.JClass("javax.security.sasl.Sasl")
        yield sasl.createSaslClient(names, None, SERVICE, "localhost", jpype.java.util.HashMap(), None)
    finally:
        system.clearProperty("javax.security.auth.useSubjectCredsOnly")
        system.clearProperty("java.security.auth.login.config")
