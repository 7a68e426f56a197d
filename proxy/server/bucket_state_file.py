"""The bucket state file: one SQLite file with the state of every bucket, so that a restart does not reset the quotas.

The server calls `BucketStateFile.open` at start, and `save` every few seconds and at the end. The event loop collects
the states of the buckets that changed, in slices; blocking work (SQLite, JSON) runs in a thread. States contain ages
instead of times, and each row has the wall-clock time at which it was saved, from which the additional age at the
restart follows.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

import structlog
import trio

from headrace.proxy.errors import StartupError
from headrace.quota_callbacks.buckets.client_quotas import IDLE_EXPIRY_MS
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.files import folder_warning, open_private, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
    from headrace.quota_callbacks.buckets.quota_bucket import Owner, QuotaBucket
    from headrace.quota_callbacks.buckets.sampled_rate import Window

log = structlog.get_logger("headrace.bucket_state")

APPLICATION_ID: Final = 0x48524143
"""Value of ``PRAGMA application_id``: "HRAC" in ASCII."""
LAYOUT: Final = 2
"""Version of the file's tables, the value of ``PRAGMA user_version``. In layout 1 the table is called ``usage``."""
NOTHING_SAVED_MS: Final = -(2**63)
"""Time of the last save before the first one; earlier than any use of a bucket."""
BUCKETS_PER_SLICE: Final = 500
"""Number of states collected between two checkpoints; they take about 3 ms."""

_SCHEMA: Final = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {LAYOUT};
CREATE TABLE IF NOT EXISTS bucket_state (
    bucket TEXT PRIMARY KEY,
    saved_ms INTEGER NOT NULL,
    state TEXT NOT NULL
) WITHOUT ROWID;
"""

BESIDE: Final = ("-wal", "-journal", "-shm")
"""The ends of the names of the files that SQLite creates beside the file, with its permissions."""

Row = tuple[str, int | str, str]
"""A row of the file: a bucket's name as JSON, the wall-clock time in ms at which it was saved, its state as JSON.

Any of them may be damaged; `_restore` checks them."""
State = tuple[list[Any], "Mapping[str, Any]"]
"""A bucket's name (quota key, metric tags, samples and seconds of its window), and its state with its owner."""


class BucketStateFile:
    """The open file. Only one process at a time can open it."""

    def __init__(self, database: sqlite3.Connection, path: str) -> None:
        self._database = database
        self._path = path
        self._saved_up_to_ms = NOTHING_SAVED_MS
        self._failing = False

    @classmethod
    async def open(cls, path: str, quotas: ClientQuotas, now_ms: int) -> BucketStateFile:
        """Open or create the file, and restore the buckets' states from it.

        Raises `StartupError` when the file cannot be opened: its directory does not exist, permission is denied, it is
        a symbolic link or another user's, or another proxy has it open. A damaged file is renamed, and the proxy starts
        with empty buckets: serving clients is more important than about an hour of bucket state.
        """
        try:
            await trio.to_thread.run_sync(_create, path)
            database, rows = await trio.to_thread.run_sync(_open, path)
        except OSError as error:
            raise StartupError(f"quota.state.file: cannot use {path}: {reason_of(error)}") from error
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise StartupError(_cannot_open(path, error)) from error
            renamed = await trio.to_thread.run_sync(_rename_damaged, path)
            log.error("bucket state file damaged; starting without it", file=path, renamed_to=renamed, error=str(error))  # noqa: TRY400
            await trio.to_thread.run_sync(_create, path)
            database, rows = await trio.to_thread.run_sync(_open, path)
        restored = await _restore(rows, quotas, now_ms)
        log.info("bucket state restored", file=path, buckets=restored, of=len(rows))
        return cls(database, path)

    async def save(self, quotas: ClientQuotas, now_ms: int, *, last: bool = False) -> None:
        """Save the buckets that were used since the last save. A failure is logged, and the next save tries again.

        *Cancellation:* waits for the disk first, except in the ``last`` save, whose thread is abandoned.
        """
        states = await _states_of(quotas, self._saved_up_to_ms, now_ms)
        keep_ms = _longest_kept_ms(quotas.window)
        try:
            await trio.to_thread.run_sync(_write, self._database, states, keep_ms, abandon_on_cancel=last)
        except sqlite3.Error as error:
            if not self._failing:
                log.error(  # noqa: TRY400
                    "bucket state cannot be saved; a restart would reset it", file=self._path, error=_cause(error)
                )
            self._failing = True
            return
        if self._failing:
            log.info("bucket state is saved again", file=self._path)
        self._failing = False
        self._saved_up_to_ms = now_ms

    async def close(self) -> None:
        """Close the file."""
        await trio.to_thread.run_sync(self._database.close, abandon_on_cancel=True)


