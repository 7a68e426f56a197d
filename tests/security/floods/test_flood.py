"""Floods of several kinds at once, in front of a real broker, and a well-behaved client beside them.

The client produces and consumes as fast as its own quota allows, which needs a part of one core: so that it keeps its
throughput shows that the proxy goes on serving it, and not only that there is some capacity left. The quota is paced:
with mutes of several seconds, throughput would depend on when it is measured. The flood comes from processes of its
own, which are written to cost little, and from other addresses than the client's.

``FLOOD_SCALE=0.05`` in the environment makes the times and the flood smaller, to try the test itself.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.proxy.network.overload import connections_with
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import eventually
from tests.faults.bystander import Bystander
from tests.faults.conftest import leads
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback
from tests.faults.waiting import wait_until
from tests.security.floods.flood import Idle, SlowHeads, Storm
from tests.shared_cluster import new_topic

if TYPE_CHECKING:
    from tests.shared_cluster import FirstBroker

MIB: Final = 2**20
TIMEOUT_S: Final = 60.0
CLIENT_ID: Final = "well-behaved"
SCALE: Final = float(os.environ.get("FLOOD_SCALE", "1"))
RATE_BYTES: Final = 1_000_000
CONFIG: Final = f"""
[[quotas]]
entity = {{ client-id = "{CLIENT_ID}" }}
producer_byte_rate = {RATE_BYTES}
enforcement = "paced"

[[quotas]]
entity = {{ client-id = "<default>" }}
producer_byte_rate = 100000
request_percentage = 10.0
"""
WARM_UP_S: Final = 15.0
"""More than a quota's window, so that its burst is used up."""
RECORD_BYTES: Final = 1000
CONTENT: Final = random.Random(14).randbytes(100_000)  # noqa: S311
QUIET_ATTACKS: Final = ("Idle", "SlowHeads", "HalfHandshakes", "PartialProduces", "Announcements")
BUSY_ATTACKS: Final = ("Storm", "Handshakes", "Bursts", "ShortLogins")
DESCRIPTORS: Final = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
LEAST_OPEN: Final = 0.95 * min(Idle.count * SCALE, connections_with(DESCRIPTORS, 100))
"""Connections before the busy attacks begin: all idle ones, if there are descriptors for them. With 20,000, a process
serves some 6,700, since each takes two, and a quarter is kept for pipes; others wait, and silent ones give way to them.
For 8,000, it takes 23,600."""
LEAD_S: Final = 40.0
"""Time in which the idle connections are opened, before the busy attacks begin."""
LEAST_SHARE: Final = 0.8
MOST_GROWN_BYTES: Final = 128 * MIB
"""6,700 connections take 72 MiB of it, and the unfinished handshakes 19 MiB."""
SAMPLE_S: Final = 0.5
LEAST_OF_OTHERS: Final = (
    ("SlowHeads", "sent", 0.5 * SlowHeads.pieces),
    ("HalfHandshakes", "sent", 100_000),
    ("PartialProduces", "sent", 100_000),
    ("Announcements", "ended", 3),
    ("Handshakes", "answers", 30),
    ("Bursts", "answers", 30),
    ("ShortLogins", "opened", 1.5),
)
"""What the other attacks reach a second, a third or half of what was measured. The quota of their client id, of 10 % of
a thread, mutes those that are answered; and all connections are accepted at the rate that the storm leaves."""


def record(number: int) -> bytes:
    """The value of a record, from which it can be seen whether any byte has changed."""
    begin = number * 7919 % (len(CONTENT) - RECORD_BYTES)
    return number.to_bytes(8, "big") + CONTENT[begin : begin + RECORD_BYTES - 8]


class WellBehaved:
    """A producer of numbered records, and a consumer that reads them, until the ``with`` block ends."""

    def __init__(self, servers: str, topic: str) -> None:
        self.sent = self.acknowledged = self.read = 0
        self.faults: list[str] = []
        self._topic = topic
        common: dict[str, Any] = {"bootstrap.servers": servers, "client.id": CLIENT_ID, "log_level": 0}
        self._producer = Producer(
            {
                **common,
                "enable.idempotence": True,
                "linger.ms": 5,
                "batch.size": 16_384,
                "queue.buffering.max.messages": 2000,
            }
        )
        self._consumer = Consumer({**common, "group.id": topic, "check.crcs": True})
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._produce, self._consume)]

    def _produce(self) -> None:
        while not self._stop.is_set():
            try:
                self._producer.produce(self._topic, record(self.sent), on_delivery=self._delivered)
                self.sent += 1
                self._producer.poll(0)
            except BufferError:
                self._producer.poll(0.05)
        if self._producer.flush(TIMEOUT_S):
            self.faults.append("not everything was delivered")

    def _delivered(self, error: KafkaError | None, _message: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.faults.append(f"not delivered: {error}")

    def _consume(self) -> None:
        while not self._stop.is_set() and not self.faults:
            self.read += self.check(self._consumer.consume(1000, timeout=0.1), self.read)
        self._consumer.close()

    def check(self, found: list[Message], first: int) -> int:
        """Return the number of records in ``found``, which must be those from number ``first`` on."""
        values = [message.value() for message in found if message.error() is None]
        if values != [record(number) for number in range(first, first + len(values))]:
            self.faults.append(f"other records than were sent from {first} on")
        return len(values)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * TIMEOUT_S)
            assert not thread.is_alive()


