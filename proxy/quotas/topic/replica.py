"""The copy of the topic of quotas that a proxy has in memory: kept up to date, and changed through the log.

The blocking side of `store`, which calls it in a thread, one call at a time. Knows the log by the interface
`QuotaLog` alone, so that tests can give it a log in memory.
"""

from __future__ import annotations

import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from headrace.proxy.long_work import PAUSE_S, collector_off
from headrace.proxy.quotas.store import MAX_AUDIT_CHARACTERS, ImportState, StoreError, StoreTimeoutError
from headrace.proxy.quotas.topic.creation import TopicAdmin
from headrace.proxy.quotas.topic.log import (
    MAX_BATCH_RECORDS,
    LogReplacedError,
    TopicReader,
    TopicWriter,
    UnknownTopicError,
)
from headrace.proxy.quotas.topic.plan import Plan
from headrace.proxy.quotas.topic.records import import_record
from headrace.proxy.quotas.topic.state import KEPT_CHANGES, TopicState, accept_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.proxy.quotas.store import Change, Snapshot
    from headrace.proxy.quotas.topic.clients import TopicSettings
    from headrace.proxy.quotas.topic.plan import PreparedAlter
    from headrace.proxy.quotas.topic.records import LogRecord, NewRecord
    from headrace.proxy.quotas.topic.state import Check

log = structlog.get_logger("headrace.quotas")

BROKEN_S: Final = 30.0
"""Seconds before the topic is read again after an error other than a time-out: reading all of it takes seconds of
processor time."""
AUDIT_OVERLAP: Final = MAX_BATCH_RECORDS
"""Number of records that an audit reads before the first one that it lists, to find the old values of changes.

The old value of a change is the value in the previous record of the same quota. If that record is not read, the audit
uses the old value in the header of the change. A header has a wrong one only if another proxy appended a record of
the quota after the writer had read the log, and before the writer appended. The previous record is then one of the last
`MAX_BATCH_RECORDS` before the change."""
AUDIT_GROWTH: Final = 4
"""Factor by which an audit lengthens the part of the log that it reads, until it has found enough changes."""


class LogReader(Protocol):
    """A position in the log. See `headrace.proxy.quotas.topic.log.TopicReader`."""

    def go_to(self, offset: int) -> None:
        """Make ``offset`` the position."""

    def end(self, deadline_s: float) -> int:
        """Return the offset after the last record. All records that were acknowledged before the call have lower ones.

        Raises `LogReplacedError` if the log is not the one that was read up to the position.
        """

    def require_check(self) -> None:
        """Let the next call of `end` ask whether the log is still the same, which it otherwise asks once a second."""

    def read(self, end: int, deadline_s: float) -> Iterator[list[LogRecord]]:
        """Yield the records from the position up to ``end``, which becomes the position."""

    def close(self) -> None:
        """Close the reader."""


class QuotaLog(Protocol):
    """The log of one topic. Every method may raise `StoreError`; times are those of `time.monotonic`."""

    def prepare(self, deadline_s: float) -> int:
        """Create the topic unless it exists, and check its settings.

        Returns the shortest time in ms for which the record of a removed quota stays in the log.
        """

    def reader(self) -> LogReader:
        """Return a reader at the first record."""

    def append(self, records: Sequence[NewRecord], deadline_s: float) -> None:
        """Append records as one batch: all of them or none, durably."""

    def close(self) -> None:
        """Close the log."""


class KafkaLog:
    """The log in a topic of a Kafka cluster. Implements `QuotaLog`."""

    def __init__(self, settings: TopicSettings) -> None:
        self._settings = settings
        self._admin = TopicAdmin(settings)
        self._writer = TopicWriter(settings)

    def prepare(self, deadline_s: float) -> int:
        """Create the topic unless it exists, check it, and create the producer."""
        removals_kept_ms = self._admin.ensure(deadline_s)
        self._writer.connect()
        return removals_kept_ms

    def reader(self) -> TopicReader:
        """Return a reader at the first record."""
        return TopicReader(self._settings, self._admin)

    def append(self, records: Sequence[NewRecord], deadline_s: float) -> None:
        """Append records as one batch."""
        self._writer.append(records, deadline_s)

    def close(self) -> None:
        """Close the producer and the administration."""
        self._writer.close()
        self._admin.close()


