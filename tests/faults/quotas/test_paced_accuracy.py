"""Paced quotas at the real proxy: the limit gets through, however many connect, and they take turns."""

from __future__ import annotations

import contextlib
import json
import math
import re
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import pytest
import trio
from confluent_kafka import KafkaError, Producer

from benchmarks.paced_clients import Group, Produce, jain, run_groups
from testbed.kafka.jvm import start_jvm
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback, events, wait_for_lines
from tests.faults.quotas.throttled_clients import java, java_properties
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.shared_cluster import FirstBroker


LIMIT: Final = 2 * 2**20
REQUEST_BYTES: Final = 64 * 2**10
CONNECTIONS: Final = (1, 20, 200)
BURST_S: Final = 1.0
FAIR: Final = 0.95
DURATION_S: Final = 60.0
TOLERANCE: Final = 0.01

SHORT_LIMIT: Final = 4 * 2**20
SHORT_REQUEST_BYTES: Final = 16 * 2**10
SHORT_BURST_S: Final = 0.02
SHORT_TURNS: Final = 5
"""For each connection, however long they take."""
SHORT_FAIR: Final = 0.8
"""After a pause of the proxy the burst is available again, and the first clients to ask get it."""
WARM_UP_S: Final = 0.5
"""A broker answers the first requests to a new topic slowly, and until then the limit is not used."""

DEADLINE_S: Final = 18.0
LONG_TURN: Final = "a paced request is held for longer than clients usually wait"
CHANGED: Final = "configuration changed"
THROTTLED: Final = "headrace_throttled_requests_total"
KAFKA_TIMEOUT_S: Final = 60.0


def paced(limit: float, *client_ids: str, burst_s: float = 0) -> str:
    return "".join(
        f'[[quotas]]\nentity = {{ client-id = "{client_id}" }}\nproducer_byte_rate = {limit}\n'
        f'enforcement = "paced"\nburst = "{burst_s:g}s"\n'
        for client_id in client_ids
    )


@pytest.fixture(scope="module")
def shared_proxy(kafka: FirstBroker) -> Iterator[ProxyProcess]:
    """Without quotas: each test reloads those of its own client ids."""
    with ProxyProcess(kafka.bootstrap_servers, arguments=(*JSON_LOG, "--log-level", "debug")) as process:
        process.wait_for_log("brokers changed")
        yield process
        assert_no_traceback(process)


@pytest.fixture
def proxy(shared_proxy: ProxyProcess) -> Iterator[ProxyProcess]:
    """No client is throttled there when a test begins."""
    yield shared_proxy
    wait_until(lambda: held(shared_proxy) == 0, "the proxy has noticed that all are gone")


def set_quotas(proxy: ProxyProcess, config: str) -> None:
    """Reload, and wait until it is in force."""
    before = sum(event["event"] == CHANGED for event in events(proxy))
    proxy.reload(config)
    wait_until(lambda: sum(event["event"] == CHANGED for event in events(proxy)) > before, "the reload is in force")


def body(topic: str, size: int) -> bytes:
    return messages.produce_body(topic, messages.batch(bytes(size)))


def connect(proxy: ProxyProcess, stack: contextlib.ExitStack, client_id: str, count: int) -> list[RawClient]:
    return [stack.enter_context(RawClient(proxy.port, client_id=client_id, timeout_s=DEADLINE_S)) for _ in range(count)]


def send(client: RawClient, request: bytes) -> None:
    client.request(messages.PRODUCE, messages.PRODUCE_VERSION, request)


def acknowledged(client: RawClient) -> None:
    _, reply = client.reply()
    assert messages.read_produce_reply(reply).error_code == 0


def produce(client: RawClient, request: bytes) -> None:
    send(client, request)
    acknowledged(client)


def held(proxy: ProxyProcess) -> int:
    return int(proxy.metric("headrace_muted_connections"))


# --- what gets through ------------------------------------------------------------------------------------------------


EXTRA_S: Final = 0.1
SETTLED_S: Final = 1.0
"""The quickest clients get the burst, so shares are compared after it."""


def measured(
    proxy: ProxyProcess,
    topic: str,
    counts: Sequence[int],
    limit: float,
    size: int,
    *,
    burst_s: float,
    duration_s: float = 0,
    turns: int = 0,
) -> list[Group]:
    """Run groups of so many connections side by side, each with a quota of its own, for so long and so many turns."""

    def group(name: str, count: int) -> Group:
        return Group(client_id=name, port=proxy.broker_port(0), connections=count, work=Produce(topic, size, name))

    groups = [group(f"paced-{count}", count) for count in counts]
    set_quotas(proxy, paced(limit, *(each.client_id for each in groups), burst_s=burst_s))
    trio.run(run_groups, [group("unlimited", 4)], WARM_UP_S)
    trio.run(partial(run_groups, turns=turns), groups, duration_s + EXTRA_S)
    return groups