def assert_all_arrived(kafka: FirstBroker, topic: str, client: WellBehaved) -> None:
    """Read the topic from the broker itself: every record is there once, in order, exactly as it was sent."""
    assert client.faults == []
    assert client.acknowledged == client.sent > 0
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "all", "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    read, deadline = 0, time.monotonic() + TIMEOUT_S
    while read < client.sent and time.monotonic() < deadline:
        read += client.check(consumer.consume(10_000, timeout=0.5), read)
    read += client.check(consumer.consume(1, timeout=1.0), read)
    consumer.close()
    assert client.faults == []
    assert read == client.sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was seen in some time; throughputs are a second."""

    produced: float
    consumed: float
    answers: float
    proxy_ran: float
    """The share of the time for which the proxy ran on a core."""
    proxy_waited: float
    """The share of the time for which the proxy could have run, and other processes had the cores."""
    peak_bytes: int


def measure(proxy: ProxyProcess, client: WellBehaved, bystander: Bystander, duration_s: float) -> Measured:
    def counts() -> tuple[float, ...]:
        ran_ns, waited_ns, _ = map(int, Path(f"/proc/{proxy.pid}/schedstat").read_text().split())
        return time.monotonic(), client.acknowledged, client.read, bystander.answers, ran_ns / 1e9, waited_ns / 1e9

    before, peak, end_s = counts(), 0, time.monotonic() + duration_s
    while time.monotonic() < end_s:
        peak = max(peak, proxy.resident_bytes)
        time.sleep(SAMPLE_S)
    elapsed, *changes = (after - earlier for after, earlier in zip(counts(), before, strict=True))
    produced, consumed, answers, ran, waited = (change / elapsed for change in changes)
    return Measured(
        produced=produced,
        consumed=consumed,
        answers=answers,
        proxy_ran=ran,
        proxy_waited=waited,
        peak_bytes=peak,
    )


@pytest.mark.soak
def test_a_well_behaved_client_keeps_its_throughput_beside_a_flood(kafka: FirstBroker) -> None:
    quiet_s, flood_s = 60.0 * SCALE, 300.0 * SCALE
    topic = f"flood-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([new_topic(topic)])[topic].result(TIMEOUT_S)
    eventually(lambda: leads(admin, topic), "the broker leads the topic")
    with ProxyProcess(kafka.bootstrap_servers, config=CONFIG, arguments=JSON_LOG) as proxy:
        with WellBehaved(proxy.bootstrap_servers, topic) as client, Bystander(proxy.port) as bystander:
            time.sleep(WARM_UP_S)
            quiet = measure(proxy, client, bystander, quiet_s)
            start_bytes = proxy.resident_bytes
            floods = [flood(proxy, flood_s + LEAD_S, QUIET_ATTACKS)]
            try:
                # The storm fills the queue of new connections, where these would wait for long on a slow machine.
                idle = "the idle connections are open"
                wait_until(lambda: proxy.metric("headrace_connections") >= LEAST_OPEN, idle, LEAD_S, poll_s=SAMPLE_S)
                floods.append(flood(proxy, flood_s, BUSY_ATTACKS))
                flooded = measure(proxy, client, bystander, flood_s * 0.9)
                metrics = {name: proxy.metric(f"headrace_{name}") for name in METRICS}
                # The first one lasts LEAD_S longer, however soon the idle connections were open.
                done = [json.loads(each.communicate(timeout=LEAD_S + TIMEOUT_S)[0]) for each in floods]
            finally:
                for each in floods:
                    each.kill()
        grown = f"grown by {(flooded.peak_bytes - start_bytes) / MIB:.1f} from {start_bytes / MIB:.1f} MiB"
        seen = "\n".join(map(str, (quiet, flooded, grown, metrics, *done)))
        print(seen)  # noqa: T201 - shown with -s
        assert_no_traceback(proxy)
    assert_all_arrived(kafka, topic, client)
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    assert_flooded(done, flood_s)
    assert flooded.produced >= LEAST_SHARE * quiet.produced, seen
    assert flooded.consumed >= LEAST_SHARE * quiet.consumed, seen
    assert flooded.peak_bytes - start_bytes <= MOST_GROWN_BYTES, seen


def flood(proxy: ProxyProcess, flood_s: float, attacks: tuple[str, ...]) -> subprocess.Popen[bytes]:
    module = "tests.security.floods.flood"
    command = [sys.executable, "-m", module, str(proxy.port), str(flood_s), str(SCALE), *attacks]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def assert_flooded(done: list[dict[str, Any]], flood_s: float) -> None:
    """The flood was as large as it was to be, or what the client kept would mean nothing."""
    counts = {name: each for attacks in done for name, each in attacks.items()}
    assert counts["Idle"]["opened"] >= Idle.count * SCALE
    assert counts["Storm"]["opened"] >= 0.9 * Storm.rate * SCALE * flood_s
    for name, what, a_second in LEAST_OF_OTHERS:
        assert counts[name][what] >= a_second * SCALE * flood_s, name


METRICS: Final = (
    "connections",
    "connections_accepted_total",
    "connections_refused_total",
    "accept_delay_seconds_total",
    "upstream_connections",
    "errors_total",
)