async def _states_of(quotas: ClientQuotas, since_ms: int, now_ms: int) -> list[State]:
    """Return name and state of each bucket used since ``since_ms``, with a checkpoint after each slice."""
    states: list[State] = []
    for number, bucket in enumerate(quotas):
        if number % BUCKETS_PER_SLICE == 0:
            await trio.lowlevel.checkpoint()
        is_old = now_ms - bucket.last_used_ms > IDLE_EXPIRY_MS // 2  # its row may expire before its wait ends
        if bucket.last_used_ms >= since_ms or (is_old and bucket.outlasts_idling(now_ms)):
            states.append((_name(bucket), _state(bucket, now_ms)))
    return states


def _state(bucket: QuotaBucket, now_ms: int) -> Mapping[str, Any]:
    state = bucket.state(now_ms)
    return state if bucket.owner is None else {**state, "owner": bucket.owner}


def _name(bucket: QuotaBucket) -> list[Any]:
    window = bucket.window
    return [str(bucket.key), list(bucket.tags.items()), window.samples, window.seconds]


async def _restore(rows: Iterable[Row], quotas: ClientQuotas, now_ms: int) -> int:
    """Restore bucket states, and return how many.

    Skips a row whose bucket would have expired since it was saved, or whose window is configured differently now.
    Rows that are damaged or were written by another release are skipped, too, and logged in one line. Buckets count
    for their owner as before (`headrace.quota_callbacks.buckets.bucket_table`), and those beyond a maximum are skipped.
    """
    restored = skipped = 0
    first: dict[str, str] = {}
    wall_ms = time_ns() // 1_000_000
    for number, (name, saved_ms, text) in enumerate(rows):
        if number % BUCKETS_PER_SLICE == 0:
            await trio.lowlevel.checkpoint()
        try:
            down_ms = max(0, wall_ms - int(saved_ms))
            key_name, tags, samples, seconds = json.loads(name)
            window = quotas.window(key_name)
            if (window.samples, window.seconds) != (samples, seconds) or down_ms >= _kept_ms(seconds):
                continue
            state = json.loads(text, object_hook=_decode_bytes)
            owner = _owner(state.pop("owner", None))
            restored += quotas.restore(key_name, dict(tags), state, now_ms - down_ms, owner)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            first = first or {"bucket": name, "error": str(error)}
            skipped += 1
    if skipped:
        log.warning("rows of the bucket state file were skipped", rows=skipped, **first)
    return restored


def _owner(value: Any) -> Owner | None:
    """Return the owner of a row. Raises ``ValueError`` if it is damaged."""
    match value:
        case None:
            return None
        case [str(user), str(address)]:
            return user, address
        case _:
            raise ValueError(f"owner is {value!r}; it must be a user and an address")


def _longest_kept_ms(window: Callable[[QuotaKey], Window]) -> int:
    """Return the age in ms at which every row has expired, given the windows of all quota keys."""
    return max(_kept_ms(window(key).seconds) for key in QuotaKey)


def _kept_ms(window_s: int) -> int:
    return max(IDLE_EXPIRY_MS, window_s * 1000)