def assert_never_above(group: Group, limit: float, size: int, burst_s: float, duration_s: float) -> float:
    """What it got in all, the burst aside, over the limit."""
    charged, until_s = group.acks.since_first_sent(duration_s)
    ratio = (charged - burst_s * limit) / (limit * until_s)
    # Whatever the machine does: a place comes when no more than the burst is owed, and then one request goes.
    assert charged <= burst_s * limit + limit * until_s + size, f"{group.connections} connections: {ratio:.4f}"
    return ratio


def test_many_connections_take_turns_and_never_get_more_than_the_limit(proxy: ProxyProcess, topic: str) -> None:
    """How much of the limit gets through depends on the machine: the long form below looks at that."""
    for group in measured(
        proxy, topic, (20, 200), SHORT_LIMIT, SHORT_REQUEST_BYTES, burst_s=SHORT_BURST_S, turns=SHORT_TURNS
    ):
        assert_never_above(group, SHORT_LIMIT, SHORT_REQUEST_BYTES, SHORT_BURST_S, math.inf)
        fairness = jain(group.acks.shares(group.connections, 0, math.inf))
        assert fairness >= SHORT_FAIR, f"{group.connections} connections: Jain's index {fairness:.3f}"


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("connections", CONNECTIONS)
def test_a_minute_is_within_a_percent(proxy: ProxyProcess, topic: str, connections: int) -> None:
    (group,) = measured(proxy, topic, (connections,), LIMIT, REQUEST_BYTES, burst_s=BURST_S, duration_s=DURATION_S)
    ratio = assert_never_above(group, LIMIT, REQUEST_BYTES, BURST_S, DURATION_S)
    fairness = jain(group.acks.shares(group.connections, SETTLED_S, DURATION_S))
    print(f"{connections} connections: {ratio:.4f} of the limit, Jain's index {fairness:.3f}")  # noqa: T201 - with -s
    assert fairness >= FAIR
    assert abs(ratio - 1) <= TOLERANCE


# --- places -----------------------------------------------------------------------------------------------------------


def test_who_dies_while_held_gives_the_place_back(proxy: ProxyProcess, topic: str) -> None:
    dying, size, limit, name = 10, 60_000, 1000, "dying"
    raised = limit * 10
    assert dying // 2 * size / raised > DEADLINE_S, "half of their places alone would be too long to wait for"
    set_quotas(proxy, paced(limit, name))
    large, small = body(topic, size), body(topic, 1)
    with contextlib.ExitStack() as stack:
        first, later, *ends = connect(proxy, stack, name, dying + 2)
        produce(first, body(topic, 10_000))
        for client in ends:
            send(client, large)
        wait_until(lambda: held(proxy) == dying, "all are held")
        for client in ends[::2]:
            client.close()  # FIN
        for client in ends[1::2]:
            client.reset()
        wait_until(lambda: held(proxy) == 0, "the proxy has noticed")
        set_quotas(proxy, paced(raised, name))  # the debt of the first request is over sooner
        produce(later, small)
        produce(first, small)
    reasons = {client.name: wait_for_lines(proxy, client.name)[-1]["reason"] for client in ends}  # ports are reused
    assert set(reasons.values()) == {"the client hung up while it was muted"}


def test_a_place_that_comes_after_more_than_half_a_minute_is_warned_of(proxy: ProxyProcess, topic: str) -> None:
    name = "patient"
    set_quotas(proxy, paced(1000, name))

    def warnings() -> list[dict[str, Any]]:
        found = [event for event in events(proxy) if event["event"].startswith(LONG_TURN)]
        return [event for event in found if event["entity"] == f"client-id={name}"]

    with contextlib.ExitStack() as stack:
        first, second, third = connect(proxy, stack, name, 3)
        produce(first, body(topic, 20_000))
        send(second, body(topic, 20_000))
        wait_until(lambda: held(proxy) == 1, "20 s are not too long")
        assert warnings() == []
        send(third, body(topic, 1))
        wait_until(lambda: bool(warnings()), "40 s are")
    (event,) = warnings()
    assert (event["level"], event["quota"]) == ("warning", "producer_byte_rate")
    assert 30 < event["held_s"] < 41


