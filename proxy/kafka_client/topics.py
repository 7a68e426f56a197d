"""Creating and deleting topics, and adding partitions to topics: CreateTopics, DeleteTopics, CreatePartitions, and
their messages.

The quota ``controller_mutation_rate`` refuses single topics of these requests from CreateTopics v6, DeleteTopics v5 and
CreatePartitions v3 on (KIP-599); `headrace.proxy.kafka_client.mutations` sends those again.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.proxy.kafka_client.errors import SettingsError, UnsupportedVersionError
from headrace.proxy.kafka_client.mutations import Mutation
from headrace.proxy.wire.mutations import NO_ID
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.proxy.wire.messages.codec import Message

_DEFAULTS_FROM: Final = 4
"""The first CreateTopics with the broker's default counts of partitions and replicas (KIP-464)."""
_VALIDATE_FROM: Final = 1
_BROKERS_DEFAULT: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create. ``None`` is the broker's default. With ``assignments``, leave both counts out."""

    name: str
    num_partitions: int | None = None
    replication_factor: int | None = None
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """The node ids of the replicas of each partition, the preferred leader first; empty to let the cluster choose."""
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPartitions:
    """The number of partitions that a topic is to have in all, and the brokers of the new ones."""

    total_count: int
    assignments: Sequence[Sequence[int]] | None = None
    """The node ids of the replicas of each new partition; ``None`` to let the cluster choose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic:
    """A topic that was created, as the broker describes it. A field is ``None`` if the broker is too old to return it,
    or if the user may not describe the topic's configuration."""

    topic_id: uuid.UUID | None
    num_partitions: int | None
    replication_factor: int | None


def creation(topics: Sequence[NewTopic], *, validate_only: bool) -> Mutation[CreatedTopic]:
    """Return the creation of topics. Raises `SettingsError` for a topic that is named twice, or that has both
    assignments and a count."""
    wanted = {topic.name: topic for topic in topics}
    _check_names([topic.name for topic in topics])
    for topic in topics:
        if topic.assignments and (topic.num_partitions, topic.replication_factor) != (None, None):
            raise SettingsError(f"the topic {topic.name!r} has assignments; leave out both of its counts")

    def build(version: int, names: Sequence[str], timeout_ms: int) -> Message:
        rows = [_new_topic(wanted[name], version) for name in names]
        message: Message = {"topics": rows, "timeout_ms": timeout_ms}
        if version >= _VALIDATE_FROM:
            message["validate_only"] = validate_only
        elif validate_only:
            raise UnsupportedVersionError("the broker cannot validate without creating: it has CreateTopics v0 only")
        return message

    return Mutation(
        api_key=ApiKey.CREATE_TOPICS,
        names=tuple(wanted),
        build=build,
        rows=lambda reply: reply["topics"],
        value=_created,
    )


def deletion(names: Sequence[str]) -> Mutation[None]:
    """Return the deletion of topics. Raises `SettingsError` for a topic that is there twice."""
    _check_names(names)

    def build(version: int, names: Sequence[str], timeout_ms: int) -> Message:
        if version >= 6:  # topics by name or by id (KIP-516)
            return {"topics": [{"name": name} for name in names], "timeout_ms": timeout_ms}
        return {"topic_names": [*names], "timeout_ms": timeout_ms}

    return Mutation(
        api_key=ApiKey.DELETE_TOPICS,
        names=tuple(names),
        build=build,
        rows=lambda reply: reply["responses"],
        value=lambda _row: None,
    )


def growth(topics: Mapping[str, int | NewPartitions], *, validate_only: bool) -> Mutation[None]:
    """Return the creation of partitions of topics that exist."""
    wanted = {
        name: each if isinstance(each, NewPartitions) else NewPartitions(total_count=each)
        for name, each in topics.items()
    }

    def build(_version: int, names: Sequence[str], timeout_ms: int) -> Message:
        rows = [{"name": name, **_new_partitions(wanted[name])} for name in names]
        return {"topics": rows, "timeout_ms": timeout_ms, "validate_only": validate_only}

    return Mutation(
        api_key=ApiKey.CREATE_PARTITIONS,
        names=tuple(wanted),
        build=build,
        rows=lambda reply: reply["results"],
        value=lambda _row: None,
    )


def _check_names(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SettingsError(f"the topic {name!r} is named twice in one call")
        seen.add(name)


def _new_topic(topic: NewTopic, version: int) -> Message:
    uses_defaults = not topic.assignments and None in (topic.num_partitions, topic.replication_factor)
    if uses_defaults and version < _DEFAULTS_FROM:
        raise UnsupportedVersionError(
            f"the broker has no default counts of partitions and replicas: it has CreateTopics v{version}",
            explanation="brokers have them since Kafka 2.4 (KIP-464); name both counts",
        )
    return {
        "name": topic.name,
        "num_partitions": _BROKERS_DEFAULT if topic.num_partitions is None else topic.num_partitions,
        "replication_factor": _BROKERS_DEFAULT if topic.replication_factor is None else topic.replication_factor,
        "assignments": [
            {"partition_index": partition, "broker_ids": [*replicas]}
            for partition, replicas in topic.assignments.items()
        ],
        "configs": [{"name": name, "value": value} for name, value in topic.configs.items()],
    }


def _new_partitions(wanted: NewPartitions) -> Message:
    assignments = None
    if wanted.assignments is not None:
        assignments = [{"broker_ids": [*replicas]} for replicas in wanted.assignments]
    return {"count": wanted.total_count, "assignments": assignments}


def _created(row: Message) -> CreatedTopic:
    topic_id = row.get("topic_id", NO_ID)
    partitions, replicas = row.get("num_partitions", -1), row.get("replication_factor", -1)
    return CreatedTopic(
        topic_id=None if topic_id == NO_ID else uuid.UUID(bytes=topic_id),
        num_partitions=None if partitions < 0 else partitions,
        replication_factor=None if replicas < 0 else replicas,
    )
