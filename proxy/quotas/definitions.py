"""The quotas in force: those of the configuration file, and above them those of the store.

The server gives it the file's quotas, `follower` the store's. Each difference in what is in force is passed on to
``put_into_force``, which calls the quota callbacks. Knows nothing of the protocol and of where quotas are kept.

A quota of the store takes precedence over the same quota of the file, and has the policy of the file's quota for the
same entity and key, or else the default policy. When it is removed from the store, the file's is in force again.

Entities are kept and described as they were written. Quotas are put into force by
`headrace.quota_callbacks.definitions.entity_in_force`, which can be the same for several entities: a long name and its
shortened form, or two forms of one IPv6 address. Of these, quotas of the store precede those of the file, and
otherwise the lowest is in force, in whichever order they were set. At most `MAX_FORMS` further forms of an entity are
considered: those that were set first.

Changes of many quotas are made in slices, between which clients are served. A pause is between two entities, so that
none is seen half changed (KIP-546: "alterations for a single entity are atomic"). At every pause, what was put into
force is what follows from the file and the store as they are known then; so a reload and changes of the store may
alternate between two pauses.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.quota_callbacks.definitions import entity_in_force
from headrace.quota_callbacks.policies import KAFKA_POLICY, Quota, QuotaPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping

    from headrace.proxy.quotas.store import Change, Snapshot
    from headrace.quota_callbacks.entities import QuotaEntity

    PutIntoForce: TypeAlias = Callable[[QuotaEntity, str, Quota | None], None]
    FileQuotas: TypeAlias = Mapping[QuotaEntity, Mapping[str, Quota]]

_NONE: Mapping[str, Quota] = {}
_NO_VALUES: Mapping[str, float] = {}

SLICE: int = 500
"""Quotas that are put into force between two pauses; they take about 10 ms. With 100,000 quotas single steps take up to
20 ms, when a table of the callbacks grows. A full garbage collection that falls into a step takes 100 ms more."""

MAX_FORMS: Final = 16
"""The most forms of one entity whose quotas count, besides the usual one. There are thousands of forms of one address,
and a comparison of all of them would take longer with each that is set."""


@dataclass(frozen=True, slots=True)
class _Written:
    """The quotas of one entity as it was written."""

    file: Mapping[str, Quota]
    stored: Mapping[str, float]
    policy: QuotaPolicy
    """The policy of a stored quota that the file does not have."""


_NOTHING = _Written(_NONE, _NO_VALUES, KAFKA_POLICY)


class QuotaDefinitions:
    """The quotas of the file and of the store, and what follows from both.

    ``put_into_force`` is called with the entity (`entity_in_force`), the key and the new quota, or ``None`` if there is
    none any more; ``changed`` after one or several such calls.

    The methods that change quotas return iterators, which yield for a pause after about `SLICE` quotas, and only
    between two entities. One that is not run to its end has changed some entities; call the method again, or another
    one that replaces them.
    """

    def __init__(
        self, put_into_force: PutIntoForce, changed: Callable[[], None], default_policy: QuotaPolicy = KAFKA_POLICY
    ) -> None:
        self._put_into_force = put_into_force
        self._changed = changed
        self._default_policy = default_policy
        self._written: dict[QuotaEntity, _Written] = {}
        self._forms: dict[QuotaEntity, dict[QuotaEntity, None]] = {}
        """The other forms in which entities in force were written."""
        self._unannounced = False

    def __len__(self) -> int:
        """Return the number of entities that have a quota."""
        return len(self._written)

    # --- what is in force ---

    def entities(self) -> KeysView[QuotaEntity]:
        """Return the entities that have a quota now. What is returned does not change later.

        The copy takes a millisecond for 100,000 entities, since their hashes are kept.
        """
        return self._written.copy().keys()

    def values(self, entity: QuotaEntity) -> Mapping[str, float]:
        """Return the values by key; empty for an entity without a quota.

        Those of the file that quotas of the store replace are left out, also if the store has another form of the name.
        """
        written = self._written.get(entity, _NOTHING)
        if not written.file:
            return written.stored
        replaced = {key for form in self._forms_of(entity_in_force(entity)) for key in form.stored}
        return {**{key: quota.value for key, quota in written.file.items() if key not in replaced}, **written.stored}

    def in_force(self, entity: QuotaEntity) -> Mapping[str, Quota]:
        """Return the quotas in force by key, with their policies, of an entity as `entity_in_force` returns it.

        If the entity was written in several forms, the lowest quota of the store is in force, or else the lowest of the
        file.
        """
        forms = self._forms_of(entity)
        found: dict[str, Quota] = {}
        for form in forms:
            for key, quota in form.file.items():
                if key not in found or quota.value < found[key].value:
                    found[key] = quota
        stored: dict[str, Quota] = {}
        for form in forms:
            for key, value in form.stored.items():
                if key not in stored or value < stored[key].value:
                    stored[key] = Quota(value=value, policy=found[key].policy if key in found else form.policy)
        return found | stored

    def has(self, entity: QuotaEntity, key: str) -> bool:
        """Return whether a quota is in force, of an entity as `entity_in_force` returns it."""
        return any(key in form.stored or key in form.file for form in self._forms_of(entity))

    def stored(self, entity: QuotaEntity) -> Mapping[str, float]:
        """Return the values of the store alone."""
        return self._written.get(entity, _NOTHING).stored

    def only_in_file(self, entity: QuotaEntity, key: str) -> bool:
        """Return whether the file has the quota and the store does not, so that no API can remove it."""
        return key not in self.stored(entity) and any(
            key in form.file for form in self._forms_of(entity_in_force(entity))
        )

    def _forms_of(self, target: QuotaEntity) -> list[_Written]:
        written = self._written
        others = sorted(islice(self._forms[target], MAX_FORMS), key=str) if target in self._forms else ()
        return [written[form] for form in (target, *others) if form in written]

    # --- changes ---

    def set_file(self, quotas: FileQuotas, default_policy: QuotaPolicy) -> Iterator[None]:
        """Replace the quotas of the configuration file, and the policy of stored quotas that the file does not have."""
        self._default_policy = default_policy
        entities = chain(list(self._written), quotas)
        yield from self._in_slices(self._set(each, file=quotas.get(each, _NONE)) for each in entities)

    def apply(self, changes: Iterable[Change]) -> Iterator[None]:
        """Apply changes of the store, in their order."""
        yield from self._in_slices(
            self._set(entity, stored=self._after(entity, of_entity))
            for entity, of_entity in groupby(changes, key=lambda each: each.entity)
        )

    def replace(self, snapshot: Snapshot) -> Iterator[None]:
        """Replace what is known of the store."""
        entities = chain(list(self._written), snapshot.quotas)
        yield from self._in_slices(
            self._set(each, stored={**snapshot.quotas.get(each, _NO_VALUES)}) for each in entities
        )

    def _after(self, entity: QuotaEntity, changes: Iterable[Change]) -> Mapping[str, float]:
        values: dict[str, float | None] = {**self.stored(entity), **{each.key: each.new for each in changes}}
        return {key: value for key, value in values.items() if value is not None}

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

    def _set(
        self, entity: QuotaEntity, *, file: Mapping[str, Quota] | None = None, stored: Mapping[str, float] | None = None
    ) -> int:
        """Replace what the file or the store has for an entity, and put into force what follows from that."""
        old = self._written.get(entity, _NOTHING)
        new = _Written(
            old.file if file is None else file, old.stored if stored is None else stored, self._default_policy
        )
        if new == old:
            return 1
        target = entity_in_force(entity)
        before = self.in_force(target)
        if new.file or new.stored:
            self._written[entity] = new
        else:
            self._written.pop(entity, None)
        if entity is not target:
            self._note_form(entity, target)
        after = self.in_force(target)
        keys = before.keys() | after.keys()
        for key in keys:
            if before.get(key) != after.get(key):
                self._unannounced = True
                self._put_into_force(target, key, after.get(key))
        return len(keys) or 1

    def _note_form(self, entity: QuotaEntity, target: QuotaEntity) -> None:
        """Note whether quotas of ``target`` are written for ``entity``, too."""
        if entity in self._written:
            self._forms.setdefault(target, {})[entity] = None
        elif (forms := self._forms.get(target)) is not None:
            forms.pop(entity, None)
            if not forms:
                del self._forms[target]
