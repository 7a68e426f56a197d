"""Output for people: the format of KIP-546, and names that try to be something else."""

from __future__ import annotations

import pytest
from hypothesis import given

from headrace.proxy.quota_tools.plans import make_plan
from headrace.proxy.quota_tools.resolution import Client, resolve
from headrace.proxy.quota_tools.text import (
    described_lines,
    entity_text,
    listed,
    name_text,
    number_text,
    plan_lines,
    plan_summary,
    quota_text,
    resolved_lines,
)
from headrace.quota_callbacks.entities import DEFAULT, EntityName, QuotaEntity
from tests.proxy.quota_tools.entities import CLIENT_ENTITIES, HOSTILE

DESCRIBED = """\
{user=user-one, client-id=my-client}
consumer_byte_rate=4000000
producer_byte_rate=1000000

{user=user-two, client-id=my-client}
producer_byte_rate=2000000

{user=<default>, client-id=my-client}
consumer_byte_rate=1000000
producer_byte_rate=500000"""
"""The example of KIP-546, whose quotas its example of resolving does not fit."""
QUOTAS = {
    QuotaEntity(user=DEFAULT, client_id="my-client"): {"producer_byte_rate": 5e5, "consumer_byte_rate": 1e6},
    QuotaEntity(user="user-two", client_id="my-client"): {"producer_byte_rate": 2e6},
    QuotaEntity(user="user-one", client_id="my-client"): {"producer_byte_rate": 1e6, "consumer_byte_rate": 4e6},
}


def test_a_description_is_that_of_the_kip() -> None:
    assert "\n".join(described_lines(QUOTAS)) == DESCRIBED


def test_a_resolution_is_that_of_the_kip() -> None:
    resolved = resolve(QUOTAS, Client(user="user-two", client_id="my-client"))
    assert list(resolved_lines(resolved, overridden=False)) == [
        "consumer_byte_rate=1000000 {user=<default>, client-id=my-client}",
        "producer_byte_rate=2000000 {user=user-two, client-id=my-client}",
    ]
    assert list(resolved_lines(resolved, overridden=True))[2:] == [
        "    overrides 500000 {user=<default>, client-id=my-client}"
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("alice", "alice"),
        (DEFAULT, "<default>"),
        ("<default>", '"<default>"'),
        ("CN=alice", "CN=alice"),
        ("CN=alice,OU=x", '"CN=alice,OU=x"'),
        ("two words", "two words"),
        (" a", '" a"'),
        ('say "hi"', r'"say \"hi\""'),
        ("DOMAIN\\alice", r'"DOMAIN\\alice"'),
        ("a\nb", r'"a\nb"'),
        ("\x1b[2J", r'"\x1b[2J"'),
        ("ü", "ü"),
        ("\u202e", r'"\u202e"'),
    ],
)
def test_names(name: EntityName, text: str) -> None:
    assert name_text(name) == text


@given(CLIENT_ENTITIES, CLIENT_ENTITIES)
def test_different_entities_have_different_texts(one: QuotaEntity, other: QuotaEntity) -> None:
    assert (entity_text(one) == entity_text(other)) == (one == other)
    assert entity_text(one).isprintable()


def test_hostile_names_keep_to_their_line() -> None:
    quotas = {QuotaEntity.of({"user": name, name: name}): {name: 1.0} for name in HOSTILE}
    lines = [*described_lines(quotas), *plan_lines(make_plan({}, quotas, prune=False))]
    assert len(lines) == 4 * len(HOSTILE) - 1
    assert all(map(str.isprintable, lines))


@pytest.mark.parametrize(
    ("value", "text"), [(1e6, "1000000"), (0.5, "0.5"), (2.0**63, "9223372036854775808"), (1e-7, "1e-07")]
)
def test_numbers(value: float, text: str) -> None:
    assert number_text(value) == text
    assert float(text) == value
    assert quota_text("k", value) == f"k={text}"


def test_values_that_are_no_numbers() -> None:
    assert [number_text(float(each)) for each in ("nan", "inf", "-inf")] == ["nan", "inf", "-inf"]


def test_a_plan() -> None:
    one, two = QuotaEntity(user="one"), QuotaEntity(user="two")
    current, wanted = {one: {"a": 1.0, "b": 2.0}, two: {"a": 3.0}}, {one: {"a": 1.0, "b": 2.5, "c": 4.0}}
    plan = make_plan(current, wanted, prune=True)
    assert list(plan_lines(plan)) == ["~ {user=one} b=2 -> 2.5", "+ {user=one} c=4", "- {user=two} a=3"]
    assert plan_summary(plan) == "1 to add, 1 to change, 1 to remove, 1 unchanged"
    assert plan_summary(make_plan(current, current, prune=True)) == "nothing to do, 3 unchanged"


def test_long_lists_are_cut() -> None:
    assert listed(["a", "b"], 2) == ["a", "b"]
    assert listed(["a", "b", "c"], 2) == ["a", "b", "... and 1 more"]
