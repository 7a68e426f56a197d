"""The names of topics by their ids, for plugins: Produce and Fetch name topics by id from v13 on (KIP-516).

The proxy learns them from the Metadata replies that pass. A plugin gets the table as ``PluginContext.topics``.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_TOPICS: Final = 100_000
"""Ids that are kept, about 20 MiB with names of ordinary length; beyond it, the ids learned first are dropped."""


class TopicNames:
    """Names by id. An id belongs to one topic for ever: a topic that is created again gets a new one."""

    __slots__ = ("_names", "followed")

    def __init__(self) -> None:
        self._names: OrderedDict[bytes, str] = OrderedDict()  # a dict finds its oldest key in linear time
        self.followed = False
        """Whether a plugin has asked for names. While it is false, Metadata replies are not read for them."""

    def follow(self) -> None:
        """Ask the proxy to learn names from now on. Call it in `configure`.

        It costs every Metadata reply that lists topics about two microseconds for each partition.
        """
        self.followed = True

    def name(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with the 16 bytes of ``topic_id``; ``None`` while no reply has named it.

        Most clients learn the ids that they use from Metadata replies, which pass this proxy. An id that it does not
        know yet comes from another proxy, or from the reply to a CreateTopics or DescribeTopicPartitions.
        """
        return self._names.get(topic_id)

    def learn(self, topics: Iterable[tuple[bytes, str]]) -> None:
        """Add ids and names. Called by the proxy."""
        names = self._names
        for topic_id, name in topics:
            if topic_id not in names:
                while len(names) >= MAX_TOPICS:
                    names.popitem(last=False)
                names[topic_id] = name

    def __len__(self) -> int:
        return len(self._names)
