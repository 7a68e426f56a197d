"""The resources and operations of each API, as Kafka requires them.

An API is in the table, or among those that need no permission; any other is denied. Source: ``KafkaApis`` and
``ControllerApis`` of Kafka 4.3, and the table "Operations and Resources on Protocols" of Kafka's documentation.
Differences are listed in docs/authorization.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headrace.proxy.wire.authorization.request_parts import (
    ALL_TOPICS,
    ERRORS,
    AllTopics,
    Expression,
    Names,
    OnCluster,
    Topics,
    Whole,
)
from headrace.proxy.wire.authorization.requirement_types import Requirement, TopicsById, cluster
from headrace.proxy.wire.mutations import NO_ID
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.authorization import Action, Operation, ResourceType
from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.proxy.wire.authorization.request_parts import Part
    from headrace.proxy.wire.messages.codec import Message

Read: TypeAlias = "Callable[[Message, TopicsById], Iterator[Requirement]]"
"""Yields the requirements of a request, of which the `Entry.wanted` fields were read."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One API."""

    read: Read
    wanted: frozenset[str] = frozenset()
    """The fields of the request that are read, by their paths."""


def _parts(*parts: Part) -> Entry:
    """Return the entry of an API whose requirements are those of its parts, in this order."""
    if len(parts) == 1:
        return Entry(parts[0].read, parts[0].wanted)

    def read(request: Message, by_id: TopicsById) -> Iterator[Requirement]:
        for part in parts:
            yield from part.read(request, by_id)

    return Entry(read, frozenset().union(*(part.wanted for part in parts)))


# --- APIs that are not described by parts ---


def _fetch(request: Message, by_id: TopicsById) -> Iterator[Requirement]:
    """Yield CLUSTER_ACTION for a follower, and READ of the topics for a consumer.

    Source: ``KafkaApis.handleFetchRequest``.
    """
    state: Message = request.get("replica_state", {})
    is_consumer: bool = request.get("replica_id", -1) < 0 and state.get("replica_id", -1) < 0
    for row in request["topics"]:
        one = by_id.topic(row, Operation.READ, "topic")
        yield one if is_consumer else one._replace(any_of=(cluster(Operation.CLUSTER_ACTION),))


def _offset_for_leader_epoch(request: Message, by_id: TopicsById) -> Iterator[Requirement]:
    """Yield DESCRIBE of the topics or CLUSTER_ACTION, by which followers are served.

    Source: ``KafkaApis.handleOffsetForLeaderEpochRequest``.
    """
    for row in request["topics"]:
        one = by_id.topic(row, Operation.DESCRIBE, "topic")
        yield one._replace(any_of=(*one.any_of, cluster(Operation.CLUSTER_ACTION)))


def _metadata(request: Message, by_id: TopicsById) -> Iterator[Requirement]:
    """Yield DESCRIBE for topics that are named; the reply is filtered if topics are named by id, or for all topics.

    With an id, brokers ignore names.
    """
    rows = request["topics"] or ()
    if any(row.get("topic_id", NO_ID) != NO_ID for row in rows):
        return
    for row in rows:
        if row["name"] is not None:
            yield by_id.topic(row, Operation.DESCRIBE)


def _offset_fetch(request: Message, by_id: TopicsById) -> Iterator[Requirement]:
    """Yield the requirements of groups and of named topics; if a group names no topics, its reply is filtered.

    Source: ``KafkaApis.handleOffsetFetchRequest``.
    """
    if "groups" not in request:
        yield Requirement((_describe_group(request["group_id"]),), ErrorCode.GROUP_AUTHORIZATION_FAILED)
        for row in request["topics"] or ():
            yield by_id.topic(row, Operation.DESCRIBE)
        return
    for group in request["groups"]:
        group_id = group["group_id"]
        yield Requirement((_describe_group(group_id),), ErrorCode.GROUP_AUTHORIZATION_FAILED, group_id)
        for row in group["topics"] or ():
            one = by_id.topic(row, Operation.DESCRIBE)
            key: Any = one.row
            yield one._replace(row=(group_id, key))


def _describe_group(group_id: str) -> Action:
    return Action(Operation.DESCRIBE, ResourceType.GROUP, group_id)


