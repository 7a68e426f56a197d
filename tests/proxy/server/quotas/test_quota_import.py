"""Copying the brokers' quotas into the store: once, completely, and without delaying clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import structlog
import trio

from headrace.proxy import long_work
from headrace.proxy.quotas.definitions import QuotaDefinitions
from headrace.proxy.quotas.follower import StoreFollower
from headrace.proxy.quotas.sqlite.store import SqliteStore
from headrace.proxy.quotas.store import Author, ImportState, StoreTimeoutError
from headrace.proxy.quotas.topic.store import TopicStore
from headrace.proxy.server.quotas import quota_import
from headrace.proxy.server.quotas.quota_import import AUTHOR, ENTITIES_AT_ONCE, import_quotas
from headrace.quota_callbacks.entities import QuotaEntity
from tests.proxy.quotas.store_contract import ALICE, alteration
from tests.proxy.quotas.topic.log_in_memory import MemoryLog, MemoryTopic

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.proxy.quotas.store import QuotaStore, StoreError

RATE = "producer_byte_rate"
ADMIN = Author(principal="admin", address="192.0.2.1")
BATCHES = 5
QUOTAS = {QuotaEntity(user=f"u{number}"): {RATE: number + 1.0} for number in range(BATCHES * ENTITIES_AT_ONCE - 1)}


class Proxy:
    """What one process has of the store, and its import."""

    def __init__(self, store: QuotaStore) -> None:
        self.definitions = QuotaDefinitions(lambda *_: None, lambda: None)
        self.follower = StoreFollower(store, self.definitions, 20.0)
        self.refused: set[QuotaEntity] = set()

    async def run(self) -> None:
        with trio.fail_after(60):
            await import_quotas(QUOTAS, self.follower, self.definitions.stored, self.check)
        await self.follower.catch_up()

    def check(self, entity: QuotaEntity, key: str, value: float) -> None:
        if entity in self.refused:
            raise ValueError("not valid here")

    def quotas(self) -> dict[QuotaEntity, dict[str, float]]:
        return {entity: dict(self.definitions.values(entity)) for entity in self.definitions.entities()}


async def started(store: QuotaStore) -> Proxy:
    proxy = Proxy(store)
    await proxy.follower.open()
    return proxy


async def interrupted(proxy: Proxy, topic: MemoryTopic, appends: int) -> None:
    """Run the import until an append fails that follows so many others, and then end it."""
    failed = trio.Event()
    count = 0

    def failure() -> StoreError | None:
        nonlocal count
        count += 1
        if count <= appends:
            return None
        trio.from_thread.run_sync(failed.set)
        return StoreTimeoutError("the leader is gone")

    topic.failure = failure
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(proxy.run)
            await failed.wait()
            nursery.cancel_scope.cancel()
        await proxy.follower.catch_up()
    topic.failure = lambda: None


@pytest.mark.parametrize(
    "appends", [1, *(pytest.param(each, marks=pytest.mark.exhaustive) for each in (0, 2, BATCHES, BATCHES + 1))]
)
async def test_an_import_that_is_interrupted_is_completed_at_the_next_start(appends: int) -> None:
    """Of the mark that it has begun, five batches, and the mark that it is over, so many are appended before."""
    topic = MemoryTopic()
    first = await started(TopicStore(MemoryLog(topic)))
    await interrupted(first, topic, appends)
    assert len(first.quotas()) == min(max(0, appends - 1) * ENTITIES_AT_ONCE, len(QUOTAS))
    second = await started(TopicStore(MemoryLog(topic)))
    await second.run()
    assert second.quotas() == QUOTAS
    await second.follower.alter([alteration(QuotaEntity(user="u1"), **{RATE: None})], ADMIN)
    third = await started(TopicStore(MemoryLog(topic)))
    await third.run()
    assert third.quotas() == {entity: values for entity, values in QUOTAS.items() if entity.user != "u1"}


async def test_an_error_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_import, "RETRY_S", 0.0)
    topic = MemoryTopic()
    proxy = await started(TopicStore(MemoryLog(topic)))
    errors = [StoreTimeoutError("the leader is gone")] * 3
    appends = 0

    def failure() -> StoreError | None:
        nonlocal appends
        appends += 1
        return errors.pop() if appends > 2 and errors else None

    topic.failure = failure
    with structlog.testing.capture_logs() as lines:
        await proxy.run()
    assert proxy.quotas() == QUOTAS
    assert errors == []
    events = [line["event"] for line in lines]
    assert events.count("the brokers' quotas are not imported yet") == 1
    assert events.count("the brokers' quotas are imported") == 1
    changed = [line for line in lines if line["event"] == "quota changed"]
    assert {line["address"] for line in changed} == {AUTHOR.address}


async def test_what_was_changed_meanwhile_stays(tmp_path: Path) -> None:
    path = str(tmp_path / "quotas.sqlite")
    proxy = await started(SqliteStore(path))
    await proxy.follower.set_import_state(ImportState.BEGUN)
    await proxy.follower.alter([alteration(QuotaEntity(user="u1"), **{RATE: 7.0}), alteration(ALICE, x=1.0)], ADMIN)
    await proxy.run()
    assert proxy.quotas() == {**QUOTAS, QuotaEntity(user="u1"): {RATE: 7.0}, ALICE: {"x": 1.0}}
    await proxy.follower.close()


async def test_what_is_changed_while_the_import_begins_stays(tmp_path: Path) -> None:
    """After the first batch was computed, and before it is written."""
    proxy = await started(SqliteStore(str(tmp_path / "quotas.sqlite")))
    original = proxy.follower.set_import_state

    async def set_state(state: ImportState) -> None:
        await original(state)
        if state is ImportState.BEGUN:
            await proxy.follower.alter([alteration(QuotaEntity(user="u1"), **{RATE: 7.0})], ADMIN)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(proxy.follower, "set_import_state", set_state)
        await proxy.run()
    assert proxy.quotas() == {**QUOTAS, QuotaEntity(user="u1"): {RATE: 7.0}}
    await proxy.follower.close()


async def test_an_import_ends_when_another_proxy_has_completed_it() -> None:
    topic = MemoryTopic()
    proxy, other = await started(TopicStore(MemoryLog(topic))), await started(TopicStore(MemoryLog(topic)))
    original = proxy.follower.alter

    async def alter(*args: object) -> object:
        await other.run()
        return await original(*args)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched, structlog.testing.capture_logs() as lines:
        patched.setattr(proxy.follower, "alter", alter)
        await proxy.run()
    assert proxy.quotas() == other.quotas() == QUOTAS
    assert [line["event"] for line in lines].count("the brokers' quotas are imported") == 1


async def test_nothing_is_imported_into_a_store_that_was_used(tmp_path: Path) -> None:
    proxy = await started(SqliteStore(str(tmp_path / "quotas.sqlite")))
    for value in (1.0, None):
        await proxy.follower.alter([alteration(ALICE, **{RATE: value})], ADMIN)
    await proxy.run()
    assert proxy.quotas() == {}
    await proxy.follower.close()


async def test_quotas_that_are_refused_are_left_out_and_logged_up_to_a_limit() -> None:
    proxy = await started(TopicStore(MemoryLog(MemoryTopic())))
    proxy.refused = set(list(QUOTAS)[:300])
    with structlog.testing.capture_logs() as lines:
        await proxy.run()
    assert proxy.quotas() == {entity: values for entity, values in QUOTAS.items() if entity not in proxy.refused}
    refused = [line for line in lines if line["event"] == "a quota of the brokers is not imported"]
    assert len(refused) == 100
    assert refused[0]["reason"] == "not valid here"


async def test_other_tasks_run_while_quotas_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_work, "SLICE_S", 0.0)
    proxy = await started(TopicStore(MemoryLog(MemoryTopic())))
    turns = 0
    seen: set[int] = set()
    monkeypatch.setattr(proxy, "check", lambda *_: seen.add(turns))

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        await proxy.run()
        nursery.cancel_scope.cancel()
    assert len(seen) > len(QUOTAS) / 2
