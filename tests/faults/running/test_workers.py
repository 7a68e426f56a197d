"""Several workers are one proxy: to clients, to operators, and whatever dies of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from headrace.proxy.admin.why import LINES_PER_GROUP
from headrace.proxy.workers.worker import LAST_MESSAGES_S
from testbed.errors import TestbedError, TestbedTimeoutError
from testbed.preloaded_command import run_headrace
from testbed.processes.ports import reserve_ports
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.bystander import Bystander
from tests.faults.holding_broker import HoldingBroker
from tests.faults.metrics import series
from tests.faults.proxy_log import JSON_LOG, events, wait_for_events
from tests.faults.raw_client import ConnectionEndedError, RawClient
from tests.faults.steady_clients import SteadyGroup, SteadyProducer, read_all
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.shared_cluster import FirstBroker


CROWD = 40
"""Connections; the chance that the system gives all to one of two workers is 2 in 2**40."""
BATCH = messages.batch(bytes(100_000))
TWO = "workers = 2\n"
SLOW = '[[quotas]]\nentity = { client-id = "raw" }\nproducer_byte_rate = 100\nnew_connections = "kafka"\n'
LONG_MS = 60_000


@contextlib.contextmanager
def proxy_of(servers: str, config: str = "", *, has_token: bool = False) -> Iterator[ProxyProcess]:
    with ProxyProcess(servers, config=TWO + config, arguments=JSON_LOG, has_token=has_token) as proxy:
        yield proxy
        assert "Traceback" not in proxy.log, proxy.log[-4000:]


@contextlib.contextmanager
def in_flight() -> Iterator[tuple[HoldingBroker, ProxyProcess, list[RawClient]]]:
    """Twenty clients, each with a request that the broker has read and keeps."""
    broker = HoldingBroker()
    with (
        broker.fake,
        proxy_of(broker.fake.address, '[shutdown]\ndrain_timeout = "10m"\n') as proxy,
        contextlib.ExitStack() as stack,
    ):
        held = [stack.enter_context(RawClient(proxy.port, client_id="held")) for _ in range(20)]
        for client in held:
            client.request(messages.HEARTBEAT, 1, messages.heartbeat_body())
        wait_until(lambda: broker.read == len(held), "the broker has read the requests")
        yield broker, proxy, held


@pytest.fixture
def proxy(kafka: FirstBroker) -> Iterator[ProxyProcess]:
    with proxy_of(kafka.bootstrap_servers) as process:
        yield process


@contextlib.contextmanager
def crowd(port: int, count: int = CROWD) -> Iterator[list[RawClient]]:
    """Clients that have been served."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(port)) for _ in range(count)]
        for client in clients:
            client.call(messages.API_VERSIONS, 0)
        yield clients


IDLE_S = 4


def of_workers(proxy: ProxyProcess, name: str) -> list[float]:
    return [series(proxy, f'headrace_worker_{name}{{worker="{number}"}}') for number in (0, 1)]


def produce(client: RawClient, topic: str) -> int:
    """Send one batch; the throttle time of the reply, in ms."""
    body = messages.produce_body(topic, BATCH)
    reply = messages.read_produce_reply(client.call(messages.PRODUCE, messages.PRODUCE_VERSION, body))
    assert reply.error_code == 0
    return reply.throttle_ms


def logged(proxy: ProxyProcess, event: str) -> list[dict[str, Any]]:
    return [each for each in events(proxy) if each["event"] == event]


def kill_worker(proxy: ProxyProcess, number: int = 0) -> int:
    """Kill it, wait until another one serves in its place, and return the pid that it had."""
    before = len(logged(proxy, "worker replaced"))
    pid = sorted(proxy.worker_pids)[number]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(logged(proxy, "worker replaced")) > before, "the worker is replaced")
    return pid


def still_served(client: RawClient) -> bool:
    try:
        client.call(messages.API_VERSIONS, 0)
    except (ConnectionEndedError, OSError):
        return False
    return True


# --- one proxy ---


