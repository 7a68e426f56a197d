"""Attacks by clients that the broker has not accepted, or that promise more than they send, on a real proxy in front of
a real broker. None may pass a limit, and none may charge another's."""

from __future__ import annotations

import contextlib
import json
import struct
import time
from typing import TYPE_CHECKING, Final

import pytest

from headrace.quota_callbacks.api_keys import ApiKey
from tests.clients.fronts import Front, eventually, unique
from tests.faults import messages
from tests.faults.metrics import series
from tests.faults.raw_client import ConnectionEndedError, RawClient
from tests.faults.waiting import wait_until
from tests.security.planes import NATIVE, NEEDS_ENGINE, native_connections, native_returns, warm_up
from tests.security.topics import create_topic
from tests.shared_cluster import LISTENER, SECRETS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.security.secured import Security
    from tests.shared_cluster import FirstBroker

USER: Final = "alice"
QUOTAS: Final = """
[[quotas]]
entity = { client-id = "<default>" }
producer_byte_rate = 100000
controller_mutation_rate = 1.0
request_percentage = 50.0
"""
PACED: Final = """
[[quotas]]
entity = { client-id = "<default>" }
producer_byte_rate = 100000
enforcement = "paced"
"""
REQUEST_BYTES: Final = 50_000
BYTES_PER_S: Final = 100_000
WINDOW_BYTES: Final = BYTES_PER_S * 11
"""More than this within a window of eleven seconds is throttled."""
PROMISED_BYTES: Final = 10 * 1024 * 1024
"""A broker sets aside what is promised, and the heap of the one in these tests is small."""
ILLEGAL_SASL_STATE: Final = 34
CREATE_TOPICS: Final = ApiKey.CREATE_TOPICS
SASL_AUTHENTICATE: Final = ApiKey.SASL_AUTHENTICATE


@pytest.fixture(scope="module")
def open_front(security: Security, kafka: FirstBroker) -> Iterator[Front]:
    """A proxy in front of a listener that serves every client."""
    with security.proxy(kafka.bootstrap_servers, config=QUOTAS) as proxy:
        yield Front(cluster=kafka.cluster, proxy=proxy)


@pytest.fixture(scope="module")
def sasl_front(security: Security, kafka: FirstBroker) -> Iterator[Front]:
    """A proxy in front of a listener that wants a log-in."""
    with security.proxy(kafka.addresses(LISTENER), config=QUOTAS) as proxy:
        yield Front(cluster=kafka.cluster, proxy=proxy)


@pytest.fixture(params=[False, True], ids=["open", "sasl"])
def sasl(request: pytest.FixtureRequest) -> bool:
    """Whether the brokers want a log-in."""
    return bool(request.param)


@pytest.fixture
def front(request: pytest.FixtureRequest, security: Security, sasl: bool) -> Front:
    found: Front = request.getfixturevalue("sasl_front" if sasl else "open_front")
    return found


@pytest.fixture(scope="module")
def topic(kafka: FirstBroker) -> str:
    return create_topic(kafka, "attacked")


def produce(topic: str, client_id: str, records_bytes: int, number: int, acks: int = 1) -> bytes:
    """A Produce v7 frame with one batch of about ``records_bytes``."""
    records = messages.batch(bytes(records_bytes))
    body = struct.pack(">hhi", -1, acks, 30_000) + struct.pack(">i", 1) + messages.string(topic)
    body += struct.pack(">iii", 1, 0, len(records)) + records
    return messages.request(messages.PRODUCE, 7, number, body, client_id)


def create_topics(name: str, partitions: int) -> bytes:
    """The body of a CreateTopics v4."""
    row = messages.string(name) + struct.pack(">ihii", partitions, 1, 0, 0)
    return struct.pack(">i", 1) + row + struct.pack(">iB", 30_000, 0)


def log_in(client: RawClient) -> None:
    client.call(messages.SASL_HANDSHAKE, 1, messages.string("PLAIN"))
    reply = client.call(SASL_AUTHENTICATE, 0, messages.plain_token(USER, SECRETS[USER]))
    assert struct.unpack_from(">h", reply) == (0,)


def was_throttled(front: Front, client_id: str) -> bool:
    """Whether a quota has decided anything about ``client_id``."""
    page = json.loads(front.proxy.get(f"/decisions?client_id={client_id}")[1])
    return bool(page["decisions"])


def assert_unharmed(front: Front, topic: str, client_id: str, *, sasl: bool) -> None:
    """``client_id`` itself receives no throttle time, neither for bytes nor for mutations."""
    with RawClient(front.proxy.port, client_id=client_id) as client:
        if sasl:
            log_in(client)
        client.send(produce(topic, client_id, 1000, 100))
        _, reply = client.reply()
        assert struct.unpack(">i", reply[-4:]) == (0,), "throttled for bytes"
        reply = client.call(CREATE_TOPICS, 4, create_topics(unique("own"), 1))
        assert struct.unpack_from(">i", reply) == (0,), "throttled for mutations"
    assert not was_throttled(front, client_id)


