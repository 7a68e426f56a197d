"""The run: starts the cluster, the proxy and the clients, watches them, and returns the outcome.

Blocks, in the main thread, so that KeyboardInterrupt ends it anywhere. Everything that it starts is immediately
registered with the caller's ExitStack.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import Producer

from examples.demo.client_process import ClientProcess
from examples.demo.measuring import Brokers, Series
from examples.demo.proxy_pages import ProxyPage, read_page
from examples.demo.scenario import (
    ARCHIVE_BATCH_BYTES,
    ARCHIVE_BYTES,
    BROKER_CONFIG,
    CLIENTS,
    KAFKA_VERSION,
    LIMITED_CONSUMER,
    MISBEHAVING,
    SMOOTHING_S,
    WINDOW_S,
    Client,
    Topic,
    command,
    proxy_config,
)
from examples.demo.screen import PLAIN_EVERY_S
from examples.demo.table import MOST_BARS, NOW_S, Row, State, draw
from examples.demo.verdict import ClientOutcome, Outcome
from testbed.errors import TestbedError
from testbed.kafka.cluster import KafkaCluster
from testbed.processes.supervised import make_directory
from testbed.proxy_process import ProxyProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from rich.console import RenderableType

    from examples.demo.screen import Screen

TICK_S: Final = 0.5
START_TIMEOUT_S: Final = 60.0
"""The clients move their first bytes within 3 s here; a busy machine takes many times that."""
FIRST_BURSTS_S: Final = 10.0
"""Time limit for first bursts after all clients move bytes, before the measurement starts. They take 3 s here."""
ARCHIVE_TIMEOUT_S: Final = 60.0


class Participant:
    """A client, its process and its bytes over time."""

    __slots__ = ("client", "process", "series")

    def __init__(self, client: Client, process: ClientProcess) -> None:
        self.client = client
        self.process = process
        self.series = Series()


class Session:
    """One run. Raises TestbedError, whose text names the cause."""

    def __init__(self, screen: Screen, stack: ExitStack, check_interrupt: Callable[[], None], brokers: int) -> None:
        self._screen = screen
        self._stack = stack
        self._check_interrupt = check_interrupt
        self._broker_count = brokers
        self._participants: list[Participant] = []
        self._pages: list[ProxyPage] = []
        self._moving_s: float | None = None
        """Time since which all clients have produced or consumed at least one byte."""
        self._began_s: float | None = None
        """Time since which the first bursts of all clients are over."""

    def start(self) -> None:
        """Start the brokers and the proxy, and create the topics."""
        screen, count = self._screen, self._broker_count
        noun = "one broker" if count == 1 else f"{count} brokers"
        with screen.step(f"starting {noun} of Kafka {KAFKA_VERSION}", done=f"{noun} of Kafka {KAFKA_VERSION}: ready"):
            cluster = KafkaCluster(brokers=count, config=BROKER_CONFIG)
            self._stack.callback(cluster.close)
            cluster.start()
            self.cluster = cluster
        with screen.step("starting Headrace in front of the brokers", done="Headrace is ready"):
            ids = "0" if count == 1 else f"0-{count - 1}"
            usage = make_directory("headrace-usage-")
            self._stack.callback(usage.remove)
            self.usage_folder = usage.path
            config = proxy_config(usage.path)
            proxy = ProxyProcess(cluster.bootstrap_servers, config=config, node_ids=ids, has_token=True)
            self._stack.callback(proxy.close)
            self.proxy = proxy
        with screen.step("creating topics, and records to consume", done="topics and records to consume are ready"):
            self._brokers = Brokers(cluster.bootstrap_servers, count)
            self._brokers.create([client.topic for client in CLIENTS])
            fill(LIMITED_CONSUMER.topic, cluster.bootstrap_servers, count)

    def run(self, seconds: float) -> Outcome:
        """Run the clients, show the table, end the clients, and return the outcome."""
        with self._screen.table() as live:
            for client in CLIENTS:
                process = ClientProcess(client, command(client, self.proxy.bootstrap_servers))
                self._stack.callback(process.close)
                self._participants.append(Participant(client, process))
            launched_s = next_tick_s = time.monotonic()
            next_shown_s = launched_s + PLAIN_EVERY_S
            while True:
                self._check_interrupt()
                self._look()
                now_s = time.monotonic()
                elapsed_s = self._elapsed_s(launched_s)
                over = elapsed_s is not None and elapsed_s >= seconds
                if live is not None or now_s >= next_shown_s or over:
                    next_shown_s = max(next_shown_s + PLAIN_EVERY_S, now_s)
                    footnote = live is not None or over
                    self._screen.show(live, self._drawn(elapsed_s, seconds, footnote=footnote))
                if over:
                    return self._outcome(seconds)
                next_tick_s = max(next_tick_s + TICK_S, now_s)
                time.sleep(max(0.0, next_tick_s - time.monotonic()))

    def end_clients(self) -> None:
        """Kill the clients; brokers and proxy keep running."""
        for each in self._participants:
            each.process.close()

    def watch_until_interrupted(self) -> None:
        """Wait for a signal. Raises TestbedError if a broker or the proxy ends by itself."""
        while True:
            self._check_interrupt()
            time.sleep(TICK_S)
            read_page(self.proxy)
            for broker in self.cluster.brokers:
                if (status := broker.exit_status()) is not None:
                    raise TestbedError(f"{broker} ended by itself with status {status}\n{broker.log_tail()}")

    # --- sampling ---

    def _look(self) -> None:
        """Sample the clients, the brokers and the proxy."""
        self._pages.append(read_page(self.proxy))
        written = [each.client.topic for each in self._participants if not each.client.consumes]
        at_s, totals = self._brokers.bytes_written(written)
        for each in self._participants:
            reported = each.process.read()
            if not each.client.consumes:
                each.series.add(at_s, totals[each.client.topic.name])
            elif reported and each.process.report is not None:
                each.series.add(each.process.report.at_s, each.process.report.moved_bytes)

    def _elapsed_s(self, launched_s: float) -> float | None:
        """Return the seconds since all clients move bytes and their first bursts are over; `None` before."""
        now_s = time.monotonic()
        if self._moving_s is None:
            self._check_starting(launched_s)
        if self._began_s is None and self._moving_s is not None:
            settled = all(self._settled(each, now_s) for each in self._participants)
            if settled or now_s > self._moving_s + FIRST_BURSTS_S:
                self._began_s = now_s
        return None if self._began_s is None else now_s - self._began_s

    def _settled(self, each: Participant, now_s: float) -> bool:
        """Return whether the client has reached its limit, and its first burst has arrived."""
        if each.client.limit is None:
            return True
        throttled = self._pages[-1].client(each.client.client_id).throttled_requests > 0
        return throttled and each.series.rate(now_s, NOW_S) <= each.client.limit

    def _check_starting(self, launched_s: float) -> None:
        waiting = [each for each in self._participants if not each.series.total]
        if not waiting:
            self._moving_s = time.monotonic()
        elif failed := [each for each in waiting if each.process.problem is not None]:
            raise TestbedError(f"the client {failed[0].client.client_id} {failed[0].process.problem}")
        elif time.monotonic() > launched_s + START_TIMEOUT_S:
            names = " and ".join(each.client.client_id for each in waiting)
            raise TestbedError(f"{names} produced or consumed nothing within {START_TIMEOUT_S:.0f} s")

    def _drawn(self, elapsed_s: float | None, seconds: float, *, footnote: bool) -> RenderableType:
        past = (
            "the clients start, and send their first bursts"
            if elapsed_s is None
            else f"{min(elapsed_s, seconds):.0f} of {seconds:.0f} s"
        )
        if not self._pages[-1].enforcing:
            past += " - quotas are NOT enforced"
        rows = [self._row(each) for each in self._participants]
        screen = self._screen
        width, ascii_only = screen.console.width, screen.ascii_only
        return draw(rows, title=past, width=width, ascii_only=ascii_only, footnote=footnote)

    def _row(self, each: Participant) -> Row:
        now_s = time.monotonic()
        throttling = self._pages[-1].client(each.client.client_id)
        return Row(
            client=each.client,
            state=self._state(each),
            now_rate=each.series.rate(now_s, NOW_S),
            mean_rate=each.series.rate(now_s, WINDOW_S),
            muted_share=self._muted_share(each.client, self._began_s or now_s),
            throttled_requests=throttling.throttled_requests,
            longest_throttle_s=throttling.longest_throttle_s,
            bars=each.series.per_second(now_s, MOST_BARS),
        )

    def _state(self, each: Participant) -> State:
        if each.process.problem is not None:
            return State.FAILED
        if not each.series.total:
            return State.STARTING
        muted = self._pages[-1].client(each.client.client_id).muted_connections
        return State.MUTED if muted else State.FREE

    def _muted_share(self, client: Client, since_s: float) -> float:
        """Return the muted share of the time between the first page after `since_s` and the latest, over all
        connections of the client."""
        last = self._pages[-1]
        first = next((page for page in self._pages if page.at_s >= since_s), last)
        before, after = first.client(client.client_id), last.client(client.client_id)
        time_s = (last.at_s - first.at_s) * max(after.connections, 1)
        # A mute is counted when its request is completed, which may be after a page that was read during the mute.
        return min(1.0, (after.muted_s - before.muted_s) / time_s) if time_s > 0 else 0.0

    # --- the end ---

    def _outcome(self, seconds: float) -> Outcome:
        """Return the outcome; rates are smoothed over the run without its first window."""
        page = self._pages[-1]
        smoothing_s = SMOOTHING_S * int((seconds - WINDOW_S) // SMOOTHING_S)
        return Outcome(
            smoothing_s=smoothing_s,
            clients=[self._client_outcome(each, smoothing_s) for each in self._participants],
            throttled_requests=page.throttled_requests,
            proxy_errors=page.errors,
            enforcing=page.enforcing,
        )

    def _client_outcome(self, each: Participant, smoothing_s: float) -> ClientOutcome:
        client, report = each.client, each.process.report
        page = self._pages[-1]
        throttling = page.client(client.client_id)
        return ClientOutcome(
            client_id=client.client_id,
            library=client.library,
            verb=client.verb,
            limit=client.limit,
            rate=each.series.smoothed(page.at_s, WINDOW_S, smoothing_s),
            muted_share=self._muted_share(client, page.at_s - WINDOW_S - smoothing_s),
            throttled_requests=throttling.throttled_requests,
            longest_throttle_s=throttling.longest_throttle_s,
            throttle_times=None if report is None else report.throttles,
            most_in_flight=0 if report is None else report.most_in_flight,
            ignores_throttling=client is MISBEHAVING,
            lost_connections=throttling.lost_connections,
            problem=each.process.problem,
        )


def fill(topic: Topic, bootstrap_servers: str, partitions: int) -> None:
    """Write `ARCHIVE_BYTES` to a topic, directly to the brokers. Raises TestbedError."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "client.id": "demo",
            "log_level": 0,
            "batch.size": ARCHIVE_BATCH_BYTES,
        }
    )
    value = bytes(topic.record_bytes)
    for number in range(ARCHIVE_BYTES // topic.record_bytes):
        while True:
            try:
                producer.produce(topic.name, value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(TICK_S)
    if left := producer.flush(ARCHIVE_TIMEOUT_S):
        raise TestbedError(f"{left} records for the topic {topic.name} were not accepted in {ARCHIVE_TIMEOUT_S:.0f} s")
