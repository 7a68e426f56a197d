"""The thread that converts complete journals to Parquet files, so that the writer thread never waits for it.

A journal stays hidden until its Parquet file is synced to disk and has its final name, so a reader finds each record in
one file. If a process is killed in between, the journal is left, which the next process completes. A journal that
cannot be converted, for instance because the disk is full, becomes a finished file of JSON lines as it is.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

import structlog

from headrace.plugins.usage_records.folder import PARQUET, converted_path, finish_as_lines, sync_folder
from headrace.plugins.usage_records.parquet import convert
from headrace.quota_callbacks.files import open_private

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.plugins.usage_records.folder import Journal

log = structlog.get_logger("headrace.usage_records")

MOST_WAITING: Final = 4
"""Journals that may wait to be converted. If there are more, the machine is too slow, and they stay JSON lines."""
CLOSE_S: Final = 2.0
"""How long `ParquetThread.close` has journals converted; those that are left become finished files of JSON lines."""
LAST_BLOCK_S: Final = 1.0
"""How long it then waits for a conversion to stop; a block takes some hundredths of a second of CPU time."""


class ParquetThread:
    """The owner of the thread and of the journals that were given to it."""

    def __init__(self, group_id: int | None = None) -> None:
        """The group ``group_id`` may read the files."""
        self.has_finished = threading.Event()
        """Set when a file was finished; cleared by its reader."""
        self._group_id = group_id
        self._waiting: SimpleQueue[Journal | None] = SimpleQueue()
        self._convert_until_s = float("inf")
        self._thread = threading.Thread(target=self._run, name="headrace-usage-parquet", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def accept(self, journal: Journal) -> bool:
        """Take over a journal that is synced to disk, with its descriptor, unless too many are waiting."""
        if self._waiting.qsize() >= MOST_WAITING:
            return False
        self._waiting.put(journal)
        return True

    def close(self) -> None:
        """Finish all journals, and end the thread. Blocks for at most `CLOSE_S` and `LAST_BLOCK_S`."""
        self._convert_until_s = time.monotonic() + CLOSE_S
        self._waiting.put(None)
        self._thread.join(CLOSE_S + LAST_BLOCK_S)

    # --- the thread ---

    def _run(self) -> None:
        while (journal := self._waiting.get()) is not None:
            try:
                self._finish(journal)
            except Exception as error:  # noqa: BLE001 -- no failure ends the thread; the journal is left for the next process
                log.warning("a usage file cannot be completed", file=journal.path.name, reason=_reason(error))
            finally:
                os.close(journal.descriptor)
                self.has_finished.set()

    def _finish(self, journal: Journal) -> None:
        part = converted_path(journal.path)
        try:
            self._write(journal, part)
        except Exception as error:  # noqa: BLE001 -- whatever is wrong, the lines are there
            log.warning("a usage file stays JSON lines", file=journal.path.name, reason=_reason(error))
            with suppress(OSError):
                part.unlink()
            finish_as_lines(journal)
            return
        part.rename(journal.finished_path(PARQUET))
        sync_folder(part.parent)
        journal.path.unlink()

    def _write(self, journal: Journal, part: Path) -> None:
        with suppress(OSError):
            part.unlink()
        descriptor = open_private(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, group_id=self._group_id)
        try:
            convert(journal.descriptor, descriptor, is_stopping=self._is_stopping)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _is_stopping(self) -> bool:
        return time.monotonic() >= self._convert_until_s


def _reason(error: Exception) -> str:
    """Return a description of ``error`` without the file's path."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
