"""What has been used, kept over a restart: one SQLite file with the state of every bucket, so that a restart forgives
nobody.

Made and driven by the server: `UsageFile.open` at start, `save` every few seconds and at the end. The loop takes the
states of the buckets that changed, a slice at a time; what blocks (SQLite, JSON) runs in a thread. States have ages
instead of times, and the wall clock of the row tells how much older they are when they are taken up. Of several workers
the supervisor has the file (`headrace.proxy.workers.bucket_state`).
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

import structlog
import trio

from headrace.proxy.errors import StartupError
from headrace.quota_callbacks.buckets.client_quotas import IDLE_EXPIRY_MS
from headrace.quota_callbacks.entities import QuotaKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
    from headrace.quota_callbacks.buckets.kinds import QuotaBucket
    from headrace.quota_callbacks.buckets.sampled_rate import Window

log = structlog.get_logger("headrace.usage")

APPLICATION_ID: Final = 0x48524143
"""``PRAGMA application_id``: "HRAC"."""
LAYOUT: Final = 1
"""``PRAGMA user_version``."""
NOTHING_SAVED_MS: Final = -(2**63)
BUCKETS_A_SLICE: Final = 500
"""States taken before the loop is given back, about 3 ms."""

_SCHEMA: Final = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {LAYOUT};
CREATE TABLE IF NOT EXISTS usage (
    bucket TEXT PRIMARY KEY,
    saved_ms INTEGER NOT NULL,
    state TEXT NOT NULL
) WITHOUT ROWID;
"""

Row = tuple[str, int, str]
State = tuple[list[Any], "Mapping[str, Any]"]
"""What names a bucket, and what it holds."""
StateText = tuple[str, str]
"""Both as JSON."""


class UsageFile:
    """The open file. One process at a time may have it."""

    def __init__(self, database: sqlite3.Connection, path: str) -> None:
        self._database = database
        self._path = path
        self.saved_up_to_ms = NOTHING_SAVED_MS
        self._saving = trio.Lock()
        self.failing = False

    @classmethod
    async def open(cls, path: str, quotas: ClientQuotas, now_ms: int) -> UsageFile:
        """Open or make the file, and take up what it holds. Raises as `read`."""
        file, rows = await cls.read(path)
        taken = await take_up(rows, quotas, now_ms)
        log.info("usage taken up", file=path, buckets=taken, of=len(rows))
        return file

    @classmethod
    async def read(cls, path: str) -> tuple[UsageFile, list[Row]]:
        """Open or make the file; what it holds.

        Raises `StartupError` when it cannot be had: no directory, no right, or another proxy has it. A file that is
        damaged is put aside, since the proxy is worth more than the memory of an hour.
        """
        try:
            database, rows = await trio.to_thread.run_sync(_open, path)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise StartupError(_cannot_open(path, error)) from error
            aside = await trio.to_thread.run_sync(_put_aside, path)
            log.error("usage file damaged; starting without it", file=path, put_aside=aside, error=str(error))  # noqa: TRY400
            database, rows = await trio.to_thread.run_sync(_open, path)
        return cls(database, path), rows

    async def rows(self) -> list[Row]:
        """What it holds now."""
        return await trio.to_thread.run_sync(_rows_of, self._database)

    async def save(self, quotas: ClientQuotas, now_ms: int, *, last: bool = False) -> None:
        """Save the buckets that were used since the last time. What fails is logged and tried again the next time.

        *Cancellation:* waits for the disk, unless it is the ``last`` save, which is left behind.
        """
        states = await states_of(quotas, self.saved_up_to_ms, now_ms)
        await self.save_texts(texts_of(states), longest_kept_ms(quotas.window), now_ms, last=last)

    async def save_texts(self, texts: Iterable[StateText], keep_ms: int, now_ms: int, *, last: bool = False) -> None:
        """The same with states as they were at ``now_ms``, which are taken from ``texts`` in the thread; rows that are
        older than ``keep_ms`` are dropped."""
        async with self._saving:
            try:
                await trio.to_thread.run_sync(_write, self._database, texts, keep_ms, abandon_on_cancel=last)
            except sqlite3.Error as error:
                if not self.failing:
                    log.error("usage cannot be saved; a restart would forgive it", file=self._path, error=str(error))  # noqa: TRY400
                self.failing = True
                return
            if self.failing:
                log.info("usage is saved again", file=self._path)
            self.failing = False
            self.saved_up_to_ms = now_ms

    async def close(self) -> None:
        """Close the file."""
        await trio.to_thread.run_sync(self._database.close, abandon_on_cancel=True)


