"""Opening the SQLite file of a store of quotas, and the sentences for what can go wrong with it.

Used by `file`. All functions block. Only the owner of the file can read it, the lock file, and what SQLite
creates beside it; a symbolic link is not followed. Files that SQLite may have locked are checked without being opened:
when a process closes a descriptor of a file, it loses all its POSIX locks on the file, by which SQLite excludes other
processes.

The lock file (``-lock``) is held for every commit and checkpoint, and while the file is opened. Without it, a
checkpoint of one process at the instant of another's commit could damage the file: the "WAL-reset bug" of SQLite 3.7.0
to 3.51.2.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import structlog

from headrace.proxy.quotas.store import StoreError, StoreTimeoutError
from headrace.quota_callbacks.files import folder_warning, make_private, open_private, reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator

log = structlog.get_logger("headrace.quota_store")

SETTING: Final = "client_quotas.file"
APPLICATION_ID: Final = 0x48525151
"""Value of ``PRAGMA application_id``: "HRQQ" in ASCII."""
SCHEMA_VERSION: Final = 1
"""Version of the tables, the value of ``PRAGMA user_version``."""
MAX_FILE_BYTES: int = 2**30
"""Maximum size of the file: more than 1,000,000 entities and 1,000,000 audit records with usual names have. It bounds
what clients that may change quotas can store, with names of 32 KiB."""
LOCK_END: Final = "-lock"
BESIDE: Final = ("-wal", "-shm", "-journal")
"""The ends of the names of the files that SQLite creates beside the file, with its permissions."""

_SCHEMA: Final = f"""
CREATE TABLE quotas (
    entity TEXT NOT NULL,
    key TEXT NOT NULL,
    value REAL NOT NULL CHECK (typeof(value) = 'real'),
    PRIMARY KEY (entity, key)
) WITHOUT ROWID;
CREATE TABLE changes (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    time_ms INTEGER NOT NULL,
    principal TEXT NOT NULL,
    address TEXT NOT NULL,
    entity TEXT NOT NULL,
    key TEXT NOT NULL,
    old REAL,
    new REAL
);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""

_FIRST_PAUSE_S: Final = 0.0005
_LONGEST_PAUSE_S: Final = 0.005
"""Pauses between two attempts to take a lock. A commit takes about a millisecond on an SSD."""

_creating = threading.Lock()
"""Held while a missing file is created: closing its descriptor would release the locks of another object's SQLite
connection in this process."""


def open_database(path: str, wait_s: float) -> tuple[sqlite3.Connection, int]:
    """Open or create the file; return the connection, and the descriptor of the lock file.

    Waits ``wait_s`` for locks of other processes. A file of another program is not changed. Raises `StoreError`.
    """
    with reported(path):
        _prepare(path)
        lock = open_private(path + LOCK_END, os.O_RDWR | os.O_CREAT)
    try:
        with reported(path), locked(path, lock, wait_s):
            return _connect(path, wait_s), lock
    except BaseException:
        os.close(lock)
        raise


@contextmanager
def locked(path: str, lock: int, wait_s: float) -> Iterator[None]:
    """Hold the lock file. Raises `StoreTimeoutError` if another process holds it for more than ``wait_s``."""
    end_s = time.monotonic() + wait_s
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= end_s:
                raise StoreTimeoutError(sentence(path, _LOCKED)) from None
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)


def check_schema_version(database: sqlite3.Connection, path: str) -> None:
    """Raise `StoreError` if a newer release has changed the tables, which it may do while this process runs."""
    found = database.execute("PRAGMA user_version").fetchone()[0]
    if found != SCHEMA_VERSION:
        raise StoreError(
            sentence(
                path,
                f"its schema has version {found}, and this release reads version {SCHEMA_VERSION}: a newer release has "
                f"written it; install that release, or set {SETTING} to another file",
            )
        )


