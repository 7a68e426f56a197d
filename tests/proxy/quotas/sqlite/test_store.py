"""The SQLite store: what every store does, and its commits, time-outs and cancellation. The fake clock is not used:
threads take real time."""

from __future__ import annotations

import sqlite3
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from headrace.proxy.quotas.sqlite.file import SqliteFile
from headrace.proxy.quotas.sqlite.store import SqliteStore
from headrace.proxy.quotas.store import StoreError, StoreTimeoutError
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity
from tests.proxy.quotas.store_contract import ALICE, AUTHOR, Place, StoreContract, alteration, opened, since

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from headrace.proxy.quotas.sqlite.file import PreparedAlter
    from headrace.proxy.quotas.store import Change


@pytest.fixture
def new_place(tmp_path: Path) -> Callable[[], Place]:
    paths = (str(tmp_path / f"quotas-{number}.sqlite") for number in range(10_000))
    return lambda: partial(SqliteStore, next(paths))


class TestSqliteStore(StoreContract):
    """The contract, for `SqliteStore`."""


class Disk:
    """A disk whose commits wait until they are let go on, and that counts them."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.answers = threading.Event()
        self.asked = threading.Event()

    def write(self, file: SqliteFile, alters: Sequence[PreparedAlter]) -> list[Sequence[Change]]:
        self.batches.append(len(alters))
        self.asked.set()
        assert self.answers.wait(60)
        return real_write(file, alters)

    async def wait_for_a_commit(self) -> None:
        assert await trio.to_thread.run_sync(self.asked.wait, 60)


real_write = SqliteFile.write


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(SqliteFile, "write", lambda file, alters: disk.write(file, alters))
    yield disk
    disk.answers.set()


def numbered(number: int) -> QuotaEntity:
    return QuotaEntity(user=f"user {number}")


async def alter(store: SqliteStore, number: int) -> None:
    changes = await store.alter([alteration(numbered(number), request_percentage=1.0)], AUTHOR)
    assert [each.entity for each in changes] == [numbered(number)]


async def test_changes_are_synced_to_the_disk_before_the_answer(tmp_path: Path) -> None:
    async with opened(partial(SqliteStore, str(tmp_path / "quotas"))) as store:
        assert isinstance(store, SqliteStore)
        database = store._file._database
        assert database is not None
        assert database.execute("PRAGMA synchronous").fetchone() == (2,), "FULL"
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_calls_that_wait_share_a_commit(tmp_path: Path, disk: Disk) -> None:
    store = SqliteStore(str(tmp_path / "quotas"))
    await store.open()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alter, store, 0)
            await disk.wait_for_a_commit()
            for number in range(1, 20):
                nursery.start_soon(alter, store, number)
            await trio.testing.wait_all_tasks_blocked()
            disk.answers.set()
    assert disk.batches == [1, 19]
    assert (await store.snapshot()).quotas == {numbered(number): {"request_percentage": 1} for number in range(20)}
    await store.close()


async def test_a_value_that_is_refused_does_not_prevent_the_others(tmp_path: Path, disk: Disk) -> None:
    store = SqliteStore(str(tmp_path / "quotas"))
    await store.open()

    async def refused() -> None:
        with pytest.raises(ValueError, match="NaN"):
            await store.alter([alteration(ALICE, request_percentage=float("nan"))], AUTHOR)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alter, store, 0)
            await disk.wait_for_a_commit()
            nursery.start_soon(alter, store, 1)
            nursery.start_soon(refused)
            nursery.start_soon(alter, store, 2)
            await trio.testing.wait_all_tasks_blocked()
            disk.answers.set()
    assert disk.batches == [1, 2]
    await store.close()


async def test_a_cancelled_call_that_waits_is_withdrawn(tmp_path: Path, disk: Disk) -> None:
    store = SqliteStore(str(tmp_path / "quotas"))
    await store.open()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alter, store, 0)
            await disk.wait_for_a_commit()
            with trio.move_on_after(0.01) as scope:
                await alter(store, 1)
            assert scope.cancelled_caught
            nursery.start_soon(alter, store, 2)
            await trio.testing.wait_all_tasks_blocked()
            disk.answers.set()
    assert (await store.snapshot()).quotas.keys() == {numbered(0), numbered(2)}
    await store.close()


async def test_the_others_go_on_if_the_call_that_commits_is_cancelled(tmp_path: Path) -> None:
    """It waits for the thread, which reads, when it is cancelled."""
    store = SqliteStore(str(tmp_path / "quotas"))
    await store.open()
    scope = trio.CancelScope()

    async def cancelled() -> None:
        with scope:
            await alter(store, 0)

    with trio.fail_after(60):
        await store._one_thread.acquire()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancelled)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(alter, store, 1)
            nursery.start_soon(alter, store, 2)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            store._one_thread.release()
    assert scope.cancelled_caught
    assert (await store.snapshot()).quotas.keys() == {numbered(1), numbered(2)}
    await store.close()


async def test_calls_that_wait_when_the_store_is_closed_are_refused(tmp_path: Path, disk: Disk) -> None:
    store = SqliteStore(str(tmp_path / "quotas"))
    await store.open()

    async def refused() -> None:
        with pytest.raises(StoreError, match=r"not open|closed"):
            await alter(store, 1)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alter, store, 0)
            await disk.wait_for_a_commit()
            nursery.start_soon(store.close)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(refused)
            nursery.start_soon(refused)
            await trio.testing.wait_all_tasks_blocked()
            disk.answers.set()


async def test_a_commit_of_a_cancelled_call_completes(tmp_path: Path, disk: Disk) -> None:
    store = SqliteStore(str(tmp_path / "quotas"))
    begin = (await store.open()).sequence
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alter, store, 0)
            await disk.wait_for_a_commit()
            nursery.cancel_scope.cancel()
        disk.answers.set()
        assert [each.entity for each in await since(store, begin)] == [numbered(0)]
    await store.close()


async def test_a_disk_that_does_not_answer_is_a_timeout_and_blocks_one_thread(tmp_path: Path, disk: Disk) -> None:
    store = SqliteStore(str(tmp_path / "quotas"), timeout_s=0.05)
    await store.open()
    with trio.fail_after(60):
        for number in range(5):
            with pytest.raises(StoreTimeoutError, match=r"client_quotas\.file: .*quotas: no answer within 0\.05 s"):
                await alter(store, number)
        with pytest.raises(StoreTimeoutError):
            await store.changes_since(0)
        assert disk.batches == [1], "no second thread waits for the disk"
        disk.answers.set()
        await store._one_thread.acquire()
        store._one_thread.release()
        assert (await store.snapshot()).quotas.keys() == {numbered(0)}, "the others were withdrawn"
    store._timeout_s = 60.0  # the real disk of a busy machine may be slow
    await store.close()


async def test_calls_that_share_a_commit_fail_together(tmp_path: Path, disk: Disk) -> None:
    store = SqliteStore(str(tmp_path / "quotas"))
    begin = (await store.open()).sequence
    await store._in_thread(lambda: limit_pages(store, 1), 5)
    failed: list[StoreError] = []

    async def fail(number: int) -> None:
        with pytest.raises(StoreError, match="the disk is full") as raised:
            await store.alter([alteration(QuotaEntity(user="x" * 9000), request_percentage=float(number))], AUTHOR)
        failed.append(raised.value)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail, 1)
            await disk.wait_for_a_commit()
            nursery.start_soon(fail, 2)
            nursery.start_soon(fail, 3)
            await trio.testing.wait_all_tasks_blocked()
            disk.answers.set()
    assert len({id(each) for each in failed}) == 3, "each caller has an error of its own"
    assert await since(store, begin) == []
    await store._in_thread(lambda: limit_pages(store, 1_000_000), 5)
    await alter(store, 1)
    await store.close()


def limit_pages(store: SqliteStore, pages: int) -> None:
    database = store._file._database
    assert database is not None
    database.execute(f"PRAGMA max_page_count = {pages}")


async def test_only_the_latest_changes_are_kept(tmp_path: Path) -> None:
    place = partial(SqliteStore, str(tmp_path / "quotas"), audit_rows=3)
    async with opened(place) as store, opened(place) as follower:
        made = []
        for value in range(1, 8):
            made += await store.alter([alteration(ALICE, request_percentage=value)], AUTHOR)
        assert await store.audit(limit=100) == made[:-4:-1]
        for each in (store, follower):
            assert await since(each, made[-4].sequence) == made[-3:]
            assert await each.changes_since(made[-5].sequence) is None
            assert await each.changes_since(0) is None
        many = [alteration(numbered(number), request_percentage=1.0) for number in range(10)]
        changes = await store.alter(many, AUTHOR)
        assert len(changes) == 10
        assert await follower.changes_since(made[-1].sequence) is None
        snapshot = await follower.snapshot()
        assert (len(snapshot.quotas), snapshot.sequence) == (11, changes[-1].sequence)
    with pytest.raises(ValueError, match="audit_rows = 0"):
        SqliteStore("quotas", audit_rows=0)


async def test_positions_increase_after_a_restart(tmp_path: Path) -> None:
    """A follower that was at the last position must not take another change for one that it knows."""
    place = partial(SqliteStore, str(tmp_path / "quotas"), audit_rows=1)
    async with opened(place) as store:
        first = await store.alter([alteration(ALICE, request_percentage=1.0)], AUTHOR)
    async with opened(place) as store:
        second = await store.alter([alteration(ALICE, request_percentage=2.0)], AUTHOR)
        assert second[0].sequence > first[0].sequence
        assert await since(store, first[0].sequence) == second


async def test_the_log_of_writes_is_copied_into_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would grow without a limit, since SQLite's own checkpoints are off."""
    from headrace.proxy.quotas.sqlite import file

    monkeypatch.setattr(file, "CHECKPOINT_BYTES", 100_000)
    path = tmp_path / "quotas"
    async with opened(partial(SqliteStore, str(path))) as store, opened(partial(SqliteStore, str(path))) as other:
        for value in range(1, 101):
            await store.alter([alteration(ALICE, request_percentage=value)], AUTHOR)
            assert (tmp_path / "quotas-wal").stat().st_size < 200_000
        assert path.stat().st_size > 4096
        assert (await other.snapshot()).quotas == {ALICE: {"request_percentage": 100}}
    assert not (tmp_path / "quotas-wal").exists()


