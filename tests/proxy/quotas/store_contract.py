"""What every store of quotas must do: the tests of `headrace.proxy.quotas.store.QuotaStore`.

A module that tests an implementation has a fixture ``new_place`` and a subclass of `StoreContract` whose name begins
with ``Test``. The fixture is a function that returns a `Place`: a new, empty place for quotas, such as a file or a
topic. Each call of a `Place` returns another object on it, which is not open yet.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import asynccontextmanager
from time import time_ns
from typing import TYPE_CHECKING, TypeAlias

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.quotas.store import (
    MAX_AUDIT_CHARACTERS,
    Alteration,
    Author,
    Change,
    ImportState,
    QuotaStore,
    StoreError,
)
from headrace.quota_callbacks.entities import DEFAULT, LONG_MAX, EntityName, QuotaEntity

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

Place: TypeAlias = Callable[[], QuotaStore]
Quotas: TypeAlias = dict[QuotaEntity, dict[str, float]]

ALICE = QuotaEntity(user="alice")
AUTHOR = Author(principal="admin", address="192.0.2.1")
KEYS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")

names: st.SearchStrategy[EntityName] = st.sampled_from([DEFAULT, "<default>", "a"]) | st.text(min_size=1)
entities = (
    st.builds(QuotaEntity, user=names)
    | st.builds(QuotaEntity, user=names, client_id=names)
    | st.builds(QuotaEntity, ip=names)
    | st.builds(QuotaEntity, user=st.none() | names, other=st.tuples(st.tuples(st.just("team"), names)))
)
values = st.floats(allow_nan=False) | st.sampled_from([1.0, 2.0, float(LONG_MAX)])
alterations = st.builds(
    Alteration,
    entity=st.sampled_from([ALICE, QuotaEntity(user=DEFAULT), QuotaEntity(user="<default>")]) | entities,
    values=st.dictionaries(st.sampled_from(KEYS), st.none() | values),
)
steps = st.lists(st.sampled_from(["reopen", "follow"]) | st.lists(alterations, max_size=5), max_size=12)


def alteration(entity: QuotaEntity, **values: float | None) -> Alteration:
    return Alteration(entity=entity, values=values)


def replay(quotas: Quotas, changes: Iterable[Change]) -> Quotas:
    """Apply changes to ``quotas`` in place, and return them. Each must begin with the value that is there."""
    for change in changes:
        of_entity = quotas.setdefault(change.entity, {})
        assert of_entity.get(change.key) == change.old
        assert change.new != change.old
        if change.new is None:
            del of_entity[change.key]
        else:
            of_entity[change.key] = change.new
        if not of_entity:
            del quotas[change.entity]
    return quotas


def altered(quotas: Quotas, alterations: Iterable[Alteration]) -> Quotas:
    """Apply alterations to ``quotas`` in place, and return them."""
    for each in alterations:
        of_entity = quotas.setdefault(each.entity, {})
        for key, value in each.values.items():
            of_entity.pop(key, None)
            if value is not None:
                of_entity[key] = value
        if not of_entity:
            del quotas[each.entity]
    return quotas


def copy(quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> Quotas:
    return {entity: dict(values) for entity, values in quotas.items()}


async def since(store: QuotaStore, sequence: int) -> list[Change]:
    """Return the changes after a position, which must be kept."""
    changes = await store.changes_since(sequence)
    assert changes is not None
    return list(changes)


@asynccontextmanager
async def opened(place: Place) -> AsyncIterator[QuotaStore]:
    """Open a new object on a place, and close it at the end."""
    store = place()
    with trio.fail_after(60):
        await store.open()
    try:
        yield store
    finally:
        with trio.CancelScope(shield=True), trio.fail_after(60):
            await store.close()


class StoreContract:
    """The tests. Quotas are compared with dictionaries that go through the same alterations."""

    async def test_a_new_place_is_empty(self, new_place: Callable[[], Place]) -> None:
        store = new_place()()
        snapshot = await store.open()
        assert (snapshot.quotas, await store.snapshot()) == ({}, snapshot)
        assert await since(store, snapshot.sequence) == []
        assert list(await store.audit(limit=10)) == []
        await store.close()

    async def test_an_alteration_returns_what_has_changed(self, new_place: Callable[[], Place]) -> None:
        async with opened(new_place()) as store:
            begin_ms = time_ns() // 1_000_000
            await store.alter([alteration(ALICE, request_percentage=1.5)], AUTHOR)
            wanted = alteration(ALICE, request_percentage=None, producer_byte_rate=2.0, consumer_byte_rate=None)
            changes = await store.alter([wanted], AUTHOR)
            end_ms = time_ns() // 1_000_000
            assert [(each.key, each.old, each.new) for each in changes] == [
                ("request_percentage", 1.5, None),
                ("producer_byte_rate", None, 2.0),
            ]
            assert {(each.entity, each.author) for each in changes} == {(ALICE, AUTHOR)}
            assert all(begin_ms <= each.time_ms <= end_ms for each in changes)
            assert changes[0].sequence < changes[1].sequence
            snapshot = await store.snapshot()
            assert (snapshot.quotas, snapshot.sequence) == ({ALICE: {"producer_byte_rate": 2.0}}, changes[1].sequence)

    async def test_what_is_set_already_is_no_change(self, new_place: Callable[[], Place]) -> None:
        async with opened(new_place()) as store:
            await store.alter([alteration(ALICE, producer_byte_rate=1.0)], AUTHOR)
            before = await store.snapshot()
            again = alteration(ALICE, producer_byte_rate=1.0, consumer_byte_rate=None)
            absent = alteration(QuotaEntity(user="bob"), producer_byte_rate=None)
            assert list(await store.alter([again, absent], AUTHOR)) == []
            assert list(await store.alter([], AUTHOR)) == []
            assert await store.snapshot() == before

    async def test_alterations_of_one_entity_are_applied_in_their_order(self, new_place: Callable[[], Place]) -> None:
        async with opened(new_place()) as store:
            three = [alteration(ALICE, producer_byte_rate=value) for value in (1.0, None, 3.0)]
            changes = await store.alter(three, AUTHOR)
            assert [(each.old, each.new) for each in changes] == [(None, 1.0), (1.0, None), (None, 3.0)]
            assert (await store.snapshot()).quotas == {ALICE: {"producer_byte_rate": 3.0}}

    async def test_an_entity_without_quotas_is_not_kept(self, new_place: Callable[[], Place]) -> None:
        async with opened(new_place()) as store:
            await store.alter([alteration(ALICE, producer_byte_rate=1.0)], AUTHOR)
            await store.alter([alteration(ALICE, producer_byte_rate=None)], AUTHOR)
            assert (await store.snapshot()).quotas == {}

    async def test_names_are_opaque(self, new_place: Callable[[], Place]) -> None:
        """A user who is called ``<default>`` is not the default, and names differ if any character does."""
        odd = [
            "<default>",
            DEFAULT,
            "null",
            "%2A",
            "*",
            " a",
            "a ",
            "A",
            "a",
            "a\x00b",
            "\u00e9",
            "e\u0301",
            '"\\',
            "\ud800",
        ]
        wanted: Quotas = {}
        for name in odd:
            for entity in (
                QuotaEntity(user=name),
                QuotaEntity(client_id=name),
                QuotaEntity(user=name, client_id=DEFAULT),
                QuotaEntity(ip=name),
                QuotaEntity(user="a", other=(("team", name),)),
            ):
                wanted[entity] = {"producer_byte_rate": float(len(wanted) + 1)}
        place = new_place()
        async with opened(place) as store:
            alters = [Alteration(entity=entity, values=values) for entity, values in wanted.items()]
            changes = await store.alter(alters, AUTHOR)
            assert [each.entity for each in changes] == list(wanted)
            assert (await store.snapshot()).quotas == wanted
        async with opened(place) as store:
            assert (await store.snapshot()).quotas == wanted
            assert [each.entity for each in await store.audit(limit=len(wanted))][::-1] == list(wanted)

    async def test_numbers_come_back_exactly(self, new_place: Callable[[], Place], rng: random.Random) -> None:
        numbers: list[float] = [
            1,
            2**53 + 1,
            LONG_MAX,
            0.1,
            1e-6,
            sys.float_info.max,
            sys.float_info.min,
            5e-324,
            1 / 3,
        ]
        numbers += [rng.random() * 10 ** rng.randint(-300, 300) for _ in range(50)]
        wanted = {f"key_{at}": float(number) for at, number in enumerate(numbers)}
        place = new_place()
        async with opened(place) as store:
            given = {f"key_{at}": number for at, number in enumerate(numbers)}
            changes = await store.alter([Alteration(entity=ALICE, values=given)], AUTHOR)
            assert {each.key: each.new for each in changes} == wanted
        async with opened(place) as store:
            found = (await store.snapshot()).quotas[ALICE]
            assert found == wanted
            assert all(type(number) is float for number in found.values())
            assert {each.key: each.new for each in await store.audit(limit=len(wanted))} == wanted
            assert list(await store.alter([Alteration(entity=ALICE, values=given)], AUTHOR)) == []

    async def test_a_value_that_is_no_number_is_refused(self, new_place: Callable[[], Place]) -> None:
        async with opened(new_place()) as store:
            for value in (float("nan"), 10**400):
                both = [alteration(ALICE, request_percentage=1.0), alteration(ALICE, producer_byte_rate=value)]
                with pytest.raises(ValueError, match=r"number|too large"):
                    await store.alter(both, AUTHOR)
            assert (await store.snapshot()).quotas == {}

    async def test_what_one_object_changes_the_others_learn(self, new_place: Callable[[], Place]) -> None:
        place = new_place()
        async with opened(place) as writer, opened(place) as follower:
            begin = (await follower.snapshot()).sequence
            first = await writer.alter([alteration(ALICE, producer_byte_rate=1.0, consumer_byte_rate=2.0)], AUTHOR)
            assert await since(follower, begin) == list(first)
            assert await since(follower, first[-1].sequence) == []
            second = await writer.alter([alteration(ALICE, producer_byte_rate=None)], AUTHOR)
            assert await since(follower, first[-1].sequence) == list(second)
            assert await since(follower, first[0].sequence) == [first[1], *second]
            assert await since(writer, begin) == [*first, *second]
            assert await follower.snapshot() == await writer.snapshot()

    async def test_a_position_that_the_store_never_had_is_not_kept(self, new_place: Callable[[], Place]) -> None:
        """As after a backup was restored: the follower has to take a snapshot."""
        async with opened(new_place()) as store:
            changes = await store.alter([alteration(ALICE, producer_byte_rate=1.0)], AUTHOR)
            assert await store.changes_since(changes[-1].sequence + 1) is None

    async def test_concurrent_writers_lose_no_change(self, new_place: Callable[[], Place]) -> None:
        place = new_place()
        returned: list[Change] = []

        async def write(store: QuotaStore, entity: QuotaEntity, shared_value: float) -> None:
            for turn in range(1, 6):
                both = [alteration(entity, request_percentage=turn), alteration(ALICE, request_percentage=shared_value)]
                returned.extend(await store.alter(both, AUTHOR))

        async with opened(place) as one, opened(place) as two:
            begin = await one.snapshot()
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    for number in range(8):
                        store = (one, two)[number % 2]
                        nursery.start_soon(write, store, QuotaEntity(user=f"u{number}"), number + 1.0)
            end = await two.snapshot()
            changes = await since(two, begin.sequence)
            assert changes == sorted(returned, key=lambda each: each.sequence)
            assert replay({}, changes) == end.quotas == (await one.snapshot()).quotas
            assert all(end.quotas[QuotaEntity(user=f"u{number}")] == {"request_percentage": 5} for number in range(8))

    async def test_the_audit_begins_with_the_latest(self, new_place: Callable[[], Place]) -> None:
        async with opened(new_place()) as store:
            made: list[Change] = []
            for value in range(1, 8):
                author = Author(principal=f"admin {value}", address="headrace quotas \u00e9 \ud800")
                made = [*await store.alter([alteration(ALICE, request_percentage=value)], author), *made]
            assert [each.new for each in made] == [7, 6, 5, 4, 3, 2, 1]
            assert list(await store.audit(limit=3)) == made[:3]
            assert list(await store.audit(limit=3, before=made[2].sequence)) == made[3:6]
            assert list(await store.audit(limit=100)) == made
            assert list(await store.audit(limit=0)) == []
            assert list(await store.audit(limit=5, before=made[-1].sequence)) == []
            assert [each.author.principal for each in made] == [f"admin {value}" for value in range(7, 0, -1)]

    async def test_an_audit_of_long_names_has_a_bound(self, new_place: Callable[[], Place]) -> None:
        """The changes that are returned at once are bounded by the length of their names, and all can be asked for."""
        entities = [QuotaEntity(user=f"{number}{'x' * 30_000}") for number in range(20)]
        async with opened(new_place()) as store:
            await store.alter([alteration(each, request_percentage=1.0) for each in entities], AUTHOR)
            found: list[QuotaEntity] = []
            before = None
            while changes := await store.audit(limit=100, before=before):
                assert sum(each.characters() for each in changes) <= MAX_AUDIT_CHARACTERS
                found += [each.entity for each in changes]
                before = changes[-1].sequence
            assert found == entities[::-1]

    async def test_an_import_is_begun_and_over_for_all(self, new_place: Callable[[], Place]) -> None:
        """What the store has of its quotas is the same before and after, and the state survives a restart."""
        place = new_place()
        async with opened(place) as one, opened(place) as two:
            assert (await one.import_state(), await two.import_state()) == (ImportState.POSSIBLE,) * 2
            for state in (ImportState.BEGUN, ImportState.OVER):
                position = (await two.snapshot()).sequence
                await one.set_import_state(state)
                assert (await one.import_state(), await two.import_state()) == (state, state)
                assert await since(two, position) == []
                changes = await two.alter([alteration(ALICE, **{state.value: 1.0})], AUTHOR)
                assert (await one.import_state(), await since(one, position)) == (state, list(changes))
                async with opened(place) as late:
                    assert await late.import_state() is state

    async def test_an_import_is_over_once_a_quota_was_set(self, new_place: Callable[[], Place]) -> None:
        place = new_place()
        async with opened(place) as store:
            for value in (1.0, None):
                await store.alter([alteration(ALICE, producer_byte_rate=value)], AUTHOR)
                assert await store.import_state() is ImportState.OVER
        async with opened(place) as store:
            assert await store.import_state() is ImportState.OVER

    async def test_a_closed_store_refuses(self, new_place: Callable[[], Place]) -> None:
        store = new_place()()
        await store.open()
        await store.close()
        await store.close()
        calls: Sequence[Callable[[], object]] = (
            store.snapshot,
            lambda: store.changes_since(0),
            lambda: store.audit(limit=1),
            store.import_state,
            lambda: store.set_import_state(ImportState.OVER),
            lambda: store.alter([alteration(ALICE, request_percentage=1.0)], AUTHOR),
        )
        for call in calls:
            with pytest.raises(StoreError, match="closed"):
                await call()  # type: ignore[misc]

    async def test_every_method_reaches_a_checkpoint(self, new_place: Callable[[], Place]) -> None:
        store = new_place()()
        with trio.testing.assert_checkpoints():
            snapshot = await store.open()
        with trio.testing.assert_checkpoints():
            await store.alter([], AUTHOR)
        with trio.testing.assert_checkpoints():
            await store.changes_since(snapshot.sequence)
        with trio.testing.assert_checkpoints():
            await store.audit(limit=1)
        with trio.testing.assert_checkpoints():
            await store.set_import_state(ImportState.OVER)
        with trio.testing.assert_checkpoints():
            await store.import_state()
        with trio.testing.assert_checkpoints():
            await store.close()
        with trio.testing.assert_checkpoints():
            await store.close()

    def test_it_behaves_as_a_dictionary(self, new_place: Callable[[], Place]) -> None:
        """Random alterations, opening again, and a follower that replays the changes from time to time."""

        @given(steps=steps)
        def check(steps: Sequence[str | Sequence[Alteration]]) -> None:
            trio.run(compare_with_a_dictionary, new_place(), steps)

        check()


async def compare_with_a_dictionary(place: Place, steps: Sequence[str | Sequence[Alteration]]) -> None:
    async with opened(place) as follower:
        store = place()
        await store.open()
        model: Quotas = {}
        known = await follower.snapshot()
        followed, position = copy(known.quotas), known.sequence
        for step in [*steps, "follow", "reopen"]:
            if step == "reopen":
                await store.close()
                store = place()
                assert (await store.open()).quotas == model
            elif step == "follow":
                changes = await since(follower, position)
                replay(followed, changes)
                position = changes[-1].sequence if changes else position
                assert followed == model
            else:
                assert not isinstance(step, str)
                before = copy(model)
                altered(model, step)
                assert replay(before, await store.alter(step, AUTHOR)) == model
        snapshot = await follower.snapshot()
        assert (snapshot.quotas, snapshot.sequence) == (model, position)
        await store.close()
