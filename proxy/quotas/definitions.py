"""The quotas in force in one process: those of the configuration file, and above them those of the store.

The server gives it the file's quotas, `follower` the store's. Each difference in what is in force is passed on to
``put_into_force``, which calls the quota callbacks. Knows nothing of the protocol and of where quotas are kept.

A quota of the store takes precedence over the same quota of the file, and has the policy of the file's quota for the
same entity and key, or else the default policy. When it is removed from the store, the file's is in force again.

Entities are kept and described as they were written. Quotas are put into force by
`headrace.quota_callbacks.definitions.entity_in_force`, which can be the same for several entities: a long name and its
shortened form, or two forms of one IPv6 address. Of these, quotas of the store precede those of the file, and
otherwise the lowest is in force, in whichever order they were set.

Changes of many quotas are made in slices, between which clients are served. At every pause, what was put into force is
what follows from the file and the store as they are known then; so different changes may also be made in turns.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from headrace.quota_callbacks.definitions import entity_in_force
from headrace.quota_callbacks.policies import KAFKA_POLICY, Quota, QuotaPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from headrace.proxy.quotas.store import Change, Snapshot
    from headrace.quota_callbacks.entities import QuotaEntity

    PutIntoForce: TypeAlias = Callable[[QuotaEntity, str, Quota | None], None]
    FileQuotas: TypeAlias = Mapping[QuotaEntity, Mapping[str, Quota]]

_NONE: Mapping[str, Quota] = {}
_NO_VALUES: Mapping[str, float] = {}

SLICE: int = 500
"""Quotas that are put into force between two pauses; they take about 5 ms. With 100,000 quotas single steps take up to
20 ms, when a table of the callbacks grows or, for a new default policy, the table of stored entities is copied. A full
garbage collection that falls into a step takes 100 ms more."""


class QuotaDefinitions:
    """The quotas of the file and of the store, and what follows from both.

    ``put_into_force`` is called with the entity (`entity_in_force`), the key and the new quota, or ``None`` if there is
    none any more; ``changed`` after one or several such calls.

    The methods that change quotas return iterators, which yield for a pause after every `SLICE` quotas. One that is not
    run to its end has made a part of its changes; call the method again, or another one that replaces them.
    """

    def __init__(
        self, put_into_force: PutIntoForce, changed: Callable[[], None], default_policy: QuotaPolicy = KAFKA_POLICY
    ) -> None:
        self._put_into_force = put_into_force
        self._changed = changed
        self._default_policy = default_policy
        self._file: dict[QuotaEntity, Mapping[str, Quota]] = {}
        self._stored: dict[QuotaEntity, dict[str, float]] = {}
        self._outdated: dict[QuotaEntity, QuotaPolicy] = {}
        """The former default policy, for stored entities that have it still while `set_file` is under way."""
        self._renamed: dict[QuotaEntity, set[QuotaEntity]] = {}
        """The entities with quotas that are in force by another entity, by that one."""
        self._unannounced = False

    def __len__(self) -> int:
        """Return the number of entities that have a quota."""
        return len(self._stored) + sum(entity not in self._stored for entity in self._file)

    # --- what is in force ---

    def entities(self) -> Iterator[QuotaEntity]:
        """Yield the entities that have a quota. Quotas must not change meanwhile."""
        yield from self._stored
        yield from (entity for entity in self._file if entity not in self._stored)

    def values(self, entity: QuotaEntity) -> Mapping[str, float]:
        """Return the values by key; empty for an entity without a quota.

        Those of the file that quotas of the store replace are left out, also if the store has another form of the name.
        """
        stored, of_file = self._stored.get(entity, _NO_VALUES), self._file.get(entity, _NONE)
        if not of_file:
            return stored
        replaced: set[str] = set()
        if self._renamed:
            replaced = {key for each in self._names(entity_in_force(entity)) for key in self._stored.get(each, ())}
        return {**{key: quota.value for key, quota in of_file.items() if key not in replaced}, **stored}

    def quota(self, entity: QuotaEntity, key: str) -> Quota | None:
        """Return the quota in force, with its policy, of an entity as `entity_in_force` returns it."""
        if self._renamed and entity in self._renamed:
            return self._lowest(self._names(entity), key)
        of_file = self._file.get(entity, _NONE).get(key)
        stored = self._stored.get(entity, _NO_VALUES).get(key)
        return of_file if stored is None else self._stored_quota(entity, stored, of_file)

    def _lowest(self, names: tuple[QuotaEntity, ...], key: str) -> Quota | None:
        """Return the quota in force of several names of one entity."""
        quotas = (self._file.get(each, _NONE).get(key) for each in names)
        of_file = min((quota for quota in quotas if quota is not None), key=lambda quota: quota.value, default=None)
        values = ((self._stored.get(each, _NO_VALUES).get(key), each) for each in names)
        stored = min(
            ((value, each) for value, each in values if value is not None), key=lambda one: one[0], default=None
        )
        return of_file if stored is None else self._stored_quota(stored[1], stored[0], of_file)

    def _stored_quota(self, entity: QuotaEntity, value: float, of_file: Quota | None) -> Quota:
        if of_file is not None:
            return Quota(value=value, policy=of_file.policy)
        outdated = self._outdated.get(entity) if self._outdated else None
        return Quota(value=value, policy=self._default_policy if outdated is None else outdated)

    def has(self, entity: QuotaEntity, key: str) -> bool:
        """Return whether a quota is in force, of an entity as `entity_in_force` returns it."""
        return any(
            key in self._stored.get(each, _NO_VALUES) or key in self._file.get(each, _NONE)
            for each in self._names(entity)
        )

    def stored(self, entity: QuotaEntity) -> Mapping[str, float]:
        """Return the values of the store alone."""
        return self._stored.get(entity, _NO_VALUES)

    def only_in_file(self, entity: QuotaEntity, key: str) -> bool:
        """Return whether the file has the quota and the store does not, so that no API can remove it."""
        if key in self._stored.get(entity, _NO_VALUES):
            return False
        return any(key in self._file.get(each, _NONE) for each in self._names(entity_in_force(entity)))

    def _names(self, entity: QuotaEntity) -> tuple[QuotaEntity, ...]:
        """Return the entities whose quotas are in force by ``entity``, and itself."""
        renamed = self._renamed.get(entity) if self._renamed else None
        return (entity,) if renamed is None else (entity, *sorted(renamed, key=str))

    # --- changes ---

    def set_file(self, quotas: FileQuotas, default_policy: QuotaPolicy) -> Iterator[None]:
        """Replace the quotas of the configuration file, and the policy of stored quotas that the file does not have."""
        if default_policy != self._default_policy:
            self._outdated = {**dict.fromkeys(self._stored, self._default_policy), **self._outdated}
            self._default_policy = default_policy
        entities = chain(list(self._file), quotas, list(self._outdated))
        yield from self._in_slices(self._set_file_of(each, quotas.get(each, _NONE)) for each in entities)

    def apply(self, changes: Iterable[Change]) -> Iterator[None]:
        """Apply changes of the store, in their order."""
        yield from self._in_slices(self._store(each.entity, each.key, each.new) for each in changes)

    def replace(self, snapshot: Snapshot) -> Iterator[None]:
        """Replace what is known of the store."""
        entities = chain(list(self._stored), snapshot.quotas)
        yield from self._in_slices(
            step for each in entities for step in self._replace_of(each, snapshot.quotas.get(each, _NO_VALUES))
        )

    def _in_slices(self, steps: Iterable[int]) -> Iterator[None]:
        """Make the steps, each of which is the number of quotas that it has compared."""
        count = 0
        try:
            for compared in steps:
                count += compared
                if count >= SLICE:
                    count = 0
                    yield
        finally:
            if self._unannounced:
                self._unannounced = False
                self._changed()

    def _set_file_of(self, entity: QuotaEntity, new: Mapping[str, Quota]) -> int:
        old = self._file.get(entity, _NONE)
        is_outdated = entity in self._outdated
        if old == new and not is_outdated:
            return 1
        target = entity_in_force(entity)
        keys = {*old, *new, *(self._stored.get(entity, _NO_VALUES) if is_outdated else ())}
        before = {key: self.quota(target, key) for key in keys}
        self._outdated.pop(entity, None)
        if new:
            self._file[entity] = new
        else:
            self._file.pop(entity, None)
        self._note_name(entity, target)
        for key, quota in before.items():
            self._pass_on(target, key, quota)
        return 1 + len(keys)

    def _replace_of(self, entity: QuotaEntity, new: Mapping[str, float]) -> Iterator[int]:
        old = self._stored.get(entity, _NO_VALUES)
        if old == new:
            yield 1
            return
        for key in {*old, *new}:
            yield self._store(entity, key, new.get(key))

    def _store(self, entity: QuotaEntity, key: str, value: float | None) -> int:
        target = entity_in_force(entity)
        before = self.quota(target, key)
        if value is not None:
            self._stored.setdefault(entity, {})[key] = value
        elif (values := self._stored.get(entity)) is not None:
            values.pop(key, None)
            if not values:
                del self._stored[entity]
        self._note_name(entity, target)
        self._pass_on(target, key, before)
        return 1

    def _note_name(self, entity: QuotaEntity, target: QuotaEntity) -> None:
        if entity is target:
            return
        if entity in self._stored or entity in self._file:
            self._renamed.setdefault(target, set()).add(entity)
        elif (renamed := self._renamed.get(target)) is not None:
            renamed.discard(entity)
            if not renamed:
                del self._renamed[target]

    def _pass_on(self, entity: QuotaEntity, key: str, before: Quota | None) -> None:
        now = self.quota(entity, key)
        if now != before:
            self._unannounced = True
            self._put_into_force(entity, key, now)
