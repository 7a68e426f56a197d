"""The sink that writes rotated files to a folder: one JSON object per line, complete once they have their final name.

While a file is being written, its name begins with a dot and ends in ``.part``, which Spark and shells ignore. When it
is complete, it is synced to disk, renamed, and never changed again; if the format is Parquet, a thread makes the final
file of it. A process that is killed leaves its ``.part`` file behind. A writer locks its file, so another proxy that
starts with the same folder, or completes a file there, finds the files of processes that have ended by their free
locks: it cuts off an incomplete last line and gives them their final name. Only the owner can read the files, and one
group if it is set. Called by the writer thread only.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from headrace.plugins.usage_records.folder import (
    PARQUET,
    Journal,
    converted_path,
    finish_as_lines,
    finished_files,
    first_sequence,
    is_called,
    journal_path,
    journals,
)
from headrace.quota_callbacks.files import create_private_folder, folder_warning, open_private

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.plugins.usage_records.parquet_thread import ParquetThread

log = structlog.get_logger("headrace.usage_records")

_TAIL: Final = 64 * 1024
"""Bytes read at a time, backwards from a file's end, to find the end of the last complete line."""


class FileSink:
    """The writer of the current file, which also manages the completed files in the folder."""

    accepts_loss_records = True

    def __init__(
        self,
        folder: str,
        instance: str,
        *,
        rotate_s: int,
        rotate_bytes: int,
        keep_bytes: int,
        group_id: int | None = None,
        parquet: ParquetThread | None = None,
    ) -> None:
        """Create the folder, complete the files of processes that have ended, and start ``parquet``.

        The group ``group_id`` may read what is written. With ``parquet``, finished files are Parquet.

        Raises OSError if no file can be created there, or given to the group.
        """
        self._folder = Path(folder)
        self._group_id = group_id
        self._parquet = parquet
        create_private_folder(self._folder, group_id=group_id)
        if (warning := folder_warning(self._folder)) is not None:
            log.warning("the folder of usage files is not safe", reason=warning)
        with tempfile.TemporaryFile(dir=self._folder, prefix=".usage-") as file:
            # Fails now, and not at the first record, if the folder is not writable or the group not one's own.
            if group_id is not None:
                os.fchown(file.fileno(), -1, group_id)
        self._instance = re.sub(r"[^\w.-]", "_", instance)
        self._rotate_s, self._rotate_bytes, self._keep_bytes = rotate_s, rotate_bytes, keep_bytes
        self._descriptor: int | None = None
        self._path = self._folder
        self._opened_s = 0.0
        self._size = 0
        self._half_written = False
        self._last = -1
        self._scan_folder = True
        self.removed = 0
        """Number of completed files that this process has removed because of ``keep_bytes``."""
        self._complete_abandoned_files()
        if parquet is not None:
            parquet.start()

    def write(self, lines: list[bytes], contents: Sequence[object], first: int, now_s: float) -> int:  # noqa: ARG002 -- for topics
        """Append ``lines``; ``first`` is the sequence number of the first. The lines survive the end of this process.

        Writes all lines or none: raises OSError, with the file unchanged, when the disk is full or unavailable.
        """
        if self._size >= self._rotate_bytes:
            self.rotate()
        descriptor = self._open(first, now_s) if self._descriptor is None else self._descriptor
        self._cut(descriptor)
        data = memoryview(b"\n".join(lines) + b"\n")
        written = 0
        try:
            while written < len(data):
                written += os.write(descriptor, data[written:])
        except OSError:
            self._half_written = True
            with suppress(OSError):  # retried before the next write
                self._cut(descriptor)
            raise
        self._size += written
        self._last = first + len(lines) - 1
        return len(lines)

    def tick(self, now_s: float) -> tuple[()]:
        """Complete the file if it is large or old enough; then maintain the other files in the folder. Raises OSError.

        Always returns (), since written lines are never lost. The removal of a completed file is counted and logged but
        not reported as a loss, since the pipeline may have read it; if not, its sequence numbers are missing there.
        """
        if self._size >= self._rotate_bytes or now_s - self._opened_s >= self._rotate_s:
            self.rotate()
        if self._parquet is not None and self._parquet.has_finished.is_set():
            self._parquet.has_finished.clear()
            self._scan_folder = True
        if self._scan_folder:
            self._scan_folder = False
            self._complete_abandoned_files()
            self._remove_oldest()
        return ()

    def rotate(self) -> None:
        """Complete the current file, if any: sync it to disk, and give it its final name or have it converted."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        journal = Journal(descriptor, self._path, self._last)
        is_converted = False
        try:
            self._cut(descriptor)
            os.fsync(descriptor)
            if not self._size:
                self._path.unlink()
            elif self._parquet is not None and self._parquet.accept(journal):
                is_converted = True
            else:
                finish_as_lines(journal)
        finally:
            self._size, self._half_written = 0, False
            if not is_converted:
                self._scan_folder = True
                os.close(descriptor)

    def close(self) -> None:
        """Complete the last file."""
        self.rotate()
        if self._parquet is not None:
            self._parquet.close()

    def _cut(self, descriptor: int) -> None:
        """Remove the partial data of a failed write."""
        if self._half_written:
            os.ftruncate(descriptor, self._size)
            self._half_written = False

    def _open(self, first: int, now_s: float) -> int:
        self._path = journal_path(self._folder, self._instance, first)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        while True:
            descriptor = open_private(self._path, flags, group_id=self._group_id)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError:
                os.close(descriptor)
                raise
            if is_called(descriptor, self._path):
                break
            # Between open and lock, another process has completed it, as the file of a process that has ended.
            os.close(descriptor)
        self._descriptor, self._opened_s, self._size = descriptor, now_s, 0
        return descriptor

    def _complete_abandoned_files(self) -> None:
        files = 0
        for path in journals(self._folder):
            try:
                descriptor = open_private(path, os.O_RDWR, group_id=self._group_id)
            except FileNotFoundError:  # its writer has just completed it
                continue
            except OSError as error:  # a link, or a file that another user has put here
                log.warning("a file in the folder of usage files was left alone", file=path.name, reason=error.strerror)
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if is_called(descriptor, path):  # else completed between open and lock
                    files += _complete(descriptor, path)
            except BlockingIOError:  # its writer is alive
                continue
            finally:
                os.close(descriptor)
        if files:
            log.info("usage files of processes that have ended were completed", files=files)

    def _remove_oldest(self) -> None:
        """Remove the oldest completed files beyond ``keep_bytes``.

        Other processes may remove files here, too: one that no longer exists is not an error and is not counted.
        """
        before = self.removed
        files = finished_files(self._folder)
        total = sum(size for _, _, size in files)
        for _, path, size in files:
            if total <= self._keep_bytes:
                break
            total -= size
            with suppress(FileNotFoundError):
                Path(path).unlink()
                self.removed += 1
        if self.removed > before:
            log.info("the oldest usage files were removed", files=self.removed - before, keep_bytes=self._keep_bytes)


def _complete(descriptor: int, path: Path) -> bool:
    """Complete the journal of a process that has ended; return whether it had records that are in no other file."""
    with suppress(OSError):
        converted_path(path).unlink()
    size = _whole_lines(descriptor)
    os.ftruncate(descriptor, size)
    os.fsync(descriptor)
    journal = Journal(descriptor, path, first_sequence(path) + _count_lines(descriptor) - 1)
    if size == 0 or journal.finished_path(PARQUET).exists():  # killed before it could remove the journal
        path.unlink()
        return False
    finish_as_lines(journal)
    return True


def _count_lines(descriptor: int) -> int:
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1024 * 1024), b""))


def _whole_lines(descriptor: int) -> int:
    """Return the number of bytes up to the end of the last complete line."""
    end = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - _TAIL)
        at = os.pread(descriptor, end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0
