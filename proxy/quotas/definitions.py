"""The quotas in force in one process: those of the configuration file, and above them those of the store.

The server gives it the file's quotas, `follower` the store's. Each difference in what is in force is passed on to
``put_into_force``, which calls the quota callbacks. Knows nothing of the protocol and of where quotas are kept.

A quota of the store takes precedence over the same quota of the file, and has the policy of the file's quota for the
same entity and key, or else the default policy. When it is removed from the store, the file's is in force again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

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
"""Quotas that are put into force between two pauses of `QuotaDefinitions.replace`; they take about 5 ms."""


class QuotaDefinitions:
    """The quotas of the file and of the store, and what follows from both.

    ``put_into_force`` is called with the entity, the key and the new quota, or ``None`` if there is none any more;
    ``changed`` after one or several such calls.
    """

    def __init__(
        self, put_into_force: PutIntoForce, changed: Callable[[], None], default_policy: QuotaPolicy = KAFKA_POLICY
    ) -> None:
        self._put_into_force = put_into_force
        self._changed = changed
        self._default_policy = default_policy
        self._file: FileQuotas = {}
        self._stored: dict[QuotaEntity, dict[str, float]] = {}

    def __len__(self) -> int:
        """Return the number of entities that have a quota."""
        return len(self._stored) + sum(entity not in self._stored for entity in self._file)

    # --- what is in force ---

    def entities(self) -> Iterator[QuotaEntity]:
        """Yield the entities that have a quota. Quotas must not change meanwhile."""
        yield from self._stored
        yield from (entity for entity in self._file if entity not in self._stored)

    def values(self, entity: QuotaEntity) -> Mapping[str, float]:
        """Return the values in force by key; empty for an entity without a quota."""
        stored, of_file = self._stored.get(entity, _NO_VALUES), self._file.get(entity, _NONE)
        if not of_file:
            return stored
        return {**{key: quota.value for key, quota in of_file.items()}, **stored}

    def quota(self, entity: QuotaEntity, key: str) -> Quota | None:
        """Return the quota in force, with its policy."""
        of_file = self._file.get(entity, _NONE).get(key)
        stored = self._stored.get(entity, _NO_VALUES).get(key)
        if stored is None:
            return of_file
        return Quota(value=stored, policy=self._default_policy if of_file is None else of_file.policy)

    def stored(self, entity: QuotaEntity) -> Mapping[str, float]:
        """Return the values of the store alone."""
        return self._stored.get(entity, _NO_VALUES)

    def only_in_file(self, entity: QuotaEntity, key: str) -> bool:
        """Return whether the quota in force is the file's, so that no API can remove it."""
        return key in self._file.get(entity, _NONE) and key not in self._stored.get(entity, _NO_VALUES)

    # --- changes ---

    def set_file(self, quotas: FileQuotas, default_policy: QuotaPolicy) -> None:
        """Replace the quotas of the configuration file, and the policy of stored quotas that the file does not have."""
        entities: dict[QuotaEntity, None] = dict.fromkeys((*self._file, *quotas))
        if default_policy != self._default_policy:
            entities |= dict.fromkeys(self._stored)
        keys = {
            entity: {*self._file.get(entity, _NONE), *quotas.get(entity, _NONE), *self._stored.get(entity, _NO_VALUES)}
            for entity in entities
        }
        before = {(entity, key): self.quota(entity, key) for entity in entities for key in keys[entity]}
        self._file, self._default_policy = quotas, default_policy
        differs = False
        for (entity, key), quota in before.items():
            differs |= self._pass_on(entity, key, quota)
        if differs:
            self._changed()

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply changes of the store, in their order."""
        differs = False
        for change in changes:
            differs |= self._store(change.entity, change.key, change.new)
        if differs:
            self._changed()

    def replace(self, snapshot: Snapshot) -> Iterator[None]:
        """Replace what is known of the store. Yields after every `SLICE` quotas, for a pause.

        Until the last step, some quotas of the snapshot are in force already and others are not.
        """
        gone = [entity for entity in self._stored if entity not in snapshot.quotas]
        count = 0
        for entity in (*gone, *snapshot.quotas):
            new = snapshot.quotas.get(entity, _NO_VALUES)
            for key in {*self._stored.get(entity, _NO_VALUES), *new}:
                self._store(entity, key, new.get(key))
                count += 1
                if count % SLICE == 0:
                    yield
        if count:
            self._changed()

    def _store(self, entity: QuotaEntity, key: str, value: float | None) -> bool:
        before = self.quota(entity, key)
        if value is not None:
            self._stored.setdefault(entity, {})[key] = value
        elif (values := self._stored.get(entity)) is not None:
            values.pop(key, None)
            if not values:
                del self._stored[entity]
        return self._pass_on(entity, key, before)

    def _pass_on(self, entity: QuotaEntity, key: str, before: Quota | None) -> bool:
        now = self.quota(entity, key)
        if now == before:
            return False
        self._put_into_force(entity, key, now)
        return True
