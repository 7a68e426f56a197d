"""Rotated files in a folder: one JSON object a line, each file complete as soon as it has its name.

While a file is written its name begins with a dot and ends in ``.part``, which Spark and shells pass over; then it is
synced to disk and renamed, and not touched again. Whoever ends without a word leaves a ``.part`` behind: it is locked
while its writer lives, so the next proxy that starts there knows whose writer is dead, cuts the line that was not
finished, and gives it its name. All in the writer's thread.
"""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX: Final = "usage-"
SUFFIX: Final = ".jsonl"
PART: Final = ".part"

_FINISHED: Final = re.compile(r"usage-.*-(\d+)-(\d+)\.jsonl")
_TAIL: Final = 64 * 1024
"""Read at a time, from a file's end, to find where its last whole line ends."""


class FileSink:
    """The file that is being written, and the finished ones before it."""

    def __init__(self, folder: str, instance: str, *, rotate_s: int, rotate_bytes: int, keep_bytes: int) -> None:
        """Make the folder and take up what dead writers have left there. Raises OSError."""
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._instance = re.sub(r"[^\w.-]", "_", instance)
        self._rotate_s, self._rotate_bytes, self._keep_bytes = rotate_s, rotate_bytes, keep_bytes
        self._descriptor: int | None = None
        self._path = self._folder
        self._opened_s = 0.0
        self._size = 0
        self._last = -1
        self.recovered = sum(1 for _ in self._recover())
        """Files of dead writers that were given their names."""

    def write(self, lines: list[bytes], first: int, now_s: float) -> None:
        """Append them; ``first`` is the sequence number of the first. What was written outlives this process.

        All or none: raises OSError when the disk is full or gone, with the file as it was before.
        """
        descriptor = self._open(first, now_s) if self._descriptor is None else self._descriptor
        data = memoryview(b"\n".join(lines) + b"\n")
        written = 0
        try:
            while written < len(data):
                written += os.write(descriptor, data[written:])
        except OSError:
            os.ftruncate(descriptor, self._size)
            raise
        self._size += written
        self._last = first + len(lines) - 1
        if self._size >= self._rotate_bytes:
            self.rotate()

    def tick(self, now_s: float) -> list[tuple[str, int]]:
        """Finish a file that is old enough, and remove the oldest beyond ``keep_bytes``: their names and records."""
        if self._descriptor is not None and now_s - self._opened_s >= self._rotate_s:
            self.rotate()
        return list(self._remove_oldest())

    def rotate(self) -> None:
        """Finish the file: on disk, under its name."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:
            os.fsync(descriptor)
            _finish(self._path, self._last)
        finally:
            os.close(descriptor)
        _sync_folder(self._folder)

    def close(self) -> None:
        """Finish the last file."""
        self.rotate()

    def _open(self, first: int, now_s: float) -> int:
        self._path = self._folder / f".{PREFIX}{self._instance}-{first:012}{PART}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._descriptor, self._opened_s, self._size = descriptor, now_s, 0
        return descriptor

    def _recover(self) -> Iterator[Path]:
        for path in sorted(self._folder.glob(f".{PREFIX}*-[0-9]*{PART}")):
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:  # its writer has just finished it
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                size = _whole_lines(descriptor)
                os.ftruncate(descriptor, size)
                os.fsync(descriptor)
                if size == 0:
                    path.unlink()
                elif path.exists():  # and not finished between the two
                    yield _finish(path, _last_sequence(path, _count_lines(path)))
            except BlockingIOError:  # its writer lives
                continue
            finally:
                os.close(descriptor)

    def _remove_oldest(self) -> Iterator[tuple[str, int]]:
        files = [(path, path.stat()) for path in self._folder.glob(f"{PREFIX}*{SUFFIX}")]
        total = sum(stat.st_size for _, stat in files)
        for path, stat in sorted(files, key=lambda each: (each[1].st_mtime_ns, each[0].name)):
            if total <= self._keep_bytes:
                return
            path.unlink(missing_ok=True)
            total -= stat.st_size
            found = _FINISHED.fullmatch(path.name)
            yield path.name, int(found[2]) - int(found[1]) + 1 if found else 0


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
