"""A lock file beside the tables that allows one ingest at a time. It names the host and process that hold it.

Creating the file is atomic on a disk and in HDFS. An object store checks and then writes, so two processes that start
at the same moment may both proceed.
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
def ingest_lock(lake: Lake) -> Iterator[None]:
    """Hold the lake's lock for writing; take over the lock of a process of this machine that has died.

    Raises `OutputError`, which names the holder.
    """
    path = lake.path(FILE)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    mine = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": now})
    if not create_text(lake.spark, path, mine):
        _take_over(lake, path)
        if not create_text(lake.spark, path, mine):
            raise _held(lake, path, _read(lake, path))
    try:
        yield
    finally:
        remove(lake.spark, path)


def _take_over(lake: Lake, path: str) -> None:
    """Remove the lock of a process that has died. It is renamed first, which only one of several processes can do."""
    found = _read(lake, path)
    if not _owner_has_died(found):
        raise _held(lake, path, found)
    moved = f"{path}.{os.getpid()}"
    move(lake.spark, path, moved)
    if _read(lake, moved) != found:  # another process has taken it over in the meantime
        move(lake.spark, moved, path)
        raise _held(lake, path, _read(lake, path))
    remove(lake.spark, moved)


def _read(lake: Lake, path: str) -> str:
    """Return the contents of the lock; empty if it does not exist or is not written yet."""
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


def _owner_has_died(text: str) -> bool:
    owner = _owner(text)
    pid = owner.get("pid")
    if owner.get("host") != socket.gethostname() or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # a process of another user
        pass
    return False


def _held(lake: Lake, path: str, text: str) -> OutputError:
    owner = _owner(text)
    by = (
        f"process {owner.get('pid')} on {owner.get('host')} since {owner.get('since')}"
        if owner
        else "an unknown process"
    )
    return OutputError(
        f"another ingest writes to {lake.root}: {by}; only one can run at a time. If it no longer runs, remove {path}"
    )
