"""Workers that hang, at a real proxy in front of a real broker: they are killed and replaced, and others serve on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import TYPE_CHECKING, Any, Final

import psutil
import pytest

from testbed.proxy_process import ProxyProcess
from tests.faults import blocking_plugin, messages
from tests.faults.metrics import series
from tests.faults.raw_client import ConnectionEndedError, RawClient
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.shared_cluster import FirstBroker

CROWD: Final = 30
"""Connections; the chance that the system gives all to one of two workers is 2 in 2**30."""
CONFIG: Final = 'workers = 2\n[log]\nformat = "json"\n[watchdog]\ntimeout = "3s"\n'


@contextlib.contextmanager
def crowd(port: int) -> Iterator[list[RawClient]]:
    """Clients that have been served."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(port)) for _ in range(CROWD)]
        assert all(map(is_served, clients))
        yield clients


def is_served(client: RawClient) -> bool:
    try:
        client.call(messages.API_VERSIONS, 0)
    except (ConnectionEndedError, OSError):
        return False
    return True


def of_workers(proxy: ProxyProcess, name: str) -> list[float]:
    return [series(proxy, f'headrace_worker_{name}{{worker="{number}"}}') for number in (0, 1)]


def line_of(proxy: ProxyProcess, event: str) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(proxy.wait_for_log(f'"event": "{event}"', timeout_s=30))
    return line


@pytest.mark.exhaustive
def test_a_worker_that_is_stopped_is_killed_and_replaced_and_the_proxy_not_ready(kafka: FirstBroker) -> None:
    with ProxyProcess(kafka.bootstrap_servers, config=CONFIG) as proxy, crowd(proxy.port) as clients:
        connections = of_workers(proxy, "connections")
        stopped = proxy.worker_pids[0]
        assert proxy.get("/readyz")[0] == 200
        os.kill(stopped, signal.SIGSTOP)
        pages: list[str] = []

        def is_not_ready() -> bool:
            status, page = proxy.get("/readyz")
            pages.append(page)
            return status == 503

        wait_until(is_not_ready, "it is not ready")
        reasons = json.loads(pages[-1])["reasons"]
        killed = line_of(proxy, "a worker hangs and is killed")
        number = killed["worker"]
        assert (killed["pid"], killed["level"], killed["setting"]) == (stopped, "error", "watchdog.timeout")
        assert killed["problem"] == f"worker {number} did not answer within 3 s"
        assert reasons == [f"worker {number} does not answer"]
        ended = line_of(proxy, "worker ended")
        assert (ended["pid"], ended["how"], ended["problem"]) == (stopped, "ended by SIGKILL", killed["problem"])
        line_of(proxy, "worker replaced")
        assert sum(map(is_served, clients)) == connections[1 - number], "those of the other worker are not affected"
        assert of_workers(proxy, "hangs_total")[number] == of_workers(proxy, "restarts_total")[number] == 1
        assert of_workers(proxy, "up") == [1, 1]
        with crowd(proxy.port):
            assert min(of_workers(proxy, "connections")) > 0
        assert proxy.stop() == 0


@pytest.mark.exhaustive
def test_a_worker_whose_loop_is_blocked_by_a_plugin_is_replaced_and_the_log_shows_where(
    kafka: FirstBroker, tmp_path: Path
) -> None:
    config, environment = CONFIG + blocking_plugin.CONFIG, blocking_plugin.install(tmp_path)
    with (
        ProxyProcess(kafka.bootstrap_servers, config=config, environment=environment) as proxy,
        crowd(proxy.port),
        RawClient(proxy.port, client_id=blocking_plugin.CLIENT_ID, timeout_s=30) as attacker,
    ):
        is_served(attacker)
        attacker.request(messages.METADATA, messages.METADATA_VERSION, messages.NO_TOPICS)
        assert attacker.rest() == b""
        killed = line_of(proxy, "a worker hangs and is killed")
        ended = line_of(proxy, "worker ended")
        assert (ended["problem"], ended["how"]) == (killed["problem"], "ended by SIGABRT")
        assert "blocking.py" in ended["stacks"]
        assert f"in {blocking_plugin.FUNCTION}" in ended["stacks"]
        line_of(proxy, "worker replaced")
        with crowd(proxy.port):
            assert min(of_workers(proxy, "connections")) > 0
        assert proxy.stop() == 0


@pytest.mark.soak
def test_nobody_is_killed_after_all_processes_were_paused(kafka: FirstBroker) -> None:
    """As by a snapshot of a virtual machine, or by the freezer of a container."""
    config = CONFIG.replace("3s", "1s")
    with ProxyProcess(kafka.bootstrap_servers, config=config) as proxy, crowd(proxy.port) as clients:
        workers = proxy.worker_pids
        everyone = [psutil.Process(proxy.pid), *psutil.Process(proxy.pid).children(recursive=True)]
        for _ in range(5):
            for process in everyone:
                process.suspend()
            with pytest.raises(psutil.TimeoutExpired):
                everyone[0].wait(3)
            for process in everyone:
                process.resume()
            assert all(map(is_served, clients))
        assert proxy.worker_pids == workers
        assert "hangs" not in proxy.log
