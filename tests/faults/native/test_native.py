"""Connections that are relayed natively are counted, charged, drained and ended as others are."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from typing import TYPE_CHECKING, Final

import pytest

from benchmarks.bench.cores import thread_meters
from headrace.proxy.data_plane.native import EXTENSION, is_installed
from headrace.quota_callbacks.api_keys import ApiKey
from testbed.preloaded_command import run_headrace
from testbed.proxy_process import ProxyProcess
from tests.clients.tls.proxies import users_file
from tests.faults import messages
from tests.faults.fake_broker import HEARTBEAT_REPLY, FakeBroker, reset_after_ten
from tests.faults.metrics import series
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback
from tests.faults.raw_client import ConnectionEndedError, RawClient
from tests.faults.waiting import wait_until
from tests.security.floods.test_stalling_clients import is_cut_off
from tests.shared_cluster import SECRETS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.faults.fake_broker import Asked, Conversation
    from tests.shared_cluster import FirstBroker

pytestmark = pytest.mark.skipif(not is_installed(), reason=f"{EXTENSION} is not built")

PLANES: Final = ("native", "python")
IMPATIENT: Final = '[limits]\nrequest_timeout = "1s"\n'
"""Timeouts are checked twice a second, too. For small requests, which arrive at once, however busy the machine is."""
HIGH: Final = (
    '[[quotas]]\nentity = { client-id = "<default>" }\n'
    "producer_byte_rate = 1e9\nconsumer_byte_rate = 1e9\nrequest_percentage = 1e6\n"
    '[[quotas]]\nentity = { user = "<default>" }\nproducer_ids_rate = 1000\n'
)
BATCH: Final = messages.batch(bytes(20_000))
FORGETS_NOTHING: Final = "[quota.window]\nsize.seconds = 60\n"
"""Eleven minutes, and the limit is that of ten: longer than any test."""


@contextlib.contextmanager
def proxy_of(bootstrap_servers: str, config: str = "", plane: str = "native") -> Iterator[ProxyProcess]:
    arguments = (*JSON_LOG, "--data-plane", plane)
    with ProxyProcess(bootstrap_servers, config=config, arguments=arguments, has_token=True) as proxy:
        yield proxy
        assert_no_traceback(proxy)
        assert "beyond the credit" not in proxy.log


def beat(client: RawClient, count: int = 1) -> None:
    for _ in range(count):
        assert client.call(messages.HEARTBEAT, 1, messages.heartbeat_body()) == HEARTBEAT_REPLY


def become_native(proxy: ProxyProcess, client: RawClient) -> None:
    beat(client, 10)
    assert proxy.metric("headrace_native_connections") == 1


def produce(client: RawClient, topic: str) -> messages.ProduceReply:
    body = messages.produce_body(topic, BATCH)
    return messages.read_produce_reply(client.call(messages.PRODUCE, messages.PRODUCE_VERSION, body))


@pytest.fixture(scope="module")
def broker() -> Iterator[FakeBroker]:
    def held(conversation: Conversation, asked: Asked) -> None:
        """Answer ten requests, and the eleventh when the test allows it."""
        for _ in range(10):
            conversation.reply(asked, HEARTBEAT_REPLY)
            asked = conversation.next()
        reached.set()
        assert may_answer.wait(30)
        conversation.reply(asked, HEARTBEAT_REPLY)
        conversation.wait_for_end()

    def deaf(conversation: Conversation, asked: Asked) -> None:
        """Answer ten requests, and read nothing more."""
        for _ in range(9):
            conversation.reply(asked, HEARTBEAT_REPLY)
            asked = conversation.next()
        conversation.reply(asked, HEARTBEAT_REPLY)
        conversation.broker.stopping.wait(60)

    with FakeBroker({"held": held, "killed": reset_after_ten, "deaf": deaf}) as fake:
        yield fake


reached, may_answer = threading.Event(), threading.Event()


@pytest.fixture(scope="module")
def proxy(broker: FakeBroker) -> Iterator[ProxyProcess]:
    with proxy_of(broker.address) as process:
        yield process


def test_what_is_counted_is_the_same(kafka: FirstBroker, topic: str) -> None:
    names = ("headrace_requests_total", "headrace_bytes_total", "headrace_errors_total")
    found = {}
    with RawClient(int(kafka.bootstrap_servers.rpartition(":")[2])) as client:
        for _ in range(2):  # a reply has the beginning of the next batch, too
            produce(client, topic)
    for plane in PLANES:
        with proxy_of(kafka.bootstrap_servers, HIGH, plane) as proxy, RawClient(proxy.port) as client:
            for _ in range(20):
                reply = produce(client, topic)
                assert (reply.error_code, reply.throttle_ms) == (0, 0)
                body = messages.fetch_body(topic, max_bytes=20_100)
                read = client.call(messages.FETCH, messages.FETCH_VERSION, body)
                assert messages.read_fetch_reply(read) == (0, 0)
            native = proxy.metric("headrace_native_connections")
            assert native == (plane == "native")
            sent, received = client.bytes_sent, client.bytes_received
            expected = [("in", "client", sent), ("out", "client", received)]
            for direction, side, count in expected:
                name = f'headrace_bytes_total{{direction="{direction}",side="{side}"}}'
                wait_until(lambda name=name, count=count: series(proxy, name) == count, name)  # type: ignore[misc]
            wait_until(lambda: proxy.metric(names[0]) == 40, "all requests are counted")
            found[plane] = [*proxy.metrics(*names), sent, received]
    assert found["native"] == found["python"]


def test_a_quota_that_binds_gives_kafkas_throttle(kafka: FirstBroker, topic: str) -> None:
    """The fifteenth request is the first one beyond 14 requests in 10 s."""
    size = 4 + len(messages.produce_body(topic, BATCH)) + 13 - 4
    for plane in PLANES:
        limit = size * 14 // 10 + 1
        quota = f'[[quotas]]\nentity = {{ client-id = "<default>" }}\nproducer_byte_rate = {limit}\n'
        with proxy_of(kafka.bootstrap_servers, quota, plane) as proxy, RawClient(proxy.port) as client:
            began_s = time.monotonic()
            assert [produce(client, topic).throttle_ms for _ in range(14)] == [0] * 14
            throttle_ms = produce(client, topic).throttle_ms
            took_ms = (time.monotonic() - began_s) * 1000
            longest_ms = 15 * size / limit * 1000 - 10_000
            assert longest_ms - 2 * took_ms - 10 <= throttle_ms <= longest_ms + 1


@pytest.mark.parametrize("threads", [1, 2])
def test_all_threads_relay_and_charge_one_quota(kafka: FirstBroker, topic: str, threads: int) -> None:
    """The fifteenth request is the first one beyond the limit, whichever connections and threads the others came by."""
    size = 4 + len(messages.produce_body(topic, BATCH)) + 13 - 4
    limit = size * 14 // 600 + 1
    quota = f'[[quotas]]\nentity = {{ client-id = "<default>" }}\nproducer_byte_rate = {limit}\n'
    config = f'data_plane_threads = {threads}\n{FORGETS_NOTHING}{quota}new_connections = "kafka"\n'
    with proxy_of(kafka.bootstrap_servers, config) as proxy, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(proxy.port)) for _ in range(20)]
        for client in clients:
            for _ in range(10):
                client.call(messages.HEARTBEAT, 1, messages.heartbeat_body())
        assert series(proxy, "headrace_connections") == len(clients)
        meters = thread_meters(proxy.pid, "headrace-data-")
        before_s = [each.cpu_s for each in meters]
        throttled = [produce(client, topic).throttle_ms > 0 for client in clients]
        assert throttled == [False] * 14 + [True] * 6
        assert len(meters) == threads
        assert all(each.cpu_s > before for each, before in zip(meters, before_s, strict=True)), "each relays some"


def test_paced_requests_are_not_native(kafka: FirstBroker, topic: str) -> None:
    quota = '[[quotas]]\nentity = { client-id = "<default>" }\nproducer_byte_rate = 1e9\nenforcement = "paced"\n'
    with proxy_of(kafka.bootstrap_servers, quota) as proxy, RawClient(proxy.port) as client:
        for _ in range(20):
            produce(client, topic)
        assert proxy.metric("headrace_native_connections") == 0


def test_enforcement_is_switched_while_a_connection_is_native(kafka: FirstBroker, topic: str) -> None:
    """The eleventh request is the first one beyond the limit."""
    quota = '[[quotas]]\nentity = { client-id = "<default>" }\nproducer_byte_rate = 350\n'

    def switch(state: str) -> None:
        arguments = ("--admin", process.admin, "--token-file", str(process.token_file))
        assert run_headrace("enforcement", state, *arguments).returncode == 0

    with proxy_of(kafka.bootstrap_servers, FORGETS_NOTHING + quota) as process, RawClient(process.port) as client:
        switch("off")
        assert {produce(client, topic).throttle_ms for _ in range(30)} == {0}
        assert process.metric("headrace_native_connections") == 1
        switch("on")
        wait_until(lambda: process.metric("headrace_native_connections") == 0, "the connection has returned")
        throttled = [produce(client, topic).throttle_ms > 0 for _ in range(11)]
        assert throttled == [False] * 10 + [True], "nothing was charged while enforcement was off"


def test_a_lowered_quota_applies_to_a_native_connection(kafka: FirstBroker, topic: str) -> None:
    quota = FORGETS_NOTHING + '[[quotas]]\nentity = {{ client-id = "<default>" }}\nproducer_byte_rate = {}\n'
    with proxy_of(kafka.bootstrap_servers, quota.format(1e9)) as proxy, RawClient(proxy.port) as client:
        assert {produce(client, topic).throttle_ms for _ in range(20)} == {0}
        assert proxy.metric("headrace_native_connections") == 1
        proxy.reload(quota.format(350))
        wait_until(lambda: proxy.metric("headrace_native_connections") == 0, "the connection has returned")
        assert produce(client, topic).throttle_ms > 300_000  # 21 requests of 20 kB are twice what ten minutes permit


def test_a_quota_of_another_client_leaves_a_connection_native(kafka: FirstBroker, topic: str) -> None:
    quota = '[[quotas]]\nentity = {{ client-id = "{}" }}\nproducer_byte_rate = {}\n'
    with proxy_of(kafka.bootstrap_servers, quota.format("<default>", 1e9)) as proxy, RawClient(proxy.port) as client:
        assert {produce(client, topic).throttle_ms for _ in range(20)} == {0}
        numbers = ("headrace_native_connections", "headrace_native_returns_total")
        before = proxy.metrics(*numbers)
        assert before[0] == 1
        proxy.reload(quota.format("<default>", 1e9) + quota.format("another", 350))
        proxy.wait_for_log("configuration changed")
        assert {produce(client, topic).throttle_ms for _ in range(20)} == {0}
        assert proxy.metrics(*numbers) == before


@pytest.mark.parametrize("ahead", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_connection_is_native_until_it_is_old(broker: FakeBroker, ahead: int) -> None:
    """Also one of a client that has always sent bytes of the next request."""
    with proxy_of(broker.address, '[limits]\nmax_connection_age = "3s"\n') as proxy, RawClient(proxy.port) as client:
        become_native(proxy, client)
        client.send(messages.request(messages.HEARTBEAT, 1, 99, messages.heartbeat_body())[:ahead])
        assert client.rest() == b"", "it ends in an orderly way"
        wait_until(lambda: proxy.metric("headrace_connections_aged_total") == 1, "it is counted")
        assert series(proxy, 'headrace_native_returns_total{reason="recalled"}') == 1
        assert proxy.metric("headrace_errors_total") == 0


@pytest.mark.exhaustive
def test_a_connection_is_native_until_its_session_ends(broker: FakeBroker, tmp_path: Path) -> None:
    config = '[listen.sasl]\nmode = "terminate"\nmechanisms = ["PLAIN"]\nsession_lifetime = "10s"\n'
    config += f'[plugins.options.sasl_users]\nfile = "{users_file(tmp_path)}"\n'
    with proxy_of(broker.address, config) as proxy, RawClient(proxy.port) as client:
        client.call(messages.SASL_HANDSHAKE, 1, messages.string("PLAIN"))
        client.call(ApiKey.SASL_AUTHENTICATE, 1, messages.plain_token("alice", SECRETS["alice"]))
        proved_s = time.monotonic()
        become_native(proxy, client)
        with contextlib.suppress(ConnectionEndedError):
            while time.monotonic() < proved_s + 30:
                beat(client)
        assert proved_s + 9.5 <= time.monotonic() < proved_s + 30
        proxy.wait_for_log("its session has expired")
        assert series(proxy, 'headrace_native_returns_total{reason="request"}') == 1


def test_a_killed_broker_ends_the_connection(proxy: ProxyProcess) -> None:
    with RawClient(proxy.port, client_id="killed") as client:
        beat(client, 10)
        client.request(messages.HEARTBEAT, 1, messages.heartbeat_body())
        assert client.rest() == b""
    wait_until(lambda: series(proxy, 'headrace_errors_total{fault="upstream"}') >= 1, "the fault is the broker's")


def test_a_slow_request_is_ended(broker: FakeBroker) -> None:
    """Also one of which a byte comes now and then, which is no progress."""
    frame = messages.request(messages.HEARTBEAT, 1, 99, messages.heartbeat_body() + bytes(300))
    with (
        proxy_of(broker.address, IMPATIENT) as proxy,
        RawClient(proxy.port) as client,
        RawClient(proxy.port) as dribbling,
    ):
        become_native(proxy, client)
        client.send(frame[:-1])
        assert client.rest() == b""
        become_native(proxy, dribbling)
        dribbling.sock.settimeout(0.1)
        assert is_cut_off(dribbling, frame)
        proxy.wait_for_log("a request arrives too slowly")


def test_spliced_bytes_are_counted_while_a_connection_is_native(proxy: ProxyProcess) -> None:
    before = proxy.metric("headrace_spliced_bytes_total")
    with RawClient(proxy.port) as client:
        become_native(proxy, client)
        client.call(messages.HEARTBEAT, 1, messages.heartbeat_body() + bytes(200_000))
        assert proxy.metric("headrace_spliced_bytes_total") > before
        assert proxy.metric("headrace_native_connections") == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("plane", ["native", "python"])
def test_a_client_that_leaves_while_the_broker_reads_nothing_is_noticed(broker: FakeBroker, plane: str) -> None:
    """Its end is behind requests that the proxy does not read, and the time for a reply is an hour by default."""
    received = 'headrace_bytes_total{direction="in",side="client"}'
    with proxy_of(broker.address, "[limits]\nmax_in_flight_requests = 1000\n", plane) as proxy:
        with RawClient(proxy.port, client_id="deaf") as client:
            beat(client, 10)
            before = series(proxy, received) - client.bytes_sent
            with contextlib.suppress(AssertionError):  # until the proxy does not read any more
                while True:
                    client.request(messages.HEARTBEAT, 1, messages.heartbeat_body() + bytes(60_000))
                    sent = before + client.bytes_sent
                    wait_until(lambda sent=sent: series(proxy, received) == sent, "it was read", timeout_s=1.0)
        wait_until(lambda: proxy.metric("headrace_connections") == 0, "the connection has ended")


def test_a_request_that_breaks_the_protocol_is_reported_as_usual(proxy: ProxyProcess) -> None:
    with RawClient(proxy.port) as client:
        become_native(proxy, client)
        client.send(b"\0\0\0\x02\0\0")
        assert client.rest() == b""
    proxy.wait_for_log("a frame of 2 bytes is shorter than a header")


@pytest.mark.exhaustive
def test_an_idle_connection_ends(broker: FakeBroker) -> None:
    with (
        proxy_of(broker.address, IMPATIENT + 'idle_timeout = "5s"\n') as proxy,
        RawClient(proxy.port) as client,
    ):
        become_native(proxy, client)
        assert client.rest() == b""
        assert proxy.metric("headrace_errors_total") == 0


def test_a_drain_answers_what_is_in_flight(broker: FakeBroker) -> None:
    with proxy_of(broker.address) as proxy, RawClient(proxy.port, client_id="held") as client:
        beat(client, 10)
        client.request(messages.HEARTBEAT, 1, messages.heartbeat_body())
        assert reached.wait(30)
        assert proxy.metric("headrace_native_connections") == 1
        assert proxy.metric("headrace_requests_in_flight") == 1
        proxy.signal(signal.SIGTERM)
        wait_until(lambda: "drain" in proxy.log, "the proxy drains")
        may_answer.set()
        assert client.reply()[1] == HEARTBEAT_REPLY
        assert client.rest() == b""
        assert proxy.wait(15) == 0
