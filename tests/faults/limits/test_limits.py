"""The caps of `[limits]`: what is over them waits, or is turned away with one log line, and the rest goes on.

A fake broker holds replies back for as long as a test wants, which a real one does not.
"""

from __future__ import annotations

import contextlib
import signal
import struct
from typing import TYPE_CHECKING

import psutil
import pytest

from headrace.proxy.data_plane.native import EXTENSION, is_installed
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.bystander import Bystander
from tests.faults.fake_broker import HEARTBEAT_REPLY
from tests.faults.holding_broker import HoldingBroker
from tests.faults.metrics import series
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback, events, line_of, wait_for_events
from tests.faults.raw_client import ConnectionEndedError, RawClient
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_IN_FLIGHT = 20
MAX_FRAME_BYTES = 1 << 20


@pytest.fixture(scope="module")
def broker() -> Iterator[HoldingBroker]:
    holding = HoldingBroker()
    with holding.fake:
        yield holding


@contextlib.contextmanager
def proxy_configured(broker: HoldingBroker, config: str) -> Iterator[ProxyProcess]:
    with ProxyProcess(broker.fake.address, config=config, arguments=JSON_LOG) as proxy:
        proxy.wait_for_log("brokers changed")
        yield proxy
        assert_no_traceback(proxy)


def proxy_with(broker: HoldingBroker, limits: str) -> contextlib.AbstractContextManager[ProxyProcess]:
    return proxy_configured(broker, f"[limits]\n{limits}\n")


def heartbeat(client: RawClient) -> None:
    client.request(messages.HEARTBEAT, 1, messages.heartbeat_body())


def is_served(client: RawClient) -> bool:
    try:
        client.call(messages.API_VERSIONS, 0)
    except (ConnectionEndedError, BrokenPipeError, ConnectionResetError):
        return False
    return True


@pytest.mark.parametrize(
    "data_plane",
    [
        "python",
        pytest.param("native", marks=pytest.mark.skipif(not is_installed(), reason=f"{EXTENSION} is not built")),
    ],
)
def test_beyond_max_in_flight_requests_a_client_waits_and_loses_nothing(broker: HoldingBroker, data_plane: str) -> None:
    config = f'data_plane = "{data_plane}"\n[limits]\nmax_in_flight_requests = {MAX_IN_FLIGHT}\n'
    answered, asked = 10, 5 * MAX_IN_FLIGHT
    with proxy_configured(broker, config) as proxy, RawClient(proxy.port, client_id="held") as client:
        broker.allow(answered)
        for number in range(1, answered + 1):  # one after the other: only then is a connection relayed natively
            heartbeat(client)
            assert client.reply() == (number, HEARTBEAT_REPLY)
        assert proxy.metric("headrace_native_connections") == (data_plane == "native")
        before = broker.read - answered
        with Bystander(proxy.port) as bystander:
            for _ in range(asked - answered):
                heartbeat(client)
            wait_until(lambda: broker.read - before >= answered + MAX_IN_FLIGHT, "the broker has read what it may get")
            bystander.wait_for_answers()
            assert broker.read - before == answered + MAX_IN_FLIGHT
            broker.allow(3)
            for number in range(answered + 1, answered + 4):
                assert client.reply() == (number, HEARTBEAT_REPLY)
            wait_until(lambda: broker.read - before >= answered + MAX_IN_FLIGHT + 3, "three more have got room")
            bystander.wait_for_answers()
            assert broker.read - before == answered + MAX_IN_FLIGHT + 3
            broker.allow(asked - answered - 3)
            for number in range(answered + 4, asked + 1):
                assert client.reply() == (number, HEARTBEAT_REPLY)
            bystander.wait_for_answers()


def test_max_connections_turns_away_who_comes_last(broker: HoldingBroker) -> None:
    with (
        proxy_with(broker, "max_connections = 3\nmax_connections_per_ip = 0") as proxy,
        contextlib.ExitStack() as stack,
    ):
        clients = [stack.enter_context(RawClient(proxy.port)) for _ in range(3)]
        assert all(is_served(client) for client in clients)
        with RawClient(proxy.port) as refused:
            assert not is_served(refused)
        line = line_of(proxy, refused.name)
        assert line["event"] == "connection refused"
        assert line["reason"] == "limits.max_connections = 3 is reached"
        assert series(proxy, 'headrace_connections_refused_total{limit="max_connections"}') == 1
        assert all(is_served(client) for client in clients)
        clients[0].close()
        wait_until(lambda: series(proxy, "headrace_connections") == 2, "the proxy has noticed that one left")
        with RawClient(proxy.port) as next_one:
            assert is_served(next_one)


