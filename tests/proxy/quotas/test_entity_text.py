"""Entities as text come back as they were, and equal entities have equal texts."""

from __future__ import annotations

import pytest
from hypothesis import given

from headrace.proxy.quotas.entity_text import entity_text, parse_entity_text
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity
from tests.proxy.quotas.store_contract import entities


@given(entity=entities, other=entities)
def test_a_text_is_the_entity(entity: QuotaEntity, other: QuotaEntity) -> None:
    text = entity_text(entity)
    assert parse_entity_text(text) == entity
    assert text.isascii()
    assert (entity_text(other) == text) == (other == entity)


def test_the_texts_of_some_entities() -> None:
    """Files and topics contain them, so they must not change."""
    assert entity_text(QuotaEntity(user="alice", client_id=DEFAULT)) == '{"client-id":null,"user":"alice"}'
    assert entity_text(QuotaEntity(user="<default>")) == '{"user":"<default>"}'
    assert entity_text(QuotaEntity(ip="\u00e9")) == r'{"ip":"\u00e9"}'
    assert entity_text(QuotaEntity(user="u", other=(("team", "t"),))) == '{"team":"t","user":"u"}'


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{}", '{"user":1}', '{"user":""}', '{"user":["a"]}', '{"ip":"a","user":"b"}', "[" * 100_000],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_entity_text(text)
