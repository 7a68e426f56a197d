"""Clients that open a new connection to get around a throttle, on a real proxy in front of a real broker."""

from __future__ import annotations

import contextlib
import json
import re
import struct
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka.admin import AdminClient

from benchmarks.bench.cores import thread_meters
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import DEADLINE_S, eventually, unique
from tests.faults import messages
from tests.faults.conftest import leads
from tests.faults.raw_client import ConnectionEndedError, RawClient
from tests.security.planes import NATIVE, NEEDS_ENGINE, native_connections, native_returns, warm_up
from tests.security.quotas.test_unaccepted_clients import CREATE_TOPICS, create_topics, log_in, produce
from tests.shared_cluster import LISTENER, new_topic

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from tests.shared_cluster import FirstBroker

LIMIT: Final = 100_000
REQUEST_BYTES: Final = 50_000
QUOTAS: Final = f"""
[[quotas]]
entity = {{ client-id = "<default>" }}
producer_byte_rate = {LIMIT}
consumer_byte_rate = {LIMIT}
request_percentage = 100.0
controller_mutation_rate = 1.0

[[quotas]]
entity = {{ client-id = "busy" }}
request_percentage = 0.02

[[quotas]]
entity = {{ client-id = "as-in-kafka" }}
producer_byte_rate = {LIMIT}
new_connections = "kafka"
"""
ATTACK_S: Final = 1.0
SOON_S: Final = 15.0
"""Half of the shortest throttle that a login is compared with; a login takes some milliseconds."""
THREADS: Final = 4
"""The threads in which an attack sends its requests."""
OVER: Final = 1.6
"""What may be served at once, of what the limit allows in ten seconds: each thread can be in the
middle of a request when a throttle begins."""


@pytest.fixture(scope="module")
def topic(kafka: FirstBroker) -> str:
    name = unique("reconnects")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([new_topic(name)])[name].result(DEADLINE_S)
    eventually(lambda: leads(admin, name), "the broker leads the topic")
    with RawClient(int(kafka.bootstrap_servers.rpartition(":")[2])) as client:
        for number in range(4):
            client.send(produce(name, "filler", REQUEST_BYTES, number))
            client.reply()
    return name


@pytest.fixture(scope="module")
def proxy(kafka: FirstBroker) -> Iterator[ProxyProcess]:
    with ProxyProcess(kafka.bootstrap_servers, config=QUOTAS) as process:
        yield process


def decisions(proxy: ProxyProcess, client_id: str) -> list[dict[str, object]]:
    """The decisions about ``client_id``, newest first."""
    found: list[dict[str, object]] = json.loads(proxy.get(f"/decisions?client_id={client_id}")[1])["decisions"]
    return found


def was_held(proxy: ProxyProcess, client_id: str, quota: str) -> bool:
    return any((each["kind"], each["quota"]) == ("held", quota) for each in decisions(proxy, client_id))