def test_connections_are_spread_and_what_is_counted_is_added_up(proxy: ProxyProcess) -> None:
    with crowd(proxy.port) as clients:
        for client in clients:
            client.call(messages.METADATA, messages.METADATA_VERSION, messages.NO_TOPICS)
        connections = of_workers(proxy, "connections")
        assert min(connections) > 0
        assert sum(connections) == CROWD == series(proxy, "headrace_connections")
        assert series(proxy, 'headrace_requests_total{api="Metadata"}') == CROWD
        assert series(proxy, "headrace_connections_accepted_total") == CROWD
        assert series(proxy, "headrace_brokers") == 3
        assert of_workers(proxy, "up") == [1, 1]
        assert min(of_workers(proxy, "cpu_seconds_total")) > 0


def test_a_reload_reaches_all_workers_and_is_logged_once(proxy: ProxyProcess, topic: str) -> None:
    with crowd(proxy.port) as clients:
        assert {produce(client, topic) for client in clients[:8]} == {0}
        proxy.reload(TWO + SLOW)
        proxy.wait_for_log("configuration changed")
        assert min(produce(client, topic) for client in clients) > LONG_MS
    assert [each["change"] for each in wait_for_events(proxy, "configuration changed")] == [
        "quota producer_byte_rate of client-id=raw: none -> 100, new connections: kafka"
    ]


def test_an_invalid_file_is_refused_once_and_by_all(proxy: ProxyProcess) -> None:
    proxy.reload("workers = 0\n")
    proxy.wait_for_log("the old one stays in force")
    proxy.reload("workers = 3\n")
    proxy.wait_for_log("waits for a restart")
    assert [each["problem"].split(": ", 1)[1] for each in events(proxy) if "problem" in each] == [
        'workers = 0: expected a whole number from 1 to 64, or "auto" for one for each core'
    ]
    assert [each["change"] for each in wait_for_events(proxy, "configuration change waits for a restart")] == [
        "workers: 2 -> 3 (needs a restart)"
    ]
    assert len(proxy.worker_pids) == 2


@pytest.mark.exhaustive
def test_the_switch_of_enforcement_reaches_all_and_who_comes_later(kafka: FirstBroker, topic: str) -> None:
    with proxy_of(kafka.bootstrap_servers, SLOW, has_token=True) as proxy:
        with crowd(proxy.port) as clients:
            assert min(produce(client, topic) for client in clients) > LONG_MS
            for client in clients:
                client.request(messages.PRODUCE, messages.PRODUCE_VERSION, messages.produce_body(topic, BATCH))
            switch(proxy, "off")
            for client in clients:
                assert messages.read_produce_reply(client.reply()[1]).throttle_ms == 0
            assert series(proxy, "headrace_enforcement_enabled") == 0
        kill_worker(proxy, 0)
        kill_worker(proxy, 1)
        with crowd(proxy.port) as clients:
            assert {produce(client, topic) for client in clients} == {0}
            switch(proxy, "on")
            assert min(produce(client, topic) for client in clients) > LONG_MS
            assert series(proxy, "headrace_enforcement_enabled") == 1


def switch(proxy: ProxyProcess, state: str) -> None:
    done = run_headrace("enforcement", state, "--admin", proxy.admin, "--token-file", proxy.token_file)
    assert done.stdout == f"enforcement is {state}\n", done.stderr


@pytest.mark.exhaustive
def test_why_lists_the_decisions_of_all_workers_newest_first(kafka: FirstBroker, topic: str) -> None:
    with proxy_of(kafka.bootstrap_servers, SLOW) as proxy, crowd(proxy.port) as clients:
        for client in clients:
            produce(client, topic)
        page = json.loads(proxy.get(f"/decisions?newest={CROWD}")[1])
        assert {each["peer"] for each in page["decisions"]} == {client.name for client in clients}
        assert {each["peer"] for each in page["waiting"]} == {client.name for client in clients}
        ages = [each["age_s"] for each in page["decisions"]]
        assert ages == sorted(ages)
        newest = json.loads(proxy.get("/decisions?newest=3")[1])["decisions"]
        assert {each["peer"] for each in newest} == {client.name for client in clients[-3:]}
        said = run_headrace("why", "--admin", proxy.admin, "--newest", "1").stdout.splitlines()
        assert said[1 + LINES_PER_GROUP] == f"  and {CROWD - LINES_PER_GROUP} more connections"
        assert len(said) == LINES_PER_GROUP + 3  # quota, listed connections, number of others, last decision
        assert clients[-1].name in said[-1]