_COORDINATED: Final = {
    0: (Operation.DESCRIBE, ResourceType.GROUP),
    1: (Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
}
"""What FindCoordinator requires, by ``FindCoordinatorRequest.CoordinatorType``; types for share groups are for
brokers."""


def _find_coordinator(request: Message, _by_id: TopicsById) -> Iterator[Requirement]:
    found = _COORDINATED.get(request.get("key_type", 0))
    if found is None:
        yield Requirement((cluster(Operation.CLUSTER_ACTION),), ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return
    operation, resource_type = found
    error = ERRORS[resource_type]
    if "key" in request:
        yield Requirement((Action(operation, resource_type, request["key"]),), error)
    for key in request.get("coordinator_keys", ()):
        yield Requirement((Action(operation, resource_type, key),), error, key)


def _create_topics(request: Message, _by_id: TopicsById) -> Iterator[Requirement]:
    for row in request["topics"]:
        create = Action(Operation.CREATE, ResourceType.TOPIC, row["name"])
        yield Requirement((cluster(Operation.CREATE), create), ErrorCode.TOPIC_AUTHORIZATION_FAILED, row["name"])


def _delete_topics(request: Message, by_id: TopicsById) -> Iterator[Requirement]:
    for name in request.get("topic_names", ()):
        yield by_id.topic({"name": name}, Operation.DELETE)
    for row in request.get("topics", ()):
        yield by_id.topic(row, Operation.DELETE)


def _init_producer_id(request: Message, _by_id: TopicsById) -> Iterator[Requirement]:
    """Yield WRITE, and TWO_PHASE_COMMIT if it is requested, on the transactional id.

    For a producer without transactions, yield IDEMPOTENT_WRITE on the cluster or WRITE on any topic (KIP-679).
    """
    transactional_id = request["transactional_id"]
    if transactional_id is None:
        write = Action(Operation.WRITE, ResourceType.TOPIC, None)
        yield Requirement((cluster(Operation.IDEMPOTENT_WRITE), write), ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return
    operations = [Operation.WRITE]
    if request.get("enable2_pc", False):
        operations.append(Operation.TWO_PHASE_COMMIT)  # KIP-939
    for operation in operations:
        action = Action(operation, ResourceType.TRANSACTIONAL_ID, transactional_id)
        yield Requirement((action,), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def _add_partitions_to_txn(request: Message, by_id: TopicsById) -> Iterator[Requirement]:
    """Yield WRITE on the transactional id and the topics, or CLUSTER_ACTION from version 4 on, which brokers send."""
    if "v3_and_below_transactional_id" not in request:
        yield Requirement((cluster(Operation.CLUSTER_ACTION),), ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return
    action = Action(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request["v3_and_below_transactional_id"])
    yield Requirement((action,), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    for row in request["v3_and_below_topics"]:
        yield by_id.topic(row, Operation.WRITE)


_TOPIC_CONFIG, _GROUP_CONFIG = 2, 32
"""``ConfigResource.Type``; the configuration of any other belongs to the cluster."""


def _configurations(operation: Operation) -> Entry:
    def read(request: Message, _by_id: TopicsById) -> Iterator[Requirement]:
        for row in request["resources"]:
            kind, name = row["resource_type"], row["resource_name"]
            key = (kind, name)
            if kind == _TOPIC_CONFIG:
                yield Requirement(
                    (Action(operation, ResourceType.TOPIC, name),), ErrorCode.TOPIC_AUTHORIZATION_FAILED, key
                )
            elif kind == _GROUP_CONFIG:
                yield Requirement(
                    (Action(operation, ResourceType.GROUP, name),), ErrorCode.GROUP_AUTHORIZATION_FAILED, key
                )
            else:
                yield Requirement((cluster(operation),), ErrorCode.CLUSTER_AUTHORIZATION_FAILED, key)

    return Entry(read, frozenset({"resources.resource_type", "resources.resource_name"}))


def _create_delegation_token(request: Message, _by_id: TopicsById) -> Iterator[Requirement]:
    """Yield CREATE_TOKENS on the owner, if it is named."""
    if owner := request.get("owner_principal_name"):
        name = f"{request.get('owner_principal_type')}:{owner}"
        action = Action(Operation.CREATE_TOKENS, ResourceType.USER, name)
        yield Requirement((action,), ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)


def _describe_share_group_offsets(request: Message, by_id: TopicsById) -> Iterator[Requirement]:
    for group in request["groups"]:
        yield Requirement(
            (_describe_group(group["group_id"]),), ErrorCode.GROUP_AUTHORIZATION_FAILED, group["group_id"]
        )
        for row in group["topics"] or ():
            yield by_id.topic(row, Operation.DESCRIBE, "topic_name")._replace(row=group["group_id"])


def _streams_group_heartbeat(request: Message, by_id: TopicsById) -> Iterator[Requirement]:
    """Yield READ on the group, and DESCRIBE on all topics of the topology.

    Source: ``KafkaApis.handleStreamsGroupHeartbeat``.
    """
    yield Requirement(
        (Action(Operation.READ, ResourceType.GROUP, request["group_id"]),), ErrorCode.GROUP_AUTHORIZATION_FAILED
    )
    named = [
        name for part in _subtopologies(request) for name in (*part["source_topics"], *part["repartition_sink_topics"])
    ]
    for name in (*named, *names_of_internal_topics(request)):
        yield by_id.topic({"name": name}, Operation.DESCRIBE)._replace(row=None)
    if any(part["source_topic_regex"] for part in _subtopologies(request)):
        yield ALL_TOPICS


def names_of_internal_topics(request: Message) -> list[str]:
    """Return the topics of a StreamsGroupHeartbeat's `TOPOLOGY` that brokers create."""
    return [
        row["name"]
        for part in _subtopologies(request)
        for row in (*part["repartition_source_topics"], *part["state_changelog_topics"])
    ]


def _subtopologies(request: Message) -> list[Message]:
    topology: Message | None = request["topology"]
    return [] if topology is None else topology["subtopologies"]


_O, _R = Operation, ResourceType
_READ_GROUP: Final = Whole(_O.READ, _R.GROUP, "group_id")
_DELETE_GROUP: Final = Whole(_O.DELETE, _R.GROUP, "group_id")
_WRITE_TRANSACTIONAL_ID: Final = Whole(_O.WRITE, _R.TRANSACTIONAL_ID, "transactional_id")
_ALTER: Final = _parts(OnCluster((_O.ALTER,)))
_DESCRIBE: Final = _parts(OnCluster((_O.DESCRIBE,)))
_CLUSTER_ACTION: Final = _parts(OnCluster((_O.CLUSTER_ACTION,)))
TOPOLOGY: Final = frozenset({"topology"})
_TOPICS_BY_NAME: Final = frozenset({"topics.name"})

TABLE: Final[dict[int, Entry]] = {
    ApiKey.PRODUCE: _parts(_WRITE_TRANSACTIONAL_ID, Topics(_O.WRITE, "topic_data")),
    ApiKey.FETCH: Entry(
        _fetch, frozenset({"replica_id", "replica_state.replica_id", "topics.topic", "topics.topic_id"})
    ),
    ApiKey.LIST_OFFSETS: _parts(Topics(_O.DESCRIBE)),
    ApiKey.METADATA: Entry(_metadata, frozenset({"topics.name", "topics.topic_id"})),
    ApiKey.OFFSET_COMMIT: _parts(_READ_GROUP, Topics(_O.READ)),
    ApiKey.OFFSET_FETCH: Entry(
        _offset_fetch,
        frozenset(
            {"group_id", "topics.name", "groups.group_id", "groups.topics.name", "groups.topics.topic_id"},
        ),
    ),
    ApiKey.FIND_COORDINATOR: Entry(_find_coordinator, frozenset({"key", "key_type", "coordinator_keys"})),
    ApiKey.JOIN_GROUP: _parts(_READ_GROUP),
    ApiKey.HEARTBEAT: _parts(_READ_GROUP),
    ApiKey.LEAVE_GROUP: _parts(_READ_GROUP),
    ApiKey.SYNC_GROUP: _parts(_READ_GROUP),
    ApiKey.DESCRIBE_GROUPS: _parts(Names(_O.DESCRIBE, _R.GROUP, "groups")),
    ApiKey.CREATE_TOPICS: Entry(_create_topics, _TOPICS_BY_NAME),
    ApiKey.DELETE_TOPICS: Entry(_delete_topics, frozenset({"topic_names", "topics.name", "topics.topic_id"})),
    ApiKey.DELETE_RECORDS: _parts(Topics(_O.DELETE)),
    ApiKey.INIT_PRODUCER_ID: Entry(_init_producer_id, frozenset({"transactional_id", "enable2_pc"})),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Entry(_offset_for_leader_epoch, frozenset({"topics.topic"})),
    ApiKey.ADD_PARTITIONS_TO_TXN: Entry(
        _add_partitions_to_txn, frozenset({"v3_and_below_transactional_id", "v3_and_below_topics.name"})
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: _parts(_WRITE_TRANSACTIONAL_ID, _READ_GROUP),
    ApiKey.END_TXN: _parts(_WRITE_TRANSACTIONAL_ID),
    ApiKey.WRITE_TXN_MARKERS: _parts(OnCluster((_O.ALTER, _O.CLUSTER_ACTION))),
    ApiKey.TXN_OFFSET_COMMIT: _parts(_WRITE_TRANSACTIONAL_ID, _READ_GROUP, Topics(_O.READ)),
    ApiKey.DESCRIBE_ACLS: _DESCRIBE,
    ApiKey.CREATE_ACLS: _ALTER,
    ApiKey.DELETE_ACLS: _ALTER,
    ApiKey.DESCRIBE_CONFIGS: _configurations(_O.DESCRIBE_CONFIGS),
    ApiKey.ALTER_CONFIGS: _configurations(_O.ALTER_CONFIGS),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _ALTER,
    ApiKey.DESCRIBE_LOG_DIRS: _DESCRIBE,
    ApiKey.CREATE_PARTITIONS: _parts(Topics(_O.ALTER)),
    ApiKey.CREATE_DELEGATION_TOKEN: Entry(
        _create_delegation_token, frozenset({"owner_principal_type", "owner_principal_name"})
    ),
    ApiKey.DELETE_GROUPS: _parts(Names(_O.DELETE, _R.GROUP, "groups_names")),
    ApiKey.ELECT_LEADERS: _ALTER,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _configurations(_O.ALTER_CONFIGS),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _ALTER,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _DESCRIBE,
    ApiKey.OFFSET_DELETE: _parts(_DELETE_GROUP, Topics(_O.READ)),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _parts(OnCluster((_O.DESCRIBE_CONFIGS,))),
    ApiKey.ALTER_CLIENT_QUOTAS: _parts(OnCluster((_O.ALTER_CONFIGS,))),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _DESCRIBE,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _ALTER,
    ApiKey.DESCRIBE_QUORUM: _DESCRIBE,
    ApiKey.UPDATE_FEATURES: _ALTER,
    ApiKey.DESCRIBE_PRODUCERS: _parts(Topics(_O.READ)),
    ApiKey.UNREGISTER_BROKER: _ALTER,
    ApiKey.DESCRIBE_TRANSACTIONS: _parts(Names(_O.DESCRIBE, _R.TRANSACTIONAL_ID, "transactional_ids")),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _parts(
        _READ_GROUP, AllTopics(_O.DESCRIBE, "subscribed_topic_names"), Expression("subscribed_topic_regex")
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _parts(Names(_O.DESCRIBE, _R.GROUP, "group_ids")),
    ApiKey.LIST_CONFIG_RESOURCES: _parts(OnCluster((_O.DESCRIBE_CONFIGS,))),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _parts(Topics(_O.DESCRIBE)),
    ApiKey.SHARE_GROUP_HEARTBEAT: _parts(_READ_GROUP, AllTopics(_O.DESCRIBE, "subscribed_topic_names")),
    ApiKey.SHARE_GROUP_DESCRIBE: _parts(Names(_O.DESCRIBE, _R.GROUP, "group_ids")),
    ApiKey.SHARE_FETCH: _parts(_READ_GROUP, AllTopics(_O.READ, "topics", "name")),
    ApiKey.SHARE_ACKNOWLEDGE: _parts(_READ_GROUP, AllTopics(_O.READ, "topics", "name")),
    ApiKey.ADD_RAFT_VOTER: _ALTER,
    ApiKey.REMOVE_RAFT_VOTER: _ALTER,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _CLUSTER_ACTION,
    ApiKey.READ_SHARE_GROUP_STATE: _CLUSTER_ACTION,
    ApiKey.WRITE_SHARE_GROUP_STATE: _CLUSTER_ACTION,
    ApiKey.DELETE_SHARE_GROUP_STATE: _CLUSTER_ACTION,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _CLUSTER_ACTION,
    ApiKey.STREAMS_GROUP_HEARTBEAT: Entry(_streams_group_heartbeat, TOPOLOGY | {"group_id"}),
    ApiKey.STREAMS_GROUP_DESCRIBE: _parts(Names(_O.DESCRIBE, _R.GROUP, "group_ids")),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: Entry(
        _describe_share_group_offsets, frozenset({"groups.group_id", "groups.topics.topic_name"})
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _parts(_READ_GROUP, AllTopics(_O.READ, "topics", "topic_name")),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _parts(_DELETE_GROUP, AllTopics(_O.READ, "topics", "topic_name")),
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: _parts(_READ_GROUP),
    ApiKey.UNREGISTER_CONTROLLER: _ALTER,
}

WITHOUT_REQUIREMENTS: Final = frozenset(
    {
        ApiKey.API_VERSIONS,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.LIST_GROUPS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
        ApiKey.PUSH_TELEMETRY,
    }
)
"""APIs that need no permission. What their replies list may be filtered (`visible_rows`)."""
