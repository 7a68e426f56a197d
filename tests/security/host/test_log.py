"""Attacks by way of the log: nobody reads it, or clients cause more lines than anybody could read. A real proxy in
front of a real broker serves clients all the same."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import struct
from typing import TYPE_CHECKING, Any, Final

import pytest

from headrace.proxy.output_queue import END_TIMEOUT_S
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.bystander import Bystander
from tests.faults.metrics import series
from tests.faults.proxy_log import JSON_LOG, events, wait_for_events
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shared_cluster import FirstBroker

PIPE_BYTES: Final = 4096
QUEUED_LINES: Final = 20
DROPPED: Final = "headrace_log_lines_dropped_total"
QUEUE: Final = f"[log]\nmax_queued_lines = {QUEUED_LINES}\n"
LINES_PER_MINUTE: Final = 20
LIMITED: Final = f"[log]\nlines_per_minute = {LINES_PER_MINUTE}\n"
DEBUG: Final = (*JSON_LOG, "--log-level", "debug")
MANY_QUOTAS: Final = 3000
LOGGED_CHANGES: Final = 100
NEGATIVE_SIZE: Final = struct.pack(">i", -1)


class LogPipe:
    """A pipe for the log of a proxy, read only when a test asks for it."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        fcntl.fcntl(self.write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(self.read_end, False)
        self._text = ""
        self._open = {self.read_end, self.write_end}

    def lines(self) -> list[dict[str, Any]]:
        """All whole lines that were read so far."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.read_end, 1 << 20):
                self._text += data.decode()
        return [json.loads(line) for line in self._text.split("\n")[:-1]]

    def close(self) -> None:
        """Close both ends, so that only the proxy has the one that it writes."""
        self.close_end(self.read_end)
        self.close_end(self.write_end)

    def close_end(self, end: int) -> None:
        if end in self._open:
            self._open.remove(end)
            os.close(end)


@pytest.fixture
def pipe() -> Iterator[LogPipe]:
    made = LogPipe()
    yield made
    made.close()


def make_mistakes(port: int, count: int, hosts: int = 1) -> None:
    """Cause faults of clients, each on a connection of its own."""
    for number in range(count):
        with RawClient(port, source=f"127.0.1.{1 + number % hosts}", distinct=False) as client:
            client.send(NEGATIVE_SIZE)
            client.rest()


def test_clients_are_served_and_the_proxy_stops_while_nobody_reads_its_log(kafka: FirstBroker, pipe: LogPipe) -> None:
    with ProxyProcess(kafka.bootstrap_servers, config=QUEUE, arguments=DEBUG, log_to=pipe.write_end) as proxy:
        pipe.close_end(pipe.write_end)
        with Bystander(proxy.port) as bystander:
            make_mistakes(proxy.port, 3 * QUEUED_LINES)
            bystander.wait_for_answers()
            assert proxy.get("/livez")[0] == 200
            dropped = series(proxy, DROPPED)
            assert dropped > 0
            wait_until(lambda: sum(map(dropped_by, pipe.lines())) == series(proxy, DROPPED), "what is lost is reported")
            assert series(proxy, DROPPED) == dropped, "while it is read, nothing is lost"
            bystander.wait_for_answers()
            make_mistakes(proxy.port, 3 * QUEUED_LINES)
        proxy.signal(signal.SIGTERM)
        assert proxy.wait(10 + 2 * END_TIMEOUT_S) == 0


def dropped_by(line: dict[str, Any]) -> int:
    """How many lost lines a line reports."""
    return int(line["lines"]) if line["event"] == "log lines were dropped" else 0


def test_clients_are_served_after_the_reader_of_the_log_has_gone(kafka: FirstBroker, pipe: LogPipe) -> None:
    with ProxyProcess(kafka.bootstrap_servers, arguments=DEBUG, log_to=pipe.write_end) as proxy:
        pipe.close()
        with Bystander(proxy.port) as bystander, bystander.watching():
            make_mistakes(proxy.port, 10)
            wait_until(lambda: series(proxy, DROPPED) >= 10, "what could not be written is counted")
        assert proxy.stop() == 0


@pytest.mark.exhaustive
def test_a_proxy_without_standard_error_serves(kafka: FirstBroker) -> None:
    """Its number may then be that of a client's socket."""
    prefix = ("/bin/sh", "-c", 'exec "$0" "$@" 2>&-')
    with ProxyProcess(kafka.bootstrap_servers, arguments=DEBUG, command_prefix=prefix) as proxy:
        with Bystander(proxy.port) as bystander, bystander.watching():
            make_mistakes(proxy.port, 10)
        assert proxy.stop() == 0


