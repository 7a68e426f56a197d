"""Topics of attack tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

from tests.clients.fronts import DEADLINE_S, eventually, unique
from tests.faults.conftest import leads
from tests.shared_cluster import new_topic

if TYPE_CHECKING:
    from tests.shared_cluster import FirstBroker


def create_topic(kafka: FirstBroker, prefix: str) -> str:
    """Create a topic with a name of its own that broker 0 leads, and wait until it does."""
    name = unique(prefix)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([new_topic(name)])[name].result(DEADLINE_S)
    eventually(lambda: leads(admin, name), "the broker leads the topic")
    return name
