"""The tables of the SQLite store of quotas, and the transactions on them.

Called by `store` in a thread, one call at a time; every method blocks. The table ``quotas`` has one row for each
key of an entity. The table ``changes`` is both what other proxies follow and the audit record; its first column
increases in the order of the commits.
"""

from __future__ import annotations

import math
import os
import sqlite3
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.proxy.long_work import PAUSE_S, collector_off
from headrace.proxy.quotas.entity_text import entity_text, parse_entity_text
from headrace.proxy.quotas.sqlite.opening import (
    MAX_FILE_BYTES,
    check_schema_version,
    locked,
    open_database,
    reported,
    sentence,
)
from headrace.proxy.quotas.store import MAX_AUDIT_CHARACTERS, Author, Change, ImportState, Snapshot, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.proxy.quotas.store import Alteration
    from headrace.quota_callbacks.entities import QuotaEntity

CHECKPOINT_BYTES: Final = 4 * 1024 * 1024
"""Size of the ``-wal`` file from which a commit is followed by a checkpoint: SQLite's own default, 1,000 pages."""
ROWS_PER_PIECE: Final = 256
"""Rows that are read between two pauses, which takes about a millisecond."""

_LARGE: Final = 0.5
"""Part of the maximum size of the file from which audit records are removed earlier than by their number."""

_CHANGE_COLUMNS: Final = "SELECT sequence, time_ms, principal, address, entity, key, old, new FROM changes"


@dataclass(frozen=True, slots=True)
class PreparedAlteration:
    """An alteration whose values SQLite can store exactly."""

    entity: QuotaEntity
    text: str
    """The entity as text."""
    values: Sequence[tuple[str, float | None]]


@dataclass(frozen=True, slots=True)
class PreparedAlter:
    """The alterations of one call of `QuotaStore.alter`."""

    alterations: Sequence[PreparedAlteration]
    author: Author


def prepared(alterations: Sequence[Alteration], author: Author) -> PreparedAlter:
    """Return alterations as the file stores them. Raises `ValueError` for a value or a key that cannot be stored."""
    return PreparedAlter(
        [
            PreparedAlteration(
                each.entity,
                entity_text(each.entity),
                [(_text(key), _real(value)) for key, value in each.values.items()],
            )
            for each in alterations
        ],
        Author(principal=_escaped(author.principal), address=_escaped(author.address)),
    )


def _text(key: str) -> str:
    key.encode()  # UnicodeEncodeError is a ValueError
    return sys.intern(str(key))


def _real(value: float | None) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError(f"{value} is too large for a quota") from error
    if math.isnan(number):  # SQLite would store NULL
        raise ValueError("a quota must be a number, not NaN")
    return number


def _escaped(text: str) -> str:
    """Return a text of an audit record without lone surrogates, which UTF-8 cannot represent."""
    return text.encode("utf-8", "backslashreplace").decode()


