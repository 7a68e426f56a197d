"""Thousands of broken frames: the proxy keeps running, logs at most one line for each, and serves all other clients."""

from __future__ import annotations

import collections
import contextlib
import random
import select
import struct
import time
from random import Random
from typing import TYPE_CHECKING

import pytest

from testbed.kafka.cluster import KafkaCluster
from testbed.proxy_process import ProxyProcess
from tests.faults.bystander import Bystander
from tests.faults.fake_broker import FakeBroker
from tests.faults.protocol.mutations import mutated, valid_reply, valid_request
from tests.faults.proxy_log import JSON_LOG, events
from tests.faults.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faults.fake_broker import Asked, Conversation

SHORT_S = 3.0
ROUND_S = 20.0
ROUNDS = 5
"""Each has a proxy of its own: connections to one are distinguished by their ports, of which there are 28,000."""
LEAST = 50
"""Number of connections below which a run would mean little, however slow the machine is."""
ANSWER_S = 0.2
"""How long to wait for a reply that may not come: a client that gets none, or is muted by one, leaves."""
OUT_OF_RANGE = "outside the range of a listener"
"""The log events that a broken Metadata may cause."""

CONFIG = """
[limits]
max_frame_bytes = "1MiB"
per_ip_exempt = ["127.0.0.1"]

[[quotas]]
entity = { client-id = "fuzz" }
producer_byte_rate = "1GiB"
consumer_byte_rate = "1GiB"
"""


def new_random() -> tuple[int, Random]:
    """A seed that follows from pytest-randomly's, and what it seeds."""
    seed = random.getrandbits(32)
    return seed, Random(seed)  # noqa: S311


def send_in_pieces(source: Random, client: RawClient, data: bytes) -> None:
    at = 0
    while at < len(data):
        size = source.choice((1, 3, 7, 50, 1000, 1 << 20))
        client.send(data[at : at + size])
        at += size


def converse(source: Random, port: int) -> None:
    """A few requests over one connection, at least one of them broken; then the end of it, whatever was answered."""
    frames = [valid_request(source, number) for number in range(source.randint(1, 4))]
    broken = source.randrange(len(frames))
    frames[broken] = mutated(source, frames[broken])
    with RawClient(port) as client:
        with contextlib.suppress(OSError):  # the proxy may be quicker to close
            send_in_pieces(source, client, b"".join(frames))
            client.half_close()
        client.rest()


def assert_unharmed(proxy: ProxyProcess, seed: int) -> None:
    assert "Traceback" not in proxy.log, f"seed {seed}: {proxy.log[-4000:]}"
    logged = events(proxy)
    errors = [event for event in logged if event["level"] == "error" and OUT_OF_RANGE not in event["event"]]
    assert not errors, f"seed {seed}: {errors}"
    lines = collections.Counter(event["peer"] for event in logged if event["event"] == "connection closed")
    assert set(lines.values()) == {1}, f"seed {seed}: {lines.most_common(3)}"
    assert proxy.get("/livez")[0] == 200


def assert_requests_do_no_harm(cluster: KafkaCluster, duration_s: float) -> None:
    seed, source = new_random()
    with (
        ProxyProcess(cluster.bootstrap_servers, config=CONFIG, arguments=JSON_LOG) as proxy,
        Bystander(proxy.port) as bystander,
        bystander.watching(),
    ):
        end_s, count = time.monotonic() + duration_s, 0
        while time.monotonic() < end_s or count <= LEAST:
            converse(source, proxy.port)
            count += 1
            assert bystander.error is None, f"seed {seed}, after {count} connections: {bystander.error!r}"
        assert_unharmed(proxy, seed)


class FuzzingBroker:
    """Answers with what a broker would send, broken."""

    def __init__(self, source: Random) -> None:
        self.answers = 0
        self._source = source
        self.fake = FakeBroker({"fuzz": self._answer})

    def _answer(self, conversation: Conversation, asked: Asked) -> None:
        frame = valid_reply(asked.api_key, asked.api_version, asked.correlation_id)
        if len(frame) > 12 and self._source.random() < 0.8:  # the correlation id stays, so that the body is looked at
            body = mutated(self._source, b"\0\0\0\0" + frame[8:])[4:]
            frame = struct.pack(">i", 4 + len(body)) + frame[4:8] + body
        else:
            frame = mutated(self._source, frame)
        self.answers += 1
        conversation.send(frame)  # and close; a throttle time that comes out of it keeps the client muted


def assert_replies_do_no_harm(duration_s: float) -> None:
    seed, source = new_random()
    broker = FuzzingBroker(source)
    with (
        broker.fake,
        ProxyProcess(broker.fake.address, config=CONFIG, arguments=JSON_LOG) as proxy,
        Bystander(proxy.port) as bystander,
        bystander.watching(),
    ):
        end_s = time.monotonic() + duration_s
        while time.monotonic() < end_s or broker.answers <= LEAST:
            with RawClient(proxy.port) as client:
                client.send(valid_request(source, 1))
                select.select([client.sock], [], [], ANSWER_S)  # an answer, or the end of the connection
                with contextlib.suppress(OSError):
                    client.half_close()
                client.rest()
            assert bystander.error is None, f"seed {seed}, after {broker.answers} answers: {bystander.error!r}"
        assert_unharmed(proxy, seed)


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    """Its broker may come to harm. It is not fenced for a pause of some seconds, so that clients keep it.

    Its id is one that a mutation hardly makes: a bit turns a Produce into an UnregisterBroker of the broker 0.
    """
    with KafkaCluster(node_ids=[6], config={"broker.session.timeout.ms": 60_000}) as own:
        yield own


@pytest.mark.exhaustive
def test_broken_requests_do_no_harm(cluster: KafkaCluster) -> None:
    assert_requests_do_no_harm(cluster, SHORT_S)


def test_broken_replies_do_no_harm() -> None:
    assert_replies_do_no_harm(SHORT_S)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_broken_requests_do_no_harm_for_minutes(cluster: KafkaCluster) -> None:
    for _ in range(ROUNDS):
        assert_requests_do_no_harm(cluster, ROUND_S)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_broken_replies_do_no_harm_for_minutes() -> None:
    for _ in range(ROUNDS):
        assert_replies_do_no_harm(ROUND_S)
