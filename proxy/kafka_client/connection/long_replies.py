"""Long replies are read in a thread, so that other tasks of the event loop go on meanwhile.

A description of 100,000 entities with three quotas each has 10 MB, and takes seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import trio

from headrace.proxy.long_work import collector_off

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

LONG_ROWS: Final = 500
"""Number of entities from which on a reply is read in a thread: decoding takes a few milliseconds, the interval at
which the interpreter switches threads."""
LONG_BYTES: Final = 64 * 1024
"""Number of bytes from which on a reply is read in a thread: about the size of one with `LONG_ROWS` entities."""


async def read_in_thread(read: Callable[[], T], *, rows: int = 0, size_bytes: int = 0) -> T:
    """Return what ``read`` returns, which is called in a thread if the reply has many rows or bytes.

    If the call is cancelled it raises at once, and the thread ends by itself.
    """
    if rows < LONG_ROWS and size_bytes < LONG_BYTES:
        return read()

    def read_quietly() -> T:
        with collector_off():
            return read()

    return await trio.to_thread.run_sync(read_quietly, abandon_on_cancel=True)
