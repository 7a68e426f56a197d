"""Which quota applies to a topic."""

from __future__ import annotations

import time

import pytest

from headrace.plugins.topic_quotas.topics import TopicQuotaTable, check_topic, names_of
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


@pytest.mark.parametrize("topic", ["orders", "orders.eu", "orders.eu.1", "orders.us", "o"])
def test_all_names_that_apply_are_in_the_order_of_precedence(topic: str) -> None:
    quotas = table("orders", "orders.*", "orders.eu*", "orders.eu", "o*", DEFAULT)
    found = quotas.find(topic)
    assert found is not None
    assert found[0] == next(name for name in names_of(topic) if quotas.remove(name))


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
    with pytest.raises(ValueError, match="is neither the name of a topic nor a prefix with"):
        check_topic(name)


def test_many_quotas_are_set_and_removed_in_linear_time() -> None:
    """A tenth of the quotas is for beginnings. Counting all lengths at each change took minutes."""
    table = TopicQuotaTable()
    names = [f"topic-{number}" + ("*" if number % 10 == 0 else "") for number in range(100_000)]
    began_s = time.thread_time()
    for name in names:
        table.update(name, Quota(value=1.0))
    assert table.find("topic-10-and-more") is not None
    for name in names:
        assert table.remove(name)
    assert time.thread_time() - began_s < 10
    assert table.find("topic-10-and-more") is None


def test_a_beginning_that_was_set_twice_is_removed_once() -> None:
    table = TopicQuotaTable()
    for _ in range(2):
        table.update("orders.*", Quota(value=1.0))
    assert table.remove("orders.*")
    assert not table.remove("orders.*")
    assert table.find("orders.eu") is None
