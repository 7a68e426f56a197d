"""What is wrong with the file is said in a sentence, changes nothing, and is over once its cause is gone."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import sqlite3
import stat
import subprocess
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest
import structlog
import structlog.testing
import trio

from headrace.proxy.quotas.sqlite_opening import BESIDE, LOCK_END, reported
from headrace.proxy.quotas.sqlite_store import SqliteStore
from headrace.proxy.quotas.store import StoreError, StoreTimeoutError
from headrace.quota_callbacks.entities import QuotaEntity
from tests.proxy.quotas.store_contract import ALICE, AUTHOR, Place, alteration, opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOBODY = 65534
LONG = QuotaEntity(user="x" * 20_000)
"""An entity that needs several pages."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "quotas.sqlite"


@pytest.fixture
def place(path: Path) -> Place:
    return partial(SqliteStore, str(path), timeout_s=0.2)


@contextmanager
def refused(path: Path, cause: str, kind: type[StoreError] = StoreError) -> Iterator[None]:
    """Expect an error that names the setting, the file and the cause, which is a regular expression."""
    with pytest.raises(StoreError, match=rf"^client_quotas\.file: cannot use {re.escape(str(path))}: {cause}") as raised:
        yield
    assert type(raised.value) is kind


async def set_alice(place: Place, value: float = 1.0) -> None:
    async with opened(place) as store:
        await store.alter([alteration(ALICE, request_percentage=value)], AUTHOR)


async def assert_alice(place: Place, value: float = 1.0) -> None:
    """Check that the quotas are those of `set_alice`, and can be changed."""
    async with opened(place) as store:
        assert (await store.snapshot()).quotas == {ALICE: {"request_percentage": value}}
        assert len(await store.alter([alteration(ALICE, request_percentage=9.0)], AUTHOR)) == 1


# --- who may read it ---


async def test_only_the_owner_can_read_the_files(path: Path, place: Place) -> None:
    async with opened(place) as store:
        await store.alter([alteration(ALICE, request_percentage=1.0)], AUTHOR)
        files = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
        assert files == dict.fromkeys([path.name + end for end in ("", "-lock", "-shm", "-wal")], 0o600)


async def test_the_permissions_of_existing_files_are_corrected(path: Path, place: Place) -> None:
    async with opened(place) as store:
        await store.alter([alteration(ALICE, request_percentage=1.0)], AUTHOR)
        for each in path.parent.iterdir():
            each.chmod(0o664)
        async with opened(place):
            assert {stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()} == {0o600}
        assert len(await store.alter([alteration(ALICE, request_percentage=2.0)], AUTHOR)) == 1


async def test_a_second_object_keeps_the_locks_of_the_first(path: Path, place: Place) -> None:
    """A process loses its POSIX locks on a file with the first descriptor that it closes, so none may be closed."""
    async with opened(place):
        async with opened(place):
            pass
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as database:
            program = (
                "import sqlite3, sys; d = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)\n"
                "try: d.execute('PRAGMA locking_mode = EXCLUSIVE'); d.execute('BEGIN EXCLUSIVE'); "
                "print(d.execute('PRAGMA journal_mode = DELETE').fetchone())\n"
                "except sqlite3.OperationalError as error: print(error)"
            )
            done = await trio.run_process(["python3", "-c", program, str(path)], capture_stdout=True)
            assert done.stdout.strip() == b"database is locked"
            assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("end", ["", LOCK_END, *BESIDE])
async def test_a_symbolic_link_is_not_followed(path: Path, place: Place, end: str) -> None:
    target = path.parent / "target"
    target.write_bytes(b"not to be touched")
    target.chmod(0o644)
    link = path.with_name(path.name + end)
    link.symlink_to(target)
    with refused(path, f"({re.escape(str(link))}: )?is a symbolic link, which is not followed"):
        await place().open()
    assert target.read_bytes() == b"not to be touched"
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    link.unlink()
    await set_alice(place)


async def test_a_folder_in_which_all_may_replace_files_is_logged(path: Path, place: Place) -> None:
    path.parent.chmod(0o777)
    with structlog.testing.capture_logs() as lines:
        await set_alice(place)
    assert [line["event"] for line in lines] == ["the folder of the quota store is not safe"]


# --- what cannot be opened ---


