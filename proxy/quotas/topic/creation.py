"""Creating the topic of quotas, checking the settings of one that exists, and noticing that it was created again.

Blocks; called by `replica` and `log`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import structlog

from headrace.proxy.quotas.store import StoreError, StoreTimeoutError
from headrace.proxy.quotas.topic.clients import ClientErrors, client_settings, reason_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka.admin import AdminClient

    from headrace.proxy.quotas.topic.clients import TopicSettings

log = structlog.get_logger("headrace.quotas")

REPLICAS: Final = 3
"""Replicas of a new topic, if there are as many brokers: as Kafka's own topics of offsets and transactions have."""
DAY_MS: Final = 86_400_000
DELETE_RETENTION_MS: Final = 7 * DAY_MS
"""How long the record of a removal is kept after its segment was compacted (Kafka's default is a day)."""
QUESTION_S: Final = 1.0
"""Seconds between two questions for the id of the topic, each of which is a request of its own."""
LONGEST_ANSWER_S: Final = 1.0
"""Seconds until a question for the id is given up; a broker answers within milliseconds."""
RETRY_S: Final = 0.05
"""Pause before the question is asked again, by a new client."""


class TopicAdmin:
    """The administration of one topic: `ensure` and `is_replaced`. Connects again by itself."""

    def __init__(self, settings: TopicSettings) -> None:
        self._settings = settings
        self._errors = ClientErrors()
        self._client: AdminClient | None = None
        self._id: str | None = None
        self._next_question_s = 0.0
        self._check_required = False

    def ensure(self, deadline_s: float) -> int:
        """Create the topic unless it exists, and check it. Return its ``delete.retention.ms``. Raises `StoreError`."""
        from confluent_kafka import KafkaError, KafkaException

        try:
            replicas, known = self._create(deadline_s)
            while True:
                try:
                    return self._check(replicas, deadline_s)
                except KafkaException as error:
                    if not known or error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
                time.sleep(0.02)  # brokers learn of a new topic one after the other
        except KafkaException as error:
            self._client = None
            raise self._translated(error) from None
        except TimeoutError:
            self._client = None
            cause = f"the cluster cannot be reached{self._errors.suffix()}"
            raise StoreTimeoutError(self._settings.about(cause)) from None

    def is_replaced(self, deadline_s: float) -> bool:
        """Return whether the topic has another id than when `ensure` was called: it was deleted and created again.

        Asks a broker if it has not asked for `QUESTION_S`, or `require_check` was called since; in the latter case,
        raises `StoreTimeoutError` if no broker answers. Returns ``False`` for brokers before Kafka 2.8, which have no
        ids of topics.
        """
        if self._id is None or time.monotonic() < self._next_question_s:
            return False
        found = self._asked_id(deadline_s)
        self._check_required = False
        self._next_question_s = time.monotonic() + QUESTION_S
        return found is not None and found != self._id

    def _asked_id(self, deadline_s: float) -> str | None:
        """Return the id that a broker gives, or ``None`` if none answers, or none knows the topic."""
        from confluent_kafka import KafkaException

        while True:
            try:
                return _id_of(self._describe(min(deadline_s, time.monotonic() + LONGEST_ANSWER_S)))
            except (KafkaException, TimeoutError) as error:
                if _is_unknown_topic(error):
                    return None
            # librdkafka would go on to ask the broker that it takes for the controller, which may be gone.
            self._client = None
            if not self._check_required:
                return None
            if time.monotonic() + RETRY_S >= deadline_s:
                cause = f"no broker answers whether it was created again{self._errors.suffix()}"
                raise StoreTimeoutError(self._settings.about(cause))
            time.sleep(RETRY_S)

    def require_check(self) -> None:
        """Let `is_replaced` ask at its next call: a broker has not known the topic, or a change is about to succeed."""
        self._check_required = True
        self._next_question_s = 0.0

    def close(self) -> None:
        """Close the client."""
        self._client = None

    def _connected(self) -> AdminClient:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        if self._client is None:
            try:
                self._client = AdminClient(client_settings(self._settings, self._errors))
            except KafkaException as error:
                raise StoreError(reason_of(error, self._settings)) from None
        return self._client

    def _create(self, deadline_s: float) -> tuple[int, bool]:
        """Create the topic. Return the number of replicas that it should have, and whether it is known to exist."""
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        admin, settings = self._connected(), self._settings
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

    def _check(self, replicas: int, deadline_s: float) -> int:
        from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

        admin, settings = self._connected(), self._settings
        described = self._describe(deadline_s)
        partitions = len(described.partitions)
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
            found_policy = f"cleanup.policy = {config.get('cleanup.policy')}"
            raise StoreError(
                settings.about(
                    f"{found_policy} and must be compact, since quotas would be deleted: change it with kafka-configs, "
                    "or set another topic"
                )
            )
        _warn(settings, config, topic_config(replicas, settings.history_ms))
        self._id, self._next_question_s = _id_of(described), time.monotonic() + QUESTION_S
        return int(config.get("delete.retention.ms", DAY_MS))

    def _describe(self, deadline_s: float) -> Any:
        from confluent_kafka import TopicCollection

        topics = TopicCollection([self._settings.topic])
        described = self._connected().describe_topics(topics, request_timeout=_left(deadline_s))
        return _result(described[self._settings.topic], deadline_s)

    def _translated(self, error: Exception) -> StoreError:
        from confluent_kafka import KafkaError

        settings, cause = self._settings, error.args[0]
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
        return StoreTimeoutError(settings.about(f"the cluster cannot be reached: {cause.str()}{self._errors.suffix()}"))


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


def _id_of(described: Any) -> str | None:
    """Return the id of a topic, or ``None`` if the broker has none."""
    found = described.topic_id
    if found is None or not (found.get_most_significant_bits() or found.get_least_significant_bits()):
        return None
    return str(found)


def _result(future: Any, deadline_s: float) -> Any:
    return future.result(_left(deadline_s) + 1.0)  # librdkafka's own time-out comes first, and has a reason


def _left(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return max(left_s, 0.1)


def _is_unknown_topic(error: Exception) -> bool:
    from confluent_kafka import KafkaError, KafkaException

    return isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
