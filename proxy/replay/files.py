"""The files of ``headrace replay``: reads a trace, and writes the output either completely or not at all.

Called by the command line; `headrace.proxy.replay.replay` processes the lines. Reads and writes block, which is
acceptable here: this module never runs in a proxy.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import contextmanager, nullcontext, suppress
from secrets import token_hex
from shutil import copyfileobj, copymode
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Final

import click

from headrace.proxy.replay.replay import replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from headrace.proxy.replay.summary import Summary

STANDARD: Final = "-"
"""The path that stands for standard input or output."""


def replay_file(trace: Path, output: Path) -> Summary:
    """Replay a file into another.

    Shows a progress bar if standard error is a terminal. Raises `TraceError` for a bad line, and `OSError` for a file
    that cannot be read or written; `BrokenPipeError` means that the reader of standard output has closed it.
    """
    name = "standard input" if str(trace) == STANDARD else str(trace)
    with _opened(trace) as lines, spooled(output) as out, _progress(lines) as progress:
        return replay(lines, name, out, progress)


@contextmanager
def spooled(output: Path) -> Iterator[IO[bytes]]:
    """Provide a file whose content is moved to ``output`` when the block has ended without an exception.

    An ordinary file is written beside ``output`` and then renamed, so that ``output`` always has either the old or the
    new content. For standard output, a device or a pipe, the content is written to a temporary file first, and copied
    at the end. Raises `OSError`.
    """
    stdout = str(output) == STANDARD
    target = output.resolve()  # replace the target of a symbolic link, not the link
    if stdout or (target.exists() and not target.is_file()):
        with TemporaryFile() as spool:
            yield spool
            spool.seek(0)
            if stdout:
                copyfileobj(spool, sys.stdout.buffer)
                sys.stdout.buffer.flush()
            else:
                with target.open("wb") as end:
                    copyfileobj(spool, end)
        return
    beside = target.with_name(f".{token_hex(8)}.tmp")
    try:
        with beside.open("xb") as spool:
            yield spool
            spool.flush()
            os.fsync(spool.fileno())
        if target.exists():
            copymode(target, beside)
        beside.replace(target)
    finally:
        with suppress(FileNotFoundError):
            beside.unlink()


def _opened(trace: Path) -> AbstractContextManager[IO[bytes]]:
    return nullcontext(sys.stdin.buffer) if str(trace) == STANDARD else trace.open("rb")


@contextmanager
def _progress(lines: IO[bytes]) -> Iterator[Callable[[int], None]]:
    """Provide a function to call with the number of bytes read; it draws a bar if standard error is a terminal.

    The length of a pipe is not known; for a pipe only the number of bytes is shown.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    size = _size(lines)
    waiting = None if size is not None else iter(())
    with click.progressbar(waiting, length=size, label="replaying", show_pos=size is None, file=sys.stderr) as bar:
        yield bar.update


def _size(lines: IO[bytes]) -> int | None:
    try:
        status = os.fstat(lines.fileno())
    except OSError:  # not a file of the operating system
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
