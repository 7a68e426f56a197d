"""The buckets that usage is charged to, one table for all keys, and the windows they are measured over.

A bucket is looked up by the metric tags that the quota callbacks name (`quota_metric_tags`), and its limit is what
they say (`quota_limit`); so a custom callback replaces precedence without knowing of rates. Buckets and their history
survive every change of quotas, as Kafka's sensors do; they expire after an hour without use (``ClientSensors``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headrace.quota_callbacks.buckets.kinds import BUCKET_KINDS
from headrace.quota_callbacks.buckets.quota_bucket import NEVER_USED, QuotaBucket
from headrace.quota_callbacks.buckets.sampled_rate import SampledRate, Window
from headrace.quota_callbacks.buckets.throttle_times import METRICS_WINDOW
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.policies import KAFKA_POLICY, Limit

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.shared.usage import SharedUsage
    from headrace.quota_callbacks.requests import Request

MAX_BUCKETS: Final = 200_000
"""Client ids are the clients' to choose, and each can have a bucket, of about 1 KiB. Beyond this the idlest of the
first ones is dropped, with its history."""

EVICTED_OF: Final = 64
"""How many are compared to find the one to drop."""

IDLE_EXPIRY_MS: Final = 3_600_000
"""``ClientQuotaManager.InactiveSensorExpirationTimeSeconds``."""

MetricTags = Callable[[QuotaKey, str, str], "Mapping[str, str] | None"]
QuotaLimit = Callable[[QuotaKey, "Mapping[str, str]"], "float | None"]
BucketName = tuple[QuotaKey, tuple[tuple[str, str], ...]]
BucketT = TypeVar("BucketT", bound=QuotaBucket)


class ClientQuotas:
    """Resolves (key, user, client id) to a bucket.

    ``generation`` changes whenever a resolved bucket may have become another one; a connection keeps what it resolved
    until then.
    """

    def __init__(
        self,
        *,
        windows: Mapping[QuotaKey, Window],
        metric_tags: MetricTags,
        quota_limit: QuotaLimit,
        max_buckets: int = MAX_BUCKETS,
        shared: SharedUsage | None = None,
    ) -> None:
        """``shared``: where several workers charge the same buckets; ``None`` is one process alone."""
        self._windows = windows
        self._metric_tags = metric_tags
        self._quota_limit = quota_limit
        self._max_buckets = max_buckets
        self._shared = shared
        self._buckets: dict[BucketName, QuotaBucket] = {}
        self.generation = 0
        self.evicted = 0
        """Buckets that were dropped for `MAX_BUCKETS`."""
        self.exempt_request_time = SampledRate(METRICS_WINDOW)
        """Thread time, in percent of one thread, that no quota counts (Kafka's ``exempt-request-time``); never
        expires."""

    def window(self, key: QuotaKey) -> Window:
        """The window that ``key`` is measured over."""
        return self._windows[key]

    def bucket_for(self, request: Request, key: QuotaKey, kind: type[BucketT]) -> BucketT | None:
        """The bucket that ``request`` is charged to; ``None`` when the key has no quota at all, so that nothing is
        recorded.

        What was resolved is kept with the connection until quotas, its user or its client id change. ``kind`` is the
        one that the key is measured by (`BUCKET_KINDS`).
        """
        connection = request.connection
        generation, user, client_id, bucket = connection.cache.get(key, _NOT_RESOLVED)
        if generation == self.generation and client_id == request.client_id and user == connection.user:
            resolved: BucketT | None = bucket
            if resolved is None or not resolved.dropped:
                return resolved
        user, client_id = connection.user, request.client_id
        found = self.bucket(key, user, client_id)
        if found is not None and not isinstance(found, kind):
            raise TypeError(f"{key} is measured by a {type(found).__name__}, not by a {kind.__name__}")
        connection.cache[key] = (self.generation, user, client_id, found)
        return found

    def bucket(self, key: QuotaKey, user: str, client_id: str) -> QuotaBucket | None:
        """The bucket to charge, by whom it is for; ``None`` when the key has no quota at all."""
        tags = self._metric_tags(key, user, client_id)
        if tags is None:
            return None
        return self._named((key, tuple(tags.items())))

    def _named(self, name: BucketName) -> QuotaBucket:
        bucket = self._buckets.get(name)
        if bucket is None:
            if len(self._buckets) >= self._max_buckets:
                self._evict()
            key, tags = name
            row = None if self._shared is None else self._shared.row(name)
            bucket = self._buckets[name] = BUCKET_KINDS[key](key, tags, self._windows[key], row)
        if bucket.limit_of != self.generation:
            self._set_limit(bucket)
        return bucket

    def _evict(self) -> None:
        """Drop the idlest of the oldest ones."""
        oldest = itertools.islice(self._buckets.items(), EVICTED_OF)
        name, bucket = min(oldest, key=lambda item: item[1].last_used_ms)
        del self._buckets[name]
        bucket.drop()
        self.evicted += 1

    def restore(self, key: QuotaKey, tags: Mapping[str, str], state: Mapping[str, Any], now_ms: int) -> None:
        """Take up what a bucket held before a restart (`QuotaBucket.state`, its ages as they are by now).

        Where workers share it, whoever restores it first does so for all; to others, what is shared counts.
        """
        self._named((key, tuple(tags.items()))).restore(state, now_ms)

    def quotas_changed(self) -> None:
        """Limits may have changed: each bucket's is asked for anew when it is next looked at; debts and histories
        stay."""
        self.generation += 1

    def expire(self, now_ms: int) -> int:
        """Drop buckets unused for `IDLE_EXPIRY_MS`; return how many."""
        idle = []
        for name, bucket in self._buckets.items():
            if bucket.last_used_ms == NEVER_USED:
                bucket.last_used_ms = now_ms
            elif now_ms - bucket.last_used_ms > max(IDLE_EXPIRY_MS, bucket.window.seconds * 1000):
                idle.append(name)
        for name in idle:
            self._buckets.pop(name).drop()
        return len(idle)

    def __iter__(self) -> Iterator[QuotaBucket]:
        """All buckets, with their limits as they are now. Raises `RuntimeError` when one is made meanwhile."""
        for bucket in self._buckets.values():
            if bucket.limit_of != self.generation:
                self._set_limit(bucket)
            yield bucket

    def __len__(self) -> int:
        return len(self._buckets)

    def _set_limit(self, bucket: QuotaBucket) -> None:
        bucket.limit_of = self.generation
        tags = bucket.tags
        limit = self._quota_limit(bucket.key, tags)
        bucket.limit = None if limit is None else float(limit)
        if isinstance(limit, Limit):
            bucket.entity, bucket.policy = limit.entity, limit.policy
        else:
            bucket.entity, bucket.policy = _describe(tags), KAFKA_POLICY


_NOT_RESOLVED: Final = (-1, "", "", None)


def _describe(tags: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in tags.items() if value)
