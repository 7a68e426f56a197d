"""The copy of the topic of quotas that one process has in memory: kept up to date, and changed through the log.

The blocking side of `store`, which calls it in a thread, one call at a time. Knows the log by the interface
`QuotaLog` alone, so that tests can give it a log in memory.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol
from uuid import uuid4

import structlog

from headrace.proxy.long_work import PAUSE_S, collector_off
from headrace.proxy.quotas.store import StoreError, StoreTimeoutError
from headrace.proxy.quotas.topic.creation import ensure_topic
from headrace.proxy.quotas.topic.log import (
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    LogReplacedError,
    TopicReader,
    TopicWriter,
    UnknownTopicError,
)
from headrace.proxy.quotas.topic.records import Header, NewRecord, exact_number, new_record
from headrace.proxy.quotas.topic.state import KEPT_CHANGES, MAX_QUOTAS, TopicState, accept_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.proxy.quotas.store import Alteration, Author, Change, Snapshot
    from headrace.proxy.quotas.topic.log import TopicSettings
    from headrace.proxy.quotas.topic.records import LogRecord
    from headrace.proxy.quotas.topic.state import Check
    from headrace.quota_callbacks.entities import QuotaEntity

log = structlog.get_logger("headrace.quotas")

BROKEN_S: Final = 30.0
"""Seconds until a topic is read again that could not be understood, which takes seconds of processor time."""


class LogReader(Protocol):
    """A position in the log. See `headrace.proxy.quotas.topic.log.TopicReader`."""

    def end(self, deadline_s: float) -> int:
        """Return the end of the log: everything that was acknowledged before is in front of it."""

    def read(self, end: int, deadline_s: float) -> Iterator[list[LogRecord]]:
        """Yield the records from the position up to ``end``, which becomes the position."""

    def close(self) -> None:
        """Close the reader."""


class QuotaLog(Protocol):
    """The log of one topic. Every method may raise `StoreError`; times are those of `time.monotonic`."""

    def prepare(self, deadline_s: float) -> int:
        """Create the topic unless it exists, and check it. Return for how many ms a removal can be read at least."""

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
        self._writer = TopicWriter(settings)

    def prepare(self, deadline_s: float) -> int:
        """Create the topic unless it exists, check it, and create the producer."""
        removals_kept_ms = ensure_topic(self._settings, deadline_s)
        self._writer.connect()
        return removals_kept_ms

    def reader(self) -> TopicReader:
        """Return a reader at the first record."""
        return TopicReader(self._settings)

    def append(self, records: Sequence[NewRecord], deadline_s: float) -> None:
        """Append records as one batch."""
        self._writer.append(records, deadline_s)

    def close(self) -> None:
        """Close the producer."""
        self._writer.close()


@dataclass(frozen=True, slots=True)
class PreparedAlter:
    """The alterations of one call of `QuotaStore.alter`, whose values can be stored exactly."""

    name: str
    """Identifies the call among those of all processes."""
    author: Author
    alterations: Sequence[tuple[QuotaEntity, Sequence[tuple[str, float | None]]]]


def prepared(alterations: Sequence[Alteration], author: Author) -> PreparedAlter:
    """Return alterations as the log stores them. Raises `ValueError` for a value that cannot be stored."""
    return PreparedAlter(
        uuid4().hex,
        author,
        [
            (
                each.entity,
                [(key, None if value is None else exact_number(value, key)) for key, value in each.values.items()],
            )
            for each in alterations
        ],
    )


class TopicReplica:
    """The quotas of the topic up to the position of a reader. Every method blocks, and may raise `StoreError`."""

    def __init__(self, source: QuotaLog, *, check: Check = accept_all, kept_changes: int = KEPT_CHANGES) -> None:
        self._log = source
        self._check = check
        self._kept_changes = kept_changes
        self._removals_kept_ms: int | None = None
        self._reader: LogReader | None = None
        self._state = self._new_state()
        self._loading: TopicState | None = None
        """The state that replaces ``_state`` once the log was read to its end."""
        self._caught_up_s = 0.0
        self._broken: tuple[float, StoreError] | None = None
        self._replaced = True
        """Whether a follower has to take a snapshot, since positions that it knows may be those of another log."""

    def catch_up(self, deadline_s: float, *, pauses: bool = True) -> dict[str, list[Change]]:
        """Read to the end of the log; return what has changed, by call of `alter`.

        At first, and if the log does not continue where it was read last, read it from its beginning. With ``pauses``
        the other threads of the process can run meanwhile.
        """
        if self._broken is not None and time.monotonic() < self._broken[0]:
            raise self._broken[1]
        self._broken = None
        if self._removals_kept_ms is None:
            self._removals_kept_ms = self._log.prepare(deadline_s)
        if self._was_absent():
            log.info("the topic of quotas is read from its beginning", reason="removals may have been missed")
            self._begin_again()
        try:
            return self._read_to_end(deadline_s, pauses=pauses)
        except LogReplacedError:
            log.warning(
                "the topic of quotas is read from its beginning", reason="it does not continue where it was read"
            )
            self._begin_again()
            return self._read_to_end(deadline_s, pauses=pauses)
        except UnknownTopicError:
            self._begin_again()
            self._removals_kept_ms = None
            raise
        except StoreTimeoutError:
            raise
        except StoreError as error:
            self._begin_again()
            self._broken = time.monotonic() + BROKEN_S, error
            raise

    def write(self, alters: Sequence[PreparedAlter], deadline_s: float) -> list[Sequence[Change] | StoreError]:
        """Append what the calls of `alter` change, and return for each what has changed, in the order of the log.

        Raises `StoreError` if nothing was appended.
        """
        self.catch_up(deadline_s)
        plan = _Plan(self._state)
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
            if appended:
                changes = self.catch_up(deadline_s)
        except StoreError as error:
            not_read = StoreTimeoutError(f"{error}. The change may or may not have been made")
        return [
            outcome or plan.outcome(each, changes.get(each.name, []), appended, failure, not_read)
            for each, outcome in zip(alters, outcomes, strict=True)
        ]

    def changes_since(self, sequence: int, deadline_s: float) -> Sequence[Change] | None:
        """Return the changes after a position until now; ``None`` if they are not kept."""
        self.catch_up(deadline_s)
        return None if self._replaced else self._state.changes_since(sequence)

    def snapshot(self, deadline_s: float, *, pauses: bool = True) -> Snapshot:
        """Return all quotas until now."""
        self.catch_up(deadline_s, pauses=pauses)
        self._replaced = False
        return self._state.snapshot()

    def audit(self, limit: int, before: int | None, deadline_s: float) -> Sequence[Change]:
        """Return the latest changes before a position, the latest first. Reads the log with a reader of its own.

        May be called while another method runs in another thread.
        """
        state = TopicState(check=self._check, kept_changes=limit, believe_writers=True)
        reader = self._log.reader()
        try:
            end = reader.end(deadline_s)
            if before is not None:
                end = max(0, min(end, before - 1))
            for piece in reader.read(end, deadline_s):
                for record in piece:
                    state.apply(record)
                time.sleep(PAUSE_S)
        except LogReplacedError:
            raise StoreError("the topic of quotas was replaced while it was read: try again") from None
        finally:
            reader.close()
        return state.latest()

    def close(self) -> None:
        """Close the clients."""
        if self._reader is not None:
            self._reader.close()
        self._reader = None
        self._log.close()

    def _new_state(self) -> TopicState:
        return TopicState(check=self._check, kept_changes=self._kept_changes)

    def _read_to_end(self, deadline_s: float, *, pauses: bool) -> dict[str, list[Change]]:
        if self._reader is None:
            self._reader, self._loading = self._log.reader(), self._new_state()
        state = self._state if self._loading is None else self._loading
        changes: dict[str, list[Change]] = {}
        with collector_off():
            for piece in self._reader.read(self._reader.end(deadline_s), deadline_s):
                for record in piece:
                    if (found := state.apply(record)) is not None:
                        changes.setdefault(found[0], []).append(found[1])
                if pauses:
                    time.sleep(PAUSE_S)
        if self._loading is not None:
            state.forget_changes()
            self._state, self._loading, self._replaced, changes = state, None, True, {}
        self._caught_up_s = _clock_s()
        return changes

    def _was_absent(self) -> bool:
        """Return whether the log was not read for so long that removals may be missing where it continues."""
        kept_s = (self._removals_kept_ms or 0) / 1000
        return self._reader is not None and self._loading is None and _clock_s() - self._caught_up_s > kept_s / 2

    def _begin_again(self) -> None:
        """Read from the beginning the next time. The quotas stay as they are until that is done."""
        if self._reader is not None:
            self._reader.close()
        self._reader, self._loading = None, None


class _Plan:
    """What several calls of `alter` append: the records, in batches, and the batches of each call."""

    def __init__(self, state: TopicState) -> None:
        self.batches: list[list[NewRecord]] = []
        self._state = state
        self._values: dict[tuple[QuotaEntity, str], float | None] = {}
        self._size = 0
        self._of_alter: dict[str, range] = {}

    def add(self, alter: PreparedAlter) -> StoreError | None:
        """Add the records of one call; return an error, and add none, if they cannot be stored."""
        groups: list[list[NewRecord]] = []
        known: dict[tuple[QuotaEntity, str], float | None] = {}
        for entity, values in alter.alterations:
            group: list[NewRecord] = []
            for key, new in values:
                quota = entity, key
                old = known[quota] if quota in known else self._value(quota)
                if old != new:
                    group.append(new_record(entity, key, new, Header(alter.name, alter.author, old)))
                    known[quota] = new
            if sum(record.size for record in group) > MAX_BATCH_BYTES or len(group) > MAX_BATCH_RECORDS:
                return StoreError(f"the alteration of {str(entity)[:200]} is too large: nothing was changed")
            groups.append(group)
        if len(self._state) + sum(value is not None for value in known.values()) > MAX_QUOTAS:
            return StoreError(f"there would be more than {MAX_QUOTAS} quotas: nothing was changed")
        self._values |= known
        used = [self._place(group) for group in groups if group]
        self._of_alter[alter.name] = range(used[0], used[-1] + 1) if used else range(0)
        return None

    def outcome(
        self,
        alter: PreparedAlter,
        changes: Sequence[Change],
        appended: int,
        failure: StoreError | None,
        not_read: StoreError | None,
    ) -> Sequence[Change] | StoreError:
        """Return the changes of a call, or its error.

        ``appended`` batches were appended before ``failure``; ``not_read`` is why they were not read afterwards.
        """
        batches = self._of_alter[alter.name]
        if failure is None or batches.stop <= appended:
            return changes if not_read is None or not batches else not_read
        if batches.start > appended:
            return StoreError(f"{failure}. Nothing was changed")
        if batches.start < appended:
            return StoreTimeoutError(f"{failure}. A part of the changes was made")
        return failure

    def _value(self, quota: tuple[QuotaEntity, str]) -> float | None:
        return self._values[quota] if quota in self._values else self._state.value(*quota)

    def _place(self, group: list[NewRecord]) -> int:
        """Add the records of one alteration to the last batch, or to a new one; return its number."""
        size = sum(record.size for record in group)
        if (
            not self.batches
            or self._size + size > MAX_BATCH_BYTES
            or len(self.batches[-1]) + len(group) > MAX_BATCH_RECORDS
        ):
            self.batches.append([])
            self._size = 0
        self.batches[-1] += group
        self._size += size
        return len(self.batches) - 1


def _clock_s() -> float:
    """Return the seconds since the machine was started, including those in which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
