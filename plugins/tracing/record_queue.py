"""The bounded queue between the event loop and the export thread, and the lock that wakes the thread.

The event loop never waits here: a deque's append is atomic, and the loop only releases the wake lock and never acquires
it. With a ``threading.Event``, the loop could wait for the thread that is about to sleep on it.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.plugins.tracing.records import TraceRecord


class RecordQueue:
    """At most ``capacity`` records (the option ``queue_size``); a record for which there is no room is dropped.

    The newest record is dropped rather than the oldest: then it need not be created, and the thread may be taking the
    oldest.
    """

    __slots__ = ("_records", "_wake_at", "_wake_lock", "_woken", "capacity", "dropped")

    def __init__(self, capacity: int, wake_at: int) -> None:
        self.capacity = capacity
        self.dropped = 0
        """Number of records for which there was no room."""
        self._records: deque[TraceRecord] = deque()
        self._wake_at = max(1, min(wake_at, capacity // 2))
        self._woken = False
        self._wake_lock = threading.Lock()
        self._wake_lock.acquire()

    def __len__(self) -> int:
        return len(self._records)

    # --- called on the event loop ---

    def has_room(self) -> bool:
        """Return whether a record may be `put`; if not, count it as dropped."""
        if len(self._records) < self.capacity:
            return True
        self.dropped += 1
        return False

    def put(self, record: TraceRecord) -> None:
        """Add a record; the caller has checked `has_room`. Wakes the thread when many records are waiting."""
        self._records.append(record)
        if not self._woken and len(self._records) >= self._wake_at:
            self.wake()

    def wake(self) -> None:
        """Wake the export thread now. May be called from any thread."""
        self._woken = True
        with suppress(RuntimeError):  # already released, and the thread has not woken yet
            self._wake_lock.release()

    # --- called by the export thread ---

    def wait(self, timeout_s: float) -> None:
        """Wait until `wake` is called, for at most ``timeout_s``."""
        self._wake_lock.acquire(timeout=timeout_s)
        self._woken = False

    def take(self) -> TraceRecord | None:
        """Remove and return the oldest record; ``None`` when the queue is empty."""
        try:
            return self._records.popleft()
        except IndexError:
            return None
