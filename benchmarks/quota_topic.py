"""The store of quotas in a topic: what `quota_store` measures of a file.

    .venv/bin/python -m benchmarks.quota_topic [--entities 100000] [--bootstrap-servers broker-1:9092]

Without ``--bootstrap-servers`` three brokers run on this machine meanwhile, which need its processors, too: then
wall-clock times are upper limits. The topic is deleted at the end.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import click
import trio
from confluent_kafka.admin import AdminClient

from benchmarks.quota_store import KEYS, measure
from headrace.proxy.quotas.topic.clients import TopicSettings
from headrace.proxy.quotas.topic.replica import KafkaLog
from headrace.proxy.quotas.topic.store import LOADING_TIMEOUT_S, TopicStore
from testbed.kafka.cluster import KafkaCluster

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

HISTORY_MS = 7 * 86_400_000
BROKERS = 3


def place(settings: TopicSettings) -> TopicStore:
    return TopicStore(KafkaLog(settings), timeout_s=LOADING_TIMEOUT_S)


@click.command()
@click.option("--entities", default=100_000, show_default=True, help="How many entities, with three keys each.")
@click.option("--alters", default=1_000, show_default=True, help="How many alters are measured.")
@click.option("--polls", default=2_000, show_default=True, help="How many polls for changes are measured.")
@click.option("--bootstrap-servers", help="The cluster, if it is not to be started.")
def main(entities: int, alters: int, polls: int, bootstrap_servers: str | None) -> None:
    """Measure the store of quotas in a topic."""
    cluster: AbstractContextManager[KafkaCluster | None] = (
        KafkaCluster(brokers=BROKERS) if bootstrap_servers is None else nullcontext()
    )
    with cluster as started:
        servers = bootstrap_servers if started is None else started.bootstrap_servers
        properties = {"bootstrap.servers": str(servers)}
        settings = TopicSettings(topic=f"quotas-{uuid4().hex}", properties=properties, history_ms=HISTORY_MS)
        print(f"{entities:,} entities with {len(KEYS)} keys each")
        trio.run(measure, partial(place, settings), entities, alters, polls)
        client = AdminClient({**properties})
        client.delete_topics([settings.topic])[settings.topic].result(60)


if __name__ == "__main__":
    main()
