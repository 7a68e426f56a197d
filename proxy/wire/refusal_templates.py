"""Templates of error responses, one for each API, from which `headrace.proxy.wire.refusals` builds refusals.

A template contains the fields that differ from their default. Fields that a version does not have are skipped, so that
one template serves all versions. ``throttle_time_ms`` is set for all APIs and not part of the templates. Source:
``getErrorResponse`` of Kafka's request classes, with which the tests compare the responses byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from headrace.quota_callbacks.api_keys import ApiKey


class Slot(Enum):
    """A value that is filled in from the refusal, or from the request's row."""

    ERROR = "error code"
    MESSAGE = "error message"
    ROW = "the row itself: a name, an id or a partition's index"


@dataclass(frozen=True, slots=True)
class Copied:
    """The value of a field of the request's row, or of the request; null becomes "" if the target is not nullable."""

    field: str
    null: str | None = None
    """The value that replaces null, even if the target is nullable."""


@dataclass(frozen=True, slots=True)
class Each:
    """An array with one row for each row of the request's field ``of``."""

    of: str
    row: Template


@dataclass(frozen=True, slots=True)
class Until:
    """A field that is set only up to this version of the response, although later versions have it, too."""

    version: int
    part: Each


@dataclass(frozen=True, slots=True)
class Joined:
    """An array that concatenates the rows made from each row of the request's field ``outer``."""

    outer: str
    inner: Each


Part: TypeAlias = Slot | Copied | Each | Until | Joined | tuple[Each, ...] | int | str | bytes | None
Template: TypeAlias = Mapping[str, Part]

ERROR, MESSAGE, ROW = Slot.ERROR, Slot.MESSAGE, Slot.ROW

_CODE: Final[Template] = {"error_code": ERROR}
_TOP: Final[Template] = {"error_code": ERROR, "error_message": MESSAGE}


_SHARE_STATE: Final[Template] = {
    "results": Each(
        "topics",
        {
            "topic_id": Copied("topic_id"),
            "partitions": Each("partitions", {"partition": Copied("partition"), **_TOP}),
        },
    )
}
"""Template of all responses of the share coordinator."""

_NO_NODE: Final[Template] = {"node_id": -1, "host": "", "port": -1}

_QUOTA_ENTITY: Final = Each("entity", {"entity_type": Copied("entity_type"), "entity_name": Copied("entity_name")})

_CONFIG_RESOURCE: Final[Template] = {
    "resource_type": Copied("resource_type"),
    "resource_name": Copied("resource_name"),
    **_TOP,
}

_OFFSET_OF_PARTITION: Final[Template] = {"partition_index": ROW, "committed_offset": -1, "metadata": "", **_CODE}

