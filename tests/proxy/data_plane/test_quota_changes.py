"""After a change of quotas, connections in the data plane are reviewed some at a time, and nothing is charged until
then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from headrace.proxy.data_plane.native import COLLECT_S, REVIEWED_AT_ONCE, NativeDataPlane
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from tests.proxy.data_plane.wire import needs_engine
from tests.proxy.playbook import open_book

if TYPE_CHECKING:
    from trio.testing import MockClock


class Connection:
    """A connection, and how often it was reviewed."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.reviews = 0

    def review(self) -> None:
        self.reviews += 1


@needs_engine
async def test_nothing_is_charged_until_all_are_reviewed(autojump_clock: MockClock) -> None:
    quota = (QuotaKey.PRODUCER_BYTE_RATE, QuotaEntity(client_id="c"), 1e6)
    async with open_book(quotas=[quota]) as book:
        shared = book.shared
        assert shared.hooks.quotas is not None
        data_plane: Any = NativeDataPlane(
            shared.hooks, shared.enforcement, shared.counters, limits=lambda: 0, threads=1, now_ms=lambda: 0
        )
        meter = data_plane.meters.take(shared.hooks.quotas.bucket(quota[0], "", "c"))
        connections = [Connection(each) for each in range(2 * REVIEWED_AT_ONCE + 1)]
        for each in connections:
            data_plane.add(each, each)
        granted: list[int] = []
        meter._engine = Grants(data_plane.engine, granted)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(data_plane.run)
            await trio.sleep(3.5 * COLLECT_S)
            shared.hooks.quotas.quotas_changed()
            assert sum(each.reviews for each in connections) == REVIEWED_AT_ONCE
            data_plane.meters.grant()
            assert granted == []
            for _ in range(20):  # turns of the loop, in which no time passes
                await trio.lowlevel.checkpoint()
            assert [each.reviews for each in connections] == [1] * len(connections)
            assert granted == [10_000_000]
            meter.end()
            data_plane.meters.collect()
            meter.collect()
            data_plane.meters.grant()
            assert granted == [10_000_000, 0], "what has ended stays so until it is used again"
            nursery.cancel_scope.cancel()


class Grants:
    """An engine whose granted credits are noted."""

    def __init__(self, engine: Any, granted: list[int]) -> None:
        self._engine = engine
        self._granted = granted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def grant(self, meter: int, credit: int) -> None:
        self._granted.append(credit)
        self._engine.grant(meter, credit)