def test_a_reload_while_many_wait_keeps_their_places_and_moves_who_comes_after(proxy: ProxyProcess, topic: str) -> None:
    size, huge_size, waiting, slow, name = 4000, 900_000, 15, 40_000, "reloaded"
    assert huge_size / slow > DEADLINE_S
    set_quotas(proxy, paced(slow, name))
    request, huge = body(topic, size), body(topic, huge_size)
    before = proxy.metric(THROTTLED)
    with contextlib.ExitStack() as stack:
        first, newcomer, *queue = connect(proxy, stack, name, waiting + 2)
        produce(first, request)
        for client in queue:
            send(client, request)
        wait_until(lambda: proxy.metric(THROTTLED) - before > waiting // 2, "most were held")
        set_quotas(proxy, paced(slow * 1000, name))
        produce(newcomer, huge)
        produce(newcomer, request)  # at the old limit its place would come after the huge one's, too late
        for client in queue:
            acknowledged(client)
        set_quotas(proxy, paced(1, name))
        produce(newcomer, request)
        send(first, request)
        wait_until(lambda: held(proxy) == 1, "the lower limit holds at once")


def test_the_page_shows_what_is_accepted_and_said(proxy: ProxyProcess) -> None:
    page = (Path(__file__).parents[3] / "docs" / "paced.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```toml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    set_quotas(proxy, block)
    assert f"\n{LONG_TURN}\n" in page


# --- clients ----------------------------------------------------------------------------------------------------------


class Watched:
    """A librdkafka producer that never retries, and all its events."""

    def __init__(self, servers: str, topic: str, value_bytes: int, **settings: Any) -> None:
        self.errors: list[str] = []
        self.delivered = 0
        self.statistics: dict[str, Any] = {}
        self._topic = topic
        self._value = bytes(value_bytes)
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "client.id": "librdkafka",
                "message.send.max.retries": 0,
                "linger.ms": 0,
                "log_level": 0,
                "error_cb": lambda error: self.errors.append(str(error)),
                "stats_cb": lambda text: self.statistics.update(json.loads(text)),
                "statistics.interval.ms": 100,
                **settings,
            }
        )

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        if error is None:
            self.delivered += 1
        else:
            self.errors.append(str(error))

    def produce(self, count: int) -> None:
        for _ in range(count):
            self._producer.produce(self._topic, self._value, on_delivery=self._delivered)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close()

    def finish(self, timeout_s: float) -> None:
        assert self._producer.flush(timeout_s) == 0
        delivered_at = self.statistics.get("ts", 0)

        def counted() -> bool:
            self._producer.poll(0)
            return bool(self.statistics.get("ts", 0) > delivered_at)

        wait_until(counted, "statistics from after the last delivery")

    def troubles(self) -> dict[str, int]:
        brokers = self.statistics["brokers"].values()
        return {name: sum(broker[name] for broker in brokers) for name in ("txretries", "txerrs", "req_timeouts")}


def test_librdkafka_waits_its_turn_without_a_retry_or_an_error(proxy: ProxyProcess, topic: str) -> None:
    count, size, limit = 4, 50_000, 200_000
    set_quotas(proxy, paced(limit, "librdkafka"))
    with contextlib.ExitStack() as stack:
        producers = [
            stack.enter_context(Watched(proxy.bootstrap_servers, topic, size, **{"batch.size": size})) for _ in range(2)
        ]
        for producer in producers:
            producer.produce(count)
        for producer in producers:
            producer.finish(DEADLINE_S)
            assert producer.errors == []
            assert producer.delivered == count
            assert producer.troubles() == {"txretries": 0, "txerrs": 0, "req_timeouts": 0}
    assert proxy.metric(THROTTLED) >= len(producers) * count // 2


class JavaSender(threading.Thread):
    """A Java producer with its own time-outs (30 s for a request), one request in flight, and no retries.

    It connects, waits for the others at `begin`, and then sends.
    """

    def __init__(self, servers: str, topic: str, value_bytes: int, count: int, begin: threading.Barrier) -> None:
        super().__init__(name="java sender")
        self.servers = servers
        self.topic = topic
        self.value_bytes = value_bytes
        self.count = count
        self.begin = begin
        self.error: BaseException | None = None
        self.delivered = 0

    def run(self) -> None:
        try:
            self._send()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error
            self.begin.abort()  # otherwise the others would wait for it

    def _send(self) -> None:
        classes = java()
        serializer = classes.cls("org.apache.kafka.common.serialization.ByteArraySerializer")
        settings = {
            "bootstrap.servers": self.servers,
            "client.id": "java",
            "retries": "0",
            "enable.idempotence": "false",
            "max.in.flight.requests.per.connection": "1",
        }
        producer = classes.cls("org.apache.kafka.clients.producer.KafkaProducer")(
            java_properties(settings), serializer(), serializer()
        )
        record = classes.cls("org.apache.kafka.clients.producer.ProducerRecord")
        jpype = start_jvm()
        value = jpype.JArray(jpype.JByte)(bytes(self.value_bytes))
        seconds = jpype.java.util.concurrent.TimeUnit.SECONDS
        try:
            producer.partitionsFor(self.topic)
            self.begin.wait(KAFKA_TIMEOUT_S)
            for _ in range(self.count):
                producer.send(record(self.topic, value)).get(int(KAFKA_TIMEOUT_S), seconds)
                self.delivered += 1
        finally:
            producer.close(jpype.java.time.Duration.ZERO)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_java_producers_outlast_turns_of_up_to_their_time_out(proxy: ProxyProcess, topic: str) -> None:
    """Five that take turns: a request waits for 25 s, five less than a Java client gives it."""
    producers, size, limit = 5, 50_000, 10_000
    set_quotas(proxy, paced(limit, "java"))
    begin = threading.Barrier(producers)
    senders = [JavaSender(proxy.bootstrap_servers, topic, size, 3, begin) for _ in range(producers)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(4 * KAFKA_TIMEOUT_S)
        assert not sender.is_alive()
    for sender in senders:
        if sender.error is not None:
            raise sender.error
        assert sender.delivered == sender.count