@pytest.mark.parametrize(
    "mechanism",
    [
        "PLAIN",
        *(
            pytest.param(each, marks=pytest.mark.exhaustive)
            for each in ("MADE-UP", "SCRAM-SHA-256", "GSSAPI", "OAUTHBEARER")
        ),
    ],
)
def test_produce_behind_a_refused_handshake_is_held_to_the_limit(open_front: Front, topic: str, mechanism: str) -> None:
    """SaslHandshake v0 must not make the proxy take requests for tokens before the broker has agreed."""
    client_id = unique("smuggler")
    handshake = messages.request(messages.SASL_HANDSHAKE, 0, 1, messages.string(mechanism), client_id)
    frames = [produce(topic, client_id, REQUEST_BYTES, number) for number in range(2, 40)]
    begin_s, before = time.monotonic(), open_front.requests("Produce")
    with RawClient(open_front.proxy.port, client_id=client_id, timeout_s=5.0) as client:
        with contextlib.suppress(TimeoutError):
            client.send(b"".join([handshake, *frames]))  # at once, so that the proxy reads them together
        client.sock.settimeout(20.0)
        answered, reply = client.reply()
        assert (answered, struct.unpack_from(">h", reply)) == (1, (ILLEGAL_SASL_STATE,))
        client.sock.settimeout(1.0)
        served = 0
        with contextlib.suppress(TimeoutError):
            while True:
                client.reply()
                served += 1
        eventually(lambda: was_throttled(open_front, client_id), "a decision")
    allowed_bytes = WINDOW_BYTES + BYTES_PER_S * (time.monotonic() - begin_s)
    assert served <= allowed_bytes / REQUEST_BYTES + 1
    assert open_front.requests("Produce") - before >= served, "none of them was taken for a token"


def test_metadata_behind_a_handshake_names_the_proxy(open_front: Front) -> None:
    with RawClient(open_front.proxy.port, client_id=unique("spy")) as client:
        client.send(
            messages.request(messages.SASL_HANDSHAKE, 0, 1, messages.string("PLAIN"))
            + messages.request(messages.METADATA, 1, 2, messages.NO_TOPICS)
        )
        assert client.reply()[0] == 1
        assert_names_the_proxy(open_front, client.reply()[1])


def test_what_is_behind_a_handshake_is_read_when_the_broker_has_agreed(sasl_front: Front) -> None:
    """All of it arrives at once: the handshake, the token that follows it without a header, and a request."""
    with RawClient(sasl_front.proxy.port, client_id=unique("early")) as client:
        client.send(
            messages.request(messages.SASL_HANDSHAKE, 0, 1, messages.string("PLAIN"))
            + messages.plain_token(USER, SECRETS[USER])
            + messages.request(messages.METADATA, 1, 2, messages.NO_TOPICS)
        )
        assert client.reply()[0] == 1
        assert client.receive(4) == bytes(4), "the broker's token is empty"
        assert_names_the_proxy(sasl_front, client.reply()[1])


def assert_names_the_proxy(front: Front, reply: bytes) -> None:
    """The first broker of a Metadata v1 has the port that the proxy has for it."""
    node_id, host_bytes = struct.unpack_from(">ih", reply, 4)
    assert struct.unpack_from(">i", reply, 10 + host_bytes) == (front.proxy.broker_port(node_id),)


def test_a_promised_produce_is_charged_to_nobody(front: Front, topic: str, sasl: bool) -> None:
    """A head of some 30 bytes that promises 10 MiB, of connections that never send the rest."""
    victim = unique("victim")
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            attacker = stack.enter_context(RawClient(front.proxy.port, client_id=victim))
            if sasl:
                log_in(attacker)
            attacker.send(promise(victim))
        assert_unharmed(front, topic, victim, sasl=sasl)
    assert_unharmed(front, topic, victim, sasl=sasl)


@NEEDS_ENGINE
def test_promises_that_are_relayed_natively_are_charged_to_nobody(open_front: Front, topic: str) -> None:
    """Each is within the credit of a window, so that the native data plane forwards it; together they are not."""
    victim, proxy = unique("victim"), open_front.proxy
    with contextlib.ExitStack() as stack:
        attackers = [stack.enter_context(RawClient(proxy.port, client_id=victim)) for _ in range(3)]
        warm_up(proxy, NATIVE, *attackers)
        before = open_front.requests("Produce")
        for attacker in attackers:
            attacker.send(promise(victim, 9 * BYTES_PER_S))
        eventually(lambda: open_front.requests("Produce") >= before + len(attackers), "all have begun")
        assert native_connections(proxy) == len(attackers)
        assert_unharmed(open_front, topic, victim, sasl=False)
        assert native_connections(proxy) == len(attackers)
    assert_unharmed(open_front, topic, victim, sasl=False)


def promise(client_id: str, size: int = PROMISED_BYTES) -> bytes:
    """The head of a Produce request."""
    head = struct.pack(">ihhi", size, messages.PRODUCE, 7, 1) + messages.string(client_id)
    return head + struct.pack(">hhi", -1, 1, 30_000)


