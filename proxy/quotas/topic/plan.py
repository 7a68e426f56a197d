"""Computes the records that calls of `alter` append to the topic, from the quotas in it. Pure; used by `replica`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from headrace.proxy.quotas.store import StoreError, StoreTimeoutError
from headrace.proxy.quotas.topic.log import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from headrace.proxy.quotas.topic.records import Header, NewRecord, exact_number, new_record
from headrace.proxy.quotas.topic.state import quota_characters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.proxy.quotas.store import Alteration, Author, Change
    from headrace.proxy.quotas.topic.state import TopicState
    from headrace.quota_callbacks.entities import QuotaEntity


@dataclass(frozen=True, slots=True)
class PreparedAlter:
    """The alterations of one call of `QuotaStore.alter`, whose values can be stored exactly."""

    name: str
    """Identifies the call among those of all proxies."""
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


class Plan:
    """The records that several calls of `alter` append, in batches, and the batches of each call."""

    def __init__(self, state: TopicState) -> None:
        self.batches: list[list[NewRecord]] = []
        self._state = state
        self._values: dict[tuple[QuotaEntity, str], float | None] = {}
        self._size = 0
        self._new_quotas, self._new_characters = 0, 0
        """The number of quotas that the plan adds to the state, and the number of characters of their names."""
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
        added = [each for each, value in known.items() if value is not None and self._value(each) is None]
        quotas = self._new_quotas + len(added)
        characters = self._new_characters + sum(quota_characters(*each) for each in added)
        if problem := self._state.too_many(quotas, characters):
            return StoreError(f"{problem}: nothing was changed")
        self._new_quotas, self._new_characters = quotas, characters
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
            return changes if not_read is None else not_read
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
