"""The quotas that follow from the records of the topic, in memory. Pure: is given records in the order of the log."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog

from headrace.proxy.quotas.store import Change, Snapshot
from headrace.proxy.quotas.topic.records import (
    IMPORT_KEY,
    parse_header,
    parse_import_state,
    parse_record_key,
    parse_value,
)
from headrace.proxy.repeated_lines import RepeatedLines

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.proxy.quotas.store import ImportState
    from headrace.proxy.quotas.topic.records import LogRecord
    from headrace.quota_callbacks.entities import QuotaEntity

    Check: TypeAlias = Callable[[QuotaEntity, str, float], None]

log = structlog.get_logger("headrace.quotas")

MAX_QUOTAS: Final = 1_000_000
"""Quotas in memory, at about 600 bytes each: ten times what is measured, so that a topic that is filled by mistake ends
in an error and not in a process without memory."""
MAX_QUOTA_CHARACTERS: Final = 2**28
"""The most characters of the names and keys of all quotas, for the same reason: a name has up to 32 KiB. A million
quotas with names of 100 characters have less than half."""
KEPT_CHANGES: Final = 10_000
"""Changes that are kept for followers: 5 MB. A follower that is further behind takes a snapshot."""
KEPT_CHARACTERS: Final = 16 * 2**20
"""The most characters of the names in these changes: without this bound, those of the longest names, each of which has
32 KiB, would need a gigabyte."""

_NO_VALUES: Mapping[str, float] = {}
_SHOWN_BYTES: Final = 200
"""Maximum length of a malformed key, and of the reason, in a log line."""


def quota_characters(entity: QuotaEntity, key: str) -> int:
    """Return the length of the names of a quota, which determines how much memory one with long names needs."""
    return sum(len(name) for _, name in entity.parts() if isinstance(name, str)) + len(key)


def accept_all(_entity: QuotaEntity, _key: str, _value: float) -> None:
    """Accept every value. The default of `TopicState`."""


class TopicState:
    """The quotas after the records so far, and the latest changes.

    ``check`` raises `ValueError` for a value that must not be in force; a record with such a value removes the quota.
    ``kept_changes`` is the number of latest changes to keep; fewer are kept, but at least one, if their names have more
    than ``kept_characters``. With ``old_from_headers``, which is for audits, the old value of a change is the one in
    its header if no earlier record of the same quota was applied. ``base`` is added to all sequences.
    """

    def __init__(
        self,
        *,
        check: Check = accept_all,
        kept_changes: int = KEPT_CHANGES,
        kept_characters: int = KEPT_CHARACTERS,
        old_from_headers: bool = False,
        base: int = 0,
    ) -> None:
        self._check = check
        self._old_from_headers = old_from_headers
        self._seen: set[int] = set()
        """The hashes of the keys of records so far, for ``old_from_headers``."""
        self._quotas: dict[QuotaEntity, Mapping[str, float]] = {}
        self._count = 0
        self._quota_characters = 0
        """Number of characters in the names and keys of all quotas."""
        self._changes: deque[Change] = deque()
        self._kept_changes, self._kept_characters = kept_changes, kept_characters
        self._characters = 0
        """Number of characters in the changes that are kept."""
        self._repeated = RepeatedLines()
        self._base = base
        self.sequence = base
        """Sequence number of the last change: the base, its offset and 1."""
        self.import_state: ImportState | None = None
        """The state in the latest record about the import."""
        self._complete_from = base
        """All changes after this position are kept."""

    def value(self, entity: QuotaEntity, key: str) -> float | None:
        """Return the value of a quota."""
        return self._quotas.get(entity, _NO_VALUES).get(key)

    def __len__(self) -> int:
        """Return the number of quotas."""
        return self._count

    def apply(self, record: LogRecord) -> tuple[str, Change] | None:
        """Apply the next record; return the call of `alter` and its change, or ``None`` if nothing has changed.

        A record that is invalid, or the quota of which would be one too many, is reported and left out.
        """
        found = self._quota_in(record)
        if found is None:
            return None
        entity, key, before, new = found
        header, old = parse_header(record.header), before
        if self._old_from_headers:
            old = header.old if old is None and hash(record.key) not in self._seen else old
            self._seen.add(hash(record.key))
        if before != new:
            self._set(entity, key, before, new)
        if old == new:
            return None
        self.sequence = self._base + record.offset + 1
        change = Change(
            sequence=self.sequence,
            time_ms=record.time_ms,
            author=header.author,
            entity=entity,
            key=key,
            old=old,
            new=new,
        )
        self._keep(change)
        return header.alter, change

    def replay(self, record: LogRecord) -> None:
        """Apply the next record, and keep no change: its old value may be wrong after compaction."""
        found = self._quota_in(record)
        if found is not None:
            entity, key, before, new = found
            if before != new:
                self._set(entity, key, before, new)
                self.sequence = self._complete_from = self._base + record.offset + 1

    def _quota_in(self, record: LogRecord) -> tuple[QuotaEntity, str, float | None, float | None] | None:
        """Return the entity and the key of a record, the value before it, and the new one; ``None`` for a record
        without a quota, or whose quota would be one too many."""
        if record.key == IMPORT_KEY:
            self.import_state = parse_import_state(record.value)
            return None
        try:
            entity, key = parse_record_key(record.key)
        except (ValueError, RecursionError) as error:
            self._report("a record of the topic of quotas is ignored", record, error)
            return None
        try:
            new = parse_value(record.value)
            if new is not None:
                self._check(entity, key, new)
        except ValueError as error:
            self._report("a record of the topic of quotas removes the quota, since its value is invalid", record, error)
            new = None
        before = self.value(entity, key)
        if new is not None and before is None and (problem := self.too_many(1, quota_characters(entity, key))):
            too_many = ValueError(f"{problem}: remove those that are not needed")
            self._report("a record of the topic of quotas is ignored", record, too_many)
            return None
        return entity, key, before, new

    def too_many(self, quotas: int, characters: int) -> str:
        """Return why there is no room for so many quotas more; empty if there is."""
        if self._count + quotas > MAX_QUOTAS:
            return f"there would be more than {MAX_QUOTAS} quotas"
        if self._quota_characters + characters > MAX_QUOTA_CHARACTERS:
            return f"the names of all quotas would have more than {MAX_QUOTA_CHARACTERS} characters"
        return ""

    def changes_since(self, sequence: int) -> Sequence[Change] | None:
        """Return the changes after a position; ``None`` if they are not kept, or if the position is not of this log."""
        if sequence == self.sequence:
            return []
        if not self._complete_from <= sequence < self.sequence:
            return None
        found: list[Change] = []
        for change in reversed(self._changes):
            if change.sequence <= sequence:
                break
            found.append(change)
        return found[::-1]

    def latest(self) -> Sequence[Change]:
        """Return the changes that are kept, the latest first."""
        return list(reversed(self._changes))

    @property
    def has_dropped(self) -> bool:
        """Whether there were more changes than are kept."""
        return self._complete_from > self._base

    def snapshot(self) -> Snapshot:
        """Return all quotas. What is returned does not change later: an entity's values are replaced as a whole."""
        return Snapshot(sequence=self.sequence, quotas=dict(self._quotas))

    def _keep(self, change: Change) -> None:
        """Keep a change, and no longer the earliest ones if there are too many."""
        self._changes.append(change)
        self._characters += change.characters()
        while len(self._changes) > self._kept_changes or (
            self._characters > self._kept_characters and len(self._changes) > 1
        ):
            dropped = self._changes.popleft()
            self._characters -= dropped.characters()
            self._complete_from = dropped.sequence

    def _set(self, entity: QuotaEntity, key: str, old: float | None, new: float | None) -> None:
        values = {**self._quotas.get(entity, _NO_VALUES)}
        more = (new is not None) - (old is not None)
        self._count += more
        self._quota_characters += more * quota_characters(entity, key)
        if new is None:
            values.pop(key)
        else:
            values[key] = new
        if values:
            self._quotas[entity] = values
        else:
            del self._quotas[entity]

    def _report(self, what: str, record: LogRecord, error: Exception) -> None:
        if (left_out := self._repeated.due("record", what)) is not None:
            key = (record.key or b"")[:_SHOWN_BYTES]
            reason = str(error)[:_SHOWN_BYTES]
            log.warning(what, offset=record.offset, key=repr(key), reason=reason, left_out=left_out or None)
