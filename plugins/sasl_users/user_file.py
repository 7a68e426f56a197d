"""The SQLite file of users: its tables, transactions and errors. Every function blocks.

Used by `directory` in a thread, and by the command. Only the file's owner can read it. It has verifiers for SCRAM
(RFC 5802, section 3) and never a password. It uses SQLite's rollback journal: changes are rare, and a process that only
reads then needs no right to write.
"""

from __future__ import annotations

import errno
import os
import secrets
import sqlite3
import stat
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import quote

from headrace.plugins.sasl_users.lookups import SALT_BYTES, KnownUsers
from headrace.proxy.sasl.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramMechanism, ScramVerifier
from headrace.quota_callbacks.files import make_private, open_private, reason_of
from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.plugins.sasl_users.lookups import Verifiers

APPLICATION_ID: Final = 0x48525553
"""Value of ``PRAGMA application_id``: "HRUS" in ASCII."""
SCHEMA_VERSION: Final = 1
MAX_USERS: Final = 10_000
"""Maximum number of users in the file. So many take 10 MiB of memory, and are read in 0.6 s."""
LOCK_WAIT_S: Final = 5.0
"""How long a call waits for another process. A change takes some milliseconds."""
ROWS_AT_ONCE: Final = 256
PAUSE_S: Final = 200e-6
"""After so many rows, reading pauses, so that the event loop of this process gets the interpreter lock."""
_KEY_BYTES: Final = 32

