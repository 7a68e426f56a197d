"""Kafka's read-only requests about a `Scene`: their fields, their broker, and how two valid replies may differ.

Every API that a broker offers is here, or in `LEFT_OUT` with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from headrace.proxy.wire.mutations import NO_ID
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.proxy.wire.messages.codec import Message
    from tests.clients.replies.scene import Scene

LATEST: Final = -1
EARLIEST: Final = -2
NEWEST: Final = 99

UNSUPPORTED_VERSION: Final = 35
SECURITY_DISABLED: Final = 54
DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: Final = 64
GROUP_ID_NOT_FOUND: Final = 69


class SentTo(Enum):
    """The broker that can answer."""

    ANY = "any"
    LEADER = "leader"
    GROUP_COORDINATOR = "group_coordinator"
    TRANSACTION_COORDINATOR = "transaction_coordinator"


class Differs(Enum):
    """How a field may differ between two valid replies."""

    GROWS = "grows"
    """The value of a reply is between those of the replies before and after it."""
    NAMES_A_BROKER = "names a broker"
    """Any of them."""
    FREELY = "freely"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request: its fields in all versions (those that a version lacks are left out), and the versions it suits."""

    about: Callable[[Scene], Message]
    since: int = 0
    until: int = NEWEST
    errors: frozenset[int] = frozenset()
    """The expected error codes; if empty, the reply must have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOnly:
    """How to ask one API."""

    asks: tuple[Ask, ...]
    sent_to: SentTo = SentTo.ANY
    differs: Mapping[str, Differs] | None = None
    """Fields by name, at whatever depth."""


def _ask(message: Message | None = None, error: int | None = None) -> Ask:
    errors = frozenset() if error is None else frozenset({error})
    return Ask(about=lambda _: message or {}, errors=errors)


def _list_offsets(timestamp: int) -> Ask:
    partition = {"partition_index": 0, "timestamp": timestamp}
    return Ask(about=lambda scene: {"replica_id": -1, "topics": [{"name": scene.topic, "partitions": [partition]}]})


def _fetch(scene: Scene) -> Message:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000_000}
    topic = {"topic": scene.topic, "topic_id": scene.topic_id, "partitions": [partition]}
    return {"replica_id": -1, "min_bytes": 1, "max_bytes": 1_000_000, "topics": [topic]}


def _offset_fetch(scene: Scene) -> Message:
    topics = [{"name": scene.topic, "topic_id": scene.topic_id, "partition_indexes": [0]}]
    return {
        "group_id": scene.classic_group,
        "topics": topics,
        "groups": [{"group_id": scene.classic_group, "topics": topics}],
    }


def _metadata(name: str | None, topic_id: bytes) -> Message:
    return {"topics": [{"name": name, "topic_id": topic_id}], "allow_auto_topic_creation": False}


def _epochs(scene: Scene) -> Message:
    return {"replica_id": -1, "topics": [{"topic": scene.topic, "partitions": [{"partition": 0, "leader_epoch": 0}]}]}


ANY_ACL: Final = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
QUORUM: Final = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
SOFTWARE: Final = {"client_software_name": "wire-connection", "client_software_version": "1"}
TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4

READ_ONLY: Final[dict[ApiKey, ReadOnly]] = {
    ApiKey.FETCH: ReadOnly(asks=(Ask(about=_fetch),), sent_to=SentTo.LEADER),
    ApiKey.LIST_OFFSETS: ReadOnly(asks=(_list_offsets(LATEST), _list_offsets(EARLIEST)), sent_to=SentTo.LEADER),
    ApiKey.METADATA: ReadOnly(
        asks=(
            Ask(about=lambda scene: _metadata(scene.topic, NO_ID)),
            Ask(about=lambda scene: _metadata(None, scene.topic_id), since=12),
            Ask(about=lambda _: {"topics": []}),
        ),
        differs={"controller_id": Differs.NAMES_A_BROKER},  # KRaft hides the controller, and names any broker
    ),
    ApiKey.OFFSET_FETCH: ReadOnly(
        asks=(
            Ask(about=_offset_fetch, until=0, errors=frozenset({UNSUPPORTED_VERSION})),  # offsets kept in ZooKeeper
            Ask(about=_offset_fetch, since=1),
        ),
        sent_to=SentTo.GROUP_COORDINATOR,
    ),
    ApiKey.FIND_COORDINATOR: ReadOnly(
        asks=(
            Ask(about=lambda scene: {"key": scene.classic_group, "coordinator_keys": [scene.classic_group]}),
            Ask(about=lambda scene: {"key": scene.transactional_id, "key_type": 1}, since=1, until=3),
            Ask(about=lambda scene: {"coordinator_keys": [scene.transactional_id], "key_type": 1}, since=4),
        )
    ),
    ApiKey.DESCRIBE_GROUPS: ReadOnly(
        asks=(Ask(about=lambda scene: {"groups": [scene.classic_group], "include_authorized_operations": True}),),
        sent_to=SentTo.GROUP_COORDINATOR,
    ),
    ApiKey.LIST_GROUPS: ReadOnly(asks=(_ask(),), sent_to=SentTo.GROUP_COORDINATOR),
    ApiKey.API_VERSIONS: ReadOnly(asks=(_ask(SOFTWARE),), differs={"finalized_features_epoch": Differs.GROWS}),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ReadOnly(asks=(Ask(about=_epochs),), sent_to=SentTo.LEADER),
    ApiKey.DESCRIBE_ACLS: ReadOnly(asks=(_ask(ANY_ACL, SECURITY_DISABLED),)),
    ApiKey.DESCRIBE_CONFIGS: ReadOnly(
        asks=(
            Ask(about=lambda scene: {"resources": [_resource(TOPIC_RESOURCE, scene.topic)], "include_synonyms": True}),
            Ask(about=lambda _: {"resources": [_resource(BROKER_RESOURCE, "0")], "include_documentation": True}),
        ),
        sent_to=SentTo.GROUP_COORDINATOR,  # which is broker 0
    ),
    ApiKey.DESCRIBE_LOG_DIRS: ReadOnly(
        asks=(Ask(about=lambda scene: {"topics": [{"topic": scene.topic, "partitions": [0]}]}),),
        differs={"usable_bytes": Differs.FREELY},  # of a disk that others write to
    ),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: ReadOnly(asks=(_ask({"owners": None}, DELEGATION_TOKEN_REQUEST_NOT_ALLOWED),)),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ReadOnly(asks=(_ask({"topics": None}),)),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ReadOnly(
        asks=(Ask(about=lambda scene: {"users": [{"name": scene.scram_user}]}), _ask({"users": None}))
    ),
    ApiKey.DESCRIBE_QUORUM: ReadOnly(
        asks=(_ask(QUORUM),),
        differs={  # the controller writes to this log twice a second
            "high_watermark": Differs.GROWS,
            "log_end_offset": Differs.GROWS,
            "last_fetch_timestamp": Differs.GROWS,
            "last_caught_up_timestamp": Differs.GROWS,
        },
    ),
    ApiKey.DESCRIBE_CLUSTER: ReadOnly(
        asks=(_ask({"include_cluster_authorized_operations": True}), _ask({"include_fenced_brokers": True})),
        differs={"controller_id": Differs.NAMES_A_BROKER},
    ),
    ApiKey.DESCRIBE_PRODUCERS: ReadOnly(
        asks=(Ask(about=lambda scene: {"topics": [{"name": scene.topic, "partition_indexes": [0]}]}),),
        sent_to=SentTo.LEADER,
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: ReadOnly(
        asks=(Ask(about=lambda scene: {"transactional_ids": [scene.transactional_id]}),),
        sent_to=SentTo.TRANSACTION_COORDINATOR,
    ),
    ApiKey.LIST_TRANSACTIONS: ReadOnly(asks=(_ask(),), sent_to=SentTo.TRANSACTION_COORDINATOR),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ReadOnly(
        asks=(Ask(about=lambda scene: {"group_ids": [scene.consumer_group]}),), sent_to=SentTo.GROUP_COORDINATOR
    ),
    ApiKey.LIST_CONFIG_RESOURCES: ReadOnly(asks=(_ask(),)),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ReadOnly(asks=(Ask(about=lambda scene: {"topics": [{"name": scene.topic}]}),)),
    ApiKey.SHARE_GROUP_DESCRIBE: ReadOnly(
        asks=(Ask(about=lambda scene: {"group_ids": [scene.share_group]}),), sent_to=SentTo.GROUP_COORDINATOR
    ),
    ApiKey.STREAMS_GROUP_DESCRIBE: ReadOnly(
        asks=(
            Ask(
                about=lambda scene: {"group_ids": [scene.consumer_group]},
                errors=frozenset({GROUP_ID_NOT_FOUND}),  # as a group of streams
            ),
        ),
        sent_to=SentTo.GROUP_COORDINATOR,
    ),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: ReadOnly(
        asks=(Ask(about=lambda scene: {"groups": [{"group_id": scene.share_group, "topics": None}]}),),
        sent_to=SentTo.GROUP_COORDINATOR,
    ),
}

SINCE_4: Final = frozenset(
    {ApiKey.SHARE_GROUP_DESCRIBE, ApiKey.STREAMS_GROUP_DESCRIBE, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS}
)
"""Those that brokers of 3.9 do not offer."""

_WRITES: Final = "it changes something, so that the second asking has another answer"
_AMONG_BROKERS: Final = "brokers ask it among themselves"
_SASL: Final = "it belongs to a login, and this listener has none"
_SESSION: Final = "it belongs to a session, which the first asking opens or moves on"

LEFT_OUT: Final[dict[ApiKey, str]] = {
    **dict.fromkeys(
        (
            ApiKey.PRODUCE,
            ApiKey.OFFSET_COMMIT,
            ApiKey.JOIN_GROUP,
            ApiKey.LEAVE_GROUP,
            ApiKey.SYNC_GROUP,
            ApiKey.HEARTBEAT,
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            ApiKey.SHARE_GROUP_HEARTBEAT,
            ApiKey.STREAMS_GROUP_HEARTBEAT,
            ApiKey.CREATE_TOPICS,
            ApiKey.DELETE_TOPICS,
            ApiKey.CREATE_PARTITIONS,
            ApiKey.DELETE_RECORDS,
            ApiKey.INIT_PRODUCER_ID,
            ApiKey.ADD_PARTITIONS_TO_TXN,
            ApiKey.ADD_OFFSETS_TO_TXN,
            ApiKey.END_TXN,
            ApiKey.TXN_OFFSET_COMMIT,
            ApiKey.CREATE_ACLS,
            ApiKey.DELETE_ACLS,
            ApiKey.ALTER_CONFIGS,
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            ApiKey.ALTER_REPLICA_LOG_DIRS,
            ApiKey.CREATE_DELEGATION_TOKEN,
            ApiKey.RENEW_DELEGATION_TOKEN,
            ApiKey.EXPIRE_DELEGATION_TOKEN,
            ApiKey.DELETE_GROUPS,
            ApiKey.ELECT_LEADERS,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            ApiKey.OFFSET_DELETE,
            ApiKey.ALTER_CLIENT_QUOTAS,
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            ApiKey.UPDATE_FEATURES,
            ApiKey.UNREGISTER_BROKER,
            ApiKey.ADD_RAFT_VOTER,
            ApiKey.REMOVE_RAFT_VOTER,
            ApiKey.ALTER_SHARE_GROUP_OFFSETS,
            ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        ),
        _WRITES,
    ),
    **dict.fromkeys(
        (
            ApiKey.WRITE_TXN_MARKERS,
            ApiKey.INITIALIZE_SHARE_GROUP_STATE,
            ApiKey.READ_SHARE_GROUP_STATE,
            ApiKey.WRITE_SHARE_GROUP_STATE,
            ApiKey.DELETE_SHARE_GROUP_STATE,
            ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
        ),
        _AMONG_BROKERS,
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: "the proxy answers it, with its own quotas",
    **dict.fromkeys((ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE), _SASL),
    **dict.fromkeys((ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE), _SESSION),
}


def _resource(resource_type: int, name: str) -> Message:
    return {"resource_type": resource_type, "resource_name": name, "configuration_keys": None}
