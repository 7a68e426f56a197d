"""Floods on a proxy with few file descriptors or little memory: served clients are served, and accepting resumes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import pytest

from headrace.quota_callbacks.api_keys import ApiKey
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.bystander import Bystander
from tests.faults.metrics import series
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback, events, wait_for_events
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until
from tests.security.floods.test_connection_limits import connect, is_served

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shared_cluster import FirstBroker

DESCRIPTORS: Final = 160
FEW: Final = ("prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}")
ATTACKERS: Final = tuple(f"127.0.0.{number}" for number in range(3, 9))
CREATE_TOPICS: Final = ApiKey.CREATE_TOPICS
PAUSED: Final = "headrace_accept_paused_seconds_total"


@contextlib.contextmanager
def proxy_with(kafka: FirstBroker, limits: str = "", prefix: tuple[str, ...] = ()) -> Iterator[ProxyProcess]:
    config = f"[limits]\n{limits}\n"
    with ProxyProcess(
        kafka.bootstrap_servers, config=config, arguments=JSON_LOG, command_prefix=prefix, node_ids="0-2"
    ) as proxy:
        yield proxy
        assert_no_traceback(proxy)


@pytest.mark.exhaustive
def test_a_flood_leaves_served_clients_served_and_accepting_goes_on(kafka: FirstBroker) -> None:
    """Many more connections than descriptors, of which every other one is served and needs a second descriptor."""
    with (
        proxy_with(kafka, prefix=FEW) as proxy,
        Bystander(proxy.port) as bystander,
        bystander.watching(),
        contextlib.ExitStack() as stack,
    ):
        [silent] = connect(stack, proxy.port, "127.0.0.2", 1)
        flood = []
        for source in ATTACKERS:
            flood += connect(stack, proxy.port, source, DESCRIPTORS // 4)
            for client in flood[::2]:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    client.request(messages.METADATA, messages.METADATA_VERSION, messages.NO_TOPICS)
        wait_until(lambda: series(proxy, f'{PAUSED}{{shortage="descriptors"}}') > 1, "accepting is paused")
        bystander.wait_for_answers()
        assert proxy.get("/livez")[0] == 200, "the admin port is served"
        assert proxy.get("/readyz")[0] == 200, "a flood does not take the proxy out of a load balancer"
        [line] = wait_for_events(proxy, "accepting is paused")
        assert f"{DESCRIPTORS} open files (RLIMIT_NOFILE)" in line["reason"]
        assert not [each for each in events(proxy) if each["event"] == "cannot accept for now"]
        assert proxy.metric("process_open_fds") < DESCRIPTORS - 10
        silent.close()
        for client in flood:
            client.close()

        def served() -> bool:
            with contextlib.ExitStack() as one:
                return is_served(connect(one, proxy.port, "127.0.0.2", 1)[0])

        wait_until(served, "a new client is served")
        wait_for_events(proxy, "accepting has resumed")


def test_a_client_that_is_connected_reaches_its_broker_during_a_flood(kafka: FirstBroker) -> None:
    with proxy_with(kafka, "max_connections_per_ip = 0", FEW) as proxy, contextlib.ExitStack() as stack:
        [first] = connect(stack, proxy.port, "127.0.0.2", 1)
        wait_until(lambda: proxy.metric("headrace_connections") == 1, "it is accepted")
        connect(stack, proxy.port, ATTACKERS[0], DESCRIPTORS)
        proxy.wait_for_log("accepting is paused")
        assert is_served(first)


def test_above_max_memory_new_clients_wait_and_the_others_are_served(kafka: FirstBroker) -> None:
    with proxy_with(kafka, 'max_memory = "1MiB"') as proxy, contextlib.ExitStack() as stack:
        [first, second] = connect(stack, proxy.port, "127.0.0.2", 2)
        assert is_served(first)
        second.request(messages.METADATA, messages.METADATA_VERSION, messages.NO_TOPICS)
        wait_until(lambda: series(proxy, f'{PAUSED}{{shortage="memory"}}') > 0.5, "accepting is paused")
        assert proxy.metric("headrace_connections") == 1
        assert is_served(first)
        assert proxy.get("/readyz")[0] == 200
        proxy.reload('[limits]\nmax_memory = "0B"\n')
        assert second.reply()[0] == 1
        [line] = wait_for_events(proxy, "accepting is paused")
        assert "limits.max_memory = 1048576" in line["reason"]
        wait_for_events(proxy, "accepting has resumed")


@pytest.mark.exhaustive
def test_a_served_client_cannot_keep_accepting_paused(kafka: FirstBroker) -> None:
    """It holds much memory by requests that it does not finish, though less than limits.max_held_bytes."""
    quota = '[[quotas]]\nentity = { client-id = "<default>" }\ncontroller_mutation_rate = 1.0\n'
    part = messages.request(CREATE_TOPICS, 4, 2, bytes(2**20 - 100))[:-1]
    with proxy_with(kafka) as proxy, contextlib.ExitStack() as stack:
        limits = f'[limits]\nmax_memory = "{proxy.resident_bytes // 2**20 + 30}MiB"\n'
        proxy.reload(limits + quota)
        proxy.wait_for_log("max_memory")
        for client in connect(stack, proxy.port, ATTACKERS[0], 60):
            assert is_served(client)
            client.send(part)
        _, honest = connect(stack, proxy.port, "127.0.0.2", 2)  # accepting pauses before the second
        assert is_served(honest)
        assert series(proxy, f'{PAUSED}{{shortage="memory"}}') > 0.5
        closed = "accepting is paused, and this connection holds"
        [line, *_] = [each for each in events(proxy) if closed in str(each.get("reason"))]
        assert "limits.max_memory" in line["reason"]


def test_without_clients_a_proxy_above_max_memory_accepts_the_next(kafka: FirstBroker) -> None:
    with proxy_with(kafka, 'max_memory = "1MiB"') as proxy:
        for _ in range(3):
            with RawClient(proxy.port) as client:
                assert is_served(client)
