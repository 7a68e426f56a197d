"""The buckets that usage is charged to, one table for all keys, and the windows they are measured over.

A bucket is looked up by the metric tags that the quota callbacks name (`quota_metric_tags`), and its limit is what
they say (`quota_limit`); so a custom callback replaces precedence without knowing of rates. Buckets and their history
survive every change of quotas, as Kafka's sensors do; they expire after an hour without use (``ClientSensors``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Self

from quota_callbacks.entities import QuotaKey
from quota_callbacks.sampled_rate import MAX_THROTTLE_MS, SampledRate, Window
from quota_callbacks.verdicts import Reason, Throttle

MAX_BUCKETS: Final = 200_000
"""Client ids are the clients' to choose, and each can have a bucket, of about 1 KiB. Beyond this the bucket that was
resolved first is dropped, with its history."""

IDLE_EXPIRY_MS: Final = 3_600_000
"""``ClientQuotaManager.InactiveSensorExpirationTimeSeconds``."""

NEVER_USED: Final = -(2**63)

MetricTags = Callable[[QuotaKey, str, str], "Mapping[str, str] | None"]
QuotaLimit = Callable[[QuotaKey, "Mapping[str, str]"], "Limit | float | None"]


class Limit(float):
    """A limit that knows the entity whose quota it is, for explanations."""

    __slots__ = ("entity",)
    entity: str

    def __new__(cls, value: float, entity: str) -> Self:
        """Make a limit of ``value`` that comes from ``entity``."""
        limit = super().__new__(cls, value)
        limit.entity = entity
        return limit


class RateBucket:
    """Usage against one limit: Kafka's rate with its bound."""

    __slots__ = ("_rate", "entity", "key", "last_used_ms", "limit", "tags")

    def __init__(self, key: QuotaKey, tags: Mapping[str, str], window: Window) -> None:
        self.key = key
        self.tags = tags
        self._rate = SampledRate(window)
        self.limit: float | None = None
        self.entity = ""
        self.last_used_ms = NEVER_USED

    def charge(self, amount: float, now_ms: int, *, longest_ms: int = MAX_THROTTLE_MS) -> Throttle | None:
        """Record ``amount`` and say how long its sender has to wait, if at all."""
        rate = self._rate
        rate.record(amount, now_ms)
        self.last_used_ms = now_ms
        limit = self.limit
        if limit is None:
            return None
        throttle_ms = rate.throttle_ms(limit, now_ms, longest_ms=longest_ms)
        if throttle_ms == 0:
            return None
        reason = Reason(quota=self.key.value, entity=self.entity, observed=rate.rate(now_ms), limit=limit)
        return Throttle(throttle_ms=throttle_ms, reason=reason)

    def rate(self, now_ms: int) -> float:
        """Units a second over the window."""
        return self._rate.rate(now_ms)


class ClientQuotas:
    """Resolves (key, user, client id) to a bucket.

    ``generation`` changes whenever a resolved bucket may have become another one; a connection keeps what it resolved
    until then.
    """

    def __init__(self, *, windows: Mapping[QuotaKey, Window], metric_tags: MetricTags, quota_limit: QuotaLimit) -> None:
        self._windows = windows
        self._metric_tags = metric_tags
        self._quota_limit = quota_limit
        self._buckets: dict[tuple[QuotaKey, tuple[tuple[str, str], ...]], RateBucket] = {}
        self.generation = 0
        self.evicted = 0
        """Buckets that were dropped for `MAX_BUCKETS`."""

    def window(self, key: QuotaKey) -> Window:
        """The window that ``key`` is measured over."""
        return self._windows[key]

    def bucket(self, key: QuotaKey, user: str, client_id: str) -> RateBucket | None:
        """The bucket to charge; ``None`` when the key has no quota at all, so that nothing is recorded."""
        tags = self._metric_tags(key, user, client_id)
        if tags is None:
            return None
        name = (key, tuple(tags.items()))
        bucket = self._buckets.get(name)
        if bucket is None:
            if len(self._buckets) >= MAX_BUCKETS:
                del self._buckets[next(iter(self._buckets))]
                self.evicted += 1
            bucket = self._buckets[name] = RateBucket(key, dict(tags), self._windows[key])
            self._set_limit(bucket)
        return bucket

    def quotas_changed(self) -> None:
        """Ask the callbacks for every bucket's limit anew; debts and histories stay."""
        self.generation += 1
        for bucket in self._buckets.values():
            self._set_limit(bucket)

    def expire(self, now_ms: int) -> int:
        """Drop buckets unused for `IDLE_EXPIRY_MS`; return how many."""
        idle = []
        for name, bucket in self._buckets.items():
            if bucket.last_used_ms == NEVER_USED:
                bucket.last_used_ms = now_ms
            elif now_ms - bucket.last_used_ms >= IDLE_EXPIRY_MS:
                idle.append(name)
        for name in idle:
            del self._buckets[name]
        if idle:
            self.generation += 1
        return len(idle)

    def __iter__(self) -> Iterator[RateBucket]:
        return iter(self._buckets.values())

    def _set_limit(self, bucket: RateBucket) -> None:
        limit = self._quota_limit(bucket.key, bucket.tags)
        bucket.limit = None if limit is None else float(limit)
        bucket.entity = limit.entity if isinstance(limit, Limit) else _describe(bucket.tags)


def _describe(tags: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in tags.items() if value)
