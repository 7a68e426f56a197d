"""One ingest at a time: a small file beside the tables, which says whose turn it is.

It is created where none is. On a disk and in HDFS that is one step, so of two that begin at once one is told off; an
object store looks first and writes then, so two that begin within the same moment may both go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from headrace.pipeline.errors import InputError, OutputError
from headrace.pipeline.lake.tables import create_text, move, read_text, remove

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.pipeline.lake.tables import Lake

FILE: Final = "_ingest/lock.json"


@contextlib.contextmanager
def one_at_a_time(lake: Lake) -> Iterator[None]:
    """Hold the lake for writing; one of a process of this machine that is no more is taken over.

    Raises `OutputError` with who holds it.
    """
    path = lake.path(FILE)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    mine = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": now})
    if not create_text(lake.spark, path, mine):
        _take_away(lake, path)
        if not create_text(lake.spark, path, mine):
            raise _held(lake, path, _read(lake, path))
    try:
        yield
    finally:
        remove(lake.spark, path)


def _take_away(lake: Lake, path: str) -> None:
    """The lock of a dead process; it is moved, since of two who find it only one can do that."""
    found = _read(lake, path)
    if not _is_of_the_dead(found):
        raise _held(lake, path, found)
    moved = f"{path}.{os.getpid()}"
    move(lake.spark, path, moved)
    if _read(lake, moved) != found:  # another has taken it over since
        move(lake.spark, moved, path)
        raise _held(lake, path, _read(lake, path))
    remove(lake.spark, moved)


def _read(lake: Lake, path: str) -> str:
    """Empty when it is not there, or not written yet."""
    try:
        return read_text(lake.spark, path)
    except InputError:
        return ""


def _owner(text: str) -> dict[str, object]:
    try:
        owner = json.loads(text)
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _is_of_the_dead(text: str) -> bool:
    owner = _owner(text)
    pid = owner.get("pid")
    if owner.get("host") != socket.gethostname() or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's, so it lives
        pass
    return False


def _held(lake: Lake, path: str, text: str) -> OutputError:
    owner = _owner(text)
    by = f"process {owner.get('pid')} on {owner.get('host')} since {owner.get('since')}" if owner else "an unknown one"
    return OutputError(
        f"another ingest writes to {lake.root}: {by}; one at a time may. If it is no more, remove {path}"
    )