TEMPLATES: Final[dict[int, Template]] = {
    ApiKey.PRODUCE: {
        "responses": Each(
            "topic_data",
            {
                "name": Copied("name"),
                "topic_id": Copied("topic_id"),
                "partition_responses": Each(
                    "partition_data", {"index": Copied("index"), "base_offset": -1, "log_start_offset": -1, **_TOP}
                ),
            },
        )
    },
    ApiKey.FETCH: {
        **_CODE,
        "session_id": Copied("session_id"),
        # From version 13 on, only the error at the top level is set.
        "responses": Until(
            12,
            Each(
                "topics",
                {
                    "topic": Copied("topic"),
                    "partitions": Each(
                        "partitions",
                        {"partition_index": Copied("partition"), "high_watermark": -1, "records": b"", **_CODE},
                    ),
                },
            ),
        ),
    },
    ApiKey.LIST_OFFSETS: {
        "topics": Each(
            "topics",
            {
                "name": Copied("name"),
                "partitions": Each("partitions", {"partition_index": Copied("partition_index"), **_CODE}),
            },
        )
    },
    ApiKey.METADATA: {
        **_CODE,
        "topics": Each("topics", {"name": Copied("name", null=""), "topic_id": Copied("topic_id"), **_CODE}),
    },
    ApiKey.OFFSET_COMMIT: {
        "topics": Each(
            "topics",
            {
                "name": Copied("name"),
                "topic_id": Copied("topic_id"),
                "partitions": Each("partitions", {"partition_index": Copied("partition_index"), **_CODE}),
            },
        )
    },
    ApiKey.OFFSET_FETCH: {
        **_CODE,
        "topics": Until(
            1,
            Each("topics", {"name": Copied("name"), "partitions": Each("partition_indexes", _OFFSET_OF_PARTITION)}),
        ),
        "groups": Each("groups", {"group_id": Copied("group_id"), **_CODE}),
    },
    ApiKey.FIND_COORDINATOR: {
        **_TOP,
        **_NO_NODE,
        "coordinators": Each("coordinator_keys", {"key": ROW, **_NO_NODE, **_TOP}),
    },
    ApiKey.JOIN_GROUP: {**_CODE, "protocol_name": None},
    ApiKey.HEARTBEAT: _CODE,
    ApiKey.LEAVE_GROUP: _CODE,
    ApiKey.SYNC_GROUP: _CODE,
    ApiKey.DESCRIBE_GROUPS: {"groups": Each("groups", {"group_id": ROW, **_TOP})},
    ApiKey.LIST_GROUPS: _CODE,
    ApiKey.SASL_HANDSHAKE: _CODE,
    ApiKey.API_VERSIONS: _CODE,
    ApiKey.CREATE_TOPICS: {"topics": Each("topics", {"name": Copied("name"), **_TOP})},
    ApiKey.DELETE_TOPICS: {
        "responses": (
            Each("topics", {"name": Copied("name"), "topic_id": Copied("topic_id"), **_TOP}),
            Each("topic_names", {"name": ROW, **_TOP}),
        )
    },
    ApiKey.DELETE_RECORDS: {
        "topics": Each(
            "topics",
            {
                "name": Copied("name"),
                "partitions": Each(
                    "partitions", {"partition_index": Copied("partition_index"), "low_watermark": -1, **_CODE}
                ),
            },
        )
    },
    ApiKey.INIT_PRODUCER_ID: {**_CODE, "producer_id": -1, "producer_epoch": -1},
    ApiKey.OFFSET_FOR_LEADER_EPOCH: {
        "topics": Each(
            "topics",
            {
                "topic": Copied("topic"),
                "partitions": Each("partitions", {"partition": Copied("partition"), **_CODE}),
            },
        )
    },
    ApiKey.ADD_PARTITIONS_TO_TXN: {
        **_CODE,
        "results_by_topic_v3_and_below": Each(
            "v3_and_below_topics",
            {
                "name": Copied("name"),
                "results_by_partition": Each("partitions", {"partition_index": ROW, "partition_error_code": ERROR}),
            },
        ),
    },
    ApiKey.ADD_OFFSETS_TO_TXN: _CODE,
    ApiKey.END_TXN: _CODE,
    ApiKey.WRITE_TXN_MARKERS: {
        "markers": Each(
            "markers",
            {
                "producer_id": Copied("producer_id"),
                "topics": Each(
                    "topics",
                    {
                        "name": Copied("name"),
                        "partitions": Each("partition_indexes", {"partition_index": ROW, **_CODE}),
                    },
                ),
            },
        )
    },
    ApiKey.TXN_OFFSET_COMMIT: {
        "topics": Each(
            "topics",
            {
                "name": Copied("name"),
                "topic_id": Copied("topic_id"),
                "partitions": Each("partitions", {"partition_index": Copied("partition_index"), **_CODE}),
            },
        )
    },
    ApiKey.DESCRIBE_ACLS: _TOP,
    ApiKey.CREATE_ACLS: {"results": Each("creations", _TOP)},
    ApiKey.DELETE_ACLS: {"filter_results": Each("filters", _TOP)},
    ApiKey.DESCRIBE_CONFIGS: {"results": Each("resources", _CONFIG_RESOURCE)},
    ApiKey.ALTER_CONFIGS: {"responses": Each("resources", _CONFIG_RESOURCE)},
    ApiKey.ALTER_REPLICA_LOG_DIRS: {
        "results": Joined(
            "dirs",
            Each(
                "topics",
                {
                    "topic_name": Copied("name"),
                    "partitions": Each("partitions", {"partition_index": ROW, **_CODE}),
                },
            ),
        )
    },
    ApiKey.DESCRIBE_LOG_DIRS: _CODE,
    ApiKey.SASL_AUTHENTICATE: _TOP,
    ApiKey.CREATE_PARTITIONS: {"results": Each("topics", {"name": Copied("name"), **_TOP})},
    ApiKey.CREATE_DELEGATION_TOKEN: {
        **_CODE,
        "principal_type": "User",
        "principal_name": "ANONYMOUS",
        "token_requester_principal_type": "User",
        "token_requester_principal_name": "ANONYMOUS",
        "issue_timestamp_ms": -1,
        "expiry_timestamp_ms": -1,
        "max_timestamp_ms": -1,
    },
    ApiKey.RENEW_DELEGATION_TOKEN: _CODE,
    ApiKey.EXPIRE_DELEGATION_TOKEN: _CODE,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _CODE,
    ApiKey.DELETE_GROUPS: {"results": Each("groups_names", {"group_id": ROW, **_TOP})},
    ApiKey.ELECT_LEADERS: {
        **_CODE,
        "replica_election_results": Each(
            "topic_partitions",
            {
                "topic": Copied("topic"),
                "partition_result": Each("partitions", {"partition_id": ROW, **_TOP}),
            },
        ),
    },
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {"responses": Each("resources", _CONFIG_RESOURCE)},
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: {
        **_TOP,
        "responses": Each(
            "topics",
            {
                "name": Copied("name"),
                "partitions": Each("partitions", {"partition_index": Copied("partition_index"), **_TOP}),
            },
        ),
    },
    ApiKey.LIST_PARTITION_REASSIGNMENTS: {
        **_TOP,
        "topics": Each(
            "topics",
            {"name": Copied("name"), "partitions": Each("partition_indexes", {"partition_index": ROW})},
        ),
    },
    ApiKey.OFFSET_DELETE: _CODE,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: {**_TOP, "entries": None},
    ApiKey.ALTER_CLIENT_QUOTAS: {"entries": Each("entries", {"entity": _QUOTA_ENTITY, **_TOP})},
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: {**_TOP, "results": Each("users", _TOP)},
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: {
        "results": (
            Each("deletions", {"user": Copied("name"), **_TOP}),
            Each("upsertions", {"user": Copied("name"), **_TOP}),
        )
    },
    ApiKey.DESCRIBE_QUORUM: _TOP,
    ApiKey.UPDATE_FEATURES: _TOP,
    ApiKey.DESCRIBE_CLUSTER: _TOP,
    ApiKey.DESCRIBE_PRODUCERS: {
        "topics": Each(
            "topics",
            {"name": Copied("name"), "partitions": Each("partition_indexes", {"partition_index": ROW, **_TOP})},
        )
    },
    ApiKey.UNREGISTER_BROKER: _TOP,
    ApiKey.DESCRIBE_TRANSACTIONS: {"transaction_states": Each("transactional_ids", {"transactional_id": ROW, **_CODE})},
    ApiKey.LIST_TRANSACTIONS: _CODE,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _TOP,
    ApiKey.CONSUMER_GROUP_DESCRIBE: {"groups": Each("group_ids", {"group_id": ROW, **_TOP})},
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: _CODE,
    ApiKey.PUSH_TELEMETRY: _CODE,
    ApiKey.LIST_CONFIG_RESOURCES: _CODE,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {"topics": Each("topics", {"name": Copied("name"), **_CODE})},
    ApiKey.SHARE_GROUP_HEARTBEAT: _TOP,
    ApiKey.SHARE_GROUP_DESCRIBE: {"groups": Each("group_ids", {"group_id": ROW, **_TOP})},
    ApiKey.SHARE_FETCH: _TOP,
    ApiKey.SHARE_ACKNOWLEDGE: _TOP,
    ApiKey.ADD_RAFT_VOTER: _TOP,
    ApiKey.REMOVE_RAFT_VOTER: _TOP,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.READ_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.WRITE_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _SHARE_STATE,
    ApiKey.STREAMS_GROUP_HEARTBEAT: _TOP,
    ApiKey.STREAMS_GROUP_DESCRIBE: {"groups": Each("group_ids", {"group_id": ROW, **_TOP})},
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: {"groups": Each("groups", {"group_id": Copied("group_id"), **_TOP})},
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _TOP,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _TOP,
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: _TOP,
    ApiKey.UNREGISTER_CONTROLLER: _TOP,
}
