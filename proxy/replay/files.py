"""The files of ``headrace replay``: a trace is read, and what came of it is either all there or not at all.

Called by the command line; the work is `headrace.proxy.replay.replay`'s. Blocking file reads and writes are the point
here: this never runs in a proxy.
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
"""As a path: standard input or output."""


def replay_file(trace: Path, output: Path) -> Summary:
    """Replay a file into another. Raises `TraceError`, and `OSError` for what cannot be read or written.

    While standard error is a terminal, it shows how far the replay is. A `BrokenPipeError` means that whoever reads
    standard output has gone.
    """
    name = "standard input" if str(trace) == STANDARD else str(trace)
    with _opened(trace) as lines, spooled(output) as out, _progress(lines) as progress:
        return replay(lines, name, out, progress)


@contextmanager
def spooled(output: Path) -> Iterator[IO[bytes]]:
    """A file to write to, whose content is where it belongs only once the block has ended without an exception.

    ``output`` is replaced in one step by a file beside it, so it is always either the old or the new one. Where it is
    standard output, a device or a pipe, the content is spooled in the directory for temporary files and copied in the
    end. Raises `OSError`.
    """
    stdout = str(output) == STANDARD
    target = output.resolve()  # what a link points to is replaced, not the link
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
    """What is to be called with the bytes that were read; draws a bar if standard error is a terminal.

    The length of a pipe is not known, so then the bar only counts.
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