async def test_the_file_can_be_read_with_the_shell_of_sqlite(tmp_path: Path) -> None:
    """The tables are described in the documentation."""
    path = tmp_path / "quotas"
    async with opened(partial(SqliteStore, str(path))) as store:
        pair = QuotaEntity(user="alice", client_id=DEFAULT)
        await store.alter([alteration(pair, producer_byte_rate=1024.0)], AUTHOR)
    database = sqlite3.connect(path)
    assert database.execute("SELECT * FROM quotas").fetchall() == [
        ('{"client-id":null,"user":"alice"}', "producer_byte_rate", 1024.0)
    ]
    changes = database.execute("SELECT principal, address, entity, key, old, new FROM changes").fetchall()
    assert changes == [("admin", "192.0.2.1", '{"client-id":null,"user":"alice"}', "producer_byte_rate", None, 1024.0)]
    database.close()


async def test_the_event_loop_runs_while_a_snapshot_is_read(tmp_path: Path) -> None:
    async with opened(partial(SqliteStore, str(tmp_path / "quotas"))) as store:
        await store.alter([alteration(numbered(number), request_percentage=1.0) for number in range(5_000)], AUTHOR)
        ticks = 0

        async def count() -> None:
            nonlocal ticks
            while True:
                await trio.lowlevel.checkpoint()
                ticks += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            assert len((await store.snapshot()).quotas) == 5_000
            nursery.cancel_scope.cancel()
    assert ticks > 20, "the thread pauses about twenty times"