@pytest.mark.exhaustive
def test_the_limit_of_connections_holds_for_all_together(kafka: FirstBroker) -> None:
    limits = "[limits]\nmax_connections = 20\nmax_connections_per_ip = 8\n"
    with proxy_of(kafka.bootstrap_servers, limits) as proxy, contextlib.ExitStack() as stack:
        kept = []
        for source in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
            clients = [stack.enter_context(RawClient(proxy.port, source=source)) for _ in range(30)]
            kept.append(sum(map(still_served, clients)))
        assert kept[0] in (8, 9), "within one connection for each further worker"
        assert kept[1] in (8, 9)
        assert sum(kept) in (20, 21)
        assert series(proxy, "headrace_connections") == sum(kept)
        refused = series(proxy, 'headrace_connections_refused_total{limit="max_connections_per_ip"}')
        assert refused == 60 - kept[0] - kept[1]
        stack.close()
        wait_until(lambda: series(proxy, "headrace_connections") == 0, "all are gone")
        kill_worker(proxy)
        clients = [stack.enter_context(RawClient(proxy.port)) for _ in range(30)]
        assert sum(map(still_served, clients)) in (8, 9)


# --- the end of a worker ---


def test_a_worker_that_is_killed_takes_its_own_connections_and_no_others(proxy: ProxyProcess) -> None:
    with crowd(proxy.port) as clients:
        before = of_workers(proxy, "connections")
        pid = kill_worker(proxy, 0)
        alive = sum(map(still_served, clients))
        [ended] = logged(proxy, "worker ended")
        assert (ended["pid"], ended["how"], ended["level"]) == (pid, "ended by SIGKILL", "error")
        assert alive == before[1 - ended["worker"]]
        assert series(proxy, "headrace_connections") == alive
        assert series(proxy, "headrace_connections_accepted_total") == CROWD, "what was counted stays counted"
        assert of_workers(proxy, "restarts_total")[ended["worker"]] == 1
        assert of_workers(proxy, "up") == [1, 1]
        with crowd(proxy.port):
            assert min(of_workers(proxy, "connections")) > 0


@pytest.mark.exhaustive
def test_clients_go_on_when_workers_are_killed_under_load(kafka: FirstBroker, topic: str) -> None:
    with proxy_of(kafka.bootstrap_servers) as proxy:
        servers = proxy.bootstrap_servers
        with SteadyProducer(servers, topic, 1) as producer, SteadyGroup(servers, topic) as consumer:
            wait_for_progress(producer, consumer)
            for number in (0, 1, 0):
                kill_worker(proxy, number)
                wait_for_progress(producer, consumer)
        assert not producer.failed
        written = read_all(kafka.bootstrap_servers, topic, 1)
        assert set(producer.acknowledged) <= set(written)
        assert max(written.values()) == 1


def wait_for_progress(producer: SteadyProducer, consumer: SteadyGroup) -> None:
    written, read = len(producer.acknowledged), len(consumer.read)
    wait_until(lambda: len(producer.acknowledged) > written + 50, "the producer goes on", 60)
    wait_until(lambda: len(consumer.read) > read, "the consumer goes on", 60)


def test_signals_are_for_the_supervisor(proxy: ProxyProcess) -> None:
    with Bystander(proxy.port) as bystander, bystander.watching():
        workers = proxy.worker_pids
        for process in psutil.Process(proxy.pid).children(recursive=True):
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                process.send_signal(number)
        bystander.wait_for_answers()
        assert proxy.worker_pids == workers
        assert proxy.get("/livez")[0] == 200


@pytest.mark.exhaustive
def test_a_worker_that_hangs_is_logged_and_executes_its_commands_later(proxy: ProxyProcess) -> None:
    with crowd(proxy.port) as clients:
        hanging = proxy.worker_pids[0]
        os.kill(hanging, signal.SIGSTOP)
        try:
            status, page = proxy.get("/livez")
            assert status == 503
            [reason] = json.loads(page)["reasons"]
            assert re.fullmatch("worker [01] does not answer", reason)
            proxy.reload(TWO + "[enforcement]\nenabled = false\n")
            line = json.loads(proxy.wait_for_log("a worker does not answer"))
            assert (line["asked"], line["pid"]) == ("reload", hanging)
        finally:
            os.kill(hanging, signal.SIGCONT)
        wait_until(lambda: proxy.get("/livez")[0] == 200, "it answers again")
        assert series(proxy, "headrace_enforcement_enabled") == 0
        assert all(map(still_served, clients))


