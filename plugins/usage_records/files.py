"""Rotated files in a folder: one JSON object a line, each file complete as soon as it has its name.

While a file is written its name begins with a dot and ends in ``.part``, which Spark and shells pass over; then it is
synced to disk and renamed, and not touched again. Whoever ends without a word leaves a ``.part`` behind: it is locked
while its writer lives, so any other proxy that starts there, or finishes a file of its own, knows whose writer is dead,
cuts the line that was not finished, and gives it its name. All in the writer's thread.
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

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

log = structlog.get_logger("headrace.usage_records")

PREFIX: Final = "usage-"
SUFFIX: Final = ".jsonl"
PART: Final = ".part"

_PART_NAME: Final = re.compile(r"\.usage-.*-\d+\.part")
_TAIL: Final = 64 * 1024
"""Read at a time, from a file's end, to find where its last whole line ends."""


class FileSink:
    """The file that is being written, and the finished ones before it."""

    takes_marks = True

    def __init__(self, folder: str, instance: str, *, rotate_s: int, rotate_bytes: int, keep_bytes: int) -> None:
        """Make the folder and take up what dead writers have left there. Raises OSError where no file can be made."""
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self._folder, prefix=".usage-"):
            pass  # a folder of somebody else's is found now, and not when the first records come
        self._instance = re.sub(r"[^\w.-]", "_", instance)
        self._rotate_s, self._rotate_bytes, self._keep_bytes = rotate_s, rotate_bytes, keep_bytes
        self._descriptor: int | None = None
        self._path = self._folder
        self._opened_s = 0.0
        self._size = 0
        self._half_written = False
        self._last = -1
        self._look = True
        self.recovered = 0
        """Files of dead writers that were given their names."""
        self.removed = 0
        """Finished files that this process has removed for ``keep_bytes``."""
        self._take_up()

    def write(self, lines: list[bytes], held: Sequence[object], first: int, now_s: float) -> None:  # noqa: ARG002 -- a topic hands it back
        """Append them; ``first`` is the sequence number of the first. What was written outlives this process.

        All or none: raises OSError when the disk is full or gone, with the file as it was before.
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
            with suppress(OSError):  # then before anything else is written
                self._cut(descriptor)
            raise
        self._size += written
        self._last = first + len(lines) - 1

    def tick(self, now_s: float) -> tuple[()]:
        """Finish a file that is large or old enough; then see to the others in the folder. Raises OSError.

        What was written is never lost to this process; a file that is removed may have been taken in by then, which
        nobody here knows, so it is counted and logged and not told as a loss: if it was not, its numbers are missing.
        """
        if self._size >= self._rotate_bytes or now_s - self._opened_s >= self._rotate_s:
            self.rotate()
        if self._look:
            self._look = False
            self._take_up()
            self._remove_oldest()
        return ()

    def rotate(self) -> None:
        """Finish the file, if there is one: on disk, under its name."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        self._look = True
        try:
            self._cut(descriptor)
            os.fsync(descriptor)
            if self._size:
                _finish(self._path, self._last)
            else:
                self._path.unlink()
        finally:
            self._size, self._half_written = 0, False
            os.close(descriptor)
        _sync_folder(self._folder)

    def close(self) -> None:
        """Finish the last file."""
        self.rotate()

    def _cut(self, descriptor: int) -> None:
        """Take away what a write has left that failed."""
        if self._half_written:
            os.ftruncate(descriptor, self._size)
            self._half_written = False

    def _open(self, first: int, now_s: float) -> int:
        self._path = self._folder / f".{PREFIX}{self._instance}-{first:012}{PART}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        while True:
            descriptor = os.open(self._path, flags, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError:
                os.close(descriptor)
                raise
            if _is_called(descriptor, self._path):
                break
            os.close(descriptor)  # between the two, somebody took it for a dead writer's
        self._descriptor, self._opened_s, self._size = descriptor, now_s, 0
        return descriptor

    def _take_up(self) -> None:
        files = sum(1 for _ in self._recover())
        if files:
            self.recovered += files
            log.info("usage files of writers that are gone were finished", files=files)

    def _recover(self) -> Iterator[Path]:
        for path in _parts(self._folder):
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:  # its writer has just finished it
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _is_called(descriptor, path):  # finished between the two
                    continue
                size = _whole_lines(descriptor)
                os.ftruncate(descriptor, size)
                os.fsync(descriptor)
                if size == 0:
                    path.unlink()
                else:
                    yield _finish(path, _last_sequence(path, _count_lines(path)))
            except BlockingIOError:  # its writer lives
                continue
            finally:
                os.close(descriptor)

    def _remove_oldest(self) -> None:
        """Others may remove files here, too: what is gone by then is nobody's error, and is not counted."""
        before = self.removed
        files = _finished_files(self._folder)
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


def _parts(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return sorted(folder / entry.name for entry in entries if _PART_NAME.fullmatch(entry.name))


def _finished_files(folder: Path) -> list[tuple[int, str, int]]:
    """When it was written, path and size of each, the oldest first."""
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.name.endswith(SUFFIX):
                with suppress(FileNotFoundError):
                    stat = entry.stat()
                    files.append((stat.st_mtime_ns, entry.path, stat.st_size))
    return sorted(files)


def _is_called(descriptor: int, path: Path) -> bool:
    """Whether ``path`` is still the name of the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _finish(part: Path, last: int) -> Path:
    return part.rename(part.with_name(f"{_name_of(part)}-{last:012}{SUFFIX}"))


def _name_of(part: Path) -> str:
    """Without the dot and the suffix; ends in the sequence number of its first record."""
    return part.name[1 : -len(PART)]


def _last_sequence(part: Path, lines: int) -> int:
    return int(_name_of(part).rpartition("-")[2]) + lines - 1


def _count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1024 * 1024), b""))


def _whole_lines(descriptor: int) -> int:
    """How many bytes there are up to the end of the last whole line."""
    end = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - _TAIL)
        at = os.pread(descriptor, end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0


def _sync_folder(folder: Path) -> None:
    """So that the new name, too, outlives the machine."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
