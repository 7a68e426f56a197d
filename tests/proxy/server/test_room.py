"""Which connections are closed when memory is short."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trio.testing import wait_all_tasks_blocked

from headrace.proxy.network.held_bytes import held
from headrace.proxy.server.room import MemoryLimit
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from tests.proxy.playbook import open_book, request

if TYPE_CHECKING:
    import pytest
    from trio.testing import MockClock


async def test_what_clients_hold_is_freed_if_it_ends_the_shortage(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "limit", held.limit)
    monkeypatch.setattr(held, "on_excess", held.on_excess)
    quota = (QuotaKey.CONTROLLER_MUTATION_RATE, QuotaEntity(client_id="c"), 1.0)
    async with open_book(quotas=[quota]) as book:
        limit = MemoryLimit({book.connection}, 2**30)
        topics = [{"name": f"topic-{number}", "num_partitions": 1} for number in range(2000)]
        await book.client.sends(request(ApiKey.CREATE_TOPICS, 4, topics=topics)[:-1])
        await wait_all_tasks_blocked()
        holds = book.connection.memory_bytes
        assert holds >= 30_000
        limit.relieve(0, "there is no shortage")
        limit.relieve(held.count + 1, "something else takes the memory")
        assert not book.connection.ended
        limit.relieve(1000, "limits.max_memory")
        assert book.connection.reason == f"client: accepting is paused, and it holds {holds} bytes: limits.max_memory"
        assert book.connection.memory_bytes == 0
