"""SASL through the proxy: every mechanism, refused logins, and the headerless tokens of SaslHandshake v0 (KIP-43)."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import struct
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
)

from headrace.quota_callbacks.api_keys import ApiKey
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import DEADLINE_S, HIGH_QUOTAS, Front, eventually, unique
from tests.clients.wire_connection import WireConnection, read_reply, request_frame
from tests.shared_cluster import LISTENER, SECRETS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka import Message

    from tests.shared_cluster import FirstBroker

NAMES: Final = {"PLAIN": "alice", "SCRAM-SHA-256": "bob", "SCRAM-SHA-512": "carol"}
USERS: Final = {mechanism: (name, SECRETS[name]) for mechanism, name in NAMES.items()}
HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
WRONG: Final = "wrong-battery-staple"
MECHANISMS: Final = tuple(USERS)
NODE_IDS: Final = {0, 1, 2}

UNSUPPORTED_SASL_MECHANISM: Final = 33
METADATA: Final = 12
POLL_S: Final = 0.05
VALUES: Final = [b"value %d" % number for number in range(10)]
DEBUG_LOG: Final = ("--log-level", "debug")


@pytest.fixture(scope="module")
def secured(kafka: FirstBroker) -> Iterator[Front]:
    with _proxy(kafka) as front:
        yield front


@pytest.fixture(autouse=True)
def no_secrets(request: pytest.FixtureRequest) -> Iterator[None]:
    """Neither a password nor its usual encoding is in the log of the proxy, whatever a test did."""
    yield
    if "secured" in request.fixturenames:
        _check_log(request.getfixturevalue("secured").proxy)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_produces_and_consumes(secured: Front, mechanism: str) -> None:
    produced, fetched = secured.requests("Produce"), secured.requests("Fetch")
    topic = _create_topic(secured)
    reports: list[tuple[KafkaError | None, Message]] = []
    with Producer(_settings(secured, mechanism)) as producer:
        for value in VALUES:
            producer.produce(topic, value, on_delivery=lambda error, message: reports.append((error, message)))
        assert producer.flush(DEADLINE_S) == 0
    assert [error for error, _ in reports] == [None] * len(VALUES)
    assert _consumed(secured, mechanism, topic, len(VALUES)) == VALUES
    assert secured.requests("Produce") > produced
    assert secured.requests("Fetch") > fetched


def test_topology_is_learned_from_metadata_that_passes(kafka: FirstBroker) -> None:
    """The proxy has no credentials, so that it cannot ask by itself."""
    with _proxy(kafka) as front:
        line = front.proxy.wait_for_log("the list of brokers was not received")
        assert "as listeners that require SASL do" in line
        assert "not been reached" not in front.proxy.output
        assert front.proxy.metric("headrace_brokers") == 0
        assert front.proxy.get("/readyz")[0] == 200

        found = _admin(front).list_topics(timeout=DEADLINE_S).brokers
        expected = {(node_id, "127.0.0.1", front.proxy.broker_port(node_id)) for node_id in NODE_IDS}
        assert {(broker.id, broker.host, broker.port) for broker in found.values()} == expected
        assert kafka.addresses(LISTENER) in front.proxy.wait_for_log("brokers changed")
        assert front.proxy.metric("headrace_brokers") == len(NODE_IDS)

        # A client that connects to the broker's own port at the proxy is served there.
        for broker in found.values():
            with WireConnection((broker.host, broker.port)) as connection:
                _log_in(connection, "PLAIN")
                assert _ports(connection.ask(ApiKey.METADATA, METADATA, {"topics": []})) == _ports_of(front)
        _check_log(front.proxy)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_refused_and_others_go_on(secured: Front, mechanism: str) -> None:
    errors: list[KafkaError] = []
    with (
        WireConnection(("127.0.0.1", secured.proxy.port)) as bystander,
        Producer({**_settings(secured, mechanism, WRONG), "error_cb": errors.append}) as producer,
    ):
        _log_in(bystander, "PLAIN")

        def refused() -> bool:
            producer.poll(POLL_S)
            return KafkaError._AUTHENTICATION in [error.code() for error in errors]

        eventually(refused, "the client reports that it could not authenticate", pause_s=0)
        assert _node_ids(bystander.ask(ApiKey.METADATA, METADATA, {"topics": []})) == NODE_IDS
    assert {error.code() for error in errors} <= {KafkaError._AUTHENTICATION, KafkaError._ALL_BROKERS_DOWN}
    assert any("failed" in str(error) for error in errors)
    line = secured.proxy.wait_for_log(f"mechanism={mechanism} ")
    assert "login refused" in line
    assert f"user={NAMES[mechanism]} " in line
    assert "SASL_AUTHENTICATION_FAILED: Authentication failed" in line
    assert _admin(secured, mechanism).list_topics(timeout=DEADLINE_S).brokers.keys() == NODE_IDS


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_headerless_tokens_and_an_ordinary_request_behind_them(secured: Front, mechanism: str) -> None:
    with WireConnection(("127.0.0.1", secured.proxy.port)) as connection:
        _log_in(connection, mechanism)
        reply = connection.ask(ApiKey.METADATA, METADATA, {"topics": []})
        assert _node_ids(reply) == NODE_IDS
        assert _ports(reply) == _ports_of(secured)
        assert connection.ask(ApiKey.API_VERSIONS, 0)["error_code"] == 0


def test_a_token_and_a_request_in_one_piece(secured: Front) -> None:
    request = request_frame(ApiKey.METADATA, METADATA, {"topics": []})
    with WireConnection(("127.0.0.1", secured.proxy.port)) as connection:
        _shake_hands(connection, "PLAIN")
        assert connection.exchange(_framed(_plain_token(*USERS["PLAIN"])) + request) == b""
        reply = read_reply(ApiKey.METADATA, METADATA, connection.exchange(b""))
        assert _ports(reply) == _ports_of(secured)


def test_a_headerless_token_with_a_wrong_password(secured: Front) -> None:
    """Without a header there is no room for an error: the broker hangs up, and so does the proxy."""
    with WireConnection(("127.0.0.1", secured.proxy.port)) as connection:
        _shake_hands(connection, "PLAIN")
        with pytest.raises(EOFError):
            connection.exchange(_framed(_plain_token(USERS["PLAIN"][0], WRONG)))
    assert "(mechanism PLAIN, user alice)" in secured.proxy.wait_for_log("the broker refused the SASL login")
    assert _admin(secured).list_topics(timeout=DEADLINE_S).brokers.keys() == NODE_IDS


@pytest.mark.parametrize("mechanism", ["GSSAPI", "", "PLÄIN"])
def test_an_unsupported_mechanism_is_answered_as_the_broker_does(secured: Front, mechanism: str) -> None:
    request = request_frame(ApiKey.SASL_HANDSHAKE, 0, {"mechanism": mechanism})
    broker = secured.cluster.brokers[0]
    with (
        WireConnection((broker.host, broker.ports[LISTENER])) as direct,
        WireConnection(("127.0.0.1", secured.proxy.port)) as through,
    ):
        answer = through.exchange(request)
        assert answer == direct.exchange(request)
        reply = read_reply(ApiKey.SASL_HANDSHAKE, 0, answer)
        assert reply["error_code"] == UNSUPPORTED_SASL_MECHANISM
        assert set(reply["mechanisms"]) == {*MECHANISMS, "OAUTHBEARER"}
        for connection in (direct, through):
            with pytest.raises(EOFError):
                connection.exchange(b"")


def test_tokens_out_of_place_are_not_logged(secured: Front) -> None:
    """A password may stand where the proxy reads a request, and a connection may end within one."""
    token = _framed(_plain_token(*USERS["PLAIN"]))
    port = secured.proxy.port
    closed = _closed_in_log(secured)
    with WireConnection(("127.0.0.1", port)) as connection, pytest.raises((EOFError, ConnectionResetError)):
        connection.exchange(token)  # no handshake before it
    eventually(lambda: _closed_in_log(secured) > closed, "the proxy logs the connection that it closed")
    closed = _closed_in_log(secured)
    with WireConnection(("127.0.0.1", port)) as connection:
        _shake_hands(connection, "PLAIN")
        connection._socket.sendall(token[:-1])
    eventually(lambda: _closed_in_log(secured) > closed, "the proxy logs the connection that ended in a token")


@contextlib.contextmanager
def _proxy(cluster: FirstBroker) -> Iterator[Front]:
    with ProxyProcess(cluster.addresses(LISTENER), config=HIGH_QUOTAS, arguments=DEBUG_LOG) as proxy:
        yield Front(cluster=cluster, proxy=proxy)


def _check_log(proxy: ProxyProcess) -> None:
    log = proxy.log
    assert log
    for secret in (*SECRETS.values(), WRONG):
        assert secret not in log
        assert base64.b64encode(secret.encode()).decode().rstrip("=") not in log
        assert secret.encode().hex() not in log


def _node_ids(metadata: dict[str, Any]) -> set[int]:
    return {row["node_id"] for row in metadata["brokers"]}


def _ports(metadata: dict[str, Any]) -> set[int]:
    return {row["port"] for row in metadata["brokers"]}


def _ports_of(front: Front) -> set[int]:
    return {front.proxy.broker_port(node_id) for node_id in NODE_IDS}


def _closed_in_log(front: Front) -> int:
    return front.proxy.log.count("connection closed")


def _settings(front: Front, mechanism: str, password: str | None = None) -> dict[str, Any]:
    return _credentials(front.bootstrap_servers, mechanism, password)


def _credentials(bootstrap_servers: str, mechanism: str, password: str | None = None) -> dict[str, Any]:
    name, right = USERS[mechanism]
    return {
        "bootstrap.servers": bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": name,
        "sasl.password": password or right,
    }


def _admin(front: Front, mechanism: str = "PLAIN") -> AdminClient:
    return AdminClient(_settings(front, mechanism))


def _create_topic(front: Front) -> str:
    topic, admin = unique("sasl"), _admin(front)
    admin.create_topics([NewTopic(topic, num_partitions=1)], operation_timeout=DEADLINE_S)[topic].result(DEADLINE_S)
    return topic


def _consumed(front: Front, mechanism: str, topic: str, count: int) -> list[bytes]:
    values: list[bytes] = []
    consumer = Consumer({**_settings(front, mechanism), "group.id": unique("sasl"), "fetch.wait.max.ms": 100})
    with contextlib.closing(consumer):
        consumer.assign([TopicPartition(topic, 0, 0)])

        def all_there() -> bool:
            message = consumer.poll(POLL_S)
            if message is not None:
                assert message.error() is None
                values.append(message.value())
            return len(values) >= count

        eventually(all_there, f"{count} messages", pause_s=0)
    return values


def _log_in(connection: WireConnection, mechanism: str) -> None:
    """As clients did before Kafka 1.0: SaslHandshake v0, and tokens without headers behind it."""
    _shake_hands(connection, mechanism)
    name, password = USERS[mechanism]
    if mechanism == "PLAIN":
        assert connection.exchange(_framed(_plain_token(name, password))) == b""
    else:
        _scram(lambda token: connection.exchange(_framed(token)), HASHES[mechanism], name, password)


def _shake_hands(connection: WireConnection, mechanism: str) -> None:
    reply = connection.ask(ApiKey.SASL_HANDSHAKE, 0, {"mechanism": mechanism})
    assert reply["error_code"] == 0
    assert set(reply["mechanisms"]) == {*MECHANISMS, "OAUTHBEARER"}


def _framed(token: bytes) -> bytes:
    return struct.pack(">i", len(token)) + token


def _plain_token(name: str, password: str) -> bytes:
    return b"\0" + name.encode() + b"\0" + password.encode()


def _scram(exchange: Callable[[bytes], bytes], hash_name: str, name: str, password: str) -> None:
    """RFC 5802, client's side; the server's signature is checked."""
    begin = f"n={name},r=client-nonce".encode()
    challenge = exchange(b"n,," + begin)
    asked = dict(part.split(b"=", 1) for part in challenge.split(b","))
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), base64.b64decode(asked[b"s"]), int(asked[b"i"]))
    without_proof = b"c=biws,r=" + asked[b"r"]
    signed = b",".join((begin, challenge, without_proof))
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), signed, hash_name)
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    answer = exchange(without_proof + b",p=" + base64.b64encode(proof))
    expected = hmac.digest(hmac.digest(salted, b"Server Key", hash_name), signed, hash_name)
    assert answer == b"v=" + base64.b64encode(expected)