_SCHEMA: Final = f"""
CREATE TABLE verifiers (
    name TEXT NOT NULL,
    mechanism TEXT NOT NULL,
    salt BLOB NOT NULL,
    iterations INTEGER NOT NULL,
    stored_key BLOB NOT NULL,
    server_key BLOB NOT NULL,
    PRIMARY KEY (name, mechanism)
) WITHOUT ROWID;
CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""
_UNKNOWN_USER_KEY: Final = "unknown_user_key"
_MECHANISMS: Final = {each.value: each for each in ScramMechanism}

_creating = threading.Lock()
"""Held while a missing file is created: closing its descriptor would release the locks of other connections to it in
this process."""


class UserFileError(Exception):
    """The file cannot be used. ``str()`` is a sentence with the file and the cause, without a secret."""


class UserFile:
    """The open file. Each method raises `UserFileError`; one thread at a time may call them."""

    def __init__(self, path: str, database: sqlite3.Connection, identity: tuple[int, int]) -> None:
        self._path = path
        self._database = database
        self._identity = identity

    @classmethod
    def open(cls, path: str, *, create: bool = False, dry: bool = False, to_read: bool = False) -> Self:
        """Open the file; with ``create``, create it if it is missing. With ``dry``, change nothing about it.

        With ``to_read``, it may also be a file that was mounted for this process, such as a Secret of Kubernetes: a
        symbolic link, or a file of root. Nothing is changed about it then.
        """
        with _reported(path):
            is_mounted = to_read and _is_mounted(path)
            if not dry and not is_mounted:
                _prepare(path, create=create)
            identity = _identity(path)
            mode = "ro" if dry or is_mounted else "rw"
            uri = f"file:{quote(os.path.abspath(path))}?mode={mode}"  # noqa: PTH100 -- keeps links
            database = sqlite3.connect(
                uri, uri=True, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False
            )
            try:
                _set_up(database, create=create)
            except BaseException:
                database.close()
                raise
        return cls(path, database, identity)

    def close(self) -> None:
        """Close the file, which may be closed already."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def is_replaced(self) -> bool:
        """Return whether another file has the path now, such as a restored backup."""
        with _reported(self._path):
            return _identity(self._path) != self._identity

    def version(self) -> int:
        """Return a number that changes when another process or object has changed the file."""
        with _reported(self._path):
            found: int = self._database.execute("PRAGMA data_version").fetchone()[0]
            return found

    def verifiers(self) -> dict[str, dict[ScramMechanism, ScramVerifier]]:
        """Return all users, sorted by name."""
        with _reported(self._path), _transaction(self._database, "BEGIN"):
            return self._verifiers()

    def known_users(self) -> KnownUsers:
        """Return all users for look-ups."""
        with _reported(self._path), _transaction(self._database, "BEGIN"):
            query = "SELECT value FROM secrets WHERE name = ?"
            (key,) = self._database.execute(query, (_UNKNOWN_USER_KEY,)).fetchone() or (b"",)
            if not isinstance(key, bytes) or len(key) != _KEY_BYTES:
                raise ValueError("it is damaged: it has no valid key; restore a backup")
            return KnownUsers(self._verifiers(), key)

    def put(self, name: str, verifiers: Verifiers) -> bool:
        """Store a user in place of what the file has of that name; return whether the user is new.

        Raises `UserFileError` for an invalid name, too.
        """
        with _reported(self._path):
            check_name(name)
            with _transaction(self._database, "BEGIN IMMEDIATE"):
                removed = self._database.execute("DELETE FROM verifiers WHERE name = ?", (name,)).rowcount
                (users,) = self._database.execute("SELECT count(DISTINCT name) FROM verifiers").fetchone()
                if users >= MAX_USERS:
                    raise ValueError(f"the file has {MAX_USERS} users, which is the maximum")
                self._database.executemany(
                    "INSERT INTO verifiers VALUES (?, ?, ?, ?, ?, ?)",
                    [
                        (name, mechanism.value, each.salt, each.iterations, each.stored_key, each.server_key)
                        for mechanism, each in verifiers.items()
                    ],
                )
            return not removed

    def remove(self, names: Sequence[str]) -> None:
        """Remove users: all of them, or none if one does not exist, which raises `UserFileError`."""
        with _reported(self._path), _transaction(self._database, "BEGIN IMMEDIATE"):
            unknown = [
                name
                for name in dict.fromkeys(names)
                if not self._database.execute("DELETE FROM verifiers WHERE name = ?", (name,)).rowcount
            ]
            if unknown:
                raise ValueError(f"there is no user {', '.join(map(repr, unknown))}; no user was removed")

    def _verifiers(self) -> dict[str, dict[ScramMechanism, ScramVerifier]]:
        users: dict[str, dict[ScramMechanism, ScramVerifier]] = {}
        query = "SELECT name, mechanism, salt, iterations, stored_key, server_key FROM verifiers ORDER BY name"
        for number, row in enumerate(self._database.execute(query), 1):
            name, mechanism, verifier = _verifier(row)
            users.setdefault(name, {})[mechanism] = verifier
            if number % ROWS_AT_ONCE == 0:
                time.sleep(PAUSE_S)
        if len(users) > MAX_USERS:
            raise ValueError(f"the file has {len(users)} users, and the maximum is {MAX_USERS}")
        return users


def check_name(name: str) -> None:
    """Raise `ValueError` for a name that a user cannot have."""
    if not 0 < len(name) <= MAX_PRINCIPAL_CHARACTERS:
        raise ValueError(f"a user name has 1 to {MAX_PRINCIPAL_CHARACTERS} characters, not {len(name)}")
    if not name.isprintable():
        raise ValueError("a user name has printable characters only")


def _verifier(row: tuple[object, ...]) -> tuple[str, ScramMechanism, ScramVerifier]:
    """Return a row's user, mechanism and verifier. Raises `ValueError` for a row that this program has not written."""
    match row:
        case (str(name), str(kind), bytes(salt), int(iterations), bytes(stored_key), bytes(server_key)):
            mechanism = _MECHANISMS.get(kind)
            if (
                mechanism is not None
                and len(stored_key) == len(server_key) == mechanism.digest_bytes
                and len(salt) == SALT_BYTES
                and MIN_ITERATIONS <= iterations <= MAX_ITERATIONS
            ):
                verifier = ScramVerifier(salt=salt, iterations=iterations, stored_key=stored_key, server_key=server_key)
                return name, mechanism, verifier
    raise ValueError(f"it is damaged: the row of the user {row[0]!r} is not valid; restore a backup")


