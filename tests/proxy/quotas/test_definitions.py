"""The quotas in force: the file's, and above them the store's."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.quotas.definitions import MAX_FORMS, SLICE, QuotaDefinitions
from headrace.proxy.quotas.store import Author, Change, Snapshot
from headrace.quota_callbacks.definitions import entity_in_force
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity, bounded_name
from headrace.quota_callbacks.policies import KAFKA_POLICY, EnforcementMode, Quota, QuotaPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from random import Random

PACED = QuotaPolicy(mode=EnforcementMode.PACED)
OBSERVED = QuotaPolicy(observe=True)
ALICE, ANY_USER = QuotaEntity(user="alice"), QuotaEntity(user=DEFAULT)
ENTITIES = (ALICE, ANY_USER, QuotaEntity(client_id="app"), QuotaEntity(user="<default>"))
KEYS = ("producer_byte_rate", "request_percentage")
RATE = "connection_creation_rate"


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


def test_many_changes_are_applied_in_slices() -> None:
    callbacks, definitions = defined()
    changes = [change(QuotaEntity(user=f"user-{number}"), "producer_byte_rate", 1.0) for number in range(2 * SLICE)]
    for pauses, _ in enumerate(definitions.apply(changes), start=1):
        assert (len(callbacks.known), callbacks.rounds) == (pauses * SLICE, 0)
    assert (len(callbacks.known), callbacks.rounds) == (2 * SLICE, 1)


def test_a_new_default_policy_is_put_into_force_in_slices() -> None:
    callbacks, definitions = defined()
    run(definitions.apply(change(QuotaEntity(user=str(each)), "producer_byte_rate", 1.0) for each in range(3 * SLICE)))
    paced = []
    for _ in definitions.set_file({}, PACED):
        paced.append(sum(quota.policy == PACED for quota in callbacks.known.values()))
        assert callbacks.known == in_force(definitions, callbacks)
    assert len(paced) >= 3
    assert all(after - before <= SLICE for before, after in pairwise([0, *paced]))
    assert {quota.policy for quota in callbacks.known.values()} == {PACED}


def test_changes_that_were_abandoned_are_announced() -> None:
    callbacks, definitions = defined()
    changes = [change(QuotaEntity(user=f"user-{number}"), "producer_byte_rate", 1.0) for number in range(2 * SLICE)]
    steps = definitions.apply(changes)
    next(steps)
    del steps
    assert (len(callbacks.known), callbacks.rounds) == (SLICE, 1)
    run(definitions.apply(changes))
    assert (len(callbacks.known), callbacks.rounds) == (2 * SLICE, 2)


def test_a_long_name_of_file_and_store_is_one_quota() -> None:
    callbacks, definitions = defined()
    long, short = QuotaEntity(user="x" * 300), QuotaEntity(user=bounded_name("x" * 300))
    run(definitions.set_file({long: {"producer_byte_rate": Quota(value=1.0, policy=PACED)}}, KAFKA_POLICY))
    run(definitions.apply([change(long, "producer_byte_rate", 2.0)]))
    assert callbacks.known == {(short, "producer_byte_rate"): Quota(value=2.0, policy=PACED)}
    assert described(definitions) == {long: {"producer_byte_rate": 2.0}}
    run(definitions.apply([change(long, "producer_byte_rate", None)]))
    assert callbacks.known == {(short, "producer_byte_rate"): Quota(value=1.0, policy=PACED)}
    assert definitions.only_in_file(long, "producer_byte_rate")


def test_a_quota_of_the_store_replaces_the_files_for_another_form_of_the_address() -> None:
    callbacks, definitions = defined()
    usual, other = QuotaEntity(ip="2001:db8::1"), QuotaEntity(ip="2001:DB8:0::1")
    run(definitions.set_file({usual: {RATE: Quota(value=5.0)}}, KAFKA_POLICY))
    run(definitions.apply([change(other, RATE, 9.0)]))
    assert callbacks.known == {(usual, RATE): Quota(value=9.0)}
    assert described(definitions) == {other: {RATE: 9.0}}
    assert definitions.only_in_file(usual, RATE)
    assert not definitions.only_in_file(other, RATE)
    run(definitions.apply([change(other, RATE, None)]))
    assert callbacks.known == {(usual, RATE): Quota(value=5.0)}
    assert described(definitions) == {usual: {RATE: 5.0}}


@pytest.mark.parametrize("values", [(3.0, 7.0), (7.0, 3.0)])
def test_of_two_forms_of_a_name_the_lowest_is_in_force_and_each_can_be_removed(values: tuple[float, float]) -> None:
    callbacks, definitions = defined()
    forms = (QuotaEntity(ip="::ffff:192.0.2.1"), QuotaEntity(ip="192.0.2.1"))
    run(definitions.apply(change(form, RATE, value) for form, value in zip(forms, values, strict=True)))
    assert callbacks.known == {(forms[1], RATE): Quota(value=3.0)}
    assert described(definitions) == {form: {RATE: value} for form, value in zip(forms, values, strict=True)}
    run(definitions.apply([change(forms[0], RATE, None)]))
    assert callbacks.known == {(forms[1], RATE): Quota(value=values[1])}
    run(definitions.apply([change(forms[1], RATE, None)]))
    assert callbacks.known == {}


@pytest.mark.exhaustive
def test_many_forms_of_an_address_cost_no_more_than_few_and_can_all_be_removed() -> None:
    callbacks, definitions = defined()
    usual = QuotaEntity(ip="abcd:abcd:abcd:abcd:abcd:abcd:abcd:abcd")
    letters = [number for number, letter in enumerate(str(usual.ip)) if letter.isalpha()]

    def form(number: int) -> QuotaEntity:
        name = list(str(usual.ip))
        for bit, place in enumerate(letters):
            name[place] = name[place].upper() if number >> bit & 1 else name[place]
        return QuotaEntity(ip="".join(name))

    forms = [form(number) for number in range(1, 4000)]
    run(definitions.apply(change(each, RATE, 2.0) for each in forms))
    assert len(definitions) == len(forms)
    run(definitions.apply([change(forms[MAX_FORMS - 1], RATE, 1.0)]))
    assert callbacks.known == {(usual, RATE): Quota(value=1.0)}
    compared = 0

    class Compared(dict[QuotaEntity, None]):
        def __iter__(self) -> Iterator[QuotaEntity]:
            nonlocal compared
            for each in super().__iter__():
                compared += 1
                yield each

    forms_of = definitions._forms
    forms_of[usual] = Compared(forms_of[usual])
    run(definitions.apply(change(each, RATE, 3.0) for each in forms))
    assert compared <= 3 * MAX_FORMS * len(forms)
    run(definitions.apply(change(each, RATE, None) for each in forms))
    assert callbacks.known == {}


def test_no_entity_is_seen_half_changed() -> None:
    _, definitions = defined()
    entities = [QuotaEntity(user=f"user-{number}") for number in range(2 * SLICE)]
    for value in (1.0, 2.0):
        odd = change(ALICE, KEYS[0], value)
        changes = [odd, *(change(entity, key, value) for entity in entities for key in KEYS)]
        for _ in definitions.apply(changes):
            assert all(len({*definitions.values(entity).values()}) <= 1 for entity in entities)
    for _ in definitions.replace(Snapshot(sequence=1, quotas={each: dict.fromkeys(KEYS, 3.0) for each in entities})):
        assert all(len({*definitions.values(entity).values()}) <= 1 for entity in entities)


def described(definitions: QuotaDefinitions) -> dict[QuotaEntity, Mapping[str, float]]:
    found = {entity: definitions.values(entity) for entity in definitions.entities()}
    return {entity: values for entity, values in found.items() if values}


def in_force(definitions: QuotaDefinitions, callbacks: Callbacks) -> dict[tuple[QuotaEntity, str], Quota | None]:
    """Return the quotas that follow from the definitions, for all entities that either side knows."""
    entities = {entity_in_force(entity) for entity in definitions.entities()} | {
        entity for entity, _ in callbacks.known
    }
    return {(each, key): quota for each in entities for key, quota in definitions.in_force(each).items()}


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


_LONG = QuotaEntity(user="x" * 300)
_FORMS = (ALICE, _LONG, entity_in_force(_LONG), QuotaEntity(ip="::1"), QuotaEntity(ip="0::1"), QuotaEntity(ip="0:0::1"))
_FORM, _KEY = st.sampled_from(_FORMS), st.sampled_from(KEYS)
_POLICY = st.sampled_from([KAFKA_POLICY, PACED, OBSERVED])
_OF_FILE = st.dictionaries(_FORM, st.dictionaries(_KEY, st.builds(Quota, value=_VALUES, policy=_POLICY), min_size=1))
_CHANGES = st.lists(st.builds(change, _FORM, _KEY, st.none() | _VALUES), max_size=6)


@given(st.lists(st.tuples(_OF_FILE, _POLICY)), st.lists(_CHANGES), st.randoms(use_true_random=False))
def test_at_every_pause_callbacks_know_what_follows_also_from_changes_in_turns(
    files: list[tuple[dict[QuotaEntity, dict[str, Quota]], QuotaPolicy]], stored: list[list[Change]], random: Random
) -> None:
    callbacks, definitions = defined()
    of_file = (step for file, policy in files for step in some_of(definitions.set_file(file, policy), random))
    of_store = (step for changes in stored for step in definitions.apply(changes))
    under_way = [of_file, of_store]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.proxy.quotas.definitions.SLICE", 1)
        while under_way:
            steps = random.choice(under_way)
            if next(steps, under_way) is under_way:
                under_way.remove(steps)
            assert callbacks.known == in_force(definitions, callbacks)
        file, policy = files[-1] if files else ({}, KAFKA_POLICY)
        run(definitions.set_file(file, policy))
    fresh_callbacks, fresh = defined(policy)
    run(fresh.set_file(file, policy))
    run(fresh.apply(each for changes in stored for each in changes))
    assert callbacks.known == fresh_callbacks.known
    assert described(definitions) == described(fresh)


def some_of(steps: Iterator[None], random: Random) -> Iterator[None]:
    """Make some of the steps, as when a reload follows another one."""
    for step in steps:
        yield step
        if random.random() < 0.2:
            return
