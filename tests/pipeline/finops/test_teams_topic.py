"""Teams in a topic of a real broker, read by ``headrace pipeline rollup``."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from headrace.pipeline.cli import pipeline
from headrace.pipeline.errors import InputError
from headrace.pipeline.ingestion.sources import KafkaSource
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import Lake
from tests.faults.conftest import TIMEOUT_S, leads
from tests.faults.waiting import wait_until
from tests.pipeline.records import record, usage
from tests.shared_cluster import new_topic

if TYPE_CHECKING:
    from click.testing import Result
    from pyspark.sql import SparkSession

    from tests.shared_cluster import FirstBroker

pytestmark = pytest.mark.exhaustive


@pytest.fixture
def topic(kafka: FirstBroker) -> str:
    name = f"teams-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([new_topic(name)])[name].result(TIMEOUT_S)
    wait_until(lambda: leads(admin, name), "the broker leads the topic that it has just made")
    return name


def write(kafka: FirstBroker, topic: str, *messages: tuple[str | None, dict[str, str] | None]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for key, value in messages:
        producer.produce(topic, None if value is None else json.dumps(value), key=key)
    assert producer.flush(TIMEOUT_S) == 0


def test_the_newest_message_of_each_key_counts_and_one_without_a_value_deletes(
    kafka: FirstBroker, topic: str, lake: Lake, spark: SparkSession
) -> None:
    records = [record(), record(user="bob"), record(user="carol"), record(user="dave", topic="orders")]
    lake.append("usage", usage(spark, records).coalesce(1), "date", "hour")

    def teams() -> dict[str, str | None]:
        arguments = ["--teams-topic", topic, "--bootstrap-servers", kafka.bootstrap_servers, "--again"]
        arguments += ["--kafka", "client.id=teams-reader"]
        result: Result = CliRunner().invoke(pipeline, ["rollup", "--lake", lake.root, *arguments])
        assert result.exit_code == 0, result.output
        return {row.user: row.team for row in Lake(spark, lake.root).read("rollup_day", schemas.ROLLUP_DAY).collect()}

    write(
        kafka,
        topic,
        ("a", {"user": "alice", "team": "old"}),
        ("a", {"user": "alice", "team": "payments"}),
        ("b", {"user": "bob", "team": "search"}),
        ("o", {"topic": "orders", "team": "shop"}),
    )
    assert teams() == {"alice": "payments", "bob": "search", "carol": None, "dave": "shop"}
    write(kafka, topic, ("b", None), ("c", {"user": "carol", "team": "web"}))
    assert teams() == {"alice": "payments", "bob": None, "carol": "web", "dave": "shop"}


def test_messages_without_a_key_and_a_topic_that_is_not_there_are_errors(
    kafka: FirstBroker, topic: str, spark: SparkSession
) -> None:
    def source(name: str) -> KafkaSource:
        servers = kafka.bootstrap_servers
        return KafkaSource(topic=name, bootstrap_servers=servers, client={}, option="--teams-topic")

    assert source(topic).newest(spark) == []
    write(kafka, topic, (None, {"user": "alice", "team": "x"}))
    with pytest.raises(InputError, match=f"--teams-topic {topic}: some messages have no key"):
        source(topic).newest(spark)
    with pytest.raises(InputError, match=r"--teams-topic nothing-here: .* has no topic of this name"):
        source("nothing-here").newest(spark)
