"""The files in the folder of usage records: their names, who owns them, and how they become complete.

A *journal* is a file that a writer appends lines to. It is hidden, and its writer has a lock on it until it is complete
under another name. Used by the writer thread and the thread that converts files.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

PREFIX: Final = "usage-"
LINES: Final = ".jsonl"
PARQUET: Final = ".parquet"
PART: Final = ".part"
UNFINISHED_PARQUET: Final = ".parquet.tmp"

_JOURNAL_NAME: Final = re.compile(r"\.usage-.*-\d+\.part")


class Journal(NamedTuple):
    """A journal that is complete but for its name."""

    descriptor: int
    """The open file, which has the lock."""
    path: Path
    last: int
    """Sequence number of the last record."""

    def finished_path(self, suffix: str) -> Path:
        """Return the path of the finished file with these records."""
        return self.path.with_name(f"{_name_of(self.path)}-{self.last:012}{suffix}")


def journal_path(folder: Path, instance: str, first: int) -> Path:
    """Return the path of the journal whose first record has the sequence number ``first``."""
    return folder / f".{PREFIX}{instance}-{first:012}{PART}"


def converted_path(journal: Path) -> Path:
    """Return the path of the Parquet file that is being made of ``journal``, by the process that has its lock."""
    return journal.with_name(f".{_name_of(journal)}{UNFINISHED_PARQUET}")


def first_sequence(journal: Path) -> int:
    """Return the sequence number of a journal's first record."""
    return int(_name_of(journal).rpartition("-")[2])


def finish_as_lines(journal: Journal) -> None:
    """Give a journal that is synced to disk its final name. Raises OSError."""
    journal.path.rename(journal.finished_path(LINES))
    sync_folder(journal.path.parent)


def journals(folder: Path) -> list[Path]:
    """Return the journals of all processes, in the order of their names."""
    with os.scandir(folder) as entries:
        return sorted(folder / entry.name for entry in entries if _JOURNAL_NAME.fullmatch(entry.name))


def finished_files(folder: Path) -> list[tuple[int, str, int]]:
    """Return the modification time in ns, path and size in bytes of each completed file, oldest first."""
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.name.endswith((LINES, PARQUET)):
                with suppress(FileNotFoundError):
                    stat = entry.stat(follow_symlinks=False)
                    files.append((stat.st_mtime_ns, entry.path, stat.st_size))
    return sorted(files)


def is_called(descriptor: int, path: Path) -> bool:
    """Return whether ``path`` still names the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def sync_folder(folder: Path) -> None:
    """Sync the directory, so that new names survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _name_of(journal: Path) -> str:
    """Return the name without the dot and the suffix; it ends in the sequence number of the first record."""
    return journal.name[1 : -len(PART)]
