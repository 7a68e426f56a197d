"""Creating the topic of quotas, and checking the settings of one that exists. Blocks; called by `replica`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import structlog

from headrace.proxy.quotas.store import StoreError, StoreTimeoutError
from headrace.proxy.quotas.topic.log import ClientErrors, client_settings, reason_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka.admin import AdminClient

    from headrace.proxy.quotas.topic.log import TopicSettings

log = structlog.get_logger("headrace.quotas")

REPLICAS: Final = 3
"""Replicas of a new topic, if there are as many brokers: as Kafka's own topics of offsets and transactions have."""
DAY_MS: Final = 86_400_000
DELETE_RETENTION_MS: Final = 7 * DAY_MS
"""How long the record of a removal is kept after its segment was compacted (Kafka's default is a day)."""


def ensure_topic(settings: TopicSettings, deadline_s: float) -> int:
    """Create the topic unless it exists, and check it. Return its ``delete.retention.ms``. Raises `StoreError`."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient

    errors = ClientErrors()
    try:
        admin = AdminClient(client_settings(settings, errors))
    except KafkaException as error:
        raise StoreError(reason_of(error, settings)) from None
    try:
        replicas, known = _create(admin, settings, deadline_s)
        while True:
            try:
                return _check(admin, settings, replicas, deadline_s)
            except KafkaException as error:
                if not known or error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            time.sleep(0.02)  # brokers learn of a new topic one after the other
    except KafkaException as error:
        raise _translated(error, settings, errors) from None
    except TimeoutError:
        raise StoreTimeoutError(settings.about(f"the cluster cannot be reached{errors.suffix()}")) from None


def topic_config(replicas: int, history_ms: int) -> dict[str, str]:
    """Return the settings of a new topic."""
    return {
        "cleanup.policy": "compact",
        "min.insync.replicas": str(max(1, replicas - 1)),
        "unclean.leader.election.enable": "false",
        # Times are those of the brokers, so that the history does not depend on the clocks of the proxies.
        "message.timestamp.type": "LogAppendTime",
        "min.compaction.lag.ms": str(history_ms),
        "delete.retention.ms": str(max(DELETE_RETENTION_MS, history_ms)),
        # Only closed segments are compacted: one is closed after a day, or after some 50,000 changes.
        "segment.ms": str(DAY_MS),
        "segment.bytes": str(16 * 1024 * 1024),
        "min.cleanable.dirty.ratio": "0.1",
        "max.message.bytes": str(1024 * 1024 + 12),  # Kafka's default, of which MAX_BATCH_BYTES is a part
    }


def _create(admin: AdminClient, settings: TopicSettings, deadline_s: float) -> tuple[int, bool]:
    """Create the topic. Return the number of replicas that it should have, and whether it is known to exist."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    brokers = len(_result(admin.describe_cluster(request_timeout=_left(deadline_s)), deadline_s).nodes)
    replicas = settings.replication_factor or min(REPLICAS, brokers)
    new = NewTopic(settings.topic, 1, replicas, config=topic_config(replicas, settings.history_ms))
    try:
        _result(admin.create_topics([new], request_timeout=_left(deadline_s))[settings.topic], deadline_s)
    except KafkaException as error:
        if error.args[0].code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
            return replicas, False
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    else:
        log.info("the topic of quotas was created", topic=settings.topic, replicas=replicas)
    return replicas, True


def _check(admin: AdminClient, settings: TopicSettings, replicas: int, deadline_s: float) -> int:
    from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

    partitions = len(_describe(admin, settings, deadline_s).partitions)
    if partitions != 1:
        raise StoreError(
            settings.about(
                f"it has {partitions} partitions and must have 1, which orders the changes: set another topic"
            )
        )
    resource = ConfigResource(ConfigResource.Type.TOPIC, settings.topic)
    found = _result(admin.describe_configs([resource], request_timeout=_left(deadline_s))[resource], deadline_s)
    config = {name: str(entry.value) for name, entry in found.items()}
    policies = {each.strip() for each in config.get("cleanup.policy", "").split(",")}
    if policies != {"compact"}:
        raise StoreError(
            settings.about(
                f"cleanup.policy = {config.get('cleanup.policy')} and must be compact, since quotas would be deleted: "
                "change it with kafka-configs, or set another topic"
            )
        )
    _warn(settings, config, topic_config(replicas, settings.history_ms))
    return int(config.get("delete.retention.ms", DAY_MS))


def _warn(settings: TopicSettings, config: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Log which settings are weaker than those of a new topic."""
    for name in ("min.insync.replicas", "min.compaction.lag.ms", "delete.retention.ms"):
        if int(config.get(name, wanted[name])) < int(wanted[name]):
            log.warning(
                "a setting of the topic of quotas is low",
                topic=settings.topic,
                setting=name,
                value=config[name],
                recommended=wanted[name],
            )
    if config.get("unclean.leader.election.enable") == "true":
        log.warning(
            "the topic of quotas may lose changes", topic=settings.topic, setting="unclean.leader.election.enable"
        )


def _describe(admin: AdminClient, settings: TopicSettings, deadline_s: float) -> Any:
    from confluent_kafka import TopicCollection

    topics = TopicCollection([settings.topic])
    return _result(admin.describe_topics(topics, request_timeout=_left(deadline_s))[settings.topic], deadline_s)


def _result(future: Any, deadline_s: float) -> Any:
    return future.result(_left(deadline_s) + 1.0)  # librdkafka's own time-out comes first, and has a reason


def _left(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return max(left_s, 0.1)


def _translated(error: Exception, settings: TopicSettings, errors: ClientErrors) -> StoreError:
    from confluent_kafka import KafkaError

    cause = error.args[0]
    if cause.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return StoreError(settings.about("it does not exist, and the proxy may not create it"))
    permanent = (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_CONFIG,
        KafkaError.POLICY_VIOLATION,
    )
    if cause.code() in permanent:
        return StoreError(settings.about(f"it cannot be created or checked: {cause.str()}"))
    return StoreTimeoutError(settings.about(f"the cluster cannot be reached: {cause.str()}{errors.suffix()}"))
