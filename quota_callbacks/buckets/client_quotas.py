"""The table of all buckets, and the windows of their quota keys.

A bucket is identified by the metric tags that the quota callbacks return (`quota_metric_tags`), and has the limit that
they return (`quota_limit`); so a custom callback can replace the precedence of quotas without computing rates. Buckets
and their history survive every change of quotas, as Kafka's sensors do. They expire after an hour without use
(``ClientSensors``). Used by the built-in callbacks and by replay.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headrace.quota_callbacks.buckets.kinds import BUCKET_KINDS, RateBucket
from headrace.quota_callbacks.buckets.quota_bucket import NEVER_USED, QuotaBucket
from headrace.quota_callbacks.buckets.sampled_rate import SampledRate, Window
from headrace.quota_callbacks.buckets.throttle_times import METRICS_WINDOW
from headrace.quota_callbacks.buckets.waiting import ALWAYS, NEVER
from headrace.quota_callbacks.entities import QuotaKey, quota_key
from headrace.quota_callbacks.policies import KAFKA_POLICY, Limit

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.shared.buckets import SharedBuckets
    from headrace.quota_callbacks.requests import Request
    from headrace.quota_callbacks.verdicts import Throttle

MAX_BUCKETS: Final = 200_000
"""Maximum number of buckets. Clients choose their client ids, and each can have a bucket, of about 1 KiB. Above this
number, the least recently used of the `EVICTION_CANDIDATES` oldest buckets is dropped with its history."""

EVICTION_CANDIDATES: Final = 64

IDLE_EXPIRY_MS: Final = 3_600_000
"""``ClientQuotaManager.InactiveSensorExpirationTimeSeconds``."""

WAITS: Final = "waits"
"""With the slot, the key in ``request.notes`` of the bucket that the request waits for."""

MetricTags = Callable[[str, str, str], "Mapping[str, str] | None"]
QuotaLimit = Callable[[str, "Mapping[str, str]"], "float | None"]
BucketName = tuple[str, tuple[tuple[str, str], ...]]
BucketT = TypeVar("BucketT", bound=QuotaBucket)


class BucketSource(ABC):
    """What requests are charged to: one bucket for each quota key of a request, or none.

    `ClientQuotas` has the buckets of users and client ids. A plugin that enforces quotas of an entity type of its own
    has a further source, `headrace.quota_callbacks.buckets.quota_scope.QuotaScope`.
    """

    @abstractmethod
    def slot(self, key: str) -> object:
        """Return the key under which this source keeps what belongs to a quota key with a connection or request."""

    @abstractmethod
    def bucket_for(self, request: Request, key: str, kind: type[BucketT]) -> BucketT | None:
        """Return the bucket that ``request`` is charged to; ``None`` if the quota does not apply."""

    def wait(self, request: Request, slot: object, bucket: QuotaBucket, now_ms: int) -> Throttle | None:
        """Return how long to hold a request of a new connection, whose entity has to wait; ``None`` admits it.

        Call it before ``request`` is charged to ``bucket``, if `QuotaBucket.gate_ms` is later than ``now_ms``.
        """
        cache = request.connection.cache
        generation, user, client_id, _, first_used_ms = cache[slot]
        waiting = request.notes is not None and (WAITS, slot) in request.notes
        verdict = bucket.wait(request, ALWAYS if waiting else first_used_ms, now_ms)
        if verdict is not None:
            if request.notes is None:
                request.notes = {}
            request.notes[WAITS, slot] = bucket
        elif waiting and request.notes is not None:
            del request.notes[WAITS, slot]
            cache[slot] = (generation, user, client_id, bucket, NEVER)
        return verdict

    def leave(self, request: Request, slot: object) -> bool:
        """End the wait of a request that was held by `wait` and will not be forwarded; return whether it waited.

        Call it in `request_abandoned`. A request that has waited until then was not charged.
        """
        bucket = None if request.notes is None else request.notes.pop((WAITS, slot), None)
        if bucket is not None:
            bucket.leave(request)
        return bucket is not None


class ClientQuotas(BucketSource):
    """The buckets by quota key and metric tags.

    ``generation`` increases whenever a key, user and client id may resolve to another bucket or limit. Connections
    cache resolved buckets until then.
    """

    def __init__(
        self,
        *,
        windows: Mapping[QuotaKey, Window] | Mapping[str, Window],
        metric_tags: MetricTags,
        quota_limit: QuotaLimit,
        max_buckets: int = MAX_BUCKETS,
        shared: SharedBuckets | None = None,
    ) -> None:
        """``shared`` is the memory that several workers share their buckets in; ``None`` with a single process."""
        self._windows: dict[str, Window] = dict(windows.items())
        self._metric_tags = metric_tags
        self._quota_limit = quota_limit
        self._max_buckets = max_buckets
        self._shared = shared
        self._buckets: dict[BucketName, QuotaBucket] = {}
        self.generation = 0
        self.evicted = 0
        """Number of buckets that were dropped because of `MAX_BUCKETS`."""
        self.exempt_request_time = SampledRate(METRICS_WINDOW)
        """Thread time of exempt requests, in percent of one thread (Kafka's ``exempt-request-time``). Never expires."""

    def window(self, key: str) -> Window:
        """Return the window of ``key``. Raises `KeyError` for a key that does not exist."""
        return self._windows[key]

    def add_keys(self, keys: Iterable[str]) -> None:
        """Make keys of plugins known. They are measured by `RateBucket`, over the window of the byte rates."""
        usual = self._windows.get(QuotaKey.PRODUCER_BYTE_RATE)
        if usual is not None:  # without windows there are no buckets
            for key in keys:
                self._windows.setdefault(key, usual)

    def slot(self, key: str) -> object:
        """Return the quota key itself."""
        return key

    def bucket_for(self, request: Request, key: str, kind: type[BucketT]) -> BucketT | None:
        """Return the bucket that ``request`` is charged to; ``None`` while the key has no quota.

        The result is cached with the connection until quotas, its user or its client id change. ``kind`` is the bucket
        class of the key (`BUCKET_KINDS`, or `RateBucket` for keys of plugins); raises `TypeError` for another one.
        """
        connection = request.connection
        generation, user, client_id, bucket, first_used_ms = connection.cache.get(key, _NOT_RESOLVED)
        if generation == self.generation and client_id == request.client_id and user == connection.user:
            resolved: BucketT | None = bucket
            if resolved is None or not resolved.dropped:
                return resolved
        user, client_id = connection.user, request.client_id
        found = self.bucket(key, user, client_id)
        if found is not None and not isinstance(found, kind):
            raise TypeError(f"{key} is measured by a {type(found).__name__}, not by a {kind.__name__}")
        received_ms = int(request.received_s * 1000)
        if found is None or found is not bucket:
            first_used_ms = received_ms
        connection.cache[key] = (self.generation, user, client_id, found, first_used_ms)
        if found is not None:
            found.learn_wait(received_ms)
        return found

    def end_waits(self) -> None:
        """Let new connections wait no longer for throttles that were imposed until now."""
        for bucket in self._buckets.values():
            bucket.end_wait()

    def bucket(self, key: str, user: str, client_id: str) -> QuotaBucket | None:
        """Return the bucket of a user and client id; ``None`` while the key has no quota."""
        tags = self._metric_tags(key, user, client_id)
        if tags is None:
            return None
        return self.named((quota_key(key), tuple(tags.items())))

    def named(self, name: BucketName) -> QuotaBucket:
        """Return the bucket with a name, with its current limit; create it if it does not exist.

        The limit is that of the hook `quota_limit` for the tags. For plugins that choose buckets themselves; the key is
        in the form of `headrace.quota_callbacks.entities.quota_key`.
        """
        bucket = self._buckets.get(name)
        if bucket is None:
            if len(self._buckets) >= self._max_buckets:
                self._evict()
            key, tags = name
            row = None if self._shared is None else self._shared.row(name)
            kind = BUCKET_KINDS.get(key, RateBucket)
            bucket = self._buckets[name] = kind(key, tags, self._windows[key], row)
        if bucket.limit_of != self.generation:
            self._set_limit(bucket)
        return bucket

    def _evict(self) -> None:
        """Drop the least recently used of the oldest buckets."""
        oldest = itertools.islice(self._buckets.items(), EVICTION_CANDIDATES)
        name, bucket = min(oldest, key=lambda item: item[1].last_used_ms)
        del self._buckets[name]
        bucket.drop()
        self.evicted += 1

    def restore(self, key: str, tags: Mapping[str, str], state: Mapping[str, Any], now_ms: int) -> None:
        """Restore the state of a bucket (`QuotaBucket.state`) from before a restart; ages count back from ``now_ms``.

        A bucket that workers share is restored by the first of them; the call has no effect in the others.
        """
        self.named((quota_key(key), tuple(tags.items()))).restore(state, now_ms)

    def quotas_changed(self) -> None:
        """Resolve every bucket's limit again at its next use. The state of the buckets is kept."""
        self.generation += 1

    def expire(self, now_ms: int) -> int:
        """Drop buckets that were not used for `IDLE_EXPIRY_MS`; return their number."""
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
        """Iterate over all buckets, with current limits. Raises `RuntimeError` if one is created meanwhile."""
        for bucket in self._buckets.values():
            if bucket.limit_of != self.generation:
                self._set_limit(bucket)
            yield bucket

    def __len__(self) -> int:
        return len(self._buckets)

    def _set_limit(self, bucket: QuotaBucket) -> None:
        bucket.limit_of = self.generation
        before = (bucket.limit, bucket.policy)
        tags = bucket.tags
        limit = self._quota_limit(bucket.key, tags)
        bucket.limit = None if limit is None else float(limit)
        if isinstance(limit, Limit):
            bucket.entity, bucket.policy = limit.entity, limit.policy
        else:
            bucket.entity, bucket.policy = _describe(tags), KAFKA_POLICY
        if bucket.gate_ms != NEVER and (bucket.limit, bucket.policy) != before:
            bucket.end_wait()


_NOT_RESOLVED: Final = (-1, "", "", None, NEVER)


def _describe(tags: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in tags.items() if value)
