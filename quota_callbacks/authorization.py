"""The value types of authorization: what a request does, and to which resource.

A plugin gets the actions of each request from the hook `authorize_requests` (`headrace.quota_callbacks.hookspecs`), and
decides about them. Names are those of Kafka's tools. Source: ``org.apache.kafka.common.acl.AclOperation``,
``org.apache.kafka.common.resource.ResourceType``, ``ResourcePattern``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of the type `ResourceType.CLUSTER` (``Resource.CLUSTER_NAME``)."""

WILDCARD: Final = "*"
"""The name of a literal pattern that matches every resource of its type (``ResourcePattern.WILDCARD_RESOURCE``)."""


class ResourceType(StrEnum):
    """The type of a resource (``org.apache.kafka.common.resource.ResourceType``)."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"
    TRANSACTIONAL_ID = "TransactionalId"
    DELEGATION_TOKEN = "DelegationToken"  # noqa: S105 -- not a secret
    USER = "User"
    """The name of a resource of this type has the type of its principal, such as ``User:alice``."""


class Operation(StrEnum):
    """An operation on a resource (``org.apache.kafka.common.acl.AclOperation``)."""

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    ALTER = "Alter"
    DESCRIBE = "Describe"
    CLUSTER_ACTION = "ClusterAction"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    ALTER_CONFIGS = "AlterConfigs"
    IDEMPOTENT_WRITE = "IdempotentWrite"
    TWO_PHASE_COMMIT = "TwoPhaseCommit"
    CREATE_TOKENS = "CreateTokens"
    DESCRIBE_TOKENS = "DescribeTokens"


class PatternType(StrEnum):
    """How the name of a pattern is compared with the names of resources."""

    LITERAL = "literal"
    """The name is that of the resource, or `WILDCARD`."""
    PREFIXED = "prefixed"
    """The name of the resource begins with that of the pattern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePattern:
    """The resources that a rule is for."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL


class Action(NamedTuple):
    """An operation of a request on a resource. It is a tuple, since one is created for every topic of every request."""

    operation: Operation
    resource_type: ResourceType
    name: str | None
    """The name of the resource. ``None`` stands for any resource of the type: permission for one of them suffices
    (``Authorizer.authorizeByResourceType``). `WILDCARD` stands for all topics, if the resource is a topic: permission
    for each of them is needed."""

    def __str__(self) -> str:
        if self.resource_type is ResourceType.CLUSTER:
            return f"{self.operation} on the cluster"
        if self.name == WILDCARD and self.resource_type is ResourceType.TOPIC:
            return f"{self.operation} on all topics"
        name = "of any name" if self.name is None else self.name
        return f"{self.operation} on {self.resource_type} {name}"
