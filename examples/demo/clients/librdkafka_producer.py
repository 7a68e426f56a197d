"""A producer with librdkafka (confluent-kafka) that sends without a pause.

librdkafka reports throttle times to its application and does not wait itself: only muting limits it.

    python -m examples.demo.clients.librdkafka_producer --bootstrap-servers HOST:PORT --topic NAME --client-id ID
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, Final

import click
from confluent_kafka import KafkaError, KafkaException, Producer

from examples.demo.reports import Reporter, parse_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluent_kafka import ThrottleEvent

POLL_EVERY: Final = 64
"""Records between two polls for delivery reports; a poll costs about as much as a record."""
QUEUE_FULL_POLL_S: Final = 0.05


@click.command(context_settings={"show_default": True})
@click.option("--bootstrap-servers", required=True, metavar="HOST:PORT")
@click.option("--client-id", default="misbehaving")
@click.option("--topic", required=True)
@click.option("--record-bytes", default=1024)
@click.option("--rate", type=float, help="Bytes per second to send.  [default: unlimited]")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of librdkafka.")
def main(
    bootstrap_servers: str, client_id: str, topic: str, record_bytes: int, rate: float | None, settings: Sequence[str]
) -> None:
    """Produce to a topic without a pause, until interrupted, and report on standard output."""
    reporter = Reporter()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "client.id": client_id,
            "throttle_cb": lambda event: _throttled(reporter, event),
            "error_cb": reporter.failed,
            "stats_cb": lambda text: _in_flight(reporter, text),
            "statistics.interval.ms": 500,
            **parse_settings(settings),
        }
    )
    _flood(producer, topic, os.urandom(record_bytes), rate, reporter)


def _flood(producer: Producer, topic: str, value: bytes, rate: float | None, reporter: Reporter) -> None:
    size = len(value)

    def delivered(error: KafkaError | None, _message: Any) -> None:
        if error is None:
            reporter.moved_bytes += size
        else:
            reporter.failed(error)

    began_s, handed_over = time.monotonic(), 0
    while True:
        ahead_s = handed_over * size / rate - (time.monotonic() - began_s) if rate else 0.0
        if ahead_s > 0:
            producer.poll(ahead_s)  # returns as soon as it has handled an event
            reporter.report()
            continue
        for _ in range(POLL_EVERY):
            try:
                producer.produce(topic, value, on_delivery=delivered)
                handed_over += 1
            except BufferError:
                producer.poll(QUEUE_FULL_POLL_S)
                break
            except KafkaException as error:
                reporter.failed(error)
                producer.poll(QUEUE_FULL_POLL_S)
                break
        producer.poll(0)
        reporter.report()


def _throttled(reporter: Reporter, event: ThrottleEvent) -> None:
    reporter.throttled(round(event.throttle_time * 1000))


def _in_flight(reporter: Reporter, statistics: str) -> None:
    brokers = json.loads(statistics)["brokers"].values()
    reporter.most_in_flight = max(reporter.most_in_flight, sum(broker["waitresp_cnt"] for broker in brokers))


if __name__ == "__main__":
    main()
