"""Which connections are closed when memory is short."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trio.testing import wait_all_tasks_blocked

from headrace.proxy.network.held_bytes import held
from headrace.proxy.server.eviction import MemoryLimit
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
        reason = f"client: accepting is paused, and this connection holds {holds} bytes: limits.max_memory"
        assert book.connection.reason == reason
        assert book.connection.memory_bytes == 0


KIB = 1024
LIMIT = 800 * KIB
EIGHTH = LIMIT // 8


@dataclass(eq=False)
class StubConnection:
    """A connection as far as the choice of those to close knows it."""

    counts_for: str
    memory_bytes: int
    accepted: bool = True
    ended: bool = False

    def end_for_fault(self, _side: str, _reason: str, _cause: str) -> None:
        self.ended = True

    def drop_held(self) -> None:
        held.count -= self.memory_bytes
        self.memory_bytes = 0


def closed_at_the_limit(monkeypatch: pytest.MonkeyPatch, *connections: StubConnection) -> list[StubConnection]:
    """Return those that are closed when the limit is exceeded by a quarter."""
    for name in ("count", "limit", "on_excess"):
        monkeypatch.setattr(held, name, getattr(held, name))
    members: Any = set(connections)
    MemoryLimit(members, LIMIT)
    held.count = 0
    held.add(LIMIT * 5 // 4)
    return [each for each in connections if each.ended]


def test_the_owner_whose_connections_hold_most_is_closed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many connections of one IPv6 network hold less each than one connection of another client."""
    network = [StubConnection("2001:db8::/64", 100 * KIB) for _ in range(9)]
    other = StubConnection("192.0.2.1", 120 * KIB)
    closed = closed_at_the_limit(monkeypatch, other, *network)
    assert other not in closed
    assert sum(each in closed for each in network) == 3  # down to seven eighths of the limit


def test_logins_are_not_closed_for_what_a_served_client_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    logins = [StubConnection(f"192.0.2.{number}", KIB, accepted=False) for number in range(90)]
    served = [StubConnection("User:alice", 200 * KIB) for _ in range(4)]
    closed = closed_at_the_limit(monkeypatch, *logins, *served)
    assert not any(each in closed for each in logins)
    assert len(closed) == 2


def test_clients_that_were_not_accepted_are_closed_first_if_they_hold_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    strangers = [StubConnection(f"192.0.2.{number}", 10 * KIB, accepted=False) for number in range(60)]
    served = StubConnection("User:alice", 400 * KIB)
    closed = closed_at_the_limit(monkeypatch, served, *strangers)
    assert served not in closed
    assert len(closed) == 30


def test_connections_are_not_looked_at_for_each_message_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay above it while those that end have not freed their memory."""
    looks = 0

    class Ending(StubConnection):
        def __init__(self) -> None:
            super().__init__("192.0.2.1", LIMIT // 4, ended=True)

        def __getattribute__(self, name: str) -> Any:
            nonlocal looks
            looks += name == "memory_bytes"
            return super().__getattribute__(name)

    closed_at_the_limit(monkeypatch, Ending())
    before = looks
    for _ in range(1000):
        held.add(1)
        held.add(-1)
    assert looks == before
    held.add(LIMIT // 32)
    assert looks > before


def test_each_time_that_the_limit_is_exceeded_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = StubConnection("192.0.2.1", 0)
    closed_at_the_limit(monkeypatch, connection)
    for _ in range(100):
        held.add(-held.count)
        connection.ended, connection.memory_bytes = False, LIMIT
        held.add(LIMIT)
        assert not connection.ended
        held.add(EIGHTH + 1)
        assert connection.ended


def test_a_lower_limit_applies_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = StubConnection("192.0.2.1", 0)
    closed_at_the_limit(monkeypatch, connection)
    connection.ended, connection.memory_bytes = False, LIMIT
    held.limit = LIMIT // 2
    held.add(1)
    assert connection.ended
