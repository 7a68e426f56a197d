"""Requests of every API, about resources of which the rules of the broker and of the proxy allow some.

They change nothing that a later request notices: topics are only validated, and what is deleted does not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.proxy.wire.mutations import NO_ID
from headrace.quota_callbacks.api_keys import ApiKey
from tests.clients.authorization.scene import TOPICS
from tests.faults.messages import batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace.proxy.wire.messages.codec import Message

GROUPS: Final = ("group-1", "group-2", "group-secret", "other")
IDS: Final = ("tx-1", "tx-2")
MEMBER: Final = "MoDyVR1xTvuGtBDL_YzoFQ"
"""The form of a member of a share group: a UUID as Kafka writes it."""
NAMED: Final = (*TOPICS, "unknown")


def _topics(ids: Mapping[str, bytes], names: Iterable[str] = NAMED, **fields: Any) -> list[Message]:
    """Return a row for each topic, under all the names that fields have for topics."""
    return [
        {"name": name, "topic": name, "topic_name": name, "topic_id": ids.get(name, bytes(15) + b"\x01"), **fields}
        for name in names
    ]


def _subtopology(source_topics: Sequence[str]) -> Message:
    """Return a part of a topology that only reads topics."""
    created = ("repartition_sink_topics", "repartition_source_topics", "state_changelog_topics")
    return {"subtopology_id": "0", "source_topics": source_topics, **dict.fromkeys(created, ())}


def requests(ids: Mapping[str, bytes]) -> dict[ApiKey, list[Message]]:
    """Return the requests of each API; ``ids`` are those of topics by name."""
    offset = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    committed = _topics(ids, partitions=[offset])
    fetched = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]
    indexes = _topics(ids, partition_indexes=[0])
    creations = [
        {"name": name, "num_partitions": 1, "replication_factor": 1} for name in ("new-1", "new-2", "old-1", "read")
    ]
    produced = [{"index": 0, "records": batch(b"value")}]
    resources = [{"resource_type": 2, "resource_name": name} for name in TOPICS]
    resources += [{"resource_type": 4, "resource_name": "0"}, {"resource_type": 32, "resource_name": "group-1"}]
    resources += [{"resource_type": 32, "resource_name": "other"}]
    accepted = {"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}
    acknowledged = {"partition_index": 0, "acknowledgement_batches": [accepted]}
    member = {"member_id": "member", "generation_id": 1, "generation_id_or_member_epoch": 1}
    found: dict[ApiKey, list[Message]] = {
        ApiKey.PRODUCE: [
            {"acks": 1, "timeout_ms": 1000, "topic_data": _topics(ids, partition_data=produced)},
            {"acks": 1, "timeout_ms": 1000, "topic_data": _topics(ids, ["nothing"], partition_data=produced)},
        ],
        ApiKey.FETCH: [
            {"replica_id": -1, "max_wait_ms": 0, "max_bytes": 1000, "topics": _topics(ids, partitions=fetched)},
            {
                "replica_id": -1,
                "max_wait_ms": 0,
                "max_bytes": 1000,
                "topics": _topics(ids, ["nothing"], partitions=fetched),
            },
        ],
        ApiKey.LIST_OFFSETS: [
            {"replica_id": -1, "topics": _topics(ids, partitions=[{"partition_index": 0, "timestamp": -1}])}
        ],
        ApiKey.METADATA: [
            {"topics": [{"name": name, "topic_id": NO_ID} for name in NAMED], "allow_auto_topic_creation": False},
            {"topics": [{"name": "nothing", "topic_id": NO_ID}], "allow_auto_topic_creation": False},
            {"topics": None, "allow_auto_topic_creation": False},
            {
                "topics": [{"name": None, "topic_id": ids.get(name, NO_ID)} for name in TOPICS],
                "allow_auto_topic_creation": False,
            },
        ],
        ApiKey.OFFSET_COMMIT: [{"group_id": group, **member, "topics": committed} for group in GROUPS],
        ApiKey.OFFSET_FETCH: [
            *({"group_id": group, "topics": indexes, "groups": []} for group in GROUPS),
            {"group_id": "group-1", "topics": None, "groups": []},
            {"groups": [{"group_id": group, "member_epoch": -1, "topics": indexes} for group in GROUPS]},
            {"groups": [{"group_id": "group-1", "member_epoch": -1, "topics": None}]},
        ],
        ApiKey.FIND_COORDINATOR: [
            {"key": key, "key_type": kind, "coordinator_keys": [key, "tx-1", "group-1"]}
            for kind, keys in enumerate((GROUPS, IDS))
            for key in keys
        ],
        ApiKey.JOIN_GROUP: [
            {"group_id": group, "session_timeout_ms": 1, "rebalance_timeout_ms": 1, "protocol_type": "consumer"}
            for group in GROUPS
        ],
        ApiKey.DESCRIBE_GROUPS: [{"groups": list(GROUPS)}],
        ApiKey.LIST_GROUPS: [{}],
        ApiKey.CREATE_TOPICS: [{"topics": creations, "timeout_ms": 1000, "validate_only": True}],
        ApiKey.DELETE_TOPICS: [
            {
                "topic_names": ["delete-1", "nothing"],
                "topics": [{"name": each, "topic_id": NO_ID} for each in ("delete-1", "nothing")],
                "timeout_ms": 1000,
            },
            {
                "topics": [{"name": None, "topic_id": ids.get("nothing", NO_ID)}],
                "topic_names": ["nothing"],
                "timeout_ms": 1000,
            },
        ],
        ApiKey.DELETE_RECORDS: [
            {"topics": _topics(ids, TOPICS, partitions=[{"partition_index": 0, "offset": 0}]), "timeout_ms": 1000}
        ],
        ApiKey.INIT_PRODUCER_ID: [
            {"transactional_id": None, "transaction_timeout_ms": 1000, "producer_id": -1, "producer_epoch": -1},
            {"transactional_id": "tx-2", "transaction_timeout_ms": 1000, "producer_id": -1, "producer_epoch": -1},
        ],
        ApiKey.OFFSET_FOR_LEADER_EPOCH: [
            {"replica_id": -1, "topics": _topics(ids, partitions=[{"partition": 0, "leader_epoch": 0}])}
        ],
        ApiKey.ADD_PARTITIONS_TO_TXN: [
            {
                "v3_and_below_transactional_id": each,
                "v3_and_below_producer_id": 1,
                "v3_and_below_topics": [{"name": name, "partitions": [0]} for name in TOPICS],
                "transactions": [{"transactional_id": each, "producer_id": 1, "topics": []}],
            }
            for each in IDS
        ],
        ApiKey.ADD_OFFSETS_TO_TXN: [
            {"transactional_id": each, "producer_id": 1, "group_id": group} for each in IDS for group in GROUPS
        ],
        ApiKey.END_TXN: [{"transactional_id": each, "producer_id": 1} for each in IDS],
        ApiKey.WRITE_TXN_MARKERS: [{"markers": []}],
        ApiKey.TXN_OFFSET_COMMIT: [
            {"transactional_id": each, "group_id": group, "producer_id": 1, **member, "topics": committed}
            for each in IDS
            for group in GROUPS
        ],
        ApiKey.DESCRIBE_ACLS: [
            {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
        ],
        ApiKey.CREATE_ACLS: [{"creations": []}],
        ApiKey.DELETE_ACLS: [{"filters": []}],
        ApiKey.DESCRIBE_CONFIGS: [
            {"resources": [{**each, "configuration_keys": ["retention.ms"]} for each in resources]}
        ],
        ApiKey.ALTER_CONFIGS: [{"resources": [{**each, "configs": []} for each in resources], "validate_only": True}],
        ApiKey.INCREMENTAL_ALTER_CONFIGS: [
            {"resources": [{**each, "configs": []} for each in resources], "validate_only": True}
        ],
        ApiKey.ALTER_REPLICA_LOG_DIRS: [
            {"dirs": [{"path": "/nowhere", "topics": [{"name": "read", "partitions": [0]}]}]}
        ],
        ApiKey.DESCRIBE_LOG_DIRS: [{"topics": None}],
        ApiKey.CREATE_PARTITIONS: [
            {"topics": [{"name": name, "count": 2} for name in TOPICS], "timeout_ms": 1000, "validate_only": True}
        ],
        ApiKey.DELETE_GROUPS: [{"groups_names": list(GROUPS)}],
        ApiKey.ELECT_LEADERS: [{"topic_partitions": [{"topic": "read", "partitions": [0]}], "timeout_ms": 1000}],
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: [{"timeout_ms": 1000, "topics": []}],
        ApiKey.LIST_PARTITION_REASSIGNMENTS: [{"timeout_ms": 1000, "topics": None}],
        ApiKey.OFFSET_DELETE: [
            {"group_id": group, "topics": _topics(ids, partitions=[{"partition_index": 0}])} for group in GROUPS
        ],
        ApiKey.DESCRIBE_CLIENT_QUOTAS: [{"components": [], "strict": False}],
        ApiKey.ALTER_CLIENT_QUOTAS: [{"entries": [], "validate_only": True}],
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: [{"users": [{"name": "nobody"}]}],
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: [{"deletions": [{"name": "nobody", "mechanism": 1}], "upsertions": []}],
        ApiKey.DESCRIBE_QUORUM: [
            {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
        ],
        ApiKey.UPDATE_FEATURES: [{"feature_updates": [], "validate_only": True}],
        ApiKey.DESCRIBE_CLUSTER: [{"endpoint_type": 1}],
        ApiKey.DESCRIBE_PRODUCERS: [{"topics": indexes}],
        ApiKey.UNREGISTER_BROKER: [{"broker_id": 99}],
        ApiKey.DESCRIBE_TRANSACTIONS: [{"transactional_ids": list(IDS)}],
        ApiKey.LIST_TRANSACTIONS: [{}],
        ApiKey.CONSUMER_GROUP_HEARTBEAT: [
            {"group_id": group, "member_id": "m", "member_epoch": 5, "subscribed_topic_names": topics}
            for group in GROUPS
            for topics in (["read"], ["read", "nothing"], None)
        ],
        ApiKey.CONSUMER_GROUP_DESCRIBE: [{"group_ids": list(GROUPS)}],
        ApiKey.LIST_CONFIG_RESOURCES: [{"resource_types": []}],
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: [
            {"topics": [{"name": name} for name in NAMED], "response_partition_limit": 100},
            {"topics": [{"name": "nothing"}], "response_partition_limit": 100},
            {"topics": [], "response_partition_limit": 100},
        ],
        ApiKey.SHARE_GROUP_DESCRIBE: [{"group_ids": list(GROUPS)}],
        ApiKey.STREAMS_GROUP_DESCRIBE: [{"group_ids": list(GROUPS)}],
        ApiKey.DELETE_SHARE_GROUP_OFFSETS: [{"group_id": "other", "topics": []}],
        ApiKey.ALTER_SHARE_GROUP_OFFSETS: [{"group_id": "other", "topics": []}],
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: [
            {"groups": [{"group_id": group, "topics": topics} for group in GROUPS]}
            for topics in (_topics(ids, ["read"], partitions=[0]), None)
        ]
        + [{"groups": [{"group_id": "other", "topics": _topics(ids, partitions=[0])}]}],
        ApiKey.SHARE_GROUP_HEARTBEAT: [
            {"group_id": group, "member_id": "m", "member_epoch": 5, "subscribed_topic_names": topics}
            for group in GROUPS
            for topics in (["read"], ["read", "nothing"], ["unknown"], None)
        ],
        ApiKey.SHARE_FETCH: [
            {
                "group_id": group,
                "member_id": MEMBER,
                "share_session_epoch": 5,
                "max_wait_ms": 0,
                "max_bytes": 1000,
                "max_records": 1,
                "batch_size": 1,
                "topics": _topics(ids, names, partitions=[{"partition_index": 0}]),
            }
            for group in GROUPS
            for names in (["read"], [])  # with topics that are denied, the proxy denies the whole request
        ],
        ApiKey.SHARE_ACKNOWLEDGE: [
            {
                "group_id": group,
                "member_id": MEMBER,
                "share_session_epoch": 5,
                "topics": _topics(ids, ["read"], partitions=[acknowledged]),
            }
            for group in GROUPS
        ],
        ApiKey.STREAMS_GROUP_HEARTBEAT: [
            {
                "group_id": group,
                "member_id": "m",
                "member_epoch": 5,
                "topology": None if names is None else {"epoch": 1, "subtopologies": [_subtopology(names)]},
            }
            for group in GROUPS
            for names in (["read"], ["read", "nothing"], ["unknown"], None)
        ],
    }
    for api in (ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.SYNC_GROUP):
        found[api] = [
            {"group_id": group, **member, "members": [], "protocol_type": "consumer", "protocol_name": "range"}
            for group in GROUPS
        ]
    return found
