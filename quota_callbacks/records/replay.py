"""Replay: computing what quotas would have done to recorded traffic.

The events of the record are charged to the same buckets, with the same precedence, as live traffic (`ClientQuotas` with
`DefaultQuotaCallback`), at the recorded times. Called by ``headrace replay`` (`headrace.proxy.replay.replay`) with the
lines of a trace, and by the pipeline's what-if analysis with the events of each bucket. Pure. Memory grows with the
number of entities, not of events.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.buckets.kinds import MutationBucket, ProducerIdBucket, RateBucket
from headrace.quota_callbacks.builtin.default_quotas import DefaultQuotaCallback
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.policies import KAFKA_POLICY
from headrace.quota_callbacks.requests import PERCENT_PER_NS
from headrace.quota_callbacks.verdicts import Refuse, Throttle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.quota_callbacks.buckets.kinds import QuotaBucket
    from headrace.quota_callbacks.buckets.sampled_rate import Window
    from headrace.quota_callbacks.entities import QuotaEntity
    from headrace.quota_callbacks.policies import Limit

SWEEP_MS: Final = 30_000
"""Interval of the removal of idle buckets (``Metrics``: every 30 s), from the first event."""

MAX_RESOLVED: Final = 10_000
"""Maximum number of cached resolutions, since many users and client ids can share a bucket."""


class TimeOrderError(ValueError):
    """An event is older than its predecessor."""


def backwards(now_ms: int, last_ms: int) -> str:
    """Return the error message for a time before the last one."""
    return f"t is {now_ms}, after a line with {last_ms}; expected times that do not go back"


class Op(StrEnum):
    """The kinds of events."""

    PRODUCE = "produce"
    """Bytes produced."""
    FETCH = "fetch"
    """Bytes fetched."""
    REQUEST = "request"
    """Thread time, in milliseconds of one thread."""
    CONTROLLER_MUTATION = "controller_mutation"
    """Partitions created, added or deleted."""
    PRODUCER_ID = "producer_id"
    """A record batch with this producer id."""
    NEW_PRODUCER_IDS = "new_producer_ids"
    """A number of new producer ids, if the ids themselves are not known."""


KEYS: Final[Mapping[Op, QuotaKey]] = {
    Op.PRODUCE: QuotaKey.PRODUCER_BYTE_RATE,
    Op.FETCH: QuotaKey.CONSUMER_BYTE_RATE,
    Op.REQUEST: QuotaKey.REQUEST_PERCENTAGE,
    Op.CONTROLLER_MUTATION: QuotaKey.CONTROLLER_MUTATION_RATE,
    Op.PRODUCER_ID: QuotaKey.PRODUCER_IDS_RATE,
    Op.NEW_PRODUCER_IDS: QuotaKey.PRODUCER_IDS_RATE,
}
"""The quota key that each kind of event is charged to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of an entity's quotas."""

    t_ms: int
    entity: QuotaEntity
    values: Mapping[QuotaKey, float]
    removed: tuple[QuotaKey, ...]


@dataclass(slots=True, kw_only=True)
class Usage:
    """An event to charge. Not frozen, since freezing doubles the time to create one."""

    t_ms: int
    user: str
    client_id: str
    op: Op
    amount: float
    """The amount in the unit of ``op``; for `Op.PRODUCER_ID`, the id."""
    strict: bool
    """Controller mutations only: whether a mutation is refused while the bucket is overdrawn. If false, it is charged,
    and then the client is throttled."""


