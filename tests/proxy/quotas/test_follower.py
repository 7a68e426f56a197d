"""Following a store whose content is replaced, while calls are cancelled at any await."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import structlog
import trio
import trio.testing

from headrace.proxy import repeated_lines
from headrace.proxy.quotas.definitions import SLICE, QuotaDefinitions
from headrace.proxy.quotas.follower import StoreFollower
from headrace.proxy.quotas.sqlite.store import SqliteStore
from headrace.proxy.quotas.topic.store import TopicStore
from headrace.quota_callbacks.entities import QuotaEntity
from tests.proxy.quotas.store_contract import ALICE, AUTHOR, alteration
from tests.proxy.quotas.topic.log_in_memory import MemoryLog, MemoryTopic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from headrace.proxy.quotas.store import Alteration, Change, QuotaStore, Snapshot

TIMEOUT_S = 20.0


class Proxy:
    """A follower, and what it has put into force."""

    def __init__(self, store: QuotaStore) -> None:
        self.store = store
        self.definitions = QuotaDefinitions(lambda *_: None, lambda: None)
        self.follower = StoreFollower(store, self.definitions, TIMEOUT_S)

    async def set(self, *alterations: Alteration) -> None:
        await self.follower.alter(alterations, AUTHOR)
        await self.follower.catch_up()

    def users(self) -> set[str]:
        return {str(entity.user) for entity in self.definitions.entities()}


async def proxy_on(topic: MemoryTopic) -> Proxy:
    proxy = Proxy(TopicStore(MemoryLog(topic)))
    await proxy.follower.open()
    return proxy


def users(name: str, count: int) -> list[Alteration]:
    return [alteration(QuotaEntity(user=f"{name}{number}"), producer_byte_rate=1.0) for number in range(count)]


def names(name: str, count: int) -> set[str]:
    return {f"{name}{number}" for number in range(count)}


async def test_a_replaced_log_is_noticed_though_the_call_that_saw_it_was_cancelled() -> None:
    """The client that asked ends its connection while the new log is read, and it grows longer than the old one."""
    topic = MemoryTopic()
    proxy = await proxy_on(topic)
    await proxy.set(*users("old", 5))
    topic.records, topic.end = [], 0
    with trio.CancelScope() as hang_up:
        original = proxy.store.snapshot

        async def snapshot() -> Snapshot:
            await original()
            hang_up.cancel()
            await trio.lowlevel.checkpoint()
            raise AssertionError("it was cancelled")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(proxy.store, "snapshot", snapshot)
            await proxy.follower.catch_up()
    assert hang_up.cancelled_caught
    other = await proxy_on(topic)
    await other.set(*users("new", 5))
    await proxy.follower.catch_up()
    assert proxy.users() == other.users() == names("new", 5)


async def test_a_snapshot_that_is_cancelled_while_it_is_put_into_force_is_asked_for_again() -> None:
    topic = MemoryTopic()
    proxy = await proxy_on(topic)
    count = 2 * SLICE
    await proxy.set(*users("old", count))
    topic.records, topic.end = [], 0
    other = await proxy_on(topic)
    await other.set(*users("new", count // 2))
    with trio.CancelScope() as hang_up, pytest.MonkeyPatch.context() as patched:
        original = proxy.definitions.replace

        def replace(snapshot: Snapshot) -> Iterator[None]:
            for _ in original(snapshot):
                hang_up.cancel()
                yield

        patched.setattr(proxy.definitions, "replace", replace)
        await proxy.follower.catch_up()
    assert hang_up.cancelled_caught
    await other.set(*users("more", count // 2))
    await proxy.follower.catch_up()
    assert proxy.users() == other.users() == names("new", count // 2) | names("more", count // 2)


class ForgetfulStore(SqliteStore):
    """A store that has forgotten a position once, and has had it since: as after a backup was restored."""

    forgets = False

    async def changes_since(self, sequence: int) -> Sequence[Change] | None:
        changes = await super().changes_since(sequence)
        forgets, self.forgets = self.forgets, False
        return None if forgets else changes


@pytest.mark.parametrize("cancelled_in", ["store", "definitions"])
async def test_a_position_is_not_named_again_after_the_store_has_forgotten_it(
    tmp_path: Path, cancelled_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ForgetfulStore(str(tmp_path / "quotas.sqlite"))
    proxy = Proxy(store)
    await proxy.follower.open()
    await proxy.set(alteration(ALICE, producer_byte_rate=1.0))
    store.forgets = True
    with trio.CancelScope() as hang_up, monkeypatch.context() as patched:
        if cancelled_in == "store":
            patched.setattr(store, "snapshot", partial(cancel_and_wait, hang_up))
        else:
            patched.setattr(proxy.definitions, "replace", cancelled_replace(hang_up))
        await proxy.follower.catch_up()
    assert hang_up.cancelled_caught
    asked: list[int] = []

    async def changes_since(sequence: int) -> Sequence[Change] | None:
        asked.append(sequence)
        return await SqliteStore.changes_since(store, sequence)

    monkeypatch.setattr(store, "changes_since", changes_since)
    await proxy.follower.catch_up()
    assert asked == []
    await proxy.follower.catch_up()
    assert asked == [1]
    await proxy.follower.close()


async def cancel_and_wait(scope: trio.CancelScope) -> Snapshot:
    scope.cancel()
    await trio.sleep_forever()
    raise AssertionError("it was cancelled")


def cancelled_replace(scope: trio.CancelScope) -> Callable[[Snapshot], Iterator[None]]:
    def replace(_snapshot: Snapshot) -> Iterator[None]:
        scope.cancel()
        yield

    return replace


async def test_an_audit_may_take_longer_than_the_timeout_of_other_calls(autojump_clock: trio.testing.MockClock) -> None:
    proxy = Proxy(TopicStore(MemoryLog(MemoryTopic())))

    async def audit(*, limit: int, before: int | None) -> Sequence[Change]:
        await trio.sleep(2 * TIMEOUT_S)
        return []

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(proxy.store, "audit", audit)
        assert await proxy.follower.audit(limit=1, before=None) == []


async def test_who_has_changed_a_quota_is_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Up to 100 lines a minute, however many calls there are; the next line has the number of those left out."""
    proxy = await proxy_on(MemoryTopic())
    now_s = 1000.0
    monkeypatch.setattr(repeated_lines, "time", SimpleNamespace(monotonic=lambda: now_s))
    with structlog.testing.capture_logs() as lines:
        for number in range(4):
            await proxy.set(*users(f"u{number}-", 50))
        now_s += repeated_lines.EVERY_S
        await proxy.set(*users("last", 1))
    changed = [line for line in lines if line["event"] == "quota changed"]
    assert len(changed) == 101
    assert [line["left_out"] for line in changed] == [*[None] * 100, 100]
    assert changed[0] == {
        "event": "quota changed",
        "log_level": "info",
        "principal": AUTHOR.principal,
        "address": AUTHOR.address,
        "entity": "user=u0-0",
        "key": "producer_byte_rate",
        "old": None,
        "new": 1.0,
        "left_out": None,
    }
