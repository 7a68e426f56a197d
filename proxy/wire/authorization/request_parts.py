"""The parts of a request that need a permission: the rows of `headrace.proxy.wire.authorization.table`.

Each part names the fields of the request that it reads, by their paths, and yields the requirements that follow from
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.proxy.wire.authorization.requirement_types import Requirement, TopicsById, cluster
from headrace.quota_callbacks.authorization import WILDCARD, Action, Operation, ResourceType
from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.proxy.wire.messages.codec import Message


ALL_TOPICS: Final = Requirement(
    (Action(Operation.DESCRIBE, ResourceType.TOPIC, WILDCARD),), ErrorCode.TOPIC_AUTHORIZATION_FAILED
)
"""Permission to describe all topics."""

ERRORS: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
"""The error for a resource of each type."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A resource without which the whole request is denied. A field that is null names none."""

    operation: Operation
    resource_type: ResourceType
    field: str

    def read(self, request: Message, _by_id: TopicsById) -> Iterator[Requirement]:
        """Yield the requirement."""
        name = request.get(self.field)
        if name is not None:
            yield Requirement((Action(self.operation, self.resource_type, name),), ERRORS[self.resource_type])

    @property
    def wanted(self) -> frozenset[str]:
        """The paths of the fields of a request that `read` uses: `field`."""
        return frozenset({self.field})


@dataclass(frozen=True, slots=True)
class OnCluster:
    """Operations on the cluster, of which one suffices."""

    operations: tuple[Operation, ...]

    def read(self, _request: Message, _by_id: TopicsById) -> Iterator[Requirement]:
        """Yield the requirement."""
        yield Requirement(tuple(map(cluster, self.operations)), ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    @property
    def wanted(self) -> frozenset[str]:
        """The paths of the fields of a request that `read` uses: none."""
        return frozenset()


@dataclass(frozen=True, slots=True)
class Topics:
    """An array of topics, each of which is denied by itself."""

    operation: Operation
    array: str = "topics"
    field: str = "name"

    def read(self, request: Message, by_id: TopicsById) -> Iterator[Requirement]:
        """Yield a requirement for each topic."""
        for row in request.get(self.array) or ():
            yield by_id.topic(row, self.operation, self.field)

    @property
    def wanted(self) -> frozenset[str]:
        """The paths of the fields of a request that `read` uses: the name and the id of each topic."""
        return frozenset({f"{self.array}.{self.field}", f"{self.array}.topic_id"})


@dataclass(frozen=True, slots=True)
class AllTopics:
    """An array of topics or of their names; without permission for all of them the whole request is denied."""

    operation: Operation
    array: str
    field: str | None = None

    def read(self, request: Message, by_id: TopicsById) -> Iterator[Requirement]:
        """Yield a requirement for each topic."""
        for row in request.get(self.array) or ():
            named = {"name": row} if isinstance(row, str) else row
            yield by_id.topic(named, self.operation, self.field or "name")._replace(row=None)

    @property
    def wanted(self) -> frozenset[str]:
        """The paths of the fields of a request that `read` uses: the names, or the name and the id of each topic."""
        return frozenset(
            {self.array} if self.field is None else {f"{self.array}.{self.field}", f"{self.array}.topic_id"}
        )


@dataclass(frozen=True, slots=True)
class Expression:
    """A regular expression that the broker compares with the names of all topics.

    A broker leaves out those that the client may not describe (``TopicRegexResolver``). The proxy cannot leave out
    topics of what a broker assigns, so the request needs permission for all topics.
    """

    field: str

    def read(self, request: Message, _by_id: TopicsById) -> Iterator[Requirement]:
        """Yield the requirement. No expression, and an empty one, match nothing."""
        if request.get(self.field):
            yield ALL_TOPICS

    @property
    def wanted(self) -> frozenset[str]:
        """The paths of the fields of a request that `read` uses: `field`."""
        return frozenset({self.field})


@dataclass(frozen=True, slots=True)
class Names:
    """An array of names, each of which is denied by itself."""

    operation: Operation
    resource_type: ResourceType
    array: str

    def read(self, request: Message, _by_id: TopicsById) -> Iterator[Requirement]:
        """Yield a requirement for each name."""
        for name in request.get(self.array) or ():
            action = Action(self.operation, self.resource_type, name)
            yield Requirement((action,), ERRORS[self.resource_type], name)

    @property
    def wanted(self) -> frozenset[str]:
        """The paths of the fields of a request that `read` uses: `array`."""
        return frozenset({self.array})


Part: TypeAlias = Whole | OnCluster | Topics | AllTopics | Expression | Names