def test_faults_of_clients_are_a_limited_number_of_lines(kafka: FirstBroker) -> None:
    """From many hosts, since each host may cause a line a minute."""
    count = 3 * LINES_PER_MINUTE
    with ProxyProcess(kafka.bootstrap_servers, config=LIMITED, arguments=JSON_LOG) as proxy:
        make_mistakes(proxy.port, count, hosts=1)
        assert len(settled(proxy, "connection closed", 1)) == 1
        make_mistakes(proxy.port, count, hosts=count)
        assert series(proxy, 'headrace_errors_total{fault="client"}') == 2 * count, "all are counted"
        assert len(settled(proxy, "connection closed", LINES_PER_MINUTE)) == LINES_PER_MINUTE
        proxy.reload(LIMITED.replace(f"{LINES_PER_MINUTE}", f"{LINES_PER_MINUTE + 5}"))
        proxy.wait_for_log("configuration changed")
        make_mistakes(proxy.port, count, hosts=count)
        logged = settled(proxy, "connection closed", LINES_PER_MINUTE + 5)
        assert len(logged) == LINES_PER_MINUTE + 5
        assert sum(event["left_out"] or 0 for event in logged) >= count - LINES_PER_MINUTE, "of the second crowd"


def settled(proxy: ProxyProcess, event: str, count: int) -> list[dict[str, Any]]:
    """The lines of one kind, when `count` of them and whatever else the proxy had logged by now are written."""
    wait_for_events(proxy, event, count)
    before = len(events(proxy))
    proxy.signal(signal.SIGHUP)
    wait_until(lambda: len(events(proxy)) > before, "the reload is logged")
    return wait_for_events(proxy, event)


def test_throttles_are_a_limited_number_of_lines_whatever_client_ids_are_chosen(kafka: FirstBroker) -> None:
    config = LIMITED + '[[quotas]]\nentity = { client-id = "<default>" }\nrequest_percentage = 0.0001\n'
    with ProxyProcess(kafka.bootstrap_servers, config=config, arguments=JSON_LOG) as proxy:
        for number in range(3 * LINES_PER_MINUTE):
            with RawClient(proxy.port, client_id=f"{number}" * 1000, distinct=False) as client:
                client.call(messages.METADATA, messages.METADATA_VERSION, messages.NO_TOPICS)
        throttled = 'headrace_throttled_requests_total{quota="request_percentage"}'
        wait_until(lambda: series(proxy, throttled) >= 2 * LINES_PER_MINUTE, "they are throttled")
        assert len(settled(proxy, "request throttled", LINES_PER_MINUTE)) == LINES_PER_MINUTE


def test_a_reload_with_thousands_of_quotas_does_not_fill_the_log() -> None:
    config = "[log]\nmax_queued_lines = 200\n"
    quotas = "".join(
        f'[[quotas]]\nentity = {{ client-id = "client-{number}" }}\nproducer_byte_rate = 1000\n'
        for number in range(MANY_QUOTAS)
    )
    with ProxyProcess("127.0.0.1:1", config=config, arguments=JSON_LOG) as proxy:
        proxy.reload(config + quotas)
        rest = json.loads(proxy.wait_for_log("further configuration changes", timeout_s=30))
        assert rest["count"] == MANY_QUOTAS - LOGGED_CHANGES
        assert len([each for each in events(proxy) if each["event"] == "configuration changed"]) == LOGGED_CHANGES
        assert series(proxy, DROPPED) == 0
