"""The types of requirements: what a client needs permission for, and what is answered if it has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from headrace.proxy.wire.mutations import NO_ID
from headrace.quota_callbacks.authorization import CLUSTER_NAME, Action, Operation, ResourceType
from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.wire.messages.codec import Message

RowKey: TypeAlias = "str | bytes | tuple[int | str, str | bytes]"
"""The resource in a row of a request: a name, the 16 bytes of a topic id, the type and name of a resource whose
configuration is read or changed, or a group and one of its topics."""


class Requirement(NamedTuple):
    """Something that a client needs permission for."""

    any_of: tuple[Action, ...]
    """The actions of which one suffices. Without any it is denied."""
    error_code: int
    """Kafka's error if it is denied."""
    row: RowKey | None = None
    """The row of the request that is answered with the error; ``None`` is the request as a whole."""


def cluster(operation: Operation) -> Action:
    """Return the action on the cluster."""
    return Action(operation, ResourceType.CLUSTER, CLUSTER_NAME)


class TopicsById:
    """The resolution of the topics of one request that are named by their ids."""

    __slots__ = ("name_of", "unknown")

    def __init__(self, name_of: Callable[[bytes], str | None]) -> None:
        self.name_of = name_of
        """Returns the name of the topic with an id; ``None`` if it is not known."""
        self.unknown: list[bytes] = []
        """The ids of the request whose names are not known."""

    def topic(self, row: Message, operation: Operation, name_field: str = "name") -> Requirement:
        """Return the requirement of a row that names a topic, by name if it has one, and otherwise by id."""
        name: str | None = row.get(name_field)
        key: RowKey | None = name
        if name is None:
            topic_id: bytes = row.get("topic_id", NO_ID)
            key, name = topic_id, self.name_of(topic_id)
            if name is None:
                self.unknown.append(topic_id)
                return Requirement((), ErrorCode.UNKNOWN_TOPIC_ID, key)
        action = Action(operation, ResourceType.TOPIC, name)
        return Requirement((action,), ErrorCode.TOPIC_AUTHORIZATION_FAILED, key)
