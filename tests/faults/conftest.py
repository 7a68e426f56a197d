"""A topic per test, and deadlines short enough to see a hang."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.faults.waiting import wait_until
from tests.shared_cluster import new_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.shared_cluster import FirstBroker

TIMEOUT_S = 30.0


@pytest.fixture
def topic(kafka: FirstBroker) -> Iterator[str]:
    """A topic of one partition at the shared broker, deleted afterwards."""
    name = f"faults-{uuid.uuid4().hex[:8]}"
    client = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    client.create_topics([new_topic(name)])[name].result(TIMEOUT_S)
    wait_until(lambda: leads(client, name), "the broker leads the topic that it has just made")
    yield name
    client.delete_topics([name])[name].result(TIMEOUT_S)


def leads(client: AdminClient, name: str, number: int = 0) -> bool:
    """Return whether the leader answers for the topic, which the controller creates before the broker knows of it."""
    partition = TopicPartition(name, number)
    try:
        client.list_offsets({partition: OffsetSpec.latest()})[partition].result(TIMEOUT_S)
    except KafkaException:
        return False
    return True


@pytest.fixture
def unused_port() -> Iterator[Callable[[], int]]:
    """Ports without a listener, reserved until the test ends."""
    from testbed.processes.ports import reserve_ports

    blocks = []

    def reserve() -> int:
        blocks.append(reserve_ports(1))
        return blocks[-1].first

    yield reserve
    for block in blocks:
        block.release()
