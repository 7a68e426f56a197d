"""What lives for good is not looked at again."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from headrace.proxy.server.garbage_collection import GROWN_BY, Collector

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_is_there_at_the_start_is_frozen() -> None:
    gc.unfreeze()
    Collector().start()
    assert gc.get_freeze_count() > 10_000


def test_it_is_done_again_as_buckets_come() -> None:
    gc.unfreeze()
    collector = Collector()
    collector.look(GROWN_BY - 1)
    assert gc.get_freeze_count() == 0
    collector.look(GROWN_BY)
    frozen = gc.get_freeze_count()
    assert frozen > 0
    kept = [[] for _ in range(100)]  # type: ignore[var-annotated]
    collector.look(GROWN_BY + 1)
    assert gc.get_freeze_count() <= frozen
    collector.look(0)
    collector.look(GROWN_BY)
    assert gc.get_freeze_count() >= frozen
    assert kept