async def states_of(quotas: ClientQuotas, since_ms: int, now_ms: int) -> list[State]:
    """Name and state of each bucket used since ``since_ms``, a slice at a time."""
    states: list[State] = []
    for number, bucket in enumerate(list(quotas)):
        if number % BUCKETS_A_SLICE == 0:
            await trio.lowlevel.checkpoint()
        if bucket.last_used_ms >= since_ms:
            states.append((_name(bucket), bucket.state(now_ms)))
    return states


def _name(bucket: QuotaBucket) -> list[Any]:
    window = bucket.window
    return [bucket.key.value, list(bucket.tags.items()), window.samples, window.seconds]


async def take_up(rows: Iterable[Row], quotas: ClientQuotas, now_ms: int) -> int:
    """Restore what is not older than its bucket would have been kept."""
    taken = 0
    wall_ms = time_ns() // 1_000_000
    for number, (name, saved_ms, text) in enumerate(rows):
        if number % BUCKETS_A_SLICE == 0:
            await trio.lowlevel.checkpoint()
        down_ms = max(0, wall_ms - saved_ms)
        try:
            key_name, tags, samples, seconds = json.loads(name)
            key = QuotaKey(key_name)
            window = quotas.window(key)
            if (window.samples, window.seconds) != (samples, seconds) or down_ms >= _kept_ms(seconds):
                continue
            quotas.restore(key, dict(tags), json.loads(text, object_hook=_bytes_again), now_ms - down_ms)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:  # not by this release
            log.warning("a row of the usage file was left out", bucket=name, error=str(error))
            continue
        taken += 1
    return taken


def longest_kept_ms(window: Callable[[QuotaKey], Window]) -> int:
    """How old a row may be, by the windows of all keys."""
    return max(_kept_ms(window(key).seconds) for key in QuotaKey)


def _kept_ms(window_s: int) -> int:
    return max(IDLE_EXPIRY_MS, window_s * 1000)


# --- in a thread ---


def _open(path: str) -> tuple[sqlite3.Connection, list[Row]]:
    database = sqlite3.connect(path, timeout=1.0, check_same_thread=False, isolation_level=None)
    try:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        _check_is_ours(database)
        database.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
        rows = _rows_of(database)
    except BaseException:
        database.close()
        raise
    return database, rows


def _rows_of(database: sqlite3.Connection) -> list[Row]:
    rows: list[Row] = database.execute("SELECT bucket, saved_ms, state FROM usage").fetchall()
    return rows


def _check_is_ours(database: sqlite3.Connection) -> None:
    found = database.execute("PRAGMA application_id").fetchone()[0]
    layout = database.execute("PRAGMA user_version").fetchone()[0]
    if found not in (0, APPLICATION_ID) or (found == 0 and _has_tables(database)) or layout > LAYOUT:
        raise sqlite3.OperationalError("it is not a usage file of this version of headrace")


def _has_tables(database: sqlite3.Connection) -> bool:
    return bool(database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])


def _cannot_open(path: str, error: sqlite3.OperationalError) -> str:
    reason = "another process has it; each proxy needs a file of its own" if "locked" in str(error) else str(error)
    return f"quota.state.file: cannot use {path}: {reason}"


def _put_aside(path: str) -> str:
    aside = f"{path}.damaged"
    os.replace(path, aside)  # noqa: PTH105 -- the setting is a text
    for suffix in ("-wal", "-shm"):
        Path(path + suffix).unlink(missing_ok=True)
    return aside


def _write(database: sqlite3.Connection, texts: Iterable[StateText], keep_ms: int) -> None:
    wall_ms = time_ns() // 1_000_000
    with closing(database.cursor()) as cursor:
        cursor.execute("BEGIN IMMEDIATE")
        try:
            rows = ((name, wall_ms, state) for name, state in texts)
            cursor.executemany("INSERT OR REPLACE INTO usage VALUES (?, ?, ?)", rows)
            cursor.execute("DELETE FROM usage WHERE saved_ms < ?", (wall_ms - keep_ms,))
            cursor.execute("COMMIT")
        except BaseException:
            cursor.execute("ROLLBACK")
            raise


def texts_of(states: Iterable[State]) -> Iterator[StateText]:
    """As the file has them."""
    for name, state in states:
        yield json.dumps(name), json.dumps(state, default=_as_text)


def _as_text(value: object) -> dict[str, str]:
    if isinstance(value, bytes | bytearray):
        return {"base64": base64.b64encode(value).decode("ascii")}
    raise TypeError(f"{type(value).__name__} cannot be saved")


def _bytes_again(value: dict[str, Any]) -> Any:
    return base64.b64decode(value["base64"]) if value.keys() == {"base64"} else value
