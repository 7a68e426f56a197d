"""Topics whose creation was requested recently. One table for all connections, used by the lookups of mutations."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.proxy.wire.mutations import TopicKey
    from headrace.quota_callbacks.requests import TopicMutation

Key = TypeVar("Key")
Value = TypeVar("Value")

CREATION_TAKES_S: Final = 10.0
"""How long the partitions of a requested topic are remembered while Metadata does not show it yet."""

NO_CREATION_S: Final = 600.0
"""How long an auto-created topic is not charged again, even if it does not appear: the cluster may not auto-create
topics (``auto.create.topics.enable=false``), or not this one."""

LONGEST_TOPIC_NAME: Final = 249
"""``org.apache.kafka.common.internals.Topic.MAX_NAME_LENGTH``. Brokers create no topic with a longer name."""

MAX_REMEMBERED: Final = 10_000
"""Topics that are remembered. When there are more, the first are forgotten and may be charged again."""


class CreatedTopics:
    """Topics whose creation was requested recently and that a broker may not know yet.

    Auto-created topics are not charged a second time. The number of partitions of all these topics is kept, so that
    changing or deleting them immediately afterwards is charged.
    """

    __slots__ = ("_asked_for", "_since_s")

    def __init__(self) -> None:
        self._since_s: dict[TopicKey, float] = {}
        self._asked_for: dict[str, tuple[float, int]] = {}

    def new(self, names: Iterable[str], unknown: Iterable[str], now_s: float) -> list[str]:
        """Return the topics to charge, given the ``names`` in a Metadata request and those ``unknown`` to the broker.

        Topics that the broker knows are forgotten.
        """
        self.forget(set(names).difference(unknown))
        return [name for name in unknown if now_s - self._since_s.get(name, float("-inf")) >= NO_CREATION_S]

    def add(self, names: Iterable[str], now_s: float) -> None:
        """Note that the auto-creation of these topics is charged now."""
        _remember(self._since_s, [(name, now_s) for name in names if len(name) <= LONGEST_TOPIC_NAME])

    def forget(self, topics: Iterable[TopicKey]) -> None:
        """Forget topics that exist or that the broker has deleted, so that creating them again is charged."""
        for topic in topics:
            self._since_s.pop(topic, None)

    def ask_for(self, mutations: Iterable[TopicMutation], now_s: float) -> None:
        """Note the partitions of topics that a request, which was forwarded, creates. Whether they are created need not
        be known: the charge for changing a topic is returned if the broker reports that it does not exist.

        A number that was noted before stays until it is too old or `refused` withdraws it: otherwise a request that the
        broker refuses, since the topic exists, would raise the cost of another client's deletion.
        """
        asked_for = [
            (str(each.topic), (now_s, each.partitions or each.at_most))
            for each in mutations
            if len(each.topic) <= LONGEST_TOPIC_NAME and not self.partitions(each.topic, now_s)
        ]
        _remember(self._asked_for, asked_for)

    def refused(self, topics: Iterable[TopicKey], since_s: float) -> None:
        """Discard the numbers of partitions of topics that the broker has refused to create, if they were noted from
        ``since_s`` on, when the request arrived. An earlier number is that of a topic which exists."""
        for topic in topics:
            if self._asked_for.get(str(topic), (float("-inf"), 0))[0] >= since_s:
                del self._asked_for[str(topic)]

    def partitions(self, topic: TopicKey, now_s: float) -> int:
        """Return the partitions with which a topic was requested within `CREATION_TAKES_S`; 0 if it was not."""
        since_s, partitions = self._asked_for.get(str(topic), (float("-inf"), 0))
        return partitions if now_s - since_s < CREATION_TAKES_S else 0


def _remember(table: dict[Key, Value], entries: Iterable[tuple[Key, Value]]) -> None:
    """Add ``entries`` at the end of the table, and remove its first ones if there are more than `MAX_REMEMBERED`."""
    for key, value in entries:
        table.pop(key, None)
        table[key] = value
    for key in [*islice(table, max(0, len(table) - MAX_REMEMBERED))]:
        del table[key]
