# ruff: noqa: ASYNC240 -- small files, and nothing else runs
"""What is wrong with the file at the start is said in a sentence, changes nothing, and is over with its cause."""

from __future__ import annotations

import re
import sqlite3
import stat
import sys
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import pytest
import structlog.testing
import trio

from headrace.proxy.quotas.sqlite.opening import BESIDE, LOCK_END
from headrace.proxy.quotas.sqlite.store import SqliteStore
from headrace.quota_callbacks.entities import QuotaEntity
from tests.proxy.quotas.sqlite.sqlite_errors import assert_alice, refused, set_alice
from tests.proxy.quotas.store_contract import ALICE, AUTHOR, Place, alteration, opened

if TYPE_CHECKING:
    from pathlib import Path


TIMEOUT_S = 30
"""Above what a busy disk takes."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "quotas.sqlite"


@pytest.fixture
def place(path: Path) -> Place:
    return partial(SqliteStore, str(path), timeout_s=TIMEOUT_S)


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
        program = (
            "import sqlite3, sys\n"
            "try: print(sqlite3.connect(sys.argv[1], timeout=0).execute('PRAGMA journal_mode = DELETE').fetchone())\n"
            "except sqlite3.OperationalError as error: print(error)"
        )
        done = await trio.run_process([sys.executable, "-c", program, str(path)], capture_stdout=True)
        assert done.stdout.strip() == b"database is locked"


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


async def test_a_file_with_a_second_name_is_refused(path: Path, place: Place) -> None:
    await set_alice(place)
    second = path.with_name("second")
    second.hardlink_to(path)
    with refused(path, r"has a second name \(a hard link\)"):
        await place().open()
    second.unlink()
    await assert_alice(place)


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


async def test_a_file_that_is_damaged_while_the_proxy_runs(path: Path, place: Place) -> None:
    """Nothing is changed, and the error names what to do; it works again with the former content."""
    entities = [QuotaEntity(user=f"user {number}") for number in range(2_000)]
    async with opened(place) as store:
        await store.alter([alteration(each, request_percentage=1.0) for each in entities], AUTHOR)
    async with opened(place) as store:
        content = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (len(content) - 4096))
        assert isinstance(store, SqliteStore)
        database = store._file._database
        assert database is not None
        database.execute("PRAGMA shrink_memory")  # otherwise SQLite has the pages in memory
        for call in (
            store.snapshot,
            partial(store.audit, limit=9),
            partial(store.alter, [alteration(ALICE, request_percentage=1.0)], AUTHOR),
        ):
            with refused(path, r"it is damaged \(.*\): end all proxies that use it, and restore a backup"):
                await call()
        with path.open("r+b") as file:
            file.write(content)
        database.execute("PRAGMA shrink_memory")
        assert len((await store.snapshot()).quotas) == 2_000


async def test_a_row_of_another_writer(path: Path, place: Place) -> None:
    await set_alice(place)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("INSERT INTO quotas VALUES ('alice', 'request_percentage', 1.0)")
        with refused(path, "a row was not written by this program"):
            await place().open()
        database.execute("DELETE FROM quotas WHERE entity = 'alice'")
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