@pytest.mark.soak
def test_a_worker_that_hangs_is_killed_behind_the_drain(kafka: FirstBroker) -> None:
    with proxy_of(kafka.bootstrap_servers, '[shutdown]\ndrain_timeout = "0s"\n') as proxy:
        hanging = proxy.worker_pids[0]
        os.kill(hanging, signal.SIGSTOP)
        proxy.signal(signal.SIGTERM)
        assert proxy.wait(60) == 0
        [killed] = logged(proxy, "a worker has not ended and is killed")
        assert killed["pid"] == hanging


BREAKABLE = """
from pathlib import Path

from headrace.quota_callbacks.hookspecs import hookimpl

headrace_hooks = 1


@hookimpl
def configure(context):
    if (file := Path(context.options["file"])).exists():
        raise ValueError(file.read_text())
"""


@pytest.mark.exhaustive
def test_a_worker_that_cannot_start_again_logs_why_and_is_retried(kafka: FirstBroker, tmp_path: Path) -> None:
    (tmp_path / "breakable.py").write_text(BREAKABLE)
    broken = tmp_path / "broken"
    config = f'{TWO}[plugins]\nload = ["breakable"]\n[plugins.options.breakable]\nfile = "{broken}"\n'
    environment = {"PYTHONPATH": str(tmp_path)}
    with ProxyProcess(kafka.bootstrap_servers, config=config, arguments=JSON_LOG, environment=environment) as proxy:
        broken.write_text("it is broken")
        os.kill(proxy.worker_pids[0], signal.SIGKILL)
        wait_until(lambda: len(logged(proxy, "worker ended")) == 3, "it is tried again")
        assert [each.get("problem") for each in logged(proxy, "worker ended")] == [
            None,
            *["plugin 'breakable': it is broken"] * 2,
        ]
        assert [each["again_in_s"] for each in logged(proxy, "worker ended")] == [0.5, 1.0, 2.0]
        assert sorted(of_workers(proxy, "up")) == [0, 1]
        assert proxy.get("/livez")[0] == proxy.get("/readyz")[0] == 200
        with crowd(proxy.port):
            broken.unlink()
            proxy.wait_for_log("worker replaced")
        assert of_workers(proxy, "up") == [1, 1]
        assert proxy.stop() == 0


# --- the end of the supervisor ---


@pytest.mark.exhaustive
def test_workers_end_with_a_supervisor_that_is_killed(kafka: FirstBroker) -> None:
    with proxy_of(kafka.bootstrap_servers) as proxy, crowd(proxy.port) as clients:
        family = psutil.Process(proxy.pid).children(recursive=True)
        assert len(family) == 3
        proxy.signal(signal.SIGKILL)
        assert {client.rest() for client in clients} == {b""}
        wait_until(lambda: not any(map(runs, family)), "the workers and who forked them have ended")
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", proxy.port))


def runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.exhaustive
def test_without_the_fork_server_the_proxy_drains_and_logs_why(kafka: FirstBroker) -> None:
    with ProxyProcess(kafka.bootstrap_servers, config=TWO) as proxy:
        os.kill(psutil.Process(proxy.pid).children()[0].pid, signal.SIGKILL)
        assert proxy.wait(20) == 1
        assert "headrace: the process that forks workers has ended\n" in proxy.log
        assert "Traceback" not in proxy.log


@pytest.mark.exhaustive
def test_without_the_process_that_forks_what_is_in_flight_is_finished() -> None:
    with in_flight() as (broker, proxy, held):
        workers = [psutil.Process(pid) for pid in proxy.worker_pids]
        os.kill(psutil.Process(proxy.pid).children()[0].pid, signal.SIGKILL)
        proxy.wait_for_log("the proxy drains, since it could replace no worker")
        with pytest.raises(TestbedTimeoutError):
            proxy.wait(LAST_MESSAGES_S + 0.5)
        broker.allow(len(held))
        assert [len(client.reply()) for client in held] == [2] * len(held)
        assert proxy.wait(20) == 1
        assert "connections cut" not in proxy.log
        wait_until(lambda: not any(map(runs, workers)), "the workers have ended")


