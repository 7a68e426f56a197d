"""Ingest from a topic of a real broker, and from an unreachable one."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import AnalysisException

from headrace.pipeline.errors import InputError
from headrace.pipeline.ingestion.sources import KafkaSource, as_pipeline_error
from tests.faults.conftest import TIMEOUT_S, leads
from tests.faults.waiting import wait_until
from tests.pipeline.ingestion.ingesting import ingest, quarantined, sequences
from tests.pipeline.records import record
from tests.shared_cluster import new_topic

if TYPE_CHECKING:
    from headrace.pipeline.lake.tables import Lake
    from tests.shared_cluster import FirstBroker


def write(kafka: FirstBroker, topic: str, *values: str | None) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in values:
        producer.produce(topic, value, key="k")
    assert producer.flush(TIMEOUT_S) == 0


def test_records_removed_by_retention_are_an_error_unless_accepted(kafka: FirstBroker, lake: Lake) -> None:
    topic = f"usage-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([new_topic(topic)])[topic].result(TIMEOUT_S)
    wait_until(lambda: leads(admin, topic), "the broker leads the topic that it has just made")

    def source(*, accept_data_loss: bool = False) -> KafkaSource:
        servers = kafka.bootstrap_servers
        return KafkaSource(topic=topic, bootstrap_servers=servers, client={}, accept_data_loss=accept_data_loss)

    write(kafka, topic, *(json.dumps(record(sequence=number)) for number in range(3)), None)
    first = ingest(lake).run(source())
    assert (first.lines, first.records) == (4, 3)
    assert quarantined(lake) == ["no value (a tombstone)"]
    write(kafka, topic, *(json.dumps(record(sequence=number)) for number in range(3, 7)))
    admin.delete_records([TopicPartition(topic, 0, 6)])[TopicPartition(topic, 0)].result(TIMEOUT_S)
    with pytest.raises(InputError, match=rf"--topic {topic}: retention removed records .*--accept-data-loss continues"):
        ingest(lake).run(source())
    progress: list[str] = []
    second = ingest(lake, on_progress=progress.append).run(source(accept_data_loss=True))
    assert (second.lines, second.records, second.duplicates) == (2, 2, 0), "it goes on, and does not begin anew"
    assert not any("no checkpoint" in line for line in progress)
    assert sequences(lake) == [0, 1, 2, 5, 6]


def test_a_topic_that_is_not_there_is_named(kafka: FirstBroker, lake: Lake) -> None:
    servers = kafka.bootstrap_servers
    source = KafkaSource(topic="no-such-topic", bootstrap_servers=servers, client={})
    with pytest.raises(InputError, match=rf"--topic no-such-topic: {servers} has no topic of this name"):
        ingest(lake).run(source)


def test_a_cluster_that_is_not_there_is_named(lake: Lake) -> None:
    source = KafkaSource(
        topic="headrace-usage",
        bootstrap_servers="127.0.0.1:9",
        client={"default.api.timeout.ms": "2000", "request.timeout.ms": "1000"},
    )
    with pytest.raises(InputError, match=r"--bootstrap-servers 127.0.0.1:9: "):
        ingest(lake).run(source)


@pytest.mark.parametrize("found", ["data source: kafka. Please deploy", "the data source: kafka. Make sure"])
def test_a_missing_connector_is_an_error_with_advice(found: str) -> None:
    """Both of Spark's messages are recognized, that of `DataSource` and that of its newer lookup; the tests' session
    has the connector.
    """
    source = KafkaSource(topic="t", bootstrap_servers="127.0.0.1:9", client={})
    converted = as_pipeline_error(AnalysisException(f"Failed to find {found}"), source)
    assert "Spark has no Kafka connector; give spark-submit --packages org.apache.spark:spark-sql-kafka" in str(
        converted
    )
