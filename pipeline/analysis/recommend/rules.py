"""The rules by which usage becomes a quota: the options of the command, their defaults and limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import QuotaKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column

    from headrace.pipeline.analysis.quota_files import Entity

HOUR_S: Final = 3600
WIDELY: Final = 0.95
"""Share of the entities for which the default entity's quota suffices."""

HELD_SHARE: Final = 0.5
"""A limit is ignored if it throttled or refused the entity in at least this share of its seconds."""
STORM_SHARE: Final = 0.01
"""Retry storms in at least this share of an entity's seconds mark it. Fewer seconds do not reach the 99th percentile.
"""
STORM_REQUESTS: Final = 10
"""Minimum number of requests in a second of a retry storm."""
STORM_FAILED: Final = 0.5
"""Minimum share of failed or refused requests in a second of a retry storm."""
STORM_FACTOR: Final = 10
"""A second without failures is of a retry storm if the requests, and the requests per byte, are above this multiple of
the entity's usual ones.
"""

DEFAULT_WINDOWS: Final[Mapping[QuotaKey, Window]] = {
    key: Window(samples=11, seconds=HOUR_S if key is QuotaKey.PRODUCER_IDS_RATE else 1) for key in QuotaKey
}
"""The defaults of Kafka, and for producer ids of KIP-936."""

DEFAULT_LEAST: Final[Mapping[QuotaKey, float]] = {
    QuotaKey.PRODUCER_BYTE_RATE: 110_000,
    QuotaKey.CONSUMER_BYTE_RATE: 110_000,
    QuotaKey.REQUEST_PERCENTAGE: 1,
    QuotaKey.CONTROLLER_MUTATION_RATE: 1,
    QuotaKey.PRODUCER_IDS_RATE: 10,
}
"""Minimum quotas. Byte rates: one request of 1 MiB (``max.request.size``, ``max.partition.fetch.bytes``) after a pause
is 104,858 bytes a second over Kafka's shortest window, 10 s. The others allow for a topic of 11 partitions at once, and
a deployment of ten producers.
"""


class By(StrEnum):
    """The kinds of entities."""

    USER = "user"
    CLIENT_ID = "client-id"
    BOTH = "user-and-client-id"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that name the entity."""
        return {By.USER: ("user",), By.CLIENT_ID: ("client_id",), By.BOTH: ("user", "client_id")}[self]

    @property
    def keys(self) -> tuple[QuotaKey, ...]:
        """The quota keys that apply; producer ids are for users only (KIP-936)."""
        return tuple(key for key in QuotaKey if self is By.USER or key is not QuotaKey.PRODUCER_IDS_RATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules by which usage becomes a quota, which are the command's options."""

    by: By = By.USER
    windows: Mapping[QuotaKey, Window] = field(default_factory=lambda: DEFAULT_WINDOWS)
    headroom: float = 1.3
    """Multiple of the 99th percentile."""
    throttled_headroom: float = 2.0
    """The multiple for entities that this quota has throttled, since their demand is not known."""
    follow_peaks: bool = False
    """Whether a quota is raised until it would have throttled none of the usage."""
    allow_throttled: float = 0.0
    """With `follow_peaks`: share of an entity's seconds that may be above its quota."""
    least: Mapping[QuotaKey, float] = field(default_factory=lambda: DEFAULT_LEAST)
    least_seconds: int = 60
    """Minimum activity of an entity to get a quota of its own."""
    default: bool = True
    """Whether to recommend quotas for the default entity."""
    least_entities: int = 20
    """Minimum number of entities with usage of a key for a default quota of it. Among fewer than 20, the quota that
    suffices for 19 of 20 would be that of the largest."""
    capacity: Mapping[QuotaKey, float] = field(default_factory=dict)
    """The capacity of the cluster, by key, in the unit of the key."""
    present: Mapping[Entity, Mapping[QuotaKey, float]] = field(default_factory=dict)
    """The quotas in force, as far as they are known."""

    def span_s(self, key: str) -> int:
        """Return the length of the key's window in seconds."""
        window = self.windows[QuotaKey(key)]
        return window.seconds if key == QuotaKey.PRODUCER_IDS_RATE else window.samples * window.seconds

    def divisor(self, key: str) -> int:
        """Return the divisor of a window's sum for the rate; 1 for producer ids, which are counted per window."""
        return 1 if key == QuotaKey.PRODUCER_IDS_RATE else self.span_s(key)

    def shortest(self, key: str) -> int:
        """Return the smallest divisor that the quota's arithmetic can use for a window's sum.

        Kafka's rates are over one sample less when the last sample has just begun (``Rate.windowSize``). Token buckets
        accept the amount of a whole window at once.
        """
        if key in (QuotaKey.PRODUCER_IDS_RATE, QuotaKey.CONTROLLER_MUTATION_RATE):
            return self.divisor(key)
        window = self.windows[QuotaKey(key)]
        return max(1, window.samples - 1) * window.seconds

    def by_key(self, value: Callable[[QuotaKey], float | None]) -> Column:
        """Return a column with the number for the key in the column ``key``; null for ``None`` and other keys."""
        numbers = ((key, value(key)) for key in self.by.keys)
        known = [f"WHEN '{key}' THEN double('{float(each)!r}')" for key, each in numbers if each is not None]
        # In SQL, since an object of Python for each part takes longer than the query of a small job.
        return sf.expr(f"CASE key {' '.join(known)} END" if known else "CAST(NULL AS double)")