@pytest.mark.exhaustive
def test_idle_workers_are_woken_a_few_times_a_second_at_most(kafka: FirstBroker) -> None:
    """How often they were switched to is what idling costs, and the same on every machine."""
    with ProxyProcess(kafka.bootstrap_servers, config=TWO) as proxy:
        family = psutil.Process(proxy.pid).children(recursive=True)
        assert len(family) == 3, "who forks, and two workers"
        before = [process.num_ctx_switches().voluntary for process in family]
        with pytest.raises(TestbedTimeoutError):
            proxy.wait(IDLE_S)
        woken = [process.num_ctx_switches().voluntary - count for process, count in zip(family, before, strict=True)]
        assert max(woken) <= 10 * IDLE_S, woken


# --- start and stop ---


def test_a_stop_lets_all_workers_drain_and_a_second_one_cuts() -> None:
    with in_flight() as (broker, proxy, held), contextlib.ExitStack() as stack:
        idle = stack.enter_context(crowd(proxy.port))
        assert min(of_workers(proxy, "connections")) > 0
        proxy.signal(signal.SIGTERM)
        assert [client.rest() for client in idle] == [b""] * CROWD
        with pytest.raises(ConnectionRefusedError):
            RawClient(proxy.port)
        assert (proxy.get("/readyz")[0], proxy.get("/livez")[0]) == (503, 200)
        broker.allow(10)
        wait_until(lambda: series(proxy, "headrace_connections") == 10, "ten have been answered")
        proxy.signal(signal.SIGTERM)
        assert proxy.wait(20) == 0
        answers = [client.rest() for client in held]
        assert sorted(map(len, answers)) == [0] * 10 + [14] * 10


def headrace(*arguments: str, config: str, file: Path) -> subprocess.CompletedProcess[str]:
    file.write_text(config)
    required = ("--bootstrap-servers", "127.0.0.1:1", "--advertised-host", "localhost", "--config", str(file))
    return run_headrace("run", *required, *arguments)


def test_a_port_in_use_is_reported_once(tmp_path: Path) -> None:
    with reserve_ports(3) as block, socket.socket() as taken:
        taken.bind(("127.0.0.1", block.first + 2))
        taken.listen()
        listen = ("--listen", f"127.0.0.1:{block.first}", "--node-ids", "0-1")
        result = headrace(*listen, config="workers = 4\n", file=tmp_path / "headrace.toml")
    assert result.returncode == 1
    assert result.stderr == (
        f"headrace: cannot listen on 127.0.0.1:{block.first + 2} for broker 1: address already in use;"
        " change listen.address or listen.node_ids\n"
    )


def test_a_second_proxy_does_not_slip_in_at_the_shared_ports(proxy: ProxyProcess, tmp_path: Path) -> None:
    listen = ("--listen", f"127.0.0.1:{proxy.port}", "--node-ids", "0")
    result = headrace(*listen, config=TWO, file=tmp_path / "headrace.toml")
    assert result.returncode == 1
    assert result.stderr.startswith(f"headrace: cannot listen on 127.0.0.1:{proxy.port} for bootstrapping: address")


def test_an_admin_port_in_use_is_reported(proxy: ProxyProcess) -> None:
    with pytest.raises(TestbedError, match=f"cannot listen on {proxy.admin} for the admin server") as caught:
        ProxyProcess("127.0.0.1:1", config=TWO, arguments=["--admin", proxy.admin])
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("[plugins]\nload = ['no_such_module']\n", "plugin 'no_such_module' cannot be loaded: there is no module"),
        ("[plugins.options.tracing]\nsample_ratio = 7\n", "{file}:3: plugins.options.tracing.sample_ratio = 7: "),
        (
            "[[quotas]]\nentity = { user = 'a' }\nproducer_ids_rate = 5\n[plugins]\ndisabled = ['producer_ids']\n",
            "{file}:4: quotas[0].producer_ids_rate: would not be enforced for user=a",
        ),
    ],
)
def test_what_keeps_it_from_starting_is_one_sentence(
    tmp_path: Path, unused_port: Callable[[], int], config: str, said: str
) -> None:
    listen = ("--listen", f"127.0.0.1:{unused_port()}", "--node-ids", "0")
    file = tmp_path / "headrace.toml"
    result = headrace(*listen, config=TWO + config, file=file)
    assert result.returncode == 1
    assert result.stderr.startswith(f"headrace: {said.format(file=file)}")
    assert result.stderr.count("\n") == 1