def _prepare(path: str, *, create: bool) -> None:
    """Create the file if it may be missing, and let only its owner read it and its journal. Raises `OSError`."""
    if create:
        with _creating, suppress(FileExistsError):
            os.close(open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
    make_private(path)
    with suppress(FileNotFoundError):
        make_private(f"{path}-journal")


def _is_mounted(path: str) -> bool:
    """Return whether the file was provided from outside, as a mounted Secret is: it is a symbolic link, or belongs to
    root and not to this user.

    The link and the file must each belong to root or to this user. Raises `OSError` if other users may write the file.
    """
    link, status, own = os.lstat(path), os.stat(path), os.geteuid()  # noqa: PTH116 -- a str
    is_trusted = {link.st_uid, status.st_uid} <= {0, own}
    is_mounted = is_trusted and (stat.S_ISLNK(link.st_mode) or status.st_uid != own)
    if is_mounted and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(errno.EPERM, "other users may write it, which could add users: run chmod go-w on it", path)
    return is_mounted


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)  # noqa: PTH116 -- a str
    return status.st_dev, status.st_ino


def _set_up(database: sqlite3.Connection, *, create: bool) -> None:
    """Create the tables in a new file, and check those of another. Raises `ValueError`."""
    if create and _is_empty(database):
        with _transaction(database, "BEGIN IMMEDIATE"):
            if _is_empty(database):  # another process has not created them meanwhile
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    database.execute(statement)
                key = secrets.token_bytes(_KEY_BYTES)
                database.execute("INSERT INTO secrets VALUES (?, ?)", (_UNKNOWN_USER_KEY, key))
    if database.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise ValueError("it is not a file of users: name another one, or create it by headrace users add")
    found = database.execute("PRAGMA user_version").fetchone()[0]
    if found != SCHEMA_VERSION:
        raise ValueError(
            f"its schema has version {found}, and this release reads version {SCHEMA_VERSION}: install the release "
            "that has written it"
        )


def _is_empty(database: sqlite3.Connection) -> bool:
    return not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


@contextmanager
def _transaction(database: sqlite3.Connection, begin: str) -> Iterator[None]:
    database.execute(begin)
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


@contextmanager
def _reported(path: str) -> Iterator[None]:
    """Raise `UserFileError` instead of other errors."""
    try:
        yield
    except FileNotFoundError as error:
        folder = Path(path).parent
        cause = "there is no such file: create it by headrace users add" if folder.is_dir() else f"no folder {folder}"
        raise UserFileError(_sentence(path, cause)) from error
    except PermissionError as error:
        cause = f"{reason_of(error)}: let it belong to user id {os.geteuid()}"
        raise UserFileError(_sentence(path, cause)) from error
    except OSError as error:
        raise UserFileError(_sentence(path, reason_of(error))) from error
    except sqlite3.Error as error:
        raise UserFileError(_sentence(path, _cause(error, path))) from error
    except ValueError as error:
        raise UserFileError(_sentence(path, str(error))) from error


def _sentence(path: str, cause: str) -> str:
    return f"cannot use the file of users {path}: {cause}"


def _cause(error: sqlite3.Error, path: str) -> str:
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    match name.split("_")[1] if name.startswith("SQLITE_") else name:
        case "BUSY" | "LOCKED":
            return f"another process has locked it for more than {LOCK_WAIT_S:g} s. Nothing was changed"
        case "NOTADB":
            return "it is not a file of users: name another one, or create it by headrace users add"
        case "CORRUPT":
            return "it is damaged: restore a backup"
        case "FULL":
            return f"the disk is full: free space in {Path(path).parent}. Nothing was changed"
        case "READONLY" | "CANTOPEN" | "PERM":
            return f"{error} ({name}): let the file and its folder belong to user id {os.geteuid()}"
    return f"{error} ({name}). Nothing was changed"