def attack(port: int, client_id: str, make: Callable[[int], bytes], seconds: float = ATTACK_S) -> int:
    """Send requests, each on a connection of its own, in `THREADS` threads; return how many were answered."""
    deadline_s = time.monotonic() + seconds
    answered = [0] * THREADS

    def run(thread: int) -> None:
        number = thread
        while (left_s := deadline_s - time.monotonic()) > 0.01:
            number += THREADS
            with (
                contextlib.suppress(TimeoutError, ConnectionEndedError, OSError),
                RawClient(port, client_id=client_id, timeout_s=left_s, distinct=False) as client,
            ):
                client.send(make(number))
                client.reply()
                answered[thread] += 1

    threads = [threading.Thread(target=run, args=(each,)) for each in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return sum(answered)


def attack_until_held(proxy: ProxyProcess, client_id: str, frame: bytes) -> tuple[int, float]:
    """Attack for `ATTACK_S`, and for longer until a connection is held, since a busy machine answers few requests.

    Return how many requests were answered, and how many bytes may be served in that time.
    """
    began_s, served = time.monotonic(), 0

    def held() -> bool:
        nonlocal served
        served += attack(proxy.port, client_id, lambda _: frame)
        return any(each["kind"] == "held" for each in decisions(proxy, client_id))

    eventually(held, "a new connection is held", pause_s=0)
    longer_s = max(0.0, time.monotonic() - began_s - 2 * ATTACK_S)
    return served, LIMIT * (10 * OVER + longer_s)


def fetch(topic: str, client_id: str, number: int) -> bytes:
    body = struct.pack(">iiiibii", -1, 100, 1, 1 << 20, 0, 0, -1) + struct.pack(">i", 1) + messages.string(topic)
    body += struct.pack(">iiiqqi", 1, 0, -1, 0, 0, REQUEST_BYTES * 2) + struct.pack(">i", 0) + messages.string("")
    return messages.request(messages.FETCH, messages.FETCH_VERSION, number, body, client_id)


def test_bytes_produced_on_a_connection_each(proxy: ProxyProcess, topic: str) -> None:
    client_id = unique("reconnects")
    frame = produce(topic, client_id, REQUEST_BYTES, 1)
    served, allowed_bytes = attack_until_held(proxy, client_id, frame)
    assert served * REQUEST_BYTES <= allowed_bytes
    assert was_held(proxy, client_id, "producer_byte_rate")


def test_bytes_fetched_on_a_connection_each(proxy: ProxyProcess, topic: str) -> None:
    client_id = unique("reconnects")
    frame = fetch(topic, client_id, 1)
    served, allowed_bytes = attack_until_held(proxy, client_id, frame)
    assert served > 3
    assert served * REQUEST_BYTES <= allowed_bytes


def test_thread_time_on_a_connection_each(proxy: ProxyProcess) -> None:
    """A Metadata costs about 50 us, so 40 of them are the thread time of a window."""
    frame = messages.request(messages.METADATA, messages.METADATA_VERSION, 1, messages.ALL_TOPICS, "busy")
    served, _ = attack_until_held(proxy, "busy", frame)
    assert served < 100
    assert was_held(proxy, "busy", "request_percentage")


@pytest.mark.exhaustive
def test_mutations_of_an_old_client_on_a_connection_each(proxy: ProxyProcess) -> None:
    client_id = unique("reconnects")

    def create(number: int) -> bytes:
        return messages.request(CREATE_TOPICS, 4, number, create_topics(unique("reconnects"), 4), client_id)

    created = attack(proxy.port, client_id, create)
    assert 0 < created * 4 <= 11 + ATTACK_S + THREADS * 4
    assert decisions(proxy, client_id)[0]["kind"] == "held"


IDS_QUOTA: Final = '[[quotas]]\nentity = { user = "<default>" }\nproducer_ids_rate = 5.0\n'


def produce_with_id(frame: bytes, number: int) -> bytes:
    """The Produce ``frame`` with another producer id."""
    at = frame.index(struct.pack(">qhii", -1, -1, -1, 1))
    return frame[:at] + struct.pack(">q", 1000 + number) + frame[at + 8 :]


@pytest.mark.exhaustive
def test_producer_ids_on_a_connection_each(kafka: FirstBroker, topic: str) -> None:
    client_id = unique("reconnects")
    frame = produce(topic, client_id, 100, 1)
    with ProxyProcess(kafka.bootstrap_servers, config=IDS_QUOTA) as proxy:
        served = attack(proxy.port, client_id, partial(produce_with_id, frame), ATTACK_S / 2)
        assert 5 <= served <= 5 + THREADS
        assert decisions(proxy, client_id)[0]["kind"] == "held"


@NEEDS_ENGINE
@pytest.mark.exhaustive
def test_producer_ids_in_requests_that_are_relayed_natively(kafka: FirstBroker, topic: str) -> None:
    """The native data plane reads them. Each of the connections may exceed the limit by one request."""
    client_id, each = unique("ids"), 5
    frame = produce(topic, client_id, 100, 1)
    with ProxyProcess(kafka.bootstrap_servers, config=IDS_QUOTA) as proxy, contextlib.ExitStack() as stack:
        pool = [stack.enter_context(RawClient(proxy.port, client_id=client_id)) for _ in range(10)]
        warm_up(proxy, NATIVE, *pool)
        began_s, served = time.monotonic(), 0
        for number, client in enumerate(pool):
            client.send(b"".join(produce_with_id(frame, number * each + part) for part in range(each)))
        time.sleep(ATTACK_S)
        for client in pool:
            client.sock.settimeout(0.001)
            with contextlib.suppress(TimeoutError):
                for _ in range(each):
                    client.reply()
                    served += 1
        assert 5 <= served <= 5 * (1 + time.monotonic() - began_s) + len(pool)
        assert native_returns(proxy, "credit") >= len(pool)


def test_connections_that_were_opened_before_and_not_used(proxy: ProxyProcess, topic: str) -> None:
    client_id = unique("pool")
    with contextlib.ExitStack() as stack:
        pool = [stack.enter_context(RawClient(proxy.port, client_id=client_id)) for _ in range(60)]
        for client in pool:
            client.call(messages.API_VERSIONS, 0)
        assert 0 < produced_at_once(pool, topic) <= 10 * LIMIT * OVER


@NEEDS_ENGINE
def test_connections_that_are_relayed_natively_share_the_limit(proxy: ProxyProcess, topic: str) -> None:
    """As at a broker, a connection that was used before the throttle may exceed the limit by one request."""
    client_id, returned = unique("pool"), native_returns(proxy, "credit")
    with contextlib.ExitStack() as stack:
        pool = [stack.enter_context(RawClient(proxy.port, client_id=client_id)) for _ in range(10)]
        warm_up(proxy, NATIVE, *pool)
        assert 0 < produced_at_once(pool, topic, 8) <= 10 * LIMIT + (len(pool) + 2) * REQUEST_BYTES
    assert native_returns(proxy, "credit") > returned
    assert decisions(proxy, client_id)


def produced_at_once(pool: list[RawClient], topic: str, each: int = 1) -> float:
    """Let all clients send ``each`` Produce requests at the same time. Return how many bytes were served beyond what
    the limit allows in the time that this takes."""
    frames = produce(topic, pool[0].client_id, REQUEST_BYTES, 1) * each
    began_s, served = time.monotonic(), 0
    for client in pool:
        client.send(frames)
    time.sleep(ATTACK_S)
    for client in pool:
        client.sock.settimeout(0.001)
        with contextlib.suppress(TimeoutError):
            for _ in range(each):
                client.reply()
                served += 1
    return served * REQUEST_BYTES - LIMIT * (time.monotonic() - began_s)


def test_a_log_in_is_not_delayed(kafka: FirstBroker, topic: str) -> None:
    client_id = unique("throttled")
    frame = produce(topic, client_id, 900_000, 1)
    with ProxyProcess(kafka.addresses(LISTENER), config=QUOTAS.replace(f"{LIMIT}", f"{LIMIT // 5}")) as proxy:
        with RawClient(proxy.port, client_id=client_id) as client:
            log_in(client)
            client.send(frame)
            _, reply = client.reply()
            assert struct.unpack(">i", reply[-4:])[0] > 2000 * SOON_S
        began_s = time.monotonic()
        with RawClient(proxy.port, client_id=client_id) as client:
            log_in(client)
            client.call(messages.METADATA, messages.METADATA_VERSION, messages.NO_TOPICS)
            assert time.monotonic() - began_s < SOON_S
            client.send(frame)
            client.sock.settimeout(1.0)
            with pytest.raises(TimeoutError):
                client.reply()
        with RawClient(proxy.port, client_id=unique("other")) as other:
            log_in(other)
            other.send(produce(topic, other.client_id, 1000, 1))
            other.reply()


def test_kafkas_own_behaviour_by_name(proxy: ProxyProcess, topic: str) -> None:
    frame = produce(topic, "as-in-kafka", REQUEST_BYTES, 1)
    begun_s, served = time.monotonic(), 0

    def exceeded() -> bool:
        nonlocal served
        served += attack(proxy.port, "as-in-kafka", lambda _: frame, ATTACK_S / 2)
        return served * REQUEST_BYTES > LIMIT * (10 * OVER + 2 * (time.monotonic() - begun_s))

    eventually(exceeded, "twice the limit is exceeded", pause_s=0)
    assert {each["kind"] for each in decisions(proxy, "as-in-kafka")} == {"throttled"}


@NEEDS_ENGINE
@pytest.mark.exhaustive
def test_threads_of_the_data_plane_share_the_wait(kafka: FirstBroker, topic: str) -> None:
    """Each of two threads relays a connection; together they get the credit of one client, and one request each beyond
    it. Then a new connection waits."""
    client_id = unique("threads")
    frame = produce(topic, client_id, REQUEST_BYTES, 1)
    arguments = ("--data-plane", NATIVE, "--data-plane-threads", "2")
    with (
        ProxyProcess(kafka.bootstrap_servers, config=QUOTAS, arguments=arguments) as proxy,
        contextlib.ExitStack() as stack,
    ):
        clients = [stack.enter_context(RawClient(proxy.port, client_id=client_id)) for _ in range(2)]
        warm_up(proxy, NATIVE, *clients)
        meters = thread_meters(proxy.pid, "headrace-data-")
        before_s = [each.cpu_s for each in meters]
        for client in clients:
            assert is_answered(client, produce(topic, client_id, 1000, 1))
        assert native_connections(proxy) == 2
        assert [each.cpu_s > before for each, before in zip(meters, before_s, strict=True)] == [True, True]
        began_s, served = time.monotonic(), 0
        for client in clients:  # the first one uses up the credit, of which the second one's thread has heard nothing
            client.send(frame * 20)
            while is_answered(client):
                served += 1
        assert 15 < served <= (10 + time.monotonic() - began_s) * LIMIT / REQUEST_BYTES + len(clients)
        with RawClient(proxy.port, client_id=client_id) as new:
            assert not is_answered(new, frame)
        assert was_held(proxy, client_id, "producer_byte_rate")


def is_answered(client: RawClient, frame: bytes = b"") -> bool:
    """Send a request, if there is one; return whether the next reply arrives within half a second."""
    client.sock.settimeout(0.5)
    try:
        client.send(frame)
        client.reply()
    except TimeoutError:
        return False
    return True


def test_a_random_mix_beside_an_honest_client(proxy: ProxyProcess, topic: str, rng: random.Random) -> None:
    """Each thread cheats in ways of its own; the honest client, with another client id, is never throttled."""
    cheat, honest = unique("mix"), unique("honest")
    whole, small = (produce(topic, client_id, size, 1) for client_id, size in ((cheat, REQUEST_BYTES), (honest, 500)))
    fetched = fetch(topic, cheat, 1)
    frames = rng.choices([whole, whole, fetched, whole[: len(whole) // 2]], k=50)

    def rate() -> float:
        page = proxy.get("/metrics")[1]
        rates = re.findall(rf'^headrace_quota_byte_rate{{client_id="{cheat}",.*}} (\S+)$', page, re.MULTILINE)
        return max(map(float, rates), default=0.0)

    def cheat_until_measured() -> None:
        eventually(lambda: attack(proxy.port, cheat, lambda number: frames[number % 50]) and rate(), "a rate")

    with RawClient(proxy.port, client_id=honest) as client:
        attacker = threading.Thread(target=cheat_until_measured)
        attacker.start()
        while attacker.is_alive():
            client.send(small)
            _, reply = client.reply()
            assert struct.unpack(">i", reply[-4:]) == (0,)
            time.sleep(0.02)
        attacker.join()
    assert not decisions(proxy, honest)
    assert 0 < rate() <= LIMIT * OVER