class TopicReplica:
    """The quotas of the topic up to the position of a reader. Every method blocks, and may raise `StoreError`.

    Each time that the log is read from its beginning again, the new sequences are higher than all former ones. So for a
    position that was returned before, `changes_since` returns ``None``, and never the changes after another position.
    """

    def __init__(self, source: QuotaLog, *, check: Check = accept_all, kept_changes: int = KEPT_CHANGES) -> None:
        self._log = source
        self._next_log: QuotaLog | None = None
        self._check = check
        self._kept_changes = kept_changes
        self._removals_kept_ms: int | None = None
        self._reader: LogReader | None = None
        self._state = self._new_state(0)
        self._loading: TopicState | None = None
        """The state that replaces ``_state`` once the log was read to its end."""
        self._was_loaded = False
        self._is_replaced = False
        """Whether the log that is read next differs from the log of ``_state``."""
        self._end = 0
        """The end of the log when it was read last."""
        self._caught_up_s = 0.0
        self._broken: tuple[float, StoreError] | None = None

    def replace_log(self, source: QuotaLog) -> None:
        """Read from ``source``, from its beginning, and append to it from the next call on. May be called meanwhile in
        another thread; does not block. The quotas stay as they are until ``source`` was read."""
        self._next_log = source

    def catch_up(self, deadline_s: float) -> dict[str, list[Change]]:
        """Read to the end of the log; return what has changed, by call of `alter`.

        At first, and if the log does not continue where it was read last, read it from its beginning.
        """
        if self._next_log is not None:
            self.close()
            self._forget_topic()
            self._log, self._next_log, self._broken = self._next_log, None, None
        if self._broken is not None and time.monotonic() < self._broken[0]:
            raise self._broken[1]
        self._broken = None
        if self._was_absent():
            log.info("the topic of quotas is read from its beginning", reason="removals may have been missed")
            self._begin_again()
        while True:
            if self._removals_kept_ms is None:
                self._removals_kept_ms = self._log.prepare(deadline_s)
            try:
                return self._read_to_end(deadline_s)
            except LogReplacedError:
                reason = "it does not continue where it was read, or was created again"
                log.warning("the topic of quotas is read from its beginning", reason=reason)
                self._forget_topic()
                self._is_replaced = True
            except UnknownTopicError:
                self._forget_topic()
                self._is_replaced = True
                raise
            except StoreTimeoutError:
                raise
            except StoreError as error:
                self._begin_again()
                self._broken = time.monotonic() + BROKEN_S, error
                raise

    def write(self, alters: Sequence[PreparedAlter], deadline_s: float) -> list[Sequence[Change] | StoreError]:
        """Append what the calls of `alter` change, and return for each what has changed, in the order of the log.

        Before it returns, it checks that the log was not replaced, so that no call succeeds with quotas of a log that
        no longer exists, not even one that has changed nothing. Raises `StoreError` if nothing was appended.
        """
        self.catch_up(deadline_s)
        state = self._state
        plan = Plan(state)
        outcomes: list[Sequence[Change] | StoreError | None] = [plan.add(each) for each in alters]
        failure: StoreError | None = None
        appended = 0
        try:
            for batch in plan.batches:
                self._log.append(batch, deadline_s)
                appended += 1
        except StoreError as error:
            failure = error
        changes: dict[str, list[Change]] = {}
        not_read: StoreError | None = None
        try:
            if self._reader is not None:
                self._reader.require_check()
            changes = self.catch_up(deadline_s)
        except StoreError as error:
            not_read = StoreTimeoutError(f"{error}. The change may or may not have been made")
        if not_read is None and self._state is not state:
            not_read = StoreTimeoutError("the topic of quotas was replaced. The change may or may not have been made")
        return [
            outcome or plan.outcome(each, changes.get(each.name, []), appended, failure, not_read)
            for each, outcome in zip(alters, outcomes, strict=True)
        ]

    def changes_since(self, sequence: int, deadline_s: float) -> Sequence[Change] | None:
        """Return the changes after a position until now; ``None`` if they are not kept."""
        self.catch_up(deadline_s)
        return self._state.changes_since(sequence)

    def snapshot(self, deadline_s: float) -> Snapshot:
        """Return all quotas until now."""
        self.catch_up(deadline_s)
        return self._state.snapshot()

    def import_state(self, deadline_s: float) -> ImportState:
        """Return how far the import is, by the record about it.

        Without such a record, the import is possible if nothing was ever appended. The end of the log shows this, also
        if compaction has removed all records.
        """
        self.catch_up(deadline_s)
        if self._state.import_state is not None:
            return self._state.import_state
        return ImportState.OVER if self._end else ImportState.POSSIBLE

    def set_import_state(self, state: ImportState, deadline_s: float) -> None:
        """Append how far the import is."""
        self.catch_up(deadline_s)
        self._log.append([import_record(state)], deadline_s)

    def audit(self, limit: int, before: int | None, deadline_s: float) -> Sequence[Change]:
        """Return the latest changes before a position, the latest first. Reads the log with a reader of its own.

        Reads from the end backwards, in steps, until the changes are found. May be called while another method runs in
        another thread.
        """
        reader = self._log.reader()
        try:
            end = reader.end(deadline_s)
            if before is not None:
                end = max(0, min(end, before - 1))
            return self._latest_before(reader, end, limit, deadline_s)
        except LogReplacedError:
            raise StoreError("the topic of quotas was replaced while it was read: try again") from None
        finally:
            reader.close()

    def _latest_before(self, reader: LogReader, end: int, limit: int, deadline_s: float) -> Sequence[Change]:
        length = limit + AUDIT_OVERLAP
        while length < end:
            with suppress(LogReplacedError):  # if the first records were deleted, the part may begin before the log
                found, is_full = self._audit_of(reader, range(end - length, end), limit, deadline_s)
                if is_full:
                    return found
            length *= AUDIT_GROWTH
        return self._audit_of(reader, range(end), limit, deadline_s)[0]

    def _audit_of(
        self, reader: LogReader, offsets: range, limit: int, deadline_s: float
    ) -> tuple[Sequence[Change], bool]:
        """Return the latest changes in a part of the log, and whether they fill a page.

        The first `AUDIT_OVERLAP` records of a part that does not begin with the log are only read for the old values of
        later changes, and are not listed.
        """
        state = TopicState(
            check=self._check,
            kept_changes=limit,
            kept_characters=MAX_AUDIT_CHARACTERS,
            old_from_headers=True,
        )
        reader.go_to(offsets.start)
        for piece in reader.read(offsets.stop, deadline_s):
            for record in piece:
                state.apply(record)
            time.sleep(PAUSE_S)
        after = offsets.start + AUDIT_OVERLAP if offsets.start else 0
        kept = state.latest()
        found = [change for change in kept if change.sequence > after]
        return found, len(found) == limit or (state.has_dropped and len(found) == len(kept))

    def close(self) -> None:
        """Close the clients."""
        if self._reader is not None:
            self._reader.close()
        self._reader = None
        self._log.close()

    def _new_state(self, base: int) -> TopicState:
        return TopicState(check=self._check, kept_changes=self._kept_changes, base=base)

    def _read_to_end(self, deadline_s: float) -> dict[str, list[Change]]:
        if self._reader is None:
            base = self._state.sequence + 1 if self._was_loaded else 0
            self._reader, self._loading = self._log.reader(), self._new_state(base)
        state = self._state if self._loading is None else self._loading
        changes: dict[str, list[Change]] = {}
        end = self._reader.end(deadline_s)
        with nullcontext() if self._loading is None else collector_off():
            for piece in self._reader.read(end, deadline_s):
                for record in piece:
                    if self._loading is not None:
                        state.replay(record)
                    elif (found := state.apply(record)) is not None:
                        changes.setdefault(found[0], []).append(found[1])
                # librdkafka's calls release the interpreter lock, but mostly too briefly for the event loop's thread to
                # get it, and each release begins the 5 ms anew after which a thread that waits demands the lock.
                time.sleep(PAUSE_S)
        if self._loading is not None:
            if self._is_replaced and self._was_loaded:
                before, after = len(self._state), len(state)
                log.warning("the topic of quotas was replaced", quotas_before=before, quotas=after)
            self._is_replaced = False
            self._state, self._loading, self._was_loaded = state, None, True
        self._end, self._caught_up_s = end, _clock_s()
        return changes

    def _was_absent(self) -> bool:
        """Return whether the log was not read for so long that removals may be missing where it continues."""
        kept_s = (self._removals_kept_ms or 0) / 1000
        return self._reader is not None and self._loading is None and _clock_s() - self._caught_up_s > kept_s / 2

    def _forget_topic(self) -> None:
        """Check the settings of the topic the next time, and read from the beginning."""
        self._begin_again()
        self._removals_kept_ms = None

    def _begin_again(self) -> None:
        """Read from the beginning the next time. The quotas stay as they are until that is done."""
        if self._reader is not None:
            self._reader.close()
        self._reader, self._loading = None, None


def _clock_s() -> float:
    """Return seconds of a clock that never goes back; on Linux it also counts while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
