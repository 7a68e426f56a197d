"""Usage that was recorded, charged again: what these quotas would have done to this traffic.

The events are charged to the same buckets, by the same precedence, as live traffic is (`ClientQuotas` over
`DefaultQuotaCallback`); only the times come from the record, and nobody waits. ``headrace replay``
(`headrace.proxy.replay.replay`) feeds it the lines of a trace, the pipeline's what-if the events of one bucket after
the other. Pure. Memory grows with the entities, not with the events.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.buckets.kinds import MutationBucket, ProducerIdBucket, RateBucket
from headrace.quota_callbacks.builtin.default_quotas import DefaultQuotaCallback
from headrace.quota_callbacks.builtin.request_percentage import PERCENT_PER_NS
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.policies import KAFKA_POLICY
from headrace.quota_callbacks.verdicts import Refuse, Throttle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.quota_callbacks.buckets.kinds import QuotaBucket
    from headrace.quota_callbacks.buckets.sampled_rate import Window
    from headrace.quota_callbacks.entities import QuotaEntity

SWEEP_MS: Final = 30_000
"""How often idle buckets are looked for (``Metrics``: every 30 s), counted from the first event."""

MAX_RESOLVED: Final = 10_000
"""Resolved names that are kept: many names can share a bucket, so without a cap they would outgrow the buckets."""


class TimeOrderError(ValueError):
    """An event is older than the one before it."""


def backwards(now_ms: int, last_ms: int) -> str:
    """What is wrong with a time that is before the last one."""
    return f"t is {now_ms}, after a line with {last_ms}; expected times that do not go back"


class Op(StrEnum):
    """What an event tells of."""

    PRODUCE = "produce"
    """Bytes produced."""
    FETCH = "fetch"
    """Bytes fetched."""
    REQUEST = "request"
    """Thread time, in milliseconds of one thread."""
    CONTROLLER_MUTATION = "controller_mutation"
    """Partitions created, added or deleted."""
    PRODUCER_ID = "producer_id"
    """A batch of the producer with this id."""
    NEW_PRODUCER_IDS = "new_producer_ids"
    """How many producer ids were new, where the ids themselves are not known any more."""


KEYS: Final[Mapping[Op, QuotaKey]] = {
    Op.PRODUCE: QuotaKey.PRODUCER_BYTE_RATE,
    Op.FETCH: QuotaKey.CONSUMER_BYTE_RATE,
    Op.REQUEST: QuotaKey.REQUEST_PERCENTAGE,
    Op.CONTROLLER_MUTATION: QuotaKey.CONTROLLER_MUTATION_RATE,
    Op.PRODUCER_ID: QuotaKey.PRODUCER_IDS_RATE,
    Op.NEW_PRODUCER_IDS: QuotaKey.PRODUCER_IDS_RATE,
}
"""What each is charged to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Quotas of one entity that are set or removed."""

    t_ms: int
    entity: QuotaEntity
    values: Mapping[QuotaKey, float]
    removed: tuple[QuotaKey, ...]


@dataclass(slots=True, kw_only=True)
class Usage:
    """An event. Not frozen: one is made for each, and freezing doubles its cost."""

    t_ms: int
    user: str
    client_id: str
    op: Op
    amount: float
    """In the unit of ``op``; of a producer id, the id."""
    strict: bool
    """Controller mutations only: refused while the quota is overdrawn, rather than charged and throttled."""


class Replay:
    """Quotas, and the usage that is charged to them."""

    def __init__(self, windows: Mapping[QuotaKey, Window], *, began_ms: int | None = None) -> None:
        """``began_ms``: when the record begins, where this is fed a part of it; else the first event says."""
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
        """Buckets that were dropped since nobody used them for an hour."""

    def forget(self, began_ms: int | None = None) -> None:
        """Begin anew with the quotas as they are: no usage, no time."""
        callback = self._callback
        self.quotas = ClientQuotas(
            windows=self._windows, metric_tags=callback.quota_metric_tags, quota_limit=callback.quota_limit
        )
        self._resolved.clear()
        self._resolved_at = self._now_ms = 0
        self._next_sweep_ms = None if began_ms is None else began_ms + SWEEP_MS

    def alter(self, change: Change) -> None:
        """Set and remove quotas of one entity; debts and histories stay. Raises `TimeOrderError`."""
        self.advance(change.t_ms)
        for key, value in change.values.items():
            self._callback.update_quota(key, change.entity, value, KAFKA_POLICY)
        for key in change.removed:
            self._callback.remove_quota(key, change.entity)
        self._limits_changed = True

    def tags(self, op: Op, user: str, client_id: str) -> Mapping[str, str] | None:
        """The metric tags that name the bucket as quotas are now; ``None`` when nothing is recorded."""
        return self._callback.quota_metric_tags(KEYS[op], user, client_id)

    def limited(self, op: Op, user: str, client_id: str) -> bool:
        """Whether the bucket has a limit as quotas are now."""
        tags = self.tags(op, user, client_id)
        return tags is not None and self._callback.quota_limit(KEYS[op], tags) is not None

    def charge(self, usage: Usage) -> Throttle | Refuse | None:
        """Charge it to its bucket; ``None`` for who is within his quota, or has none. Raises `TimeOrderError`."""
        self.advance(usage.t_ms)
        bucket = self.bucket(usage.op, usage.user, usage.client_id)
        return None if bucket is None else charge(bucket, usage)

    def bucket(self, op: Op, user: str, client_id: str) -> QuotaBucket | None:
        """Resolve it, or take what was resolved since the table last lost or changed a bucket."""
        quotas, resolved = self.quotas, self._resolved
        if self._limits_changed:  # once for a run of changes: nothing sees the limits in between
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
        """It is ``now_ms``: drop who has been idle for an hour. Raises `TimeOrderError`."""
        if now_ms < self._now_ms:
            raise TimeOrderError(backwards(now_ms, self._now_ms))
        self._now_ms = now_ms
        if self._next_sweep_ms is None:
            self._next_sweep_ms = now_ms + SWEEP_MS
        if now_ms >= self._next_sweep_ms:
            self._sweep(self._next_sweep_ms)

    def _sweep(self, due_ms: int) -> None:
        """Drop idle buckets, as of the last sweep that was due by now: it finds what those before would have found."""
        last_ms = self._now_ms - (self._now_ms - due_ms) % SWEEP_MS
        self._next_sweep_ms = last_ms + SWEEP_MS
        self.expired += self.quotas.expire(last_ms)


def charge(bucket: QuotaBucket, usage: Usage, *, empty_fetches: bool = True) -> Throttle | Refuse | None:
    """Charge the event to ``bucket``, which is of the kind that its key is measured by.

    ``empty_fetches``: a throttled Fetch is answered with nothing, as a broker does; live, the proxy forwards it.
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
                return _new_ids(bucket, round(amount), now_ms)
            return bucket.charge(int(amount), now_ms)
        case _:
            raise TypeError(f"replay cannot charge a {type(bucket).__name__}")


def _fetch(bucket: RateBucket, amount: float, now_ms: int) -> Throttle | None:
    """A throttled Fetch is answered empty, so its bytes are un-recorded (``unrecordQuotaSensor``)."""
    verdict = bucket.charge(amount, now_ms)
    if verdict is not None:
        bucket.record(-amount, now_ms)
    return verdict


def _mutate(bucket: MutationBucket, usage: Usage) -> Throttle | Refuse | None:
    """KIP-599: strict admits or refuses; permissive charges in any case, and throttles while overdrawn."""
    now_ms = usage.t_ms
    if not usage.strict:
        bucket.charge(usage.amount, now_ms)
        return bucket.throttle(now_ms)
    denied = bucket.admit(usage.amount, now_ms)
    return None if denied is None else Refuse(throttle_ms=denied.throttle_ms, reason=denied.reason)


def _new_ids(bucket: ProducerIdBucket, count: int, now_ms: int) -> Throttle | None:
    """The verdict on the last one, which is the longest."""
    verdict = None
    for _ in range(count):
        verdict = bucket.charge_new(now_ms)
    return verdict
