"""Long-lived objects are frozen, at start and as buckets are created."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from headrace.proxy.server.garbage_collection import GROWN_BY, Collector

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def frozen_afterwards() -> Iterator[None]:
    """`tests/conftest.py` has frozen the modules of all tests."""
    yield
    gc.collect()
    gc.freeze()


def test_objects_that_exist_at_start_are_frozen() -> None:
    gc.unfreeze()
    Collector().start()
    assert gc.get_freeze_count() > 10_000


def test_objects_are_frozen_again_as_buckets_are_created() -> None:
    gc.unfreeze()
    collector = Collector()
    collector.freeze_if_grown("buckets", GROWN_BY - 1)
    assert gc.get_freeze_count() == 0
    collector.freeze_if_grown("buckets", GROWN_BY)
    frozen = gc.get_freeze_count()
    assert frozen > 0
    kept = [[] for _ in range(100)]  # type: ignore[var-annotated]
    collector.freeze_if_grown("buckets", GROWN_BY + 1)
    assert gc.get_freeze_count() <= frozen
    collector.freeze_if_grown("buckets", 0)
    collector.freeze_if_grown("buckets", GROWN_BY)
    assert gc.get_freeze_count() >= frozen
    assert kept


def test_what_grows_is_counted_apart() -> None:
    gc.unfreeze()
    collector = Collector()
    collector.freeze_if_grown("buckets", GROWN_BY - 1)
    collector.freeze_if_grown("entities", GROWN_BY - 1)
    assert gc.get_freeze_count() == 0
    collector.freeze_if_grown("entities", GROWN_BY)
    assert gc.get_freeze_count() > 0
