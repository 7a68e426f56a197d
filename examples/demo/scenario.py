"""The four clients, their topics and their quotas. Mostly data; change the demo here."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import confluent_kafka

from testbed.kafka.artifacts import DEFAULT_BROKER_VERSION
from testbed.kafka.class_data import class_data_archive
from testbed.kafka.launch import java_command
from testbed.kafka.tools import Tool

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

KIB: Final = 1024
MIB: Final = 1024 * 1024

KAFKA_VERSION: Final = DEFAULT_BROKER_VERSION
# How rates are measured. Kafka's default quotas, and Headrace's, are measured over 11 samples of 1 s. A client that
# sends as fast as it can gets a whole window's bytes in a second or two, waits, and gets the next ones 11 to 12.5 s
# after the first. So while a limit holds, no mean over 11 s exceeds it by more than a tenth, but the mean varies.
# Averaged over 12 s, or a multiple, it is within 3 % of the mean over hours, regardless of when the average begins.
WINDOW_S: Final = 11
"""Kafka's window, over which the table shows the mean rate."""
SMOOTHING_S: Final = 12
"""Time over which the mean rate over `WINDOW_S` is averaged for the verdict; a multiple of it can be used, too."""

PLUGIN: Final = "examples.demo.throttle_watch:ThrottleWatch"

ARCHIVE_BYTES: Final = 48 * MIB
"""Bytes that the consumer reads repeatedly: more than its first window allows, and written in a second."""

ARCHIVE_BATCH_BYTES: Final = 32 * KIB
"""Maximum size of its batches: seven records of 4 KiB, which are 28.1 KiB with their headers."""

JAVA_HEAP_MB: Final = 96
UNLIMITED_RECORDS: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic of the demo, with one partition on every broker, unreplicated, since the machine may be small."""

    name: str
    record_bytes: int
    """Size of every record's value; keys are null. The end offsets times this are the bytes written."""
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One of the clients."""

    client_id: str
    library: str
    does: str
    topic: Topic
    verb: str = "sent"
    limit: float | None = None
    """Bytes per second; `None` for no quota."""
    quota_key: str = "producer_byte_rate"
    offered: float | None = None
    """Bytes per second that it tries to send; `None` for as many as it can."""
    program: str = ""
    """A module of `examples.demo.clients`; "" for Java's ProducerPerformance."""
    settings: Mapping[str, str]
    """Settings by the library's own names."""

    @property
    def consumes(self) -> bool:
        """Whether it is a consumer; the others are producers."""
        return self.quota_key == "consumer_byte_rate"


# The demo may run for hours: old segments are deleted within seconds, so that the disk does not fill up.
SHORT_LIVED: Final = {
    "segment.bytes": str(16 * MIB),
    "retention.bytes": str(32 * MIB),
    "file.delete.delay.ms": "100",
}

BROKER_CONFIG: Final = {
    "log.retention.check.interval.ms": 1000,
    "log.initial.task.delay.ms": 1000,
}

LIBRDKAFKA: Final = f"librdkafka {confluent_kafka.libversion()[0]}"
KAFKA_PYTHON: Final = f"kafka-python {version('kafka-python')}"
JAVA: Final = f"Java client {KAFKA_VERSION}"

# Sizes of requests: Kafka accepts the request that exceeds a quota, on every connection and after every mute. With
# three connections and mutes of a second, these are three requests per second: here about 5 % of each limit.

FREE: Final = Client(
    client_id="free-producer",
    library=LIBRDKAFKA,
    # Limited, since it would otherwise use both cores of a small machine, which the others need, too.
    does="produces 32 MiB/s",
    offered=32 * MIB,
    topic=Topic(name="free", record_bytes=8 * KIB, config=SHORT_LIVED),
    program="librdkafka_producer",
    settings={"linger.ms": "5", "queue.buffering.max.kbytes": "32768"},
)