async def test_a_missing_folder(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "quotas.sqlite"
    place = partial(SqliteStore, str(path))
    with refused(path, f"there is no folder {path.parent}: create it, or set client_quotas.file to another file"):
        await place().open()
    path.parent.mkdir()
    await set_alice(place)


async def test_a_folder_as_the_file(path: Path, place: Place) -> None:
    path.mkdir()
    with refused(path, "is a directory: set client_quotas.file to an ordinary file"):
        await place().open()


async def test_a_file_that_is_not_of_sqlite(path: Path, place: Place) -> None:
    path.write_bytes(b"[client_quotas]\n" * 1000)
    with refused(path, "it is not an SQLite file: set client_quotas.file to another file"):
        await place().open()
    assert path.read_bytes() == b"[client_quotas]\n" * 1000


@pytest.mark.parametrize("set_up", ["CREATE TABLE theirs (a)", "PRAGMA application_id = 7"])
async def test_a_database_of_another_program(path: Path, place: Place, set_up: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute(set_up)
    content = path.read_bytes()
    with refused(path, "it is a database of another program: set client_quotas.file to another file"):
        await place().open()
    assert path.read_bytes() == content


async def test_a_newer_schema_at_the_start(path: Path, place: Place) -> None:
    await set_alice(place)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 2")
    sentence = "its schema has version 2, and this release reads version 1: a newer release has written it; install"
    with refused(path, sentence):
        await place().open()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (2,)
        database.execute("PRAGMA user_version = 1")
    await assert_alice(place)


async def test_a_newer_schema_while_the_proxy_runs(path: Path, place: Place) -> None:
    """Another proxy of the host was upgraded first."""
    async with opened(place) as store:
        position = (await store.snapshot()).sequence
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA user_version = 2")
            with refused(path, "its schema has version 2"):
                await store.alter([alteration(ALICE, request_percentage=1.0)], AUTHOR)
            with refused(path, "its schema has version 2"):
                await store.changes_since(position)
            assert database.execute("SELECT count(*) FROM quotas").fetchone() == (0,)
            database.execute("PRAGMA user_version = 1")
        assert len(await store.alter([alteration(ALICE, request_percentage=1.0)], AUTHOR)) == 1


async def test_a_damaged_file(path: Path, place: Place) -> None:
    """The damaged page is found at the start, not when its entity is used."""
    async with opened(place) as store:
        entities = [QuotaEntity(user=f"user {number}") for number in range(2_000)]
        await store.alter([alteration(each, request_percentage=1.0) for each in entities], AUTHOR)
    content = path.read_bytes()
    for page in range(1, len(content) // 4096, len(content) // 4096 // 4):
        path.write_bytes(content[: page * 4096] + b"\xff" * 4096 + content[(page + 1) * 4096 :])
        with refused(path, r"it is damaged \(.*\): end all proxies that use it, and restore a backup"):
            await place().open()
    path.write_bytes(content[: len(content) // 2])
    with refused(path, "it is damaged"):
        await place().open()
    path.write_bytes(content)
    async with opened(place) as store:
        assert len((await store.snapshot()).quotas) == 2_000


async def test_a_row_of_another_writer(path: Path, place: Place) -> None:
    await set_alice(place)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("INSERT INTO quotas VALUES ('alice', 'request_percentage', 1.0)")
        with refused(path, "a row was not written by this program"):
            await place().open()
        database.execute("DELETE FROM quotas WHERE entity = 'alice'")
    await assert_alice(place)


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
        assert (await store.snapshot(), await store.changes_since(before.sequence)) == (before, [])
        database.execute("PRAGMA max_page_count = 1000000")
        assert len(await store.alter([alteration(LONG, request_percentage=2.0)], AUTHOR)) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k,mode=0700", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


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
        assert (await store.snapshot(), await store.changes_since(before.sequence)) == (before, [])
        filler.unlink()
        changes = await store.alter(both, AUTHOR)
        assert [each.old for each in changes] == [1.0, None]
    async with opened(place) as store:
        assert (await store.snapshot()).quotas == dict.fromkeys([ALICE, LONG], {"request_percentage": 2.0})


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


async def test_a_lock_of_another_program(path: Path, place: Place) -> None:
    async with opened(place) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            with refused(path, LOCKED, StoreTimeoutError):
                await store.alter([alteration(ALICE, request_percentage=1.0)], AUTHOR)
            assert (await store.snapshot()).quotas == {}, "readers do not wait"
            database.execute("COMMIT")
        assert len(await store.alter([alteration(ALICE, request_percentage=1.0)], AUTHOR)) == 1


async def test_the_lock_file_of_another_proxy(path: Path, place: Place) -> None:
    await set_alice(place)
    async with opened(place) as store:
        descriptor = os.open(f"{path}{LOCK_END}", os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with refused(path, LOCKED, StoreTimeoutError):
                await store.alter([alteration(ALICE, request_percentage=2.0)], AUTHOR)
            with refused(path, LOCKED, StoreTimeoutError):
                await place().open()
        finally:
            os.close(descriptor)
    await assert_alice(place)


async def test_many_open_a_new_file_at_once(path: Path) -> None:
    stores = [SqliteStore(str(path)) for _ in range(12)]
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for store in stores:
                nursery.start_soon(store.open)
    for number, store in enumerate(stores):
        await store.alter([alteration(ALICE, request_percentage=number + 1.0)], AUTHOR)
    assert (await stores[0].snapshot()).quotas == {ALICE: {"request_percentage": 12.0}}
    for store in stores:
        await store.close()


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
