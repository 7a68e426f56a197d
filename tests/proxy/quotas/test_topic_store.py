"""The store in a topic: what every store does, on a log in memory and on a real broker; and what only a broker shows."""

from __future__ import annotations

import struct
import threading
import time
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import structlog
import trio
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from headrace.proxy.quotas import topic_store
from headrace.proxy.quotas.store import StoreError, StoreTimeoutError
from headrace.proxy.quotas.topic_creation import topic_config
from headrace.proxy.quotas.topic_log import TopicSettings
from headrace.proxy.quotas.topic_records import record_key
from headrace.proxy.quotas.topic_replica import KafkaLog
from headrace.proxy.quotas.topic_store import NEVER_READ, TopicStore
from headrace.quota_callbacks.entities import QuotaEntity
from tests.proxy.quotas.log_in_memory import MemoryLog, MemoryTopic
from tests.proxy.quotas.store_contract import ALICE, AUTHOR, Place, StoreContract, alteration, opened, since

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.proxy.quotas.store import Change
    from testbed.kafka.cluster import KafkaCluster
    from tests.shared_cluster import FirstBroker

DAY_MS = 86_400_000
numbers = count()


def settings(cluster: KafkaCluster | FirstBroker | str, topic: str | None = None, **other: str) -> TopicSettings:
    """Return the settings of a new topic, or of this one."""
    servers = cluster if isinstance(cluster, str) else cluster.bootstrap_servers
    name = f"quotas-{uuid4().hex}" if topic is None else topic
    return TopicSettings(topic=name, properties={"bootstrap.servers": servers, **other}, history_ms=DAY_MS)


def on(found: TopicSettings, *, waits: bool = True, timeout_s: float = 20.0) -> TopicStore:
    return TopicStore(KafkaLog(found), waits=waits, timeout_s=timeout_s)


class TestTopicStoreInMemory(StoreContract):
    """The contract, on a log in memory."""

    @pytest.fixture
    def new_place(self) -> Callable[[], Place]:
        def place() -> Place:
            topic = MemoryTopic()
            return lambda: TopicStore(MemoryLog(topic))

        return place


class TestTopicStore(StoreContract):
    """The contract, on a topic of a real broker."""

    @pytest.fixture
    def new_place(self, kafka3: KafkaCluster) -> Callable[[], Place]:
        return lambda: partial(on, settings(kafka3))
