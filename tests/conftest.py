"""Real brokers for whoever asks: started with the first test that wants them, and shared by all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from testbed.cluster import KafkaCluster

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """One broker of Kafka 4.3.1. Shared: use topics, groups and users of your own, and leave it running."""
    with KafkaCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka3() -> Iterator[KafkaCluster]:
    """Three brokers of Kafka 4.3.1. Shared, see `kafka`; tests that kill or move brokers start their own cluster."""
    with KafkaCluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka39() -> Iterator[KafkaCluster]:
    """One broker of Kafka 3.9.1. Shared, see `kafka`."""
    with KafkaCluster(version="3.9.1") as cluster:
        yield cluster
