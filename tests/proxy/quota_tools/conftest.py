"""A proxy with quotas of its own, and the broker behind it.

Quotas at the shared broker are so high that no client reaches them, and of names of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from testbed.proxy_process import ProxyProcess
from tests.proxy.quota_tools.commands import Commands

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.kafka.cluster import KafkaCluster
    from tests.shared_cluster import FirstBroker


@pytest.fixture(scope="module")
def proxy(kafka: FirstBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    file = tmp_path_factory.mktemp("quotas") / "quotas.sqlite"
    of_file = '[[quotas]]\nentity = { user = "of-the-file" }\nproducer_byte_rate = 1000000000\n'
    config = f'[client_quotas]\nfile = "{file}"\n{of_file}'
    with ProxyProcess(kafka.bootstrap_servers, config=config) as process:
        yield process


@pytest.fixture
def at_proxy(proxy: ProxyProcess) -> Commands:
    """``headrace quotas`` for the proxy."""
    return Commands(proxy.bootstrap_servers)


@pytest.fixture
def at_broker(kafka: FirstBroker) -> Commands:
    """``headrace quotas`` for the broker."""
    return Commands(kafka.bootstrap_servers)


@pytest.fixture
def at_broker39(kafka39: KafkaCluster) -> Commands:
    """``headrace quotas`` for a broker of Kafka 3.9."""
    return Commands(kafka39.bootstrap_servers)
