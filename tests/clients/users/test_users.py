"""Users: real clients log in to real brokers through the proxy, which detects their names for quotas."""

from __future__ import annotations

import base64
import contextlib
import json
import struct
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import Producer

from headrace.quota_callbacks.api_keys import ApiKey
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import DEADLINE_S, HIGH_QUOTAS, SLOW_CALLS, Front, eventually, unique
from tests.clients.java_clients import JavaClients, done
from tests.clients.users.sasl_clients import (
    CLIENTS,
    JAVA_VERSION,
    RefusedError,
    java_admin,
    java_settings,
    librdkafka_settings,
)
from tests.clients.wire_connection import WireConnection
from tests.shared_cluster import LISTENER, SECRETS, SHORT_SESSIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import ThrottleEvent

    from tests.shared_cluster import FirstBroker

PASSWORDS: Final = {**SECRETS, "dave": ""}
USERS: Final = {"PLAIN": "alice", "SCRAM-SHA-256": "bob", "SCRAM-SHA-512": "carol", "OAUTHBEARER": "dave"}
REFUSED: Final = [
    *((client, mechanism) for client in ("java", "librdkafka") for mechanism in ("PLAIN", "SCRAM-SHA-256")),
    *(pytest.param(client, "SCRAM-SHA-512", marks=pytest.mark.exhaustive) for client in ("java", "librdkafka")),
    pytest.param("kafka-python", "PLAIN", marks=pytest.mark.exhaustive),  # tries again for ten seconds
]
FALLBACK: Final = "somebody"
LIMIT: Final = 1000
"""Bytes a second that alice may produce: in a window of ten seconds, one message of `MESSAGE_BYTES` is too much."""
MESSAGE_BYTES: Final = 20_000
"""Throttled for ten seconds, of which a client receives what is left when the broker has replied."""
CONFIG: Final = f"""
{SLOW_CALLS}
[plugins.options.sasl_identity]
fallback_user = "{FALLBACK}"
{HIGH_QUOTAS}
[[quotas]]
entity = {{ user = "alice" }}
producer_byte_rate = {LIMIT}
"""


@pytest.fixture(scope="module")
def secured(kafka: FirstBroker) -> Iterator[Front]:
    with _proxy(kafka, LISTENER) as found:
        yield found


class Log:
    """What the proxy has logged since, of connections that were opened since."""

    def __init__(self, front: Front) -> None:
        self._front = front
        eventually(lambda: front.proxy.metric("headrace_connections") == 0, "connections of earlier tests are closed")
        self._from = self._end_of_earlier_lines()

    def _end_of_earlier_lines(self) -> int:
        """The length of the log when all lines until now are written: the proxy writes them in their order, but not at
        once. The last one is that of a connection that it closes, since it speaks HTTP."""
        before = len(self._front.proxy.log)
        with WireConnection(("127.0.0.1", self._front.proxy.port)) as connection:
            port = connection.local_port
            connection._socket.sendall(b"GET / HTTP/1.1\r\n\r\n")

        def end_of_last_line() -> int:
            log = self._front.proxy.log
            at = log.find(f'"peer": "127.0.0.1:{port}"', before)
            return log.find("\n", at) + 1 if at >= 0 else 0

        return eventually(end_of_last_line, f"the end of the connection from port {port} is logged")

    @property
    def lines(self) -> list[dict[str, Any]]:
        whole, _, _ = self._front.proxy.log[self._from :].rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    @property
    def adopted(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == "user adopted"]

    def wait_for(self, user: str, mechanism: str) -> None:
        """Wait until that user was adopted, and check that no other user was."""
        eventually(lambda: self.adopted, f"{user} is adopted")
        assert {(line["user"], line["mechanism"]) for line in self.adopted} == {(user, mechanism)}


@pytest.fixture
def log(secured: Front) -> Iterator[Log]:
    found = Log(secured)
    yield found
    text = "\n".join(map(json.dumps, found.lines))
    for secret in (*SECRETS.values(), "wrong-staple"):
        assert secret not in text
        assert base64.b64encode(secret.encode()).decode().rstrip("=") not in text
    assert "plugin raised" not in text


@pytest.mark.parametrize("mechanism", USERS)
@pytest.mark.parametrize("client", CLIENTS)
def test_who_logs_in_is_known(secured: Front, log: Log, client: str, mechanism: str) -> None:
    name = USERS[mechanism]
    CLIENTS[client](secured.bootstrap_servers, mechanism, name, PASSWORDS[name])
    log.wait_for(name, mechanism)


@pytest.mark.parametrize(("client", "mechanism"), REFUSED)
def test_a_wrong_password_is_nobodys(secured: Front, log: Log, client: str, mechanism: str) -> None:
    asked = secured.requests("SaslAuthenticate")
    with pytest.raises(RefusedError):
        CLIENTS[client](secured.bootstrap_servers, mechanism, USERS[mechanism], "wrong-staple")
    assert secured.requests("SaslAuthenticate") > asked
    assert not log.adopted


