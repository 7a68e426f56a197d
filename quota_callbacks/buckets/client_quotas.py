"""The buckets of requests, their limits, and the windows of their quota keys.

A bucket is identified by the metric tags that the quota callbacks return (`quota_metric_tags`), and has the limit that
they return (`quota_limit`); so a custom callback can replace the precedence of quotas without computing rates. Buckets
and their history survive every change of quotas, as Kafka's sensors do. They expire after an hour without use
(``ClientSensors``). Used by the built-in callbacks and by replay.

If there are too many buckets (`headrace.quota_callbacks.buckets.bucket_table`), a client id without a bucket is charged
to a shared bucket. If its user and address have reached their maximum, it shares the bucket with the other client ids
of this user and address that have none; if the table is full, with all client ids that have none. There is one shared
bucket for each limit, so that any number of client ids gets no more than a single client id would.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar
from zlib import crc32

from headrace.quota_callbacks.buckets.bucket_table import (
    IDLE_EXPIRY_MS,
    MAX_BUCKETS,
    MAX_OWNED,
    BucketName,
    BucketTable,
    owner_of,
)
from headrace.quota_callbacks.buckets.kinds import BUCKET_KINDS, RateBucket
from headrace.quota_callbacks.buckets.quota_bucket import QuotaBucket
from headrace.quota_callbacks.buckets.sampled_rate import SampledRate, Window
from headrace.quota_callbacks.buckets.throttle_times import METRICS_WINDOW
from headrace.quota_callbacks.buckets.waiting import ALWAYS, NEVER
from headrace.quota_callbacks.entities import QuotaKey, quota_key
from headrace.quota_callbacks.policies import KAFKA_POLICY, Limit
from headrace.quota_callbacks.verdicts import Throttle

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.quota_bucket import Owner
    from headrace.quota_callbacks.requests import Request

__all__ = ["IDLE_EXPIRY_MS", "MAX_BUCKETS", "BucketSource", "ClientQuotas"]

OVERFLOW: Final = "overflow"
"""Metric tag of a bucket that client ids without one share, with their limit as its value."""

WAITS: Final = "waits"
"""``request.notes[WAITS, slot]`` is the bucket for whose wait the request is held."""

ASKED: Final = "asked"
"""``request.notes[ASKED, slot]`` is set if `BucketSource.wait` has to treat the request as the first one of a new
connection."""

MetricTags = Callable[[str, str, str], "Mapping[str, str] | None"]
QuotaLimit = Callable[[str, "Mapping[str, str]"], "float | None"]
BucketT = TypeVar("BucketT", bound=QuotaBucket)


NOT_HELD: Final = Throttle(throttle_ms=0, hold=True, ask_again=True)
"""Holds nothing by itself; the callback is asked again if another one holds the request."""


class BucketSource(ABC):
    """The buckets that a request is charged to: for each quota key one bucket, or none.

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
        is_new = waiting or (request.notes is not None and (ASKED, slot) in request.notes)
        verdict = bucket.wait(request, ALWAYS if is_new else first_used_ms, now_ms)
        if verdict is not None:
            request.make_notes()[WAITS, slot] = bucket
        elif waiting and request.notes is not None:
            del request.notes[WAITS, slot]
            cache[slot] = (generation, user, client_id, bucket, NEVER)
        return verdict

    def ask_again(self, request: Request, slot: object) -> Throttle:
        """Return a verdict that does not hold the request, but has this callback called again if another one holds it.
        `wait` then treats it as the first request of a new connection, since it was not charged.
        """
        request.make_notes()[ASKED, slot] = True
        return NOT_HELD

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
        max_owned: int = MAX_OWNED,
    ) -> None:
        self._windows: dict[str, Window] = dict(windows.items())
        self._metric_tags = metric_tags
        self._quota_limit = quota_limit
        self.table = BucketTable(max_buckets, max_owned)
        self.generation = 0
        self.on_change: Callable[[], None] | None = None
        """Called when ``generation`` has increased."""
        self.overflowed = 0
        """Number of times that a client id was charged to a bucket that it shares, since there were too many."""
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
        generation, user, client_id, bucket, _ = connection.cache.get(key, _NOT_RESOLVED)
        if generation == self.generation and client_id == request.client_id and user == connection.user:
            resolved: BucketT | None = bucket
            if resolved is None:
                return None
            if not resolved.dropped:
                if resolved.meter is not None:
                    resolved.meter.withdraw()
                return resolved
        user, client_id = connection.user, request.client_id
        tags = self._metric_tags(key, user, client_id)
        return self.resolved(request, key, key, kind, tags)

    def resolved(
        self, request: Request, slot: object, key: str, kind: type[BucketT], tags: Mapping[str, str] | None
    ) -> BucketT | None:
        """Return the bucket of ``request`` with ``tags``, and cache it with the connection under ``slot``.

        A shared bucket is not cached, so that a client leaves it once there is room again.
        """
        connection, client_id = request.connection, request.client_id
        _, _, _, before, first_used_ms = connection.cache.get(slot, _NOT_RESOLVED)
        found: QuotaBucket | None = None
        if tags is not None:
            pairs = tuple(tags.items())
            found = self.named((quota_key(key), pairs), owner_of(connection, client_id, pairs))
        if found is not None and not isinstance(found, kind):
            raise TypeError(f"{key} is measured by a {type(found).__name__}, not by a {kind.__name__}")
        if found is None or found is not before:
            first_used_ms = int(request.received_s * 1000)
        valid_for = -1 if found is not None and found.overflow else self.generation
        connection.cache[slot] = (valid_for, connection.user, client_id, found, first_used_ms)
        if found is not None and found.meter is not None:
            found.meter.withdraw()
        return found

    def end_waits(self) -> None:
        """Let new connections wait no longer for throttles that were imposed until now."""
        for bucket in self.table.buckets():
            if bucket.gate_ms != NEVER:
                bucket.end_wait()

    def bucket(self, key: str, user: str, client_id: str) -> QuotaBucket | None:
        """Return the bucket of a user and client id; ``None`` while the key has no quota."""
        tags = self._metric_tags(key, user, client_id)
        if tags is None:
            return None
        return self.named((quota_key(key), tuple(tags.items())))

    def named(self, name: BucketName, owner: Owner | None = None) -> QuotaBucket:
        """Return the bucket with a name, with its current limit; create it if it does not exist.

        The limit is that of the hook `quota_limit` for the tags. For plugins that choose buckets themselves; the key is
        in the form of `headrace.quota_callbacks.entities.quota_key`. ``owner`` is the client that has chosen the name
        (`owner_of`). If it has too many buckets, or the table is full, client ids without a bucket get one that they
        share.
        """
        bucket = self.table.get(name)
        if bucket is None:
            if self.table.owns_too_many(owner):
                return self._shared_bucket(name, owner)
            if self.table.is_full:
                return self._shared_bucket(name, None)
            bucket = self._create(name, owner)
        if bucket.limit_of != self.generation:
            self._set_limit(bucket)
        return bucket

    def _create(self, name: BucketName, owner: Owner | None) -> QuotaBucket:
        key, tags = name
        bucket = BUCKET_KINDS.get(key, RateBucket)(key, tags, self._windows[key])
        bucket.owner = owner
        bucket.overflow = bool(tags) and tags[0][0] == OVERFLOW
        self.table.add(bucket)
        return bucket

    def _shared_bucket(self, name: BucketName, owner: Owner | None) -> QuotaBucket:
        """Return the bucket that client ids without one share, with the limit of ``name``.

        It is for those of ``owner``, or with ``None`` for all.
        """
        self.overflowed += 1
        key, tags = name
        limit: float | None = self._quota_limit(key, dict(tags))
        policy = limit.policy if isinstance(limit, Limit) else KAFKA_POLICY
        terms = f"{limit if limit is None else float(limit)}-{crc32(repr(policy).encode()):08x}"
        where = () if owner is None else (("user", owner[0]), ("address", owner[1]))
        shared_name = (key, ((OVERFLOW, terms), *where))
        bucket = self.table.get(shared_name) or self._create(shared_name, None)
        self._apply(limit, bucket, dict(tags))
        return bucket

    def restore(
        self, key: str, tags: Mapping[str, str], state: Mapping[str, Any], now_ms: int, owner: Owner | None = None
    ) -> bool:
        """Restore the state of a bucket of ``owner`` from before a restart (`QuotaBucket.state`); ages count from
        ``now_ms``. Return ``False`` if there is no room for the bucket."""
        name = (quota_key(key), tuple(tags.items()))
        bucket = self.named(name, owner)
        if bucket.name != name:
            return False
        bucket.restore(state, now_ms)
        return True

    def quotas_changed(self) -> None:
        """Resolve every bucket's limit again at its next use. The state of the buckets is kept."""
        self.generation += 1
        if self.on_change is not None:
            self.on_change()

    def expire(self, now_ms: int) -> int:
        """Drop the buckets that were not used for long (`BucketTable.sweep`); return their number."""
        steps = self.table.sweep(now_ms)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                dropped: int = done.value
                return dropped

    def __iter__(self) -> Iterator[QuotaBucket]:
        """Iterate over the buckets that exist now, with current limits. Others may be created and dropped meanwhile."""
        for bucket in self.table.buckets():
            if bucket.limit_of != self.generation:
                self._set_limit(bucket)
            if bucket.meter is not None:
                bucket.meter.collect()
            yield bucket

    def __len__(self) -> int:
        return len(self.table)

    def _set_limit(self, bucket: QuotaBucket) -> None:
        if not bucket.overflow:  # a shared bucket keeps the limit of the client ids that share it
            tags = bucket.tags
            self._apply(self._quota_limit(bucket.key, tags), bucket, tags)

    def _apply(self, limit: float | None, bucket: QuotaBucket, tags: Mapping[str, str]) -> None:
        bucket.limit_of = self.generation
        if bucket.meter is not None:
            bucket.meter.withdraw()  # what the data plane has charged so far is charged with the old limit
        before = (bucket.limit, bucket.policy)
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
