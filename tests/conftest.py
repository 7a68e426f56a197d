"""Real brokers for whoever asks: started with the first test that wants them, and shared by all.

``HEADRACE_COMPILED=DIR`` tests what was installed there (``pip install --target DIR .``) instead of the tree: the same
tests for the compiled modules (``make compiled``).
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if installed := os.environ.get("HEADRACE_COMPILED"):
    sys.path.insert(0, installed)
    for package in ("config", "plugins", "proxy", "quota_callbacks"):
        importlib.import_module(package)  # before pytest puts the tree in front
    os.environ |= {"PYTHONPATH": f"{installed}:{Path(__file__).parent.parent}", "PYTHONSAFEPATH": "1"}

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