def test_without_headers(secured: Front, log: Log) -> None:
    """As clients did before Kafka 1.0."""
    with WireConnection(("127.0.0.1", secured.proxy.port)) as connection:
        assert connection.ask(ApiKey.SASL_HANDSHAKE, 0, {"mechanism": "PLAIN"})["error_code"] == 0
        token = b"\0alice\0" + SECRETS["alice"].encode()
        assert connection.exchange(struct.pack(">i", len(token)) + token) == b""
        log.wait_for("alice", "PLAIN")
        assert connection.ask(ApiKey.METADATA, 12, {"topics": []})["brokers"]


def test_a_delegation_token_is_the_fallback_users(secured: Front, log: Log) -> None:
    java = JavaClients(JAVA_VERSION, secured.bootstrap_servers)
    with java_admin(java, java_settings("PLAIN", "alice", SECRETS["alice"])) as admin:
        token = done(admin.createDelegationToken().delegationToken())
    name, secret = str(token.tokenInfo().tokenId()), str(token.hmacAsBase64String())
    mechanism = "SCRAM-SHA-256"

    def logged_in() -> bool:
        """Wait until the broker has received the token."""
        with java_admin(java, java_settings(mechanism, name, secret, 'tokenauth="true"')) as admin:
            with contextlib.suppress(Exception):
                return bool(done(admin.describeCluster().nodes()).size())
            return False

    eventually(logged_in, "the token is accepted")
    assert {(line["user"], line["mechanism"]) for line in log.adopted} == {("alice", "PLAIN"), (FALLBACK, mechanism)}
    assert f'"counted_as": "{FALLBACK}"' in secured.proxy.wait_for_log("the owners of delegation tokens are not known")
    assert secret not in secured.proxy.log


def test_a_quota_holds_its_user_and_no_other(secured: Front, log: Log) -> None:
    topic = _create_topic(secured)
    throttled = {name: _throttled(secured, topic, mechanism, name) for mechanism, name in USERS.items()}
    assert throttled["alice"]
    assert not throttled["bob"]
    assert not throttled["carol"]
    assert not throttled["dave"]


def test_one_who_logs_in_by_another_mechanism_is_the_same(secured: Front, log: Log) -> None:
    """The bucket belongs to the user: bob is not throttled, with any mechanism."""
    topic = _create_topic(secured)
    assert not _throttled(secured, topic, "PLAIN", "bob")
    log.wait_for("bob", "PLAIN")


@pytest.mark.exhaustive
def test_reauthentication(kafka: FirstBroker) -> None:
    """Java's clients authenticate again when a session has nearly ended; the connection stays."""
    with _proxy(kafka, SHORT_SESSIONS) as front:
        log, topic = Log(front), _create_topic(front)
        java = JavaClients(JAVA_VERSION, front.bootstrap_servers)
        with java.producer(**java_settings("PLAIN", "bob", SECRETS["bob"])) as producer:

            def again() -> bool:
                java.send(producer, topic, [b"x"])
                peers = [line["peer"] for line in log.adopted if line["user"] == "bob"]
                return any(peers.count(peer) >= 3 for peer in peers)

            eventually(again, "a connection that has authenticated three times")
        faults = [line for line in log.lines if line["level"] in ("warning", "error")]
        # After a stall, a client authenticates too late, and the broker closes the connection.
        assert not [line for line in faults if "the broker closed; requests in flight" not in line.get("reason", "")]


@contextlib.contextmanager
def _proxy(cluster: FirstBroker, listener: str) -> Iterator[Front]:
    arguments = ("--log-level", "debug", "--log-format", "json")
    with ProxyProcess(cluster.addresses(listener), config=CONFIG, arguments=arguments) as proxy:
        yield Front(cluster=cluster, proxy=proxy)


def _create_topic(front: Front) -> str:
    """Made at the broker, where clients do not log in, and known there when this returns."""
    topic = unique("users")
    broker = front.cluster.brokers[0]
    with WireConnection((broker.host, broker.port)) as connection:
        at_it = [{"partition_index": 0, "broker_ids": [broker.node_id]}]
        wanted = {"name": topic, "num_partitions": -1, "replication_factor": -1, "assignments": at_it}
        reply = connection.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [wanted], "timeout_ms": 30_000})
        assert [row["error_code"] for row in reply["topics"]] == [0]

        def led() -> bool:
            [row] = connection.ask(ApiKey.METADATA, 12, {"topics": [{"name": topic}]})["topics"]
            return not row["error_code"] and row["partitions"][0]["leader_id"] >= 0

        eventually(led, f"the broker knows {topic}")
    return topic


def _throttled(front: Front, topic: str, mechanism: str, name: str) -> list[float]:
    """Produce one message, and return the throttle times of the replies, in seconds."""
    throttle_times_s: list[float] = []

    def note(event: ThrottleEvent) -> None:
        throttle_times_s.append(event.throttle_time)

    reports: list[Any] = []
    settings = librdkafka_settings(front.bootstrap_servers, mechanism, name, PASSWORDS[name]) | {"throttle_cb": note}
    with Producer(settings) as producer:
        producer.produce(topic, bytes(MESSAGE_BYTES), on_delivery=lambda error, _: reports.append(error))
        assert producer.flush(DEADLINE_S) == 0
        producer.poll(0)
    assert reports == [None]
    return throttle_times_s
