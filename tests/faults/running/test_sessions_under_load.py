"""Sessions of clients expire every few seconds (KIP-368) while they produce and consume: no request fails.

Where the brokers authenticate clients, and where the proxy does; there its own sessions with brokers expire, too.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka.admin import AdminClient

from headrace.proxy.data_plane.native import is_installed
from testbed.proxy_process import ProxyProcess
from tests.clients.java_clients import JavaClients
from tests.clients.tls.proxies import users_file
from tests.clients.users.sasl_clients import JAVA_VERSION, java_settings, librdkafka_settings
from tests.faults.metrics import series
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback, events
from tests.faults.steady_clients import SteadyGroup, SteadyProducer, read_all
from tests.faults.waiting import wait_until
from tests.shared_cluster import SECRETS, SESSION_MS, SHORT_SESSIONS, new_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from confluent_kafka import KafkaError

    from tests.shared_cluster import FirstBroker

USER: Final = "bob"
QUICK: Final = 2
"""How often each connection authenticates again in the quick form."""
LONG: Final = 15
TIMEOUT_S: Final = 30.0
OPEN: Final = "headrace_connections"
ACCEPTED: Final = "headrace_connections_accepted_total"
LOGINS: Final = 'headrace_requests_total{api="SaslAuthenticate"}'


@dataclass
class Errors:
    """What a client of librdkafka reports beside the results of requests, such as connections that were lost."""

    reported: list[str] = field(default_factory=list)

    def note(self, error: KafkaError) -> None:
        self.reported.append(str(error))


@contextlib.contextmanager
def observing(kafka: FirstBroker, _folder: Path) -> Iterator[ProxyProcess]:
    """A proxy in front of a listener with ``connections.max.reauth.ms``."""
    with ProxyProcess(kafka.addresses(SHORT_SESSIONS), arguments=JSON_LOG) as proxy:
        yield proxy


def terminated(folder: Path) -> str:
    """Return the configuration of a proxy that authenticates clients itself, for as long."""
    return (
        f'[listen.sasl]\nmode = "terminate"\nmechanisms = ["PLAIN"]\nsession_lifetime = "{SESSION_MS}ms"\n'
        f'[plugins.options.sasl_users]\nfile = "{users_file(folder)}"\n'
    )


@contextlib.contextmanager
def terminating(kafka: FirstBroker, folder: Path) -> Iterator[ProxyProcess]:
    with ProxyProcess(kafka.bootstrap_servers, config=terminated(folder), arguments=JSON_LOG) as proxy:
        yield proxy


@contextlib.contextmanager
def logging_in(kafka: FirstBroker, folder: Path) -> Iterator[ProxyProcess]:
    """A proxy that also authenticates to a listener with ``connections.max.reauth.ms`` itself, as another user."""
    (folder / "password").write_text(SECRETS["alice"], encoding="ascii")
    login = f'mechanism = "PLAIN"\nuser = "alice"\npassword = {{ file = "{folder / "password"}" }}\n'
    config = f"{terminated(folder)}[upstream.sasl]\n{login}"
    with ProxyProcess(kafka.addresses(SHORT_SESSIONS), config=config, arguments=JSON_LOG) as proxy:
        yield proxy


WAYS: Final = {"observing": observing, "terminating": terminating, "logging in": logging_in}


@pytest.fixture
def topics(kafka: FirstBroker) -> Iterator[list[str]]:
    """Topics of one partition for each way."""
    names = [f"sessions-{uuid.uuid4().hex[:8]}" for _ in WAYS]
    client = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for created in client.create_topics([new_topic(name) for name in names]).values():
        created.result(TIMEOUT_S)
    yield names
    for deleted in client.delete_topics(names).values():
        deleted.result(TIMEOUT_S)


def wait_for_sessions(proxy: ProxyProcess, count: int) -> None:
    """Wait until the sessions that there are now have ended ``count`` times, on the same connections."""
    connections, ended, logins = proxy.metric(OPEN), proxy.metric(ACCEPTED) - proxy.metric(OPEN), series(proxy, LOGINS)
    wait_until(
        lambda: series(proxy, LOGINS) >= logins + count * connections,
        f"{count} logins on each of {connections:g} connections",
        TIMEOUT_S + count * SESSION_MS / 1000,
        poll_s=0.1,
    )
    assert proxy.metric(ACCEPTED) - proxy.metric(OPEN) == ended, "no connection has ended"


def no_faults(proxy: ProxyProcess) -> None:
    assert proxy.metric("headrace_errors_total") == 0
    assert_no_traceback(proxy)
    closed = [event for event in events(proxy) if event["event"] in ("connection closed", "login refused")]
    assert closed == []


def run_clients(kafka: FirstBroker, folder: Path, topics: list[str], count: int) -> None:
    """Run a producer and a group through each proxy until their sessions have ended ``count`` times."""
    with contextlib.ExitStack() as stack:
        found: list[tuple[ProxyProcess, SteadyProducer, SteadyGroup, Errors]] = []
        for (name, run), topic in zip(WAYS.items(), topics, strict=True):
            errors = Errors()
            proxy = stack.enter_context(run(kafka, folder))
            servers = proxy.bootstrap_servers
            settings: dict[str, Any] = librdkafka_settings(servers, "PLAIN", USER, SECRETS[USER])
            settings |= {"error_cb": errors.note, "client.id": name}
            producer = stack.enter_context(SteadyProducer(servers, topic, 1, settings))
            found.append((proxy, producer, stack.enter_context(SteadyGroup(servers, topic, settings)), errors))
        for _, _, group, _ in found:
            wait_until(lambda group=group: len(group.read) > 0, "the group reads", TIMEOUT_S)
        for proxy, _, _, _ in found:
            wait_until(
                lambda proxy=proxy: proxy.metric("headrace_native_connections") >= is_installed(), "it is native"
            )
            wait_for_sessions(proxy, count)
        since_s = time.monotonic()
        for _, producer, group, _ in found:
            wait_until(
                lambda producer=producer: producer.acknowledged_everywhere_since(since_s), "the producer goes on"
            )
            written = len(producer.acknowledged)
            wait_until(lambda group=group, written=written: len(group.read) >= written, "the group has read it")
        for proxy, *_ in found:
            no_faults(proxy)
    for (_, producer, group, errors), topic in zip(found, topics, strict=True):
        assert producer.failed == []
        assert errors.reported == []
        assert set(group.read.values()) == {1}
        assert read_all(kafka.bootstrap_servers, topic, 1) == dict.fromkeys(sorted(producer.acknowledged), 1)


@pytest.mark.exhaustive
def test_librdkafka_loses_nothing(kafka: FirstBroker, tmp_path: Path, topics: list[str]) -> None:
    run_clients(kafka, tmp_path, topics, QUICK)


@pytest.mark.soak
def test_librdkafka_loses_nothing_for_a_minute(kafka: FirstBroker, tmp_path: Path, topics: list[str]) -> None:
    run_clients(kafka, tmp_path, topics, LONG)


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", WAYS)
def test_java_loses_nothing(kafka: FirstBroker, tmp_path: Path, topics: list[str], way: str) -> None:
    sent: list[bytes] = []
    read: list[bytes] = []
    topic = topics[0]
    with WAYS[way](kafka, tmp_path) as proxy:
        java = JavaClients(JAVA_VERSION, proxy.bootstrap_servers)
        login = java_settings("PLAIN", USER, SECRETS[USER])
        with (
            java.producer(enable_idempotence=True, **login) as producer,
            java.consumer(**login) as consumer,
        ):
            consumer.assign([java.partition(topic)])
            logins = series(proxy, LOGINS)

            def step() -> bool:
                value = str(len(sent)).encode()
                java.send(producer, topic, [value])
                sent.append(value)
                read.extend(bytes(each.value()) for each in consumer.poll(java.seconds(0.05)))
                return series(proxy, LOGINS) >= logins + 10

            wait_until(step, "the clients have authenticated ten times", TIMEOUT_S + 10 * SESSION_MS / 1000)
            read += java.read(consumer, len(sent) - len(read)) if len(read) < len(sent) else []
        no_faults(proxy)
    assert read == sent