LIMITED_PRODUCER: Final = Client(
    client_id="limited-producer",
    library=JAVA,
    does="produces as fast as it may",
    topic=Topic(name="limited", record_bytes=KIB, config=SHORT_LIVED),
    limit=2 * MIB,
    # A small buffer, so that records in the client are sent within delivery.timeout.ms.
    settings={"batch.size": str(32 * KIB), "buffer.memory": str(8 * MIB)},
)

LIMITED_CONSUMER: Final = Client(
    client_id="limited-consumer",
    library=KAFKA_PYTHON,
    does="consumes as fast as it may",
    verb="received",
    topic=Topic(name="archive", record_bytes=4 * KIB, config={}),
    limit=3 * MIB,
    quota_key="consumer_byte_rate",
    program="kafka_python_consumer",
    # The size of two batches, since a broker truncates the last batch, and the client would discard the part. Checksums
    # are off, since the library computes them in Python, which takes a whole core for 2 MiB/s.
    settings={"max_partition_fetch_bytes": str(57 * KIB), "check_crcs": "0"},
)

MISBEHAVING: Final = Client(
    client_id="misbehaving",
    library=LIBRDKAFKA,
    does="produces as fast as it can, ignores throttle times",
    topic=Topic(name="misbehaving", record_bytes=KIB, config=SHORT_LIVED),
    limit=1 * MIB,
    program="librdkafka_producer",
    # Sends without waiting for replies or throttle times, and never times out a request.
    settings={
        "linger.ms": "0",
        "batch.size": str(16 * KIB),
        "max.in.flight.requests.per.connection": "1000000",
        "queue.buffering.max.kbytes": "65536",
        "queue.buffering.max.messages": "1000000",
        "acks": "1",
        "request.timeout.ms": "900000",
        "socket.timeout.ms": "300000",
        "message.timeout.ms": "0",
    },
)

CLIENTS: Final = (FREE, LIMITED_PRODUCER, LIMITED_CONSUMER, MISBEHAVING)


def proxy_config(usage_folder: Path) -> str:
    """Return the proxy's configuration: a quota for every client with a limit, the demo's own plugin, usage records."""
    quotas = "".join(
        f'[[quotas]]\nentity = {{ client-id = "{client.client_id}" }}\n{client.quota_key} = {int(client.limit)}\n\n'
        for client in CLIENTS
        if client.limit is not None
    )
    head = "# Written by make demo. Edit it and send SIGHUP to the proxy: quotas change at once.\n\n"
    usage = f'[plugins.options.usage_records]\nfolder = "{usage_folder}"\nname = "demo"\nrotate_s = 1\n'
    return f'{head}{quotas}[plugins]\nload = ["{PLUGIN}"]\n\n{usage}'


def command(client: Client, bootstrap_servers: str) -> list[str]:
    """Return the command that runs `client`. Raises TestbedError if Java or Kafka's jars are not available."""
    if not client.program:
        return _java_producer(client, bootstrap_servers)
    return [
        *(sys.executable, "-m", f"examples.demo.clients.{client.program}"),
        *("--bootstrap-servers", bootstrap_servers),
        *("--client-id", client.client_id, "--topic", client.topic.name),
        *("--record-bytes", str(client.topic.record_bytes)),
        *(["--rate", str(client.offered)] if client.offered is not None else []),
        *(f"--set={name}={value}" for name, value in client.settings.items()),
    ]


def _java_producer(client: Client, bootstrap_servers: str) -> list[str]:
    settings = {"client.id": client.client_id, **client.settings}
    arguments = [
        *("--topic", client.topic.name, "--num-records", str(UNLIMITED_RECORDS)),
        *("--record-size", str(client.topic.record_bytes), "--throughput", "-1"),
        *("--bootstrap-server", bootstrap_servers),
        *("--command-property", *(f"{name}={value}" for name, value in settings.items())),
    ]
    return java_command(
        KAFKA_VERSION,
        Tool.PRODUCER_PERF_TEST.value,
        arguments,
        heap_mb=JAVA_HEAP_MB,
        class_data=class_data_archive(KAFKA_VERSION),
    )
