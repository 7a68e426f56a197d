"""Plans: the steps from the quotas that a cluster has to those that it should have. Pure functions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.quota_callbacks.entities import CLIENT_ID, DEFAULT, IP, USER

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from headrace.quota_callbacks.entities import QuotaEntity

    Quotas: TypeAlias = Mapping[QuotaEntity, Mapping[str, float]]

_ORDER: Final = {USER: 0, CLIENT_ID: 1, IP: 2}


def sort_key(entity: QuotaEntity) -> tuple[tuple[int, str, bool, str], ...]:
    """Return the key that sorts entities: users, client ids and addresses; names before the default."""
    return tuple(
        (_ORDER.get(each, len(_ORDER)), each, name is DEFAULT, "" if name is DEFAULT else str(name))
        for each, name in entity.parts()
    )


class Action(StrEnum):
    """The kind of a step."""

    ADD = "add"
    CHANGE = "change"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The change of one key of one entity. ``old`` and ``new`` are its values before and after; ``None`` is no
    value."""

    entity: QuotaEntity
    key: str
    old: float | None
    new: float | None

    @property
    def action(self) -> Action:
        """What the step does."""
        if self.old is None:
            return Action.ADD
        return Action.REMOVE if self.new is None else Action.CHANGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A refusal by the cluster of one key of an entity or, without ``key``, of all values of the entity."""

    entity: QuotaEntity
    key: str | None
    reason: str
    code: int
    """The error code of Kafka's protocol."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All steps, in the order of entities and keys, and the number of quotas that stay as they are."""

    steps: tuple[Step, ...]
    unchanged: int
    kept: int = 0
    """Quotas that the cluster has, and which are neither wanted nor removed."""

    def count(self, action: str) -> int:
        """Return the number of steps with this action."""
        return self._counts[Action(action)]

    @cached_property
    def _counts(self) -> Counter[Action]:
        return Counter(step.action for step in self.steps)

    def by_entity(self) -> dict[QuotaEntity, dict[str, float | None]]:
        """Return the new values of each entity."""
        found: dict[QuotaEntity, dict[str, float | None]] = {}
        for step in self.steps:
            found.setdefault(step.entity, {})[step.key] = step.new
        return found

    def without(self, refused: Container[tuple[QuotaEntity, str | None]]) -> Plan:
        """Return the plan without the steps of some entities and keys."""
        steps = tuple(step for step in self.steps if (step.entity, step.key) not in refused)
        return Plan(steps=steps, unchanged=self.unchanged, kept=self.kept)


def make_plan(current: Quotas, wanted: Quotas, *, prune: bool) -> Plan:
    """Return the plan that leads from the current to the wanted quotas.

    Quotas that are not wanted are removed if ``prune`` is true, and kept otherwise.
    """
    steps: list[Step] = []
    unchanged = kept = 0
    for entity in sorted({*current, *wanted}, key=sort_key):
        for key, old, new in _pairs(current.get(entity, {}), wanted.get(entity, {})):
            if old == new:
                unchanged += 1
            elif new is None and not prune:
                kept += 1
            else:
                steps.append(Step(entity=entity, key=key, old=old, new=new))
    return Plan(steps=tuple(steps), unchanged=unchanged, kept=kept)


def _pairs(
    current: Mapping[str, float], wanted: Mapping[str, float]
) -> Iterator[tuple[str, float | None, float | None]]:
    for key in sorted({*current, *wanted}):
        yield key, current.get(key), wanted.get(key)
