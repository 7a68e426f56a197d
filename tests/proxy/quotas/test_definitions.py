"""The quotas in force: the file's, and above them the store's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.quotas.definitions import SLICE, QuotaDefinitions
from headrace.proxy.quotas.store import Author, Change, Snapshot
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity
from headrace.quota_callbacks.policies import KAFKA_POLICY, EnforcementMode, Quota, QuotaPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PACED = QuotaPolicy(mode=EnforcementMode.PACED)
OBSERVED = QuotaPolicy(observe=True)
ALICE, ANY_USER = QuotaEntity(user="alice"), QuotaEntity(user=DEFAULT)
ENTITIES = (ALICE, ANY_USER, QuotaEntity(client_id="app"), QuotaEntity(user="<default>"))
KEYS = ("producer_byte_rate", "request_percentage")


class Callbacks:
    """What the callbacks know after every call."""

    def __init__(self) -> None:
        self.known: dict[tuple[QuotaEntity, str], Quota] = {}
        self.calls = 0
        self.rounds = 0

    def put_into_force(self, entity: QuotaEntity, key: str, quota: Quota | None) -> None:
        self.calls += 1
        if quota is None:
            del self.known[entity, key]  # a quota that was never set is never removed
        else:
            assert self.known.get((entity, key)) != quota
            self.known[entity, key] = quota

    def changed(self) -> None:
        self.rounds += 1


def defined(policy: QuotaPolicy = KAFKA_POLICY) -> tuple[Callbacks, QuotaDefinitions]:
    callbacks = Callbacks()
    return callbacks, QuotaDefinitions(callbacks.put_into_force, callbacks.changed, policy)


def run(steps: Iterator[None]) -> int:
    """Make all steps; return the number of pauses."""
    return sum(1 for _ in steps)


def change(entity: QuotaEntity, key: str, new: float | None, sequence: int = 1) -> Change:
    author = Author(principal="alice", address="127.0.0.1")
    return Change(sequence=sequence, time_ms=0, author=author, entity=entity, key=key, old=None, new=new)


def test_a_stored_quota_precedes_the_files_and_has_its_policy() -> None:
    callbacks, definitions = defined()
    run(definitions.set_file({ALICE: {"producer_byte_rate": Quota(value=1.0, policy=PACED)}}, OBSERVED))
    run(definitions.apply([change(ALICE, "producer_byte_rate", 2.0), change(ALICE, "request_percentage", 3.0)]))
    assert callbacks.known == {
        (ALICE, "producer_byte_rate"): Quota(value=2.0, policy=PACED),
        (ALICE, "request_percentage"): Quota(value=3.0, policy=OBSERVED),
    }
    assert definitions.values(ALICE) == {"producer_byte_rate": 2.0, "request_percentage": 3.0}
    assert not definitions.only_in_file(ALICE, "producer_byte_rate")


def test_the_files_quota_is_in_force_again_when_the_stored_one_is_removed() -> None:
    callbacks, definitions = defined()
    run(definitions.set_file({ALICE: {"producer_byte_rate": Quota(value=1.0, policy=PACED)}}, KAFKA_POLICY))
    run(definitions.apply([change(ALICE, "producer_byte_rate", 2.0)]))
    run(definitions.apply([change(ALICE, "producer_byte_rate", None)]))
    assert callbacks.known == {(ALICE, "producer_byte_rate"): Quota(value=1.0, policy=PACED)}
    assert definitions.only_in_file(ALICE, "producer_byte_rate")


def test_what_changes_nothing_is_not_passed_on() -> None:
    callbacks, definitions = defined()
    file = {ALICE: {"producer_byte_rate": Quota(value=1.0)}}
    run(definitions.set_file(file, KAFKA_POLICY))
    run(definitions.apply([change(ALICE, "producer_byte_rate", 1.0), change(ANY_USER, "request_percentage", None)]))
    run(definitions.set_file(dict(file), KAFKA_POLICY))
    assert (callbacks.calls, callbacks.rounds) == (1, 1)


def test_a_new_default_policy_applies_to_stored_quotas() -> None:
    callbacks, definitions = defined()
    run(definitions.apply([change(ALICE, "producer_byte_rate", 1.0)]))
    run(definitions.set_file({}, PACED))
    assert callbacks.known == {(ALICE, "producer_byte_rate"): Quota(value=1.0, policy=PACED)}


def test_a_long_snapshot_is_put_into_force_in_slices() -> None:
    callbacks, definitions = defined()
    quotas = {QuotaEntity(user=f"user-{number}"): {"producer_byte_rate": 1.0} for number in range(3 * SLICE)}
    pauses = 0
    for _ in definitions.replace(Snapshot(sequence=1, quotas=quotas)):
        pauses += 1
        assert len(callbacks.known) == pauses * SLICE
        assert callbacks.rounds == 0
    assert (pauses, len(callbacks.known), callbacks.rounds) == (3, 3 * SLICE, 1)


_VALUES = st.sampled_from([1.0, 2.0, 3.5])
_FILES = st.dictionaries(
    st.sampled_from(ENTITIES),
    st.dictionaries(
        st.sampled_from(KEYS), st.builds(Quota, value=_VALUES, policy=st.sampled_from([KAFKA_POLICY, PACED]))
    ),
)
_STORED = st.dictionaries(st.sampled_from(ENTITIES), st.dictionaries(st.sampled_from(KEYS), _VALUES, min_size=1))
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("file"), _FILES, st.sampled_from([KAFKA_POLICY, OBSERVED])),
        st.tuples(st.just("replace"), _STORED),
        st.tuples(
            st.just("apply"),
            st.lists(st.tuples(st.sampled_from(ENTITIES), st.sampled_from(KEYS), st.none() | _VALUES), max_size=4),
        ),
    )
)


@given(_STEPS)
def test_callbacks_know_what_follows_from_file_and_store(steps: list[tuple[object, ...]]) -> None:
    callbacks, definitions = defined()
    file: Mapping[QuotaEntity, Mapping[str, Quota]] = {}
    policy = KAFKA_POLICY
    stored: dict[tuple[QuotaEntity, str], float] = {}
    for step in steps:
        match step:
            case ("file", dict() as new, QuotaPolicy() as default):
                file, policy = new, default
                run(definitions.set_file(file, policy))
            case ("replace", dict() as quotas):
                stored = {(entity, key): value for entity, values in quotas.items() for key, value in values.items()}
                run(definitions.replace(Snapshot(sequence=1, quotas=quotas)))
            case ("apply", list() as changes):
                for entity, key, value in changes:
                    stored.pop((entity, key), None)
                    if value is not None:
                        stored[entity, key] = value
                run(definitions.apply([change(*each) for each in changes]))
        expected = {(entity, key): quota for entity, quotas in file.items() for key, quota in quotas.items()}
        for place, value in stored.items():
            expected[place] = Quota(value=value, policy=expected[place].policy if place in expected else policy)
        assert callbacks.known == expected
        shown = {
            (entity, key): value
            for entity in definitions.entities()
            for key, value in definitions.values(entity).items()
        }
        assert shown == {place: quota.value for place, quota in expected.items()}
