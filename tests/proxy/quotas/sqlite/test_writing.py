# ruff: noqa: ASYNC240 -- small files, and nothing else runs
"""What prevents a change, such as a full disk, changes nothing, and the store works again without a restart."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import sqlite3
import stat
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from headrace.proxy.quotas.sqlite import file, opening
from headrace.proxy.quotas.sqlite.opening import LOCK_END, reported
from headrace.proxy.quotas.sqlite.store import SqliteStore
from headrace.proxy.quotas.store import StoreTimeoutError
from headrace.quota_callbacks.entities import QuotaEntity
from tests.proxy.quotas.sqlite.sqlite_errors import assert_alice, refused, set_alice
from tests.proxy.quotas.store_contract import ALICE, AUTHOR, Place, alteration, opened, since

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOBODY = 65534
LONG = QuotaEntity(user="x" * 20_000)
"""An entity that needs several pages."""


TIMEOUT_S = 30
"""Above what a busy disk takes."""
LOCK_WAIT_S = 0.1
"""How long an impatient store waits for the lock of another process."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "quotas.sqlite"


@pytest.fixture
def place(path: Path) -> Place:
    return partial(SqliteStore, str(path), timeout_s=TIMEOUT_S)


def impatient(path: Path) -> SqliteStore:
    """Return a store that soon gives up waiting for a lock, and has as much time as others for everything else."""
    store = SqliteStore(str(path), timeout_s=TIMEOUT_S)
    store._file._wait_s = LOCK_WAIT_S
    return store


# --- what cannot be written ---


@contextmanager
def as_nobody(folder: Path) -> Iterator[None]:
    """Give the folder to an unprivileged user, and be this user, since the permissions do not bind root."""
    if os.geteuid() != 0:
        yield
        return
    for each in (folder, *folder.iterdir()):
        os.chown(each, NOBODY, -1)
    above = [each for each in folder.parents if not each.stat().st_mode & stat.S_IXOTH]
    modes = [stat.S_IMODE(each.stat().st_mode) for each in above]
    for each in above:
        each.chmod(0o711)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        for each, mode in zip(above, modes, strict=True):
            each.chmod(mode)


async def test_a_read_only_file(path: Path, place: Place) -> None:
    await set_alice(place)
    with as_nobody(path.parent):
        path.chmod(0o400)
        with refused(path, f"{re.escape(str(path))} is read-only for user id {os.geteuid()}: allow this user"):
            await place().open()
        path.chmod(0o600)
        await assert_alice(place)


async def test_a_read_only_folder(path: Path, place: Place) -> None:
    await set_alice(place)
    with as_nobody(path.parent):
        path.parent.chmod(0o500)
        with refused(path, f"{re.escape(str(path.parent))} is read-only for user id {os.geteuid()}: allow this user"):
            await place().open()
        path.parent.chmod(0o700)
        await assert_alice(place)


async def test_a_file_that_becomes_read_only(path: Path, place: Place) -> None:
    """As after its file system was mounted again: what is in force stays, and nothing is changed."""
    async with opened(place) as store:
        await store.alter([alteration(ALICE, request_percentage=1.0)], AUTHOR)
        before = await store.snapshot()
        assert isinstance(store, SqliteStore)
        database = store._file._database
        assert database is not None
        database.execute("PRAGMA query_only = ON")
        with refused(path, r".*\(SQLITE_READONLY\): check the permissions of the file .* Nothing was changed"):
            await store.alter([alteration(ALICE, request_percentage=2.0)], AUTHOR)
        assert (await store.snapshot(), await since(store, before.sequence)) == (before, [])
        database.execute("PRAGMA query_only = OFF")
        assert len(await store.alter([alteration(ALICE, request_percentage=2.0)], AUTHOR)) == 1


async def test_a_new_file_in_a_read_only_folder(path: Path, place: Place) -> None:
    with as_nobody(path.parent):
        path.parent.chmod(0o500)
        with refused(path, f"permission denied: allow user id {os.geteuid()} to write the file and {path.parent}"):
            await place().open()
        path.parent.chmod(0o700)
        await set_alice(place)


async def test_a_full_database(path: Path, place: Place) -> None:
    """SQLite's own limit of pages has the effect of a full disk on any file system."""
    async with opened(place) as store:
        await store.alter([alteration(ALICE, request_percentage=1.0)], AUTHOR)
        before = await store.snapshot()
        assert isinstance(store, SqliteStore)
        database = store._file._database
        assert database is not None
        database.execute("PRAGMA max_page_count = 1")
        with refused(path, f"the disk is full: free space in {path.parent}. Nothing was changed"):
            await store.alter(
                [alteration(ALICE, request_percentage=2.0), alteration(LONG, request_percentage=2.0)], AUTHOR
            )
        assert (await store.snapshot(), await since(store, before.sequence)) == (before, [])
        database.execute("PRAGMA max_page_count = 1000000")
        assert len(await store.alter([alteration(LONG, request_percentage=2.0)], AUTHOR)) == 1