def test_a_promised_produce_has_no_place_in_a_paced_quota(security: Security, kafka: FirstBroker, topic: str) -> None:
    """Accepted clients name the client id of another one, which would have to wait for five minutes."""
    victim = unique("victim")
    with (
        security.proxy(kafka.bootstrap_servers, config=PACED) as proxy,
        contextlib.ExitStack() as stack,
        RawClient(proxy.port, client_id=victim) as client,
    ):
        for _ in range(3):
            attacker = stack.enter_context(RawClient(proxy.port, client_id=victim))
            attacker.call(messages.METADATA, 1, messages.NO_TOPICS)
            attacker.send(promise(victim))
        wait_until(lambda: series(proxy, 'headrace_requests_total{api="Produce"}') >= 3, "the proxy has read the heads")
        client.send(produce(topic, victim, 1000, 100))
        assert client.reply()[0] == 100
        page = json.loads(proxy.get(f"/decisions?client_id={victim}")[1])
        assert page["decisions"] == []


def test_create_topics_without_a_log_in_costs_nobody(sasl_front: Front, topic: str) -> None:
    victim = unique("victim")
    for _ in range(3):
        with RawClient(sasl_front.proxy.port, client_id=victim) as attacker:
            attacker.request(CREATE_TOPICS, 4, create_topics("made-up", 9000))
            with pytest.raises(ConnectionEndedError):
                attacker.reply()
    assert_unharmed(sasl_front, topic, victim, sasl=True)


@pytest.mark.parametrize("acks", [0, 1])
def test_produce_without_a_log_in_costs_nobody(sasl_front: Front, topic: str, acks: int) -> None:
    victim = unique("victim")
    for _ in range(3):
        with RawClient(sasl_front.proxy.port, client_id=victim) as attacker:
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                attacker.send(produce(topic, victim, 900_000, 1, acks))
            assert attacker.rest() == b""
    assert_unharmed(sasl_front, topic, victim, sasl=True)


@pytest.mark.parametrize("mechanism", ["PLAIN", pytest.param("SCRAM-SHA-256", marks=pytest.mark.exhaustive)])
def test_produce_behind_an_unfinished_log_in_costs_nobody(sasl_front: Front, topic: str, mechanism: str) -> None:
    """A broker answers a request in the middle of a log-in, with an error, before it closes the connection."""
    victim = unique("victim")
    for _ in range(10):
        with RawClient(sasl_front.proxy.port, client_id=victim) as attacker, contextlib.suppress(ConnectionEndedError):
            attacker.call(messages.SASL_HANDSHAKE, 1, messages.string(mechanism))
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                attacker.send(produce(topic, victim, 400_000, 1))
            attacker.rest()
    assert_unharmed(sasl_front, topic, victim, sasl=True)


def test_produce_without_acks_is_held_to_the_limit_from_the_first_request_on(
    front: Front, topic: str, sasl: bool
) -> None:
    """It has no reply that could prove that the broker accepts its sender."""
    client_id = unique("silent")
    with RawClient(front.proxy.port, client_id=client_id) as client:
        if sasl:
            log_in(client)
        for number in range(2):
            client.send(produce(topic, client_id, 900_000, number, acks=0))
        eventually(lambda: was_throttled(front, client_id), "a decision")


def test_a_produce_that_comes_in_pieces_is_charged_once_it_is_whole(open_front: Front, topic: str) -> None:
    client_id = unique("slow")
    first, frame = (produce(topic, client_id, 900_000, number) for number in (1, 2))
    with RawClient(open_front.proxy.port, client_id=client_id) as client:
        client.send(first)
        client.reply()
        client.send(frame[:-1])
        assert not any(was_throttled(open_front, client_id) for _ in range(20))
        client.send(frame[-1:])
        client.reply()
    assert was_throttled(open_front, client_id)


@NEEDS_ENGINE
def test_a_produce_whose_credit_is_used_up_meanwhile_is_charged_once_it_is_whole(open_front: Front, topic: str) -> None:
    """The native data plane has begun to forward it when another connection of the client uses up the credit."""
    client_id, proxy = unique("slow"), open_front.proxy
    frame, quick = (produce(topic, client_id, size, 1) for size in (8 * BYTES_PER_S, 5 * BYTES_PER_S))
    with (
        RawClient(proxy.port, client_id=client_id, buffer_bytes=64 * 1024) as client,
        RawClient(proxy.port, client_id=client_id) as other,
    ):
        warm_up(proxy, NATIVE, client, other)
        returned = native_returns(proxy, "credit")
        client.send(frame[:-1])  # more than the buffers take, so the proxy has read most of it when this returns
        other.send(quick)
        other.reply()
        assert native_connections(proxy) == 2
        assert not was_throttled(open_front, client_id)
        client.send(frame[-1:])
        client.reply()
        assert native_returns(proxy, "credit") > returned
    assert was_throttled(open_front, client_id)
