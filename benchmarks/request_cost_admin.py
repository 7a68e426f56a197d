"""Workloads of `benchmarks.request_costs`: administration, most of which a broker forwards to the controller."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.request_cost_client import MeasuredClient, Work, asking
from benchmarks.request_cost_data import COUNTS, MANY, WIDE
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from headrace.proxy.wire.messages.codec import Message

TIMEOUT_MS = 30_000
# Topics, and ACLs, that one request creates or deletes.
LIFE_COUNTS = (1, 10)
TOPIC, BROKER = 2, 4  # ConfigResource.Type
READ, ALLOW, LITERAL, ANY = 3, 3, 3, 1  # AclOperation, AclPermissionType, PatternType; 1 in all
SCRAM_SHA_256 = 1
EXACTLY = 0
# Expected error codes: nothing to elect, nothing to cancel, not yet known.
ELECTION_NOT_NEEDED, NO_REASSIGNMENT, UNKNOWN_USER = 84, 85, 91


def works() -> list[Work]:
    """Return all workloads."""
    return [*_topics(), *_configs(), *_acls(), *_users(), *_cluster()]


def _topics() -> list[Work]:
    works = [
        Work(name=f"life of {count} topics", run=partial(_topic_life, count=count), share=0.1) for count in LIFE_COUNTS
    ]
    return [*works, Work(name="create topic, check only", run=_check_topic, share=0.5)]


def _topic_life(client: MeasuredClient, number: int, count: int) -> None:
    names = [f"made-{number}-{each}" for each in range(count)]
    created = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
    client.ask(ApiKey.CREATE_TOPICS, 7, {"timeout_ms": TIMEOUT_MS, "topics": created})
    grown = [{"name": name, "count": 2, "assignments": None} for name in names]
    client.ask(ApiKey.CREATE_PARTITIONS, 3, {"timeout_ms": TIMEOUT_MS, "topics": grown})
    deleted = [{"name": name} for name in names]
    client.ask(ApiKey.DELETE_TOPICS, 6, {"timeout_ms": TIMEOUT_MS, "topics": deleted})


def _check_topic(client: MeasuredClient, number: int) -> None:
    topic = {"name": f"checked-{number}", "num_partitions": 1, "replication_factor": 1}
    message: Message = {"timeout_ms": TIMEOUT_MS, "topics": [topic], "validate_only": True}
    client.ask(ApiKey.CREATE_TOPICS, 7, message)


def _configs() -> list[Work]:
    works = []
    for count in COUNTS:
        resources: list[Message] = [{"resource_type": TOPIC, "resource_name": name} for name in MANY[:count]]
        described: Message = {"resources": [{**each, "configuration_keys": None} for each in resources]}
        run = asking(ApiKey.DESCRIBE_CONFIGS, 4, described)
        works.append(Work(name=f"configs of {count} topics", run=run, share=0.5 if count < 100 else 0.1))
    broker: Message = {"resource_type": BROKER, "resource_name": "0", "configuration_keys": None}
    return [
        *works,
        Work(name="configs of a broker", run=asking(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [broker]}), share=0.3),
        Work(name="set a config", run=_set_config, share=0.2),
        Work(name="all config resources", run=asking(ApiKey.LIST_CONFIG_RESOURCES, 1), share=0.5),
    ]


def _set_config(client: MeasuredClient, number: int) -> None:
    value = str(3_600_000 + number)
    topic: Message = {"resource_type": TOPIC, "resource_name": MANY[0]}
    entry: Message = {"name": "retention.ms", "value": value}
    client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [{**topic, "configs": [entry]}]})
    client.ask(ApiKey.ALTER_CONFIGS, 2, {"resources": [{**topic, "configs": [entry]}]})


def _acls() -> list[Work]:
    return [Work(name=f"life of {count} ACLs", run=partial(_acl_life, count=count), share=0.1) for count in LIFE_COUNTS]


def _acl_life(client: MeasuredClient, _: int, count: int) -> None:
    acl: Message = {"principal": "User:somebody", "host": "*", "operation": READ, "permission_type": ALLOW}
    names = [f"acl-{each}" for each in range(count)]
    created = [{"resource_type": 2, "resource_name": name, "resource_pattern_type": LITERAL, **acl} for name in names]
    client.ask(ApiKey.CREATE_ACLS, 3, {"creations": created})
    client.ask(ApiKey.DESCRIBE_ACLS, 3, _acl_filter(None))
    client.ask(ApiKey.DELETE_ACLS, 3, {"filters": [_acl_filter(name) for name in names]})


def _acl_filter(name: str | None) -> Message:
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": name,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    }


def _users() -> list[Work]:
    component: Message = {"entity_type": "client-id", "match_type": EXACTLY, "match": "somebody"}
    return [
        Work(name="set a quota", run=_set_quota, share=0.2),
        Work(name="a quota", run=asking(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": [component]})),
        Work(name="life of a SCRAM user", run=_scram_life, share=0.1),
    ]


def quota_message(client_id: str, key: str, value: float) -> Message:
    """Return a request that sets one quota of one client id."""
    entity = [{"entity_type": "client-id", "entity_name": client_id}]
    return {"entries": [{"entity": entity, "ops": [{"key": key, "value": value, "remove": False}]}]}


def _set_quota(client: MeasuredClient, number: int) -> None:
    client.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, quota_message("somebody", "producer_byte_rate", 1_000_000.0 + number))


def _scram_life(client: MeasuredClient, _: int) -> None:
    user: Message = {"name": "somebody", "mechanism": SCRAM_SHA_256}
    secret: Message = {"iterations": 4096, "salt": bytes(16), "salted_password": bytes(32)}
    client.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, {"deletions": [], "upsertions": [{**user, **secret}]})
    client.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": [{"name": "somebody"}]}, expect={UNKNOWN_USER})
    client.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, {"deletions": [user], "upsertions": []})


def _cluster() -> list[Work]:
    quorum = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    first = [{"topic": WIDE, "partitions": [0]}]
    elected: Message = {"timeout_ms": TIMEOUT_MS, "topic_partitions": first}
    cancelled = {"name": WIDE, "partitions": [{"partition_index": 0, "replicas": None}]}
    reassigned: Message = {"timeout_ms": TIMEOUT_MS, "topics": [cancelled]}
    return [
        Work(name="quorum", run=asking(ApiKey.DESCRIBE_QUORUM, 2, {"topics": quorum}), share=0.5),
        Work(name="log directories, one topic", run=asking(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": first})),
        Work(name="log directories", run=asking(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None}), share=0.3),
        Work(
            name="elect a leader", run=asking(ApiKey.ELECT_LEADERS, 2, elected, accept=[ELECTION_NOT_NEEDED]), share=0.2
        ),
        Work(
            name="cancel a reassignment",
            run=asking(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, reassigned, accept=[NO_REASSIGNMENT]),
            share=0.2,
        ),
        Work(
            name="reassignments",
            run=asking(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"timeout_ms": TIMEOUT_MS, "topics": None}),
            share=0.5,
        ),
    ]
