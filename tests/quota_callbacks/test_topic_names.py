"""The table of topic names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.quota_callbacks import topic_names
from headrace.quota_callbacks.topic_names import TopicNames

if TYPE_CHECKING:
    import pytest


def topic_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_names_by_id() -> None:
    names = TopicNames()
    assert not names.followed
    names.follow()
    assert names.followed
    names.learn([(topic_id(1), "orders"), (topic_id(2), "payments")])
    assert (names.name(topic_id(1)), names.name(topic_id(2)), names.name(topic_id(3))) == ("orders", "payments", None)


def test_the_ids_learned_first_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_names, "MAX_TOPICS", 3)
    names = TopicNames()
    names.learn((topic_id(number), f"t{number}") for number in range(5))
    assert [names.name(topic_id(number)) for number in range(5)] == [None, None, "t2", "t3", "t4"]
    names.learn([(topic_id(4), "t4")])
    assert len(names) == 3
