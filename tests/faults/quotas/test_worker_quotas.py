"""A proxy with two workers has the quotas of one, however connections are distributed, and if a worker dies."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Final

import pytest
import trio

from benchmarks.paced_clients import Group, Produce, jain, run_groups
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.metrics import series
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback, events, wait_for_events
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.shared_cluster import FirstBroker


CROWD: Final = 30
"""Connections; the chance that one of two workers has none is 2 in 2**30."""
WINDOW: Final = "[quota.window]\nsize.seconds = 60\n"
"""Eleven minutes: nothing of a test is forgotten."""
LIMIT: Final = 1000
OVERDRAWN: Final = 1_000_000
UNEVEN: Final = 49_000
"""Of which twelve are below the limit, and thirteen above it for as long as they take less than half a minute."""
LONG_MS: Final = 100_000

PACED_LIMIT: Final = 4 * 2**20
PACED_REQUEST_BYTES: Final = 16 * 2**10
PACED_S: Final = 4.0
SETTLED_S: Final = 1.0
"""The quickest clients get the burst of one second."""
WARM_UP_S: Final = 0.5
FAIR: Final = 0.95
MISSING: Final = 0.1
"""A busy machine may have half a second of it on its way; too much is an error by one request a worker."""


AS_KAFKA: Final = 'new_connections = "kafka"\n'
"""Each request, on whatever connection, receives its throttle time at once."""


def quota(client_id: str, limit: int, more: str = "") -> str:
    return f'[[quotas]]\nentity = {{ client-id = "{client_id}" }}\nproducer_byte_rate = {limit}\n{more}'


@contextlib.contextmanager
def proxy_of(kafka: FirstBroker, config: str, workers: int = 2) -> Iterator[ProxyProcess]:
    config = f"workers = {workers}\n{config}"
    with ProxyProcess(kafka.bootstrap_servers, config=config, arguments=JSON_LOG) as proxy:
        yield proxy
        assert "Traceback" not in proxy.log, proxy.log[-4000:]


@contextlib.contextmanager
def crowd(proxy: ProxyProcess) -> Iterator[list[RawClient]]:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(proxy.port, client_id="greedy")) for _ in range(CROWD)]
        for client in clients:
            client.call(messages.API_VERSIONS, 0)
        yield clients


def produce(client: RawClient, topic: str, size: int) -> int:
    """The throttle time of the reply, in ms."""
    body = messages.produce_body(topic, messages.batch(bytes(size)))
    reply = messages.read_produce_reply(client.call(messages.PRODUCE, messages.PRODUCE_VERSION, body))
    assert reply.error_code == 0
    return reply.throttle_ms


def both_have_some(proxy: ProxyProcess) -> bool:
    return all(series(proxy, f'headrace_worker_connections{{worker="{number}"}}') > 0 for number in (0, 1))


def test_two_workers_throttle_from_the_same_request_on_as_one(kafka: FirstBroker, topic: str) -> None:
    throttled = []
    for workers in (1, 2):
        with proxy_of(kafka, WINDOW + quota("greedy", LIMIT, AS_KAFKA), workers) as proxy, crowd(proxy) as clients:
            throttled.append([produce(client, topic, UNEVEN) > 0 for client in clients])
            if workers == 2:
                assert both_have_some(proxy)
                tags = '{client_id="greedy",quota="producer_byte_rate",user=""}'
                rate = series(proxy, f"headrace_quota_byte_rate{tags}")
                assert LIMIT < rate < 4 * LIMIT, "charged once, not once a worker"
                assert series(proxy, f"headrace_quota_limit{tags}") == LIMIT
    assert throttled[0] == throttled[1]
    assert True in throttled[1]
    assert False in throttled[1]


@pytest.mark.exhaustive
def test_paced_connections_of_two_workers_get_the_limit_together(kafka: FirstBroker, topic: str) -> None:
    def group(name: str, count: int) -> Group:
        work = Produce(topic, PACED_REQUEST_BYTES, name)
        return Group(client_id=name, port=proxy.broker_port(0), connections=count, work=work)

    with proxy_of(kafka, quota("paced", PACED_LIMIT, 'enforcement = "paced"\nburst = "1s"\n')) as proxy:
        paced = group("paced", 40)
        trio.run(run_groups, [group("unlimited", 4)], WARM_UP_S)
        trio.run(run_groups, [paced], PACED_S)
        charged, until_s = paced.acks.since_first_sent(PACED_S)
        fairness = jain(paced.acks.shares(paced.connections, SETTLED_S, PACED_S))
        settled = paced.acks.amount(paced.acks.first_sent_s + SETTLED_S, paced.acks.first_sent_s + PACED_S)
        ratio = settled / (PACED_LIMIT * (PACED_S - SETTLED_S))
        measured = (
            f"{charged} bytes in {until_s:.2f} s, {ratio:.3f} of the limit once settled, Jain's index {fairness:.3f}"
        )
        assert charged <= PACED_LIMIT * (1 + until_s) + 2 * PACED_REQUEST_BYTES, measured
        assert ratio >= 1 - MISSING, measured
        assert fairness >= FAIR, measured
        assert_no_traceback(proxy)


@pytest.mark.exhaustive
def test_what_a_worker_has_charged_outlives_it(kafka: FirstBroker, topic: str) -> None:
    with proxy_of(kafka, WINDOW + quota("greedy", LIMIT, AS_KAFKA)) as proxy:
        with crowd(proxy) as clients:
            before_ms = produce(clients[0], topic, OVERDRAWN)
        for pid in proxy.worker_pids:
            before = replaced(proxy)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda before=before: replaced(proxy) > before, "it is replaced")
        with crowd(proxy) as clients:
            assert both_have_some(proxy)
            assert min(produce(client, topic, 10) for client in clients) > before_ms - 60_000 > LONG_MS


def replaced(proxy: ProxyProcess) -> int:
    return sum(event["event"] == "worker replaced" for event in events(proxy))


@pytest.mark.parametrize(
    "end", [pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive), signal.SIGKILL], ids=["drained", "killed"]
)
def test_the_debt_is_there_after_a_restart(kafka: FirstBroker, topic: str, tmp_path: Path, end: signal.Signals) -> None:
    file = tmp_path / "usage.sqlite"
    config = f'[quota.state]\nfile = "{file}"\ninterval = "1s"\n{WINDOW}{quota("greedy", LIMIT, AS_KAFKA)}'
    with proxy_of(kafka, config) as proxy:
        with crowd(proxy) as clients:
            assert produce(clients[0], topic, OVERDRAWN) > LONG_MS
            before_ms = max(produce(client, topic, 10) for client in clients[1:])
        if end is signal.SIGKILL:
            wait_until(lambda: saved(file), "usage was saved")
        proxy.signal(end)
        proxy.wait(30)
    for workers in (2, 1):
        with proxy_of(kafka, config, workers) as proxy, crowd(proxy) as clients:
            restored = wait_for_events(proxy, "bucket state restored", workers)
            taken = [event["buckets"] for event in restored]
            assert taken == [1] * workers
            told_ms = [produce(client, topic, 10) for client in clients]
            assert min(told_ms) > before_ms - 60_000, "forgiven"
            assert max(told_ms) < before_ms + 60_000, "charged twice"
            assert proxy.stop() == 0


def saved(file: Path) -> bool:
    """Whether the bucket has come to the disk; by its bytes, since only one process may open the file."""
    return any(b"producer_byte_rate" in each.read_bytes() for each in file.parent.glob(f"{file.name}*"))