async def test_the_file_has_a_maximum_size(path: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Audit records of long names give way first. At the maximum, quotas can be removed."""
    for module in (opening, file):
        monkeypatch.setattr(module, "MAX_FILE_BYTES", 2**20)
    entities = [QuotaEntity(user=f"{number}{'x' * 30_000}") for number in range(40)]
    async with opened(place) as store:
        for value in (1.0, 2.0, 3.0):  # three times what fits, if all audit records were kept
            for entity in entities[:8]:
                await store.alter([alteration(entity, request_percentage=value)], AUTHOR)
        assert 8 <= len(await store.audit(limit=100)) < 24
        with refused(path, "the disk is full, or the quotas need more than 1048576 bytes"):
            for entity in entities:
                await store.alter([alteration(entity, request_percentage=4.0)], AUTHOR)
        assert path.stat().st_size <= 2**20
        await store.alter([alteration(entity, request_percentage=None) for entity in entities], AUTHOR)
        assert not (await store.snapshot()).quotas


def fill(folder: Path) -> Path:
    filler = folder / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filler


async def test_a_full_disk(small_disk: Path) -> None:
    path = small_disk / "quotas.sqlite"
    place = partial(SqliteStore, str(path))
    async with opened(place) as store:
        await store.alter([alteration(ALICE, request_percentage=1.0)], AUTHOR)
        before = await store.snapshot()
        filler = fill(small_disk)
        both = [alteration(ALICE, request_percentage=2.0), alteration(LONG, request_percentage=2.0)]
        for _ in range(3):
            with refused(path, f"the disk is full: free space in {small_disk}. Nothing was changed"):
                await store.alter(both, AUTHOR)
        assert (await store.snapshot(), await since(store, before.sequence)) == (before, [])
        filler.unlink()
        changes = await store.alter(both, AUTHOR)
        assert [each.old for each in changes] == [1.0, None]
    async with opened(place) as store:
        assert (await store.snapshot()).quotas == {each: {"request_percentage": 2.0} for each in (ALICE, LONG)}


async def test_a_disk_that_is_full_at_the_start(small_disk: Path) -> None:
    path = small_disk / "quotas.sqlite"
    place = partial(SqliteStore, str(path))
    await set_alice(place)
    filler = fill(small_disk)
    store = place()
    with refused(path, "the disk is full|.*disk I/O error"):
        await store.open()
    filler.unlink()
    await store.open()
    assert (await store.snapshot()).quotas == {ALICE: {"request_percentage": 1.0}}
    await store.close()


async def test_a_limit_of_file_sizes(path: Path, place: Place) -> None:
    """An error of the write itself, as of a disk that fails."""
    async with opened(place) as store:
        await store.alter([alteration(ALICE, request_percentage=1.0)], AUTHOR)
        before = await store.snapshot()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name(f"{path.name}-wal").stat().st_size + 6000, hard))
        try:
            with refused(path, r"disk I/O error \(SQLITE_IOERR_WRITE\): check the disk .* Nothing was changed"):
                await store.alter([alteration(LONG, request_percentage=2.0)], AUTHOR)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert await store.snapshot() == before
        assert len(await store.alter([alteration(LONG, request_percentage=2.0)], AUTHOR)) == 1


def test_a_disk_that_fails_to_sync_leaves_the_outcome_open(path: Path) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
    with refused(path, r".*\(SQLITE_IOERR_FSYNC\): the change may or may not", StoreTimeoutError), reported(str(path)):
        raise error


# --- locked, moved ---


LOCKED = "another process has locked it for too long; .* Nothing was changed"


async def test_a_lock_of_another_program(path: Path) -> None:
    async with opened(partial(impatient, path)) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            with refused(path, LOCKED, StoreTimeoutError):
                await store.alter([alteration(ALICE, request_percentage=1.0)], AUTHOR)
            assert (await store.snapshot()).quotas == {}, "readers do not wait"
            database.execute("COMMIT")
        assert len(await store.alter([alteration(ALICE, request_percentage=1.0)], AUTHOR)) == 1


async def test_the_lock_file_of_another_proxy(path: Path, place: Place) -> None:
    await set_alice(place)
    async with opened(partial(impatient, path)) as store:
        descriptor = os.open(f"{path}{LOCK_END}", os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with refused(path, LOCKED, StoreTimeoutError):
                await store.alter([alteration(ALICE, request_percentage=2.0)], AUTHOR)
            with refused(path, LOCKED, StoreTimeoutError):
                await impatient(path).open()
        finally:
            os.close(descriptor)
    await assert_alice(place)


async def test_a_file_that_is_moved_is_not_written(path: Path, place: Place) -> None:
    """What were written to it would be lost at the next start, which looks in the old place."""
    moved = path.with_name("moved")
    async with opened(place) as store:
        before = await store.snapshot()
        path.rename(moved)
        for content in (None, b"another file"):
            if content is not None:
                path.write_bytes(content)
            with refused(path, "it was moved, deleted or replaced while it was open: restart all proxies"):
                await store.alter([alteration(ALICE, request_percentage=1.0)], AUTHOR)
            with refused(path, "it was moved, deleted or replaced"):
                await store.changes_since(before.sequence)
        moved.rename(path)
        assert await store.snapshot() == before
        assert len(await store.alter([alteration(ALICE, request_percentage=1.0)], AUTHOR)) == 1