class Replay:
    """Quotas, and the buckets that events are charged to."""

    def __init__(self, windows: Mapping[QuotaKey, Window], *, began_ms: int | None = None) -> None:
        """``began_ms`` is the time of the record's first event, if only a part of the record is replayed."""
        self._callback = DefaultQuotaCallback()
        self._windows = windows
        self._limits_changed = False
        self._resolved: dict[tuple[Op, str, str], QuotaBucket | None] = {}
        self.quotas: ClientQuotas
        self._resolved_at: int
        self._now_ms: int
        self._next_sweep_ms: int | None
        self.forget(began_ms)
        self.expired = 0
        """Number of buckets that were dropped after an hour without use."""

    def forget(self, began_ms: int | None = None) -> None:
        """Discard all buckets and the time; keep the quotas."""
        callback = self._callback
        self.quotas = ClientQuotas(
            windows=self._windows, metric_tags=callback.quota_metric_tags, quota_limit=callback.quota_limit
        )
        self._resolved.clear()
        self._resolved_at = self._now_ms = 0
        self._next_sweep_ms = None if began_ms is None else began_ms + SWEEP_MS

    def alter(self, change: Change) -> None:
        """Set and remove quotas of an entity; the state of buckets is kept. Raises `TimeOrderError`."""
        self.advance(change.t_ms)
        for key, value in change.values.items():
            self._callback.update_quota(key, change.entity, value, KAFKA_POLICY)
        for key in change.removed:
            self._callback.remove_quota(key, change.entity)
        self._limits_changed = True

    def tags(self, op: Op, user: str, client_id: str) -> Mapping[str, str] | None:
        """Return the metric tags of the bucket under the current quotas; ``None`` without a quota."""
        return self._callback.quota_metric_tags(KEYS[op], user, client_id)

    def limit(self, op: Op, tags: Mapping[str, str]) -> Limit | None:
        """Return the limit of the bucket with these tags under the current quotas; ``None`` without one."""
        return self._callback.quota_limit(KEYS[op], tags)

    def charge(self, usage: Usage) -> Throttle | Refuse | None:
        """Charge an event to its bucket; return the verdict, ``None`` within the quota. Raises `TimeOrderError`."""
        self.advance(usage.t_ms)
        bucket = self.bucket(usage.op, usage.user, usage.client_id)
        return None if bucket is None else charge(bucket, usage)

    def bucket(self, op: Op, user: str, client_id: str) -> QuotaBucket | None:
        """Return the bucket under the current quotas; ``None`` without a quota."""
        quotas, resolved = self.quotas, self._resolved
        if self._limits_changed:  # once for several changes, since nothing is charged in between
            quotas.quotas_changed()
            self._limits_changed = False
        if quotas.generation != self._resolved_at or len(resolved) >= MAX_RESOLVED:
            resolved.clear()
            self._resolved_at = quotas.generation
        name = (op, user, client_id)
        if name in resolved:
            bucket = resolved[name]
            if bucket is None or not bucket.dropped:
                return bucket
        bucket = resolved[name] = quotas.bucket(KEYS[op], user, client_id)
        return bucket

    def advance(self, now_ms: int) -> None:
        """Advance the time, and drop buckets that were idle for an hour. Raises `TimeOrderError`."""
        if now_ms < self._now_ms:
            raise TimeOrderError(backwards(now_ms, self._now_ms))
        self._now_ms = now_ms
        if self._next_sweep_ms is None:
            self._next_sweep_ms = now_ms + SWEEP_MS
        if now_ms >= self._next_sweep_ms:
            self._sweep(self._next_sweep_ms)

    def _sweep(self, due_ms: int) -> None:
        """Drop idle buckets as of the last sweep that is due, which includes the effect of the earlier ones."""
        last_ms = self._now_ms - (self._now_ms - due_ms) % SWEEP_MS
        self._next_sweep_ms = last_ms + SWEEP_MS
        self.expired += self.quotas.expire(last_ms)


def charge(bucket: QuotaBucket, usage: Usage, *, empty_fetches: bool = True) -> Throttle | Refuse | None:
    """Charge the event to ``bucket``, which must have the class of the event's quota key; return the verdict.

    ``empty_fetches`` un-records the bytes of a throttled Fetch, since a broker returns an empty reply; the proxy
    forwards the records instead. Raises `TypeError` for other bucket classes.
    """
    amount, now_ms = usage.amount, usage.t_ms
    match bucket:
        case RateBucket():
            if usage.op is Op.FETCH and empty_fetches:
                return _fetch(bucket, amount, now_ms)
            if usage.op is Op.REQUEST:
                percent = round(amount * 1e6) * PERCENT_PER_NS
                return bucket.charge(percent, now_ms, longest_ms=bucket.window.seconds * 1000)
            return bucket.charge(amount, now_ms)
        case MutationBucket():
            return _mutate(bucket, usage)
        case ProducerIdBucket():
            if usage.op is Op.NEW_PRODUCER_IDS:
                count = round(amount)
                return bucket.charge_new(now_ms, count) if count else None
            return bucket.charge(int(amount), now_ms)
        case _:
            raise TypeError(f"replay cannot charge a {type(bucket).__name__}")


def _fetch(bucket: RateBucket, amount: float, now_ms: int) -> Throttle | None:
    """Charge a Fetch; un-record its bytes if it is throttled (``unrecordQuotaSensor``)."""
    verdict = bucket.charge(amount, now_ms)
    if verdict is not None:
        bucket.record(-amount, now_ms)
    return verdict


def _mutate(bucket: MutationBucket, usage: Usage) -> Throttle | Refuse | None:
    """Charge mutations as in KIP-599: strict admits or refuses; permissive always charges and then throttles."""
    now_ms = usage.t_ms
    if not usage.strict:
        bucket.charge(usage.amount, now_ms)
        return bucket.throttle(now_ms)
    denied = bucket.admit(usage.amount, now_ms)
    return None if denied is None else Refuse(throttle_ms=denied.throttle_ms, reason=denied.reason)
