"""`limits.max_connection_age`: connections end one after the other, and clients that go on lose and notice nothing."""

from __future__ import annotations

import contextlib
import time
import warnings
from typing import TYPE_CHECKING

import pytest

from testbed.proxy_process import ProxyProcess
from tests.clients.java_clients import JavaClients
from tests.faults import messages
from tests.faults.metrics import series
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback
from tests.faults.raw_client import RawClient
from tests.faults.steady_clients import SteadyGroup, SteadyProducer, read_all
from tests.faults.waiting import wait_until

with warnings.catch_warnings():
    # kafka-python 3.0.12 reads its schemas, as it is imported, by a function that Python 3.11 deprecates.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.shared_cluster import FirstBroker

AGE_S = 2
AGED = "headrace_connections_aged_total"
LONGEST_S = 90.0


@contextlib.contextmanager
def proxy_with_age(kafka: FirstBroker, more: str = "") -> Iterator[ProxyProcess]:
    config = f'[limits]\nmax_connection_age = "{AGE_S}s"\n{more}'
    with ProxyProcess(kafka.bootstrap_servers, config=config, arguments=JSON_LOG) as proxy:
        yield proxy
        assert proxy.metric("headrace_errors_total") == 0
        assert_no_traceback(proxy)


def wait_for_ends(proxy: ProxyProcess, count: int, step: Callable[[], object] = lambda: None) -> None:
    """Repeat ``step`` until ``count`` connections have ended by their age."""

    def ended() -> bool:
        step()
        return proxy.metric(AGED) >= count

    wait_until(ended, f"{count} connections have ended", LONGEST_S)


@pytest.mark.exhaustive
def test_librdkafka_loses_and_repeats_nothing(kafka: FirstBroker, topic: str) -> None:
    """A producer that always has requests in flight, and a group that always has a long poll in flight."""
    with proxy_with_age(kafka) as proxy:
        with (
            SteadyProducer(proxy.bootstrap_servers, topic, 1) as producer,
            SteadyGroup(proxy.bootstrap_servers, topic) as group,
        ):
            wait_for_ends(proxy, 10)
            begun_s = time.monotonic()
            wait_until(lambda: producer.acknowledged_everywhere_since(begun_s), "the producer goes on")
            written = len(producer.acknowledged)
            wait_until(lambda: len(group.read) >= written, "the group has read it")
        assert producer.failed == []
        assert set(group.read.values()) == {1}
        assert read_all(kafka.bootstrap_servers, topic, 1) == dict.fromkeys(sorted(producer.acknowledged), 1)


@pytest.mark.exhaustive
def test_java_loses_and_repeats_nothing(kafka: FirstBroker, topic: str) -> None:
    sent: list[bytes] = []
    read: list[bytes] = []
    with proxy_with_age(kafka) as proxy:
        java = JavaClients("4.3.1", proxy.bootstrap_servers)
        with java.producer(enable_idempotence=True) as producer, java.consumer() as consumer:
            consumer.assign([java.partition(topic)])

            def step() -> None:
                value = str(len(sent)).encode()
                java.send(producer, topic, [value])
                sent.append(value)
                read.extend(bytes(each.value()) for each in consumer.poll(java.seconds(0.05)))

            wait_for_ends(proxy, 6, step)
            read += java.read(consumer, len(sent) - len(read)) if len(read) < len(sent) else []
    assert read == sent


@pytest.mark.exhaustive
def test_kafka_python_loses_and_repeats_nothing(kafka: FirstBroker, topic: str) -> None:
    sent: list[bytes] = []
    read: list[bytes] = []
    with proxy_with_age(kafka) as proxy, contextlib.ExitStack() as stack:
        servers = proxy.bootstrap_servers
        producer = KafkaProducer(bootstrap_servers=servers, enable_idempotence=True)
        stack.callback(producer.close)
        consumer = KafkaConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest")
        stack.callback(consumer.close)

        def poll() -> None:
            read.extend(each.value for rows in consumer.poll(50).values() for each in rows)

        def step() -> None:
            value = str(len(sent)).encode()
            producer.send(topic, value).get(20)
            sent.append(value)
            poll()

        def all_read() -> bool:
            poll()
            return len(read) >= len(sent)

        wait_for_ends(proxy, 12, step)
        wait_until(all_read, "all is read")
    assert read == sent


@pytest.mark.exhaustive
def test_a_transaction_goes_on_over_its_connections(kafka: FirstBroker, topic: str) -> None:
    count = 0
    with proxy_with_age(kafka) as proxy:
        java = JavaClients("4.3.1", proxy.bootstrap_servers)
        with java.producer(transactional_id=topic, enable_idempotence=True) as producer:
            producer.initTransactions()
            producer.beginTransaction()

            def step() -> None:
                nonlocal count
                java.send(producer, topic, [b"x"])
                count += 1

            wait_for_ends(proxy, 4, step)
            producer.commitTransaction()
        assert len(java.received(topic, count, isolation_level="read_committed")) == count


@pytest.mark.exhaustive
def test_a_muted_client_stays_connected_until_the_end_of_its_mute(kafka: FirstBroker, topic: str) -> None:
    quota = '[[quotas]]\nentity = { client-id = "muted" }\nproducer_byte_rate = 10_000\n'
    body = messages.produce_body(topic, messages.batch(bytes(160_000)))
    with proxy_with_age(kafka, quota) as proxy, RawClient(proxy.port, client_id="muted") as client:
        began_s = time.monotonic()
        reply = client.call(messages.PRODUCE, messages.PRODUCE_VERSION, body)
        throttle_s = messages.read_produce_reply(reply).throttle_ms / 1000
        assert throttle_s > 2 * AGE_S
        assert client.rest() == b""
        assert time.monotonic() - began_s >= throttle_s
        assert proxy.metric(AGED) == 1


@pytest.mark.exhaustive
def test_a_reload_applies_to_connections_that_are_open(kafka: FirstBroker) -> None:
    with ProxyProcess(kafka.bootstrap_servers, arguments=JSON_LOG) as proxy, RawClient(proxy.port) as client:
        client.call(messages.METADATA, messages.METADATA_VERSION, messages.NO_TOPICS)
        proxy.reload('[limits]\nmax_connection_age = "100ms"\n')
        assert client.rest() == b""
        assert series(proxy, AGED) == 1