class SqliteFile:
    """The open file.

    ``wait_s`` is how long a call waits for a lock of another process. Every method raises `StoreError`.
    """

    def __init__(self, path: str, *, audit_rows: int, wait_s: float) -> None:
        self._path = path
        self._audit_rows = audit_rows
        self._wait_s = wait_s
        self._database: sqlite3.Connection | None = None
        self._lock = -1
        self._identity: tuple[int, int] | None = None
        self._seen: tuple[int, int] | None = None
        """``PRAGMA data_version`` and the last sequence of one instant."""

    def open(self) -> Snapshot:
        """Open or create the file, and return all quotas."""
        self.close()
        self._database, self._lock = open_database(self._path, self._wait_s)
        try:
            with reported(self._path):
                self._identity = _identity(self._path)
            return self.snapshot(pauses=False)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file, which may be closed already."""
        if self._database is not None:
            with reported(self._path):
                self._database.close()
            self._database = None
            os.close(self._lock)
            self._lock = -1

    def write(self, alters: Sequence[PreparedAlter]) -> list[Sequence[Change]]:
        """Store all ``alters`` or none of them, in their order; return what each changed, once it is durable."""
        time_ms = time.time_ns() // 1_000_000
        with reported(self._path):
            self._checked()  # before the lock file is used, which is closed with the file
            with locked(self._path, self._lock, self._wait_s):
                with self._transaction("BEGIN IMMEDIATE") as database:
                    changes: list[Sequence[Change]] = [_written(database, alter, time_ms) for alter in alters]
                    last = _last_sequence(database)
                    if any(changes):
                        self._remove_old_changes(database, last)
                    seen = _data_version(database), last
                self._seen = seen
                self._checkpoint()
        return changes

    def changes_since(self, sequence: int) -> Sequence[Change] | None:
        """Return the changes after ``sequence``; ``None`` unless all of them are kept."""
        with reported(self._path):
            if self._seen == (_data_version(self._checked()), sequence):
                return ()
            with self._transaction("BEGIN") as database:
                first, last = database.execute("SELECT min(sequence), max(sequence) FROM changes").fetchone()
                self._seen = _data_version(database), last or 0
                if not (first or 1) - 1 <= sequence <= (last or 0):
                    return None
                rows = database.execute(f"{_CHANGE_COLUMNS} WHERE sequence > ? ORDER BY sequence", (sequence,))
                return list(self._changes(rows))

    def audit(self, limit: int, before: int | None) -> Sequence[Change]:
        """Return the latest ``limit`` changes before the position ``before``, the latest first; fewer of long names."""
        where = "WHERE sequence < ? ORDER BY sequence DESC LIMIT ?"
        with reported(self._path), self._transaction("BEGIN") as database:
            latest = sys.maxsize if before is None else before
            found: list[Change] = []
            left = MAX_AUDIT_CHARACTERS
            for change in self._changes(database.execute(f"{_CHANGE_COLUMNS} {where}", (latest, limit))):
                left -= change.characters()
                if found and left < 0:
                    break
                found.append(change)
            return found

    def import_state(self) -> ImportState:
        """Return how far the import of the brokers' quotas is."""
        with reported(self._path), self._transaction("BEGIN") as database:
            if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is not None:
                row = database.execute("SELECT value FROM meta WHERE name = 'import'").fetchone()
                return ImportState.BEGUN if row == (ImportState.BEGUN.value,) else ImportState.OVER
            return ImportState.OVER if _last_sequence(database) else ImportState.POSSIBLE

    def set_import_state(self, state: ImportState) -> None:
        """Store how far the import is. The table for it is created then, since most files do not need it."""
        with reported(self._path):
            self._checked()
            with (
                locked(self._path, self._lock, self._wait_s),
                self._transaction("BEGIN IMMEDIATE") as database,
            ):
                database.execute("CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
                database.execute("INSERT OR REPLACE INTO meta VALUES ('import', ?)", (state.value,))

    def snapshot(self, *, pauses: bool = True) -> Snapshot:
        """Return all quotas. With ``pauses`` the other threads of the process can run meanwhile, at half the speed."""
        quotas: dict[QuotaEntity, dict[str, float]] = {}
        with reported(self._path), collector_off(), self._transaction("BEGIN") as database:
            last = _last_sequence(database)
            self._seen = _data_version(database), last
            latest_text, of_entity = "", dict[str, float]()
            rows = database.execute("SELECT entity, key, value FROM quotas ORDER BY entity")
            for text, key, value in _pausing(rows) if pauses else rows:
                if text != latest_text:
                    latest_text, of_entity = text, {}
                    quotas[self._entity(text)] = of_entity
                of_entity[sys.intern(key)] = value
        return Snapshot(sequence=last, quotas=quotas)

    def _remove_old_changes(self, database: sqlite3.Connection, last: int) -> None:
        """Remove what exceeds the number of audit records, and an eighth of them if the file is large."""
        oldest = last - self._audit_rows
        pages, unused, page_bytes = (
            database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        if (pages - unused) * page_bytes > MAX_FILE_BYTES * _LARGE:
            first: int = database.execute("SELECT min(sequence) FROM changes").fetchone()[0]
            oldest = max(oldest, first + (last - first) // 8)
        database.execute("DELETE FROM changes WHERE sequence <= ?", (oldest,))

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        database = self._checked()
        database.execute(begin)
        try:
            check_schema_version(database, self._path)
            yield database
            database.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # the error that is raised is the cause of this one
                if database.in_transaction:  # after some errors SQLite itself has rolled back
                    database.execute("ROLLBACK")
            raise

    def _checked(self) -> sqlite3.Connection:
        """Return the connection. A change of a file that was moved or replaced would be lost at the next start."""
        if self._database is None:
            raise StoreError(sentence(self._path, "the store is not open"))
        with suppress(FileNotFoundError):
            if _identity(self._path) == self._identity:
                return self._database
        raise StoreError(
            sentence(self._path, "it was moved, deleted or replaced while it was open: restart all proxies that use it")
        )

    def _checkpoint(self) -> None:
        """Copy the ``-wal`` file into the file, if it is large. If that fails, it is done after a later commit."""
        assert self._database is not None  # noqa: S101 -- after a commit
        with suppress(OSError, sqlite3.Error):  # the commit is durable; what fails here, fails later, too
            if os.stat(f"{self._path}-wal").st_size < CHECKPOINT_BYTES:  # noqa: PTH116 -- the path is a str
                return
            self._database.execute("PRAGMA busy_timeout = 0")  # does not wait for readers
            try:
                self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                self._database.execute(f"PRAGMA busy_timeout = {round(self._wait_s * 1000)}")

    def _changes(self, rows: sqlite3.Cursor) -> Iterator[Change]:
        for sequence, time_ms, principal, address, text, key, old, new in _pausing(rows):
            yield Change(
                sequence=sequence,
                time_ms=time_ms,
                author=Author(principal=principal, address=address),
                entity=self._entity(text),
                key=sys.intern(key),
                old=old,
                new=new,
            )

    def _entity(self, text: str) -> QuotaEntity:
        try:
            return parse_entity_text(text)
        except ValueError as error:
            raise StoreError(sentence(self._path, f"a row was not written by this program: {error}")) from error


def _written(database: sqlite3.Connection, alter: PreparedAlter, time_ms: int) -> list[Change]:
    """Store one `PreparedAlter` within a transaction, and return what it changed."""
    changes = []
    for alteration in alter.alterations:
        text = alteration.text
        for key, new in alteration.values:
            row = database.execute("SELECT value FROM quotas WHERE entity = ? AND key = ?", (text, key)).fetchone()
            old: float | None = None if row is None else row[0]
            if new == old:
                continue
            if new is None:
                database.execute("DELETE FROM quotas WHERE entity = ? AND key = ?", (text, key))
            else:
                database.execute("INSERT OR REPLACE INTO quotas VALUES (?, ?, ?)", (text, key, new))
            author = alter.author
            sequence = database.execute(
                "INSERT INTO changes (time_ms, principal, address, entity, key, old, new) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (time_ms, author.principal, author.address, text, key, old, new),
            ).lastrowid
            assert sequence is not None  # noqa: S101 -- of an INSERT
            changes.append(
                Change(
                    sequence=sequence,
                    time_ms=time_ms,
                    author=author,
                    entity=alteration.entity,
                    key=key,
                    old=old,
                    new=new,
                )
            )
    return changes


def _pausing(rows: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
    """Yield rows, with a pause after each piece of them, in which the event loop can run."""
    while piece := rows.fetchmany(ROWS_PER_PIECE):
        yield from piece
        if len(piece) == ROWS_PER_PIECE:
            time.sleep(PAUSE_S)


def _last_sequence(database: sqlite3.Connection) -> int:
    last: int | None = database.execute("SELECT max(sequence) FROM changes").fetchone()[0]
    return last or 0


def _data_version(database: sqlite3.Connection) -> int:
    """Return a number that changes with every commit of another connection."""
    version: int = database.execute("PRAGMA data_version").fetchone()[0]
    return version


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path, follow_symlinks=False)  # noqa: PTH116 -- the path is a str
    return status.st_dev, status.st_ino
