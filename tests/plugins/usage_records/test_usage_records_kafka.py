"""Usage records to a topic: what librdkafka refuses, what the cluster refuses, and a producer that failed for good."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from headrace.plugins.usage_records.kafka_topic import KafkaSink
from headrace.plugins.usage_records.rows import Seconds
from tests.faults.waiting import wait_until
from tests.plugins.usage_records.usage_rows import SecondBySecond, request
from tests.shared_cluster import new_topic

if TYPE_CHECKING:
    from tests.shared_cluster import FirstBroker

NOWHERE = "127.0.0.1:9"


class Writing(SecondBySecond):
    """The thread's work over a real producer, a second at a time."""

    def __init__(self, topic: str, bootstrap_servers: str, **client: str) -> None:
        self.sink = KafkaSink(
            topic, bootstrap_servers, "a-1", {name.replace("_", "."): v for name, v in client.items()}
        )
        super().__init__(Seconds(100, lambda _: 0.0), self.sink)

    def waits_for(self, lost: int) -> None:
        def is_lost() -> bool:
            self.write()
            return self.thread.lost == lost

        wait_until(is_lost, f"{lost} records are found to be lost")


def make_topic(cluster: FirstBroker, **config: str) -> str:
    name = f"usage-{uuid.uuid4().hex[:8]}"
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    client.create_topics([new_topic(name, config=settings)])[name].result(30)
    return name


def read(cluster: FirstBroker, topic: str, count: int) -> list[dict[str, Any]]:
    settings = {
        "bootstrap.servers": cluster.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest",
    }  # fmt: skip
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    records: list[dict[str, Any]] = []

    def all_there() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            records.append(json.loads(message.value()))
        return len(records) >= count

    wait_until(all_there, f"{count} records are in the topic")
    consumer.close()
    return records


def test_a_record_that_librdkafka_refuses_is_lost_alone() -> None:
    writing = Writing("t", NOWHERE, message_max_bytes="1000")
    writing.write(request(client_id="small"), request(client_id="x" * 2000, request_bytes=70))
    assert (writing.thread.written, writing.thread.lost) == (1, 1)
    assert not writing.thread._pending_losses
    assert not writing.sink.accepts_loss_records, "the mark is on its way"


def test_where_there_is_no_room_no_number_is_taken() -> None:
    writing = Writing("t", NOWHERE, queue_buffering_max_messages="1")
    writing.write(request(client_id="a"), request(client_id="b"))
    writing.write(request(client_id="c"))
    assert writing.thread.lost == 2
    assert writing.thread._encoder.sequence == 2
    assert writing.thread._pending_losses


def test_through_an_outage_nothing_is_forgotten_and_marks_are_few() -> None:
    """Every loss record fails like every other record; its losses are reported again."""
    writing = Writing("t", NOWHERE, message_timeout_ms="50", linger_ms="0")
    for _ in range(5):
        lost = writing.thread.lost
        writing.write(request(client_id="a", request_bytes=100))
        writing.waits_for(lost + 1)
    assert writing.thread._encoder.sequence <= 20, "each a record or a mark that failed"
    marks: list[Any] = []
    writing.sink.write = lambda lines, contents, first, now_s: marks.extend(contents)  # type: ignore[method-assign]
    wait_until(lambda: writing.write() or sum(each.losses.requests for each in marks) == 5, "their losses are recorded")
    assert sum(mark.losses.request_bytes for mark in marks) == 500


def test_after_a_fatal_error_there_is_a_new_producer(kafka: FirstBroker) -> None:
    """A refused batch is a gap in the sequence, which is a fatal error for an idempotent producer."""
    topic = make_topic(kafka, max_message_bytes="1000")
    writing = Writing(topic, kafka.bootstrap_servers, enable_gapless_guarantee="true", compression_type="none")
    writing.write(request(client_id="before"))
    wait_until(lambda: writing.write() or not len(writing.sink._producer), "it has arrived")
    first = writing.sink._producer
    writing.write(request(client_id="x" * 2000, request_bytes=70))
    writing.waits_for(1)
    wait_until(lambda: writing.write() or writing.sink._producer is not first, "the producer is made anew")
    writing.write(request(client_id="after"))
    wait_until(lambda: writing.write() or not len(writing.sink._producer), "it has arrived")
    records = read(kafka, topic, 3)
    assert sorted(each.get("client_id", each["kind"]) for each in records) == ["after", "before", "lost"]
    (mark,) = (each for each in records if each["kind"] == "lost")
    assert (mark["records"], mark["requests"], mark["request_bytes"]) == (1, 1, 70)
    assert len({each["sequence"] for each in records}) == 3
    writing.sink.close()
