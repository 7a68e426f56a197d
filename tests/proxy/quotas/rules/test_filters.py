"""Filters beyond what `test_against_kafka` compares: the numbers of Kafka's own test, types of plugins, and speed."""

from __future__ import annotations

import time
from typing import Final

import pytest

from headrace.proxy.quotas.rules.filters import compile_filter, described_parts
from headrace.proxy.quotas.rules.refusals import Refusal
from headrace.proxy.wire.client_quotas import FilterComponent, MatchType, QuotaFilter, filter_in_steps
from headrace.proxy.wire.messages.stepwise import finish
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA, EntityTypeDefinition
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity
from headrace.quota_callbacks.error_codes import ErrorCode
from tests.proxy.quotas.rules.quota_model import QuotaModel
from tests.proxy.quotas.rules.quota_requests import ANY, EXACT, Component, describe, matching_entities
from tests.proxy.quotas.rules.quota_requests import DEFAULT as DEFAULT_MATCH

ENTITIES: Final = 100_000
LONGEST_S: Final = 1.0
"""For `ENTITIES`: ten times what it takes on a machine with other work."""


@pytest.mark.parametrize(
    ("components", "open_count", "strict_count"),
    [
        ([("user", EXACT, "user-1")], 3, 1),
        ([("user", DEFAULT_MATCH, None)], 2, 1),
        ([("user", ANY, None)], 10, 4),
        ([("client-id", ANY, None)], 7, 1),
        ([("user", ANY, None), ("client-id", ANY, None)], 6, 6),
        ([("user", EXACT, "user-1"), ("client-id", DEFAULT_MATCH, None)], 1, 1),
        ([("user", EXACT, "user-1"), ("client-id", EXACT, "client-id-2")], 0, 0),
        ([("ip", ANY, None)], 2, 2),
        ([("ip", DEFAULT_MATCH, None)], 0, 0),
        ([], 13, 0),
    ],
)
def test_the_numbers_of_kafkas_test(components: list[Component], open_count: int, strict_count: int) -> None:
    model = QuotaModel()
    model.answer(*matching_entities())
    for strict, count in ((False, open_count), (True, strict_count)):
        _, version, body = describe(*components, strict=strict)
        matches = compile_filter(finish(filter_in_steps(version, body)), BUILTIN_SCHEMA)
        assert not isinstance(matches, Refusal)
        assert sum(map(matches, model.quotas)) == count


def component(entity_type: str, match_type: MatchType, match: str | None = None) -> FilterComponent:
    return FilterComponent(entity_type=entity_type, match_type=match_type, match=match)


def test_an_entity_type_of_a_plugin() -> None:
    schema = BUILTIN_SCHEMA.extended([EntityTypeDefinition(name="team", help="A team.")])
    alone, pair = QuotaEntity(other=(("team", "blue"),)), QuotaEntity(user="u", other=(("team", "blue"),))
    default, other = QuotaEntity(other=(("team", DEFAULT),)), QuotaEntity(user="u")
    entities = (alone, pair, default, other)

    def found(*components: FilterComponent, strict: bool = False) -> list[QuotaEntity]:
        matches = compile_filter(QuotaFilter(components=components, strict=strict), schema)
        assert not isinstance(matches, Refusal)
        return [entity for entity in entities if matches(entity)]

    blue = component("team", MatchType.EXACT, "blue")
    assert found(blue) == [alone, pair]
    assert found(blue, strict=True) == [alone]
    assert found(component("team", MatchType.DEFAULT)) == [default]
    assert found(component("team", MatchType.SPECIFIED)) == [alone, pair, default]
    assert found(blue, component("user", MatchType.SPECIFIED), strict=True) == [pair]
    assert found(component("user", MatchType.EXACT, "u"), strict=True) == [other]
    refusal = compile_filter(QuotaFilter(components=(blue,), strict=False), BUILTIN_SCHEMA)
    assert refusal == Refusal(error_code=ErrorCode.UNSUPPORTED_VERSION, error_message="Unsupported entity type team")


def test_a_user_called_default_is_found_by_its_name_alone() -> None:
    named, default = QuotaEntity(user="<default>"), QuotaEntity(user=DEFAULT)
    for wanted, entity in (
        (component("user", MatchType.EXACT, "<default>"), named),
        (component("user", MatchType.DEFAULT), default),
    ):
        matches = compile_filter(QuotaFilter(components=(wanted,), strict=True), BUILTIN_SCHEMA)
        assert not isinstance(matches, Refusal)
        assert [each for each in (named, default) if matches(each)] == [entity]
    assert described_parts(named) == (("user", "<default>"),)
    assert described_parts(default) == (("user", None),)


def test_a_hundred_thousand_entities() -> None:
    entities = [QuotaEntity(user=f"u{number}", client_id=f"c{number % 7}") for number in range(ENTITIES)]
    wanted = QuotaFilter(
        components=(component("client-id", MatchType.EXACT, "c3"), component("user", MatchType.SPECIFIED)), strict=True
    )
    matches = compile_filter(wanted, BUILTIN_SCHEMA)
    assert not isinstance(matches, Refusal)
    began_s = time.thread_time()
    assert sum(map(matches, entities)) == len(range(3, ENTITIES, 7))
    assert time.thread_time() - began_s < LONGEST_S
