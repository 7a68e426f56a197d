"""Quota policies: the arithmetic a quota is enforced with, shadow mode, and the longest throttle.

A policy belongs to one quota of one entity. Kafka has no counterpart; the defaults are what Kafka does, except for new
connections. Used by the configuration and the buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from headrace.quota_callbacks.verdicts import MAX_THROTTLE_MS

if TYPE_CHECKING:
    from headrace.quota_callbacks.entities import QuotaEntity


class EnforcementMode(StrEnum):
    """The arithmetic that throttle times are computed with."""

    KAFKA = "kafka"
    """The broker's own arithmetic, equal to the millisecond: each connection is throttled independently."""
    PACED = "paced"
    """One timeline for all connections of the entity, so that the limit holds for any number of connections."""


class NewConnections(StrEnum):
    """What happens to a connection that is opened while its entity has to wait (`EnforcementMode.KAFKA` only)."""

    WAIT = "wait"
    """The first request of the connection that would be charged is held until the wait of the entity ends, so that a
    client gains nothing by reconnecting."""
    KAFKA = "kafka"
    """The broker's own behaviour: a throttle applies only to the connection whose request has caused it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaPolicy:
    """How one quota is enforced."""

    mode: EnforcementMode = EnforcementMode.KAFKA
    observe: bool = False
    """Shadow mode: the quota is measured, logged, counted and traced as if it were enforced, but not enforced."""
    burst_s: float | None = None
    """Paced only: the burst, in seconds of the limit; ``None`` is the default of the quota key."""
    new_connections: NewConnections = NewConnections.WAIT
    """Whether a throttle applies to connections that are opened while it lasts."""
    longest_throttle_ms: int = MAX_THROTTLE_MS
    """Upper bound of a single throttle time. It does not reduce the debt."""


KAFKA_POLICY: Final = QuotaPolicy()
"""The default policy: Kafka's arithmetic, and throttles that also apply to new connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A quota: its value, in the unit of its key, and its policy."""

    value: float
    policy: QuotaPolicy = KAFKA_POLICY


class Limit(float):
    """A limit with the entity and the policy of its quota. `quota_limit` may return it in place of a float."""

    __slots__ = ("entity", "policy")
    entity: str
    policy: QuotaPolicy

    def __new__(cls, value: float, entity: QuotaEntity | str, policy: QuotaPolicy = KAFKA_POLICY) -> Self:
        """Create a limit of ``value`` from the quota of ``entity``."""
        limit = super().__new__(cls, value)
        limit.entity = str(entity)
        limit.policy = policy
        return limit
