"""A consumer with kafka-python that reads a topic from beginning to end, repeatedly.

kafka-python honours throttle times: it does not use a connection until they are over.

    python -m examples.demo.clients.kafka_python_consumer --bootstrap-servers HOST:PORT --topic NAME --client-id ID
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import click
from kafka import KafkaConsumer, TopicPartition

from examples.demo.reports import Reporter, parse_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

POLL_MS: Final = 200


@click.command(context_settings={"show_default": True})
@click.option("--bootstrap-servers", required=True, metavar="HOST:PORT")
@click.option("--client-id", default="limited-consumer")
@click.option("--topic", required=True)
@click.option("--record-bytes", default=0, hidden=True)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A numeric setting of kafka-python.")
def main(bootstrap_servers: str, client_id: str, topic: str, record_bytes: int, settings: Sequence[str]) -> None:
    """Consume a topic without a pause, until interrupted, and report on standard output."""
    del record_bytes
    reporter = Reporter()
    logging.getLogger("kafka").addHandler(_LogReader(reporter))
    logging.getLogger("kafka").propagate = False
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        client_id=client_id,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        **{name: int(value) for name, value in parse_settings(settings).items()},
    )
    _read(consumer, topic, reporter)


def _read(consumer: Any, topic: str, reporter: Reporter) -> None:
    partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]
    consumer.assign(partitions)
    ends = consumer.end_offsets(partitions)
    consumer.seek_to_beginning()
    while True:
        for partition, records in consumer.poll(timeout_ms=POLL_MS).items():
            reporter.moved_bytes += sum(len(record.value) for record in records)
            if records[-1].offset + 1 >= ends[partition]:
                consumer.seek_to_beginning(partition)
        reporter.report()


class _LogReader(logging.Handler):
    """A reader of throttle times and errors in the library's log, since the library does not report them otherwise.

    The library also logs an error when a throttled connection cannot be used; it is not counted.
    """

    def __init__(self, reporter: Reporter) -> None:
        super().__init__(logging.WARNING)
        self._reporter = reporter

    def emit(self, record: logging.LogRecord) -> None:
        """Count one line: "%s: %s throttled by broker (%d ms)", or an error."""
        if "throttled by broker" in str(record.msg) and isinstance(record.args, tuple):
            self._reporter.throttled(int(str(record.args[-1])))
        elif record.levelno >= logging.ERROR and "Node paused" not in record.getMessage():
            self._reporter.failed(record.getMessage())


if __name__ == "__main__":
    main()
