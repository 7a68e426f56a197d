"""The bounded queue between the loop and the export thread, and the bell that wakes the thread.

The loop's side never waits: a deque's append is atomic, and the bell is a lock that the loop only ever releases. A
``threading.Event`` would make the loop wait for the thread that is about to sleep on it.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.plugins.tracing.records import TraceRecord


class RecordQueue:
    """At most ``capacity`` records (``queue_size``); what comes when it is full is dropped and counted.

    The newest is dropped and not the oldest: the record need not be made then, and the thread may be taking the oldest.
    """

    __slots__ = ("_bell", "_records", "_rung", "_wake_at", "capacity", "dropped")

    def __init__(self, capacity: int, wake_at: int) -> None:
        self.capacity = capacity
        self.dropped = 0
        """Records for which there was no room."""
        self._records: deque[TraceRecord] = deque()
        self._wake_at = max(1, min(wake_at, capacity // 2))
        self._rung = False
        self._bell = threading.Lock()
        self._bell.acquire()

    def __len__(self) -> int:
        return len(self._records)

    # --- the loop's side ---

    def has_room(self) -> bool:
        """Whether a record may be `put`; ``False`` counts it as dropped."""
        if len(self._records) < self.capacity:
            return True
        self.dropped += 1
        return False

    def put(self, record: TraceRecord) -> None:
        """Add a record, after `has_room`. Wakes the thread when many are waiting."""
        self._records.append(record)
        if not self._rung and len(self._records) >= self._wake_at:
            self.ring()

    def ring(self) -> None:
        """Wake the thread now. From any thread."""
        self._rung = True
        with suppress(RuntimeError):  # it has been rung, and the thread has not heard it yet
            self._bell.release()

    # --- the thread's side ---

    def wait(self, timeout_s: float) -> None:
        """Return when the bell is rung, or after ``timeout_s``."""
        self._bell.acquire(timeout=timeout_s)
        self._rung = False

    def take(self) -> TraceRecord | None:
        """The oldest record; ``None`` when there is none."""
        try:
            return self._records.popleft()
        except IndexError:
            return None