def test_max_connections_per_ip_counts_each_address_by_itself(broker: HoldingBroker) -> None:
    with proxy_with(broker, "max_connections_per_ip = 2") as proxy, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(proxy.port)) for _ in range(2)]
        assert all(is_served(client) for client in clients)
        with RawClient(proxy.port) as refused, RawClient(proxy.port, source="127.0.0.2") as other:
            assert not is_served(refused)
            assert is_served(other)
        line = line_of(proxy, refused.name)
        assert line["reason"] == "limits.max_connections_per_ip = 2 is reached"
        clients[0].close()
        wait_until(lambda: series(proxy, "headrace_connections") == 1, "the proxy has noticed who left")
        with RawClient(proxy.port) as next_one:
            assert is_served(next_one)


@pytest.mark.parametrize("setting", ["max_connections", "max_connections_per_ip"])
def test_a_limit_holds_when_many_connect_at_once(broker: HoldingBroker, setting: str) -> None:
    """While the proxy is stopped the kernel takes connections for it; it then finds all of them in one go."""
    per_ip = "max_connections_per_ip = 0\n" if setting == "max_connections" else ""
    with proxy_with(broker, f"{per_ip}{setting} = 5") as proxy, contextlib.ExitStack() as stack:
        process = psutil.Process(proxy.pid)
        proxy.signal(signal.SIGSTOP)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED, "the proxy is stopped")
        clients = [stack.enter_context(RawClient(proxy.port)) for _ in range(40)]
        proxy.signal(signal.SIGCONT)
        served = [client for client in clients if is_served(client)]
        assert len(served) == 5
        refused = wait_for_events(proxy, "connection refused")
        assert len(refused) == 1, "a flood is one line a minute, and counted"
        assert proxy.metric("headrace_connections_refused_total") == 35
        assert refused[0]["peer"] in {each.name for each in clients} - {each.name for each in served}


@pytest.mark.exhaustive
def test_idle_timeout_closes_silent_connections_only(broker: HoldingBroker) -> None:
    before = broker.read
    with (
        proxy_with(broker, 'idle_timeout = "3s"') as proxy,  # the bystander must not be idle for as long
        Bystander(proxy.port) as bystander,
        RawClient(proxy.port) as idle,
        RawClient(proxy.port) as silent,
        RawClient(proxy.port, client_id="held") as waiting,
    ):
        heartbeat(waiting)
        wait_until(lambda: broker.read == before + 1, "the request is in flight")
        assert is_served(idle)
        assert idle.rest() == b""
        assert silent.rest() == b""
        bystander.wait_for_answers()
        broker.allow(1)
        assert waiting.reply() == (1, HEARTBEAT_REPLY)
        assert not [event for event in events(proxy) if event["level"] != "info"]


def test_a_request_of_max_frame_bytes_passes(broker: HoldingBroker) -> None:
    with (
        proxy_with(broker, f"max_frame_bytes = {MAX_FRAME_BYTES}") as proxy,
        RawClient(proxy.port) as client,
    ):
        head = struct.pack(">hhih", messages.HEARTBEAT, 1, 7, -1)
        client.send(messages.frame(head + bytes(MAX_FRAME_BYTES - len(head))))
        assert client.reply() == (7, HEARTBEAT_REPLY)


def test_max_collected_bytes_ends_the_connection_whose_message_is_longer(broker: HoldingBroker) -> None:
    with (
        proxy_with(broker, 'max_collected_bytes = "4KiB"') as proxy,
        Bystander(proxy.port) as bystander,
        bystander.watching(),
        RawClient(proxy.port, client_id="large") as client,
    ):
        client.request(messages.METADATA, messages.METADATA_VERSION, messages.NO_TOPICS)
        assert client.rest() == b""
        line = line_of(proxy, client.name)
        assert line["reason"].startswith("upstream: ")
        assert "longer than limits.max_collected_bytes = 4096" in line["reason"]
        assert line["request"] == "Metadata v2 #1"


def test_without_file_descriptors_new_clients_wait_and_the_others_go_on(broker: HoldingBroker) -> None:
    few = ("prlimit", "--nofile=40:40")
    config = "[limits]\nmax_connections_per_ip = 0\n"
    with (
        ProxyProcess(broker.fake.address, config=config, arguments=JSON_LOG, command_prefix=few, node_ids="0") as proxy,
        Bystander(proxy.port) as bystander,
        bystander.watching(),
        contextlib.ExitStack() as stack,
    ):
        clients = [stack.enter_context(RawClient(proxy.port)) for _ in range(40)]
        proxy.wait_for_log("accepting is paused")
        bystander.wait_for_answers()
        for client in clients[:-1]:
            client.close()
        assert is_served(clients[-1])
        assert "Traceback" not in proxy.log
