"""Attacks on the quotas of topics, on a real proxy in front of a real broker with an authorizer."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.quota_callbacks.api_keys import ApiKey
from testbed.kafka.cluster import KafkaCluster
from testbed.kafka.properties import MAIN_LISTENER, Listener, plain_jaas
from testbed.proxy_process import ProxyProcess
from tests.clients.client_quotas.test_denied import AUTHORIZER
from tests.clients.fronts import DEADLINE_S, unique
from tests.clients.wire_connection import WireConnection, read_reply, request_frame
from tests.faults import messages
from tests.faults.conftest import leads
from tests.faults.waiting import wait_until
from tests.shared_cluster import LISTENER, NOT_FENCED, SECRETS

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.exhaustive  # a broker of its own

LIMIT: Final = 20_000
USERS: Final = SECRETS | {name: f"correct-horse-{name}" for name in ("dave", "eve", "frank")}
"""Of these, bob and eve may do nothing. Who was throttled waits with the next connection: tests use different ones."""
VERSION: Final = 9
TOPIC_AUTHORIZATION_FAILED: Final = 29
INVALID_RECORD: Final = 87
MORE_THAN_ARE_KEPT: Final = 4097
CONFIG: Final = f"""
[plugins.options.topic_quotas]
enabled = true
[[quotas]]
entity = {{ topic = "<default>" }}
producer_byte_rate = {LIMIT}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    """A broker with `USERS`."""
    listener = Listener(name=LISTENER, protocol="SASL_PLAINTEXT", sasl={"PLAIN": plain_jaas(USERS)})
    users = "User:ANONYMOUS;User:alice;User:carol;User:dave;User:frank"
    own = {"authorizer.class.name": AUTHORIZER, "super.users": users}
    with KafkaCluster(brokers=1, config={**own, **NOT_FENCED}, listeners=[listener]) as found:
        yield found


@pytest.fixture(scope="module")
def proxy(cluster: KafkaCluster) -> Iterator[ProxyProcess]:
    with ProxyProcess(cluster.addresses(LISTENER), config=CONFIG) as process:
        yield process


@pytest.fixture
def topic(cluster: KafkaCluster) -> str:
    name = unique("orders")
    client = AdminClient({"bootstrap.servers": cluster.addresses(MAIN_LISTENER)})
    client.create_topics([NewTopic(name, 1, 1)])[name].result(DEADLINE_S)
    wait_until(lambda: leads(client, name), "the broker leads the topic")
    return name


class Sender(WireConnection):
    """A connection of a user that has authenticated."""

    def __init__(self, proxy: ProxyProcess, user: str) -> None:
        super().__init__(("127.0.0.1", proxy.port))
        self.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        token = f"\0{user}\0{USERS[user]}".encode()
        assert self.ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token})["error_code"] == 0

    def produce(self, topic: str, size: int, fakes: int = 0) -> tuple[int, int]:
        """Produce to partition 0, behind ``fakes`` empty partitions of a topic that does not exist; return error code
        and throttle time."""
        answer = read_reply(ApiKey.PRODUCE, VERSION, self.exchange(produced(topic, size, fakes=fakes)))
        (row,) = answer["responses"][-1]["partition_responses"]
        return row["error_code"], answer["throttle_time_ms"]

    def leave_after(self, frame: bytes) -> None:
        """Send a frame, and close the connection without waiting for a reply."""
        self._socket.sendall(frame)


def produced(topic: str, size: int, *, fakes: int = 0, acks: int = 1) -> bytes:
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": messages.batch(bytes(size))}]}]
    if fakes:
        empty = [{"index": number, "records": b""} for number in range(fakes)]
        rows.insert(0, {"name": "fake", "partition_data": empty})
    message = {"acks": acks, "timeout_ms": 30_000, "topic_data": rows}
    return request_frame(ApiKey.PRODUCE, VERSION, message)


def test_a_client_without_permission_uses_up_nothing_of_a_topics_quota(proxy: ProxyProcess, topic: str) -> None:
    for _ in range(3):
        with Sender(proxy, "bob") as bob:
            assert bob.produce(topic, 900_000) == (TOPIC_AUTHORIZATION_FAILED, 0)
    with Sender(proxy, "alice") as alice:
        assert alice.produce(topic, 1000) == (0, 0)


def test_nor_does_it_without_waiting_for_the_reply(proxy: ProxyProcess, topic: str) -> None:
    """A broker closes the connection of a Produce with acks=0 that it refuses, so each needs a new one."""
    for acks in (0, 1):
        with Sender(proxy, "eve") as eve:
            eve.leave_after(produced(topic, 900_000, acks=acks))
    wait_until(lambda: 'sender="eve"' in proxy.get("/metrics")[1], "what eve sent is charged to herself")
    with Sender(proxy, "alice") as alice:
        assert alice.produce(topic, 1000) == (0, 0)


def test_fake_partitions_hide_no_real_one(proxy: ProxyProcess, topic: str) -> None:
    with Sender(proxy, "carol") as carol:
        code, throttle_ms = carol.produce(topic, 45 * LIMIT, fakes=MORE_THAN_ARE_KEPT)
    assert code == 0
    assert throttle_ms > 5000


def test_a_partition_that_is_listed_twice_is_charged(proxy: ProxyProcess, topic: str) -> None:
    """The broker appends the first part, and its reply has the error of the second one, which is empty."""
    parts = [{"index": 0, "records": messages.batch(bytes(15 * LIMIT))}, {"index": 0, "records": b""}]
    message = {"acks": 1, "timeout_ms": 30_000, "topic_data": [{"name": topic, "partition_data": parts}]}
    with Sender(proxy, "frank") as frank:
        answer = read_reply(ApiKey.PRODUCE, VERSION, frank.exchange(request_frame(ApiKey.PRODUCE, VERSION, message)))
    (row,) = answer["responses"][-1]["partition_responses"]
    assert row["error_code"] == INVALID_RECORD
    assert answer["throttle_time_ms"] > 0
    with Sender(proxy, "alice") as alice:
        code, _ = alice.produce(topic, 1)
    assert code == 0


def was_held(proxy: ProxyProcess, user: str) -> bool:
    return any(each["kind"] == "held" for each in json.loads(proxy.get(f"/decisions?user={user}")[1])["decisions"])


def test_a_connection_for_each_request_gains_nothing(proxy: ProxyProcess, topic: str) -> None:
    began_s = time.monotonic()
    with Sender(proxy, "dave") as dave:
        code, throttle_ms = dave.produce(topic, 15 * LIMIT)
    assert (code, throttle_ms > 0) == (0, True)
    with Sender(proxy, "alice") as alice:
        assert alice.produce(topic, 1)[0] == 0
    assert not was_held(proxy, "alice"), "another user's new connection does not wait"
    with Sender(proxy, "dave") as dave:
        assert dave.produce(topic, 1)[0] == 0
    assert was_held(proxy, "dave")
    assert time.monotonic() - began_s > throttle_ms / 2000


def test_invented_names_have_no_buckets(proxy: ProxyProcess) -> None:
    before = proxy.resident_bytes
    with Sender(proxy, "alice") as alice:
        for number in range(5):
            rows = [
                {
                    "name": f"{number}-{row}-".ljust(32_000, "x"),
                    "partition_data": [{"index": 0, "records": messages.batch(b"")}],
                }
                for row in range(300)
            ]
            alice.ask(ApiKey.PRODUCE, VERSION, {"acks": 1, "timeout_ms": 30_000, "topic_data": rows})
    assert proxy.resident_bytes - before < 40 << 20, "of 48 MiB of names"
