"""Which quota applies to a topic."""

from __future__ import annotations

import pytest

from headrace.plugins.topic_quotas.topics import TopicQuotaTable, check_topic
from headrace.quota_callbacks.entities import DEFAULT, EntityName
from headrace.quota_callbacks.policies import Quota


def table(*names: EntityName) -> TopicQuotaTable:
    found = TopicQuotaTable()
    for value, name in enumerate(names, 1):
        found.update(name, Quota(value=value))
    return found


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("orders", "orders"),
        ("orders.eu", "orders.eu"),
        ("orders.eu.1", "orders.eu*"),
        ("orders.us", "orders.*"),
        ("orders.", "orders.*"),
        ("order", DEFAULT),
        ("o", DEFAULT),
    ],
)
def test_precedence(topic: str, name: EntityName) -> None:
    found = table("orders", "orders.*", "orders.eu*", "orders.eu", DEFAULT).find(topic)
    assert found is not None
    assert found[0] == name


def test_without_a_default_other_topics_have_no_quota() -> None:
    quotas = table("orders.*")
    assert quotas.find("payments") is None
    assert quotas.remove("orders.*")
    assert not quotas.remove("orders.*")
    assert quotas.find("orders.eu") is None
    assert not quotas


@pytest.mark.parametrize("name", ["orders", "orders.*", "a*", "_x-1.Y", "x" * 249])
def test_valid_names(name: str) -> None:
    check_topic(name)


@pytest.mark.parametrize("name", ["*", "*.orders", "or*ers", "orders/eu", "orders**", "x" * 250, "o rders", "orders\n"])
def test_invalid_names(name: str) -> None:
    with pytest.raises(ValueError, match="is neither the name of a topic nor the beginning of names"):
        check_topic(name)