def _prepare(path: str) -> None:
    """Create the file if it is missing, and let only its owner read it and those beside it. Raises `OSError`."""
    folder = Path(path).parent
    if (warning := folder_warning(folder)) is not None:
        log.warning("the folder of the quota store is not safe", reason=warning)
    with _creating, suppress(FileExistsError):
        os.close(open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
    make_private(path)
    for end in BESIDE:
        with suppress(FileNotFoundError):
            make_private(path + end)
    for each in (path, folder):
        if not os.access(each, os.W_OK, effective_ids=True):
            raise StoreError(sentence(path, _read_only(str(each))))


def _connect(path: str, wait_s: float) -> sqlite3.Connection:
    uri = f"file:{quote(os.path.abspath(path))}?mode=rw"  # noqa: PTH100 -- no links are resolved
    database = sqlite3.connect(uri, uri=True, timeout=wait_s, check_same_thread=False, isolation_level=None)
    try:
        _set_up(database, path)
    except BaseException:
        database.close()
        raise
    return database


def _set_up(database: sqlite3.Connection, path: str) -> None:
    application_id = _check_is_ours(database, path)
    if database.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise StoreError(sentence(path, "its file system cannot share memory: put the file on a local disk"))
    database.execute("PRAGMA synchronous = FULL")
    database.execute("PRAGMA wal_autocheckpoint = 0")  # a checkpoint needs the lock file
    if application_id == 0:
        database.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
    page_bytes: int = database.execute("PRAGMA page_size").fetchone()[0]
    database.execute(f"PRAGMA max_page_count = {MAX_FILE_BYTES // page_bytes}")
    check_schema_version(database, path)
    problem = " ".join(database.execute("PRAGMA quick_check(1)").fetchone()[0].split())
    if problem != "ok":
        raise StoreError(sentence(path, _damaged(problem)))


def _check_is_ours(database: sqlite3.Connection, path: str) -> int:
    """Return the application id, which is 0 before the tables are created."""
    found: int = database.execute("PRAGMA application_id").fetchone()[0]
    if found not in (0, APPLICATION_ID) or (found == 0 and _has_tables(database)):
        raise StoreError(sentence(path, f"it is a database of another program: set {SETTING} to another file"))
    return found


def _has_tables(database: sqlite3.Connection) -> bool:
    return bool(database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])


# --- errors ---

_LOCKED: Final = (
    "another process has locked it for too long; end that process, such as a backup or a database shell. Nothing was "
    "changed"
)
UNCERTAIN: Final = "SQLITE_IOERR_FSYNC"
"""Name of the error after which it is not known whether a commit would survive a failure of the machine."""


@contextmanager
def reported(path: str) -> Iterator[None]:
    """Raise `StoreError` instead of `sqlite3.Error` and `OSError`."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", None) or type(error).__name__
        cause = _cause(name, str(error), path)
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")) or name == UNCERTAIN:
            raise StoreTimeoutError(sentence(path, cause)) from error
        raise StoreError(sentence(path, cause)) from error
    except OSError as error:
        raise StoreError(sentence(path, _cause_of_system(error, path))) from error


def sentence(path: str, cause: str) -> str:
    """Return the message of an error: the setting, the file and the cause."""
    return f"{SETTING}: cannot use {path}: {cause}"


def _cause(name: str, text: str, path: str) -> str:
    match name.split("_")[1] if name.startswith("SQLITE_") else name:
        case "BUSY" | "LOCKED":
            return _LOCKED
        case "FULL" if Path(path).stat().st_size >= MAX_FILE_BYTES / 2:
            return (
                f"the disk is full, or the quotas need more than {MAX_FILE_BYTES} bytes: free space in "
                f"{_folder(path)}, or remove quotas that are not needed. Nothing was changed"
            )
        case "FULL":
            return f"the disk is full: free space in {_folder(path)}. Nothing was changed"
        case "NOTADB":
            return f"it is not an SQLite file: set {SETTING} to another file"
        case "CORRUPT":
            return _damaged(text)
        case "READONLY" | "CANTOPEN" | "PERM" | "AUTH":
            return f"{text} ({name}): check the permissions of the file and of {_folder(path)}. Nothing was changed"
        case "IOERR" if name == UNCERTAIN:
            return f"{text} ({name}): the change may or may not have been made; check the disk of {_folder(path)}"
        case "IOERR":
            return f"{text} ({name}): check the disk and its free space in {_folder(path)}. Nothing was changed"
    return f"{text} ({name}). Nothing was changed"


def _cause_of_system(error: OSError, path: str) -> str:
    reason = reason_of(error)
    about = "" if error.filename in (None, path) else f"{os.fspath(error.filename)}: "
    if isinstance(error, FileNotFoundError):
        return f"there is no folder {_folder(path)}: create it, or set {SETTING} to another file"
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return f"{about}{reason}: allow user id {os.geteuid()} to write the file and {_folder(path)}"
    return f"{about}{reason}: set {SETTING} to an ordinary file on a local disk with free space"


def _folder(path: str) -> str:
    return str(Path(path).parent)


def _read_only(name: str) -> str:
    return f"{name} is read-only for user id {os.geteuid()}: allow this user to write the file and its folder"


def _damaged(problem: str) -> str:
    return (
        f"it is damaged ({problem}): end all proxies that use it, and restore a backup, or move it away together with "
        "the files beside it"
    )