# --- called in a thread ---


def _create(path: str) -> None:
    """Create the file if it is missing, and let only its owner read it and those beside it. Raises `OSError`."""
    if (warning := folder_warning(Path(path).parent)) is not None:
        log.warning("the folder of the bucket state file is not safe", reason=warning)
    os.close(open_private(path, os.O_RDWR | os.O_CREAT))
    for end in BESIDE:
        with suppress(FileNotFoundError):
            os.close(open_private(path + end, os.O_RDWR))


def _open(path: str) -> tuple[sqlite3.Connection, list[Row]]:
    database = sqlite3.connect(path, timeout=1.0, check_same_thread=False, isolation_level=None)
    database.text_factory = _text
    try:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        _check_is_ours(database)
        rename = "ALTER TABLE usage RENAME TO bucket_state;" if _has_tables(database, "usage") else ""
        database.executescript(f"BEGIN IMMEDIATE; {rename} {_SCHEMA} COMMIT;")
        rows: list[Row] = database.execute("SELECT bucket, saved_ms, state FROM bucket_state").fetchall()
    except BaseException:
        database.close()
        raise
    return database, rows


def _text(value: bytes) -> str:
    """Return a text of the file. If it is damaged, so that it is not UTF-8, only its row is skipped."""
    return value.decode(errors="replace")


def _check_is_ours(database: sqlite3.Connection) -> None:
    found = database.execute("PRAGMA application_id").fetchone()[0]
    layout = database.execute("PRAGMA user_version").fetchone()[0]
    if found not in (0, APPLICATION_ID) or (found == 0 and _has_tables(database)) or layout > LAYOUT:
        raise sqlite3.OperationalError("it is not a bucket state file of this version of headrace")


def _has_tables(database: sqlite3.Connection, name: str = "%") -> bool:
    found = database.execute("SELECT count(*) FROM sqlite_master WHERE name LIKE ?", (name,))
    return bool(found.fetchone()[0])


def _cannot_open(path: str, error: sqlite3.OperationalError) -> str:
    locked = "locked" in str(error)
    reason = "another process has it open; each proxy needs a file of its own" if locked else _cause(error)
    return f"quota.state.file: cannot use {path}: {reason}"


def _cause(error: sqlite3.Error) -> str:
    """Return SQLite's message and the name of its error code, where it has one."""
    name = getattr(error, "sqlite_errorname", None)
    return f"{error} ({name})" if name else str(error)


def _rename_damaged(path: str) -> str:
    renamed = f"{path}.damaged"
    os.replace(path, renamed)  # noqa: PTH105 -- the setting is a str
    for end in BESIDE:
        Path(path + end).unlink(missing_ok=True)
    return renamed


def _write(database: sqlite3.Connection, states: Iterable[State], keep_ms: int) -> None:
    """Save states, and delete the rows that are older than ``keep_ms``."""
    wall_ms = time_ns() // 1_000_000
    with closing(database.cursor()) as cursor:
        cursor.execute("BEGIN IMMEDIATE")
        try:
            rows = ((json.dumps(name), wall_ms, json.dumps(state, default=_encode_bytes)) for name, state in states)
            cursor.executemany("INSERT OR REPLACE INTO bucket_state VALUES (?, ?, ?)", rows)
            cursor.execute("DELETE FROM bucket_state WHERE saved_ms < ?", (wall_ms - keep_ms,))
            cursor.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # the error that is raised is the cause of this one
                if database.in_transaction:  # when a write failed, SQLite itself has rolled back
                    cursor.execute("ROLLBACK")
            raise


def _encode_bytes(value: object) -> dict[str, str]:
    if isinstance(value, bytes | bytearray):
        return {"base64": base64.b64encode(value).decode("ascii")}
    raise TypeError(f"{type(value).__name__} cannot be saved")


def _decode_bytes(value: dict[str, Any]) -> Any:
    return base64.b64decode(value["base64"]) if value.keys() == {"base64"} else value
