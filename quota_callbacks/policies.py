"""How a quota is enforced, beside its value: Kafka's way or paced, for real or only observed, and for how long at most.

A policy belongs to one quota of one entity. Kafka knows none of this; what is not said is Kafka's way.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from headrace.quota_callbacks.verdicts import MAX_THROTTLE_MS

if TYPE_CHECKING:
    from headrace.quota_callbacks.entities import QuotaEntity


class EnforcementMode(StrEnum):
    """Which arithmetic says how long somebody has to wait."""

    KAFKA = "kafka"
    """The broker's own, to the millisecond: each connection is delayed by itself."""
    PACED = "paced"
    """One timeline for all connections of the entity, in which they take turns: the limit holds however many there
    are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaPolicy:
    """How one quota is enforced."""

    mode: EnforcementMode = EnforcementMode.KAFKA
    observe: bool = False
    """Shadow mode: measured, logged, counted and traced as if it were enforced, and nobody is throttled."""
    burst_s: float | None = None
    """Paced only: how much may come at once, in seconds of the limit; ``None`` is the quota key's own default."""
    longest_throttle_ms: int = MAX_THROTTLE_MS
    """Nobody is throttled for longer at a time; the debt stays."""


KAFKAS_WAY: Final = QuotaPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A quota as it is set: its value, in the unit of its key, and how it is enforced."""

    value: float
    policy: QuotaPolicy = KAFKAS_WAY


class Limit(float):
    """A limit that knows whose quota it is and how it is enforced; what ``quota_limit`` may answer for a float."""

    __slots__ = ("entity", "policy")
    entity: str
    policy: QuotaPolicy

    def __new__(cls, value: float, entity: QuotaEntity | str, policy: QuotaPolicy = KAFKAS_WAY) -> Self:
        """Make a limit of ``value`` that comes from ``entity``."""
        limit = super().__new__(cls, value)
        limit.entity = str(entity)
        limit.policy = policy
        return limit
