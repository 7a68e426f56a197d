"""The bucket classes: rates, controller mutations and producer ids. `BUCKET_KINDS` maps quota keys to them.

The built-in callbacks charge the buckets, which return verdicts with reasons.
`headrace.quota_callbacks.buckets.client_quotas` creates buckets and sets their limits and policies. Pure: time is an
argument, in whole milliseconds.
"""

from __future__ import annotations

import math
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace.quota_callbacks.buckets.quota_bucket import NEVER_USED, QuotaBucket, Tags
from headrace.quota_callbacks.buckets.throttle_times import METRICS_WINDOW
from headrace.quota_callbacks.buckets.timed_bloom_filters import TimedBloomFilters
from headrace.quota_callbacks.buckets.token_bucket import TokenBucket
from headrace.quota_callbacks.entities import LONG_MAX, QuotaKey
from headrace.quota_callbacks.verdicts import MAX_THROTTLE_MS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.quota_callbacks.buckets.sampled_rate import Window
    from headrace.quota_callbacks.verdicts import Throttle

__all__ = ["BUCKET_KINDS", "MutationBucket", "ProducerIdBucket", "QuotaBucket", "RateBucket"]

FALSE_POSITIVE_RATE: Final = 0.001
"""Share of new producer ids that may be taken for seen ones, which cost nothing."""

_SEED: Final = SystemRandom().getrandbits(32)
"""Seed of the filters' hash, secret so that clients cannot construct ids that are taken for seen ones."""

LASTING_S: Final = 1.0
"""Seconds for which a credit must last at the present rate, so that `RateBucket.has_lasting_credit` is true."""

RECENT_IDS: Final = 256
"""Number of a user's producer ids that are looked up without the filters; about 30 KiB."""

FIRST_FILTER_IDS: Final = 64
"""Capacity of a user's first filter, in producer ids. Filters grow with demand."""


class RateBucket(QuotaBucket):
    """A byte rate, request time, or key of a plugin: Kafka's rate with a bound."""

    __slots__ = ("typical",)

    def __init__(self, key: str, tags: Tags, window: Window) -> None:
        super().__init__(key, tags, window)
        self.typical = 0.0
        """Moving average of the cost of a request, for reservations that are made before the cost is known."""

    def charge(self, amount: float, now_ms: int, *, longest_ms: int = MAX_THROTTLE_MS) -> Throttle | None:
        """Record ``amount``; return the throttle by Kafka's arithmetic, ``None`` without one.

        A time before the last charge, which other threads may have made since the caller read the clock, counts as the
        time of that charge: the window of a rate that is asked for an earlier time would be too long.
        """
        rate = self._rate
        if now_ms < self.last_used_ms:
            now_ms = self.last_used_ms
        rate.record(amount, now_ms)
        self.last_used_ms = now_ms
        limit = self.limit
        if limit is None:
            return None
        throttle_ms = rate.throttle_ms(limit, now_ms, longest_ms=longest_ms)
        if throttle_ms == 0:
            return None
        if throttle_ms == longest_ms:
            # The throttle was cut. New connections wait until the rate is back at the limit: otherwise a client could
            # exceed it by reconnecting.
            window = self.window
            self._note_throttle(
                rate.throttle_ms(limit, now_ms, longest_ms=window.samples * window.seconds * 1000), now_ms
            )
        return self._verdict(throttle_ms, rate.rate(now_ms), limit, now_ms)

    def credit(self, now_ms: int) -> float:
        """Return how much can still be charged from now on, in whatever parts, without any throttle.

        It is ``limit x (samples - 1) x seconds - total``: the window is never shorter, and the total only decreases as
        samples leave it. It is 0 if the entity is paced, and while it has to wait or was throttled shortly before, so
        that each request is decided by itself. Infinity without a limit.
        """
        limit = self.limit
        if limit is None:
            return math.inf
        if self.paced or self.gate_ms > now_ms or self.was_throttled(now_ms):
            return 0.0
        return max(0.0, self._rate.room(limit))

    def has_lasting_credit(self, now_ms: int) -> bool:
        """Return whether the credit lasts for `LASTING_S` at the present rate. It is then unlikely to be used up, since
        it grows each time that the rate drops its oldest sample."""
        credit = self.credit(now_ms)
        return credit > 0 and credit >= self._rate.rate(now_ms) * LASTING_S

    def charge_forwarded(self, amount: float, now_ms: int) -> Throttle | None:
        """Record ``amount`` of what has been forwarded already, whether paced or not; return the throttle."""
        if not self.paced:
            return self.charge(amount, now_ms)
        self.record(amount, now_ms)
        if self._timeline is None:
            self.reserve(0.0, now_ms)
        self.correct(amount, now_ms, forwarded=True)
        # Until the debt, which includes this charge, is within the burst.
        return self._mute_only(self.reserve(0.0, now_ms), now_ms)

    def record(self, amount: float, now_ms: int) -> None:
        """Record ``amount`` without a verdict; a negative one un-records a charge of the same ``now_ms``.

        A time before the last charge counts as in `charge`.
        """
        if now_ms < self.last_used_ms:
            now_ms = self.last_used_ms
        self._rate.record(amount, now_ms)
        self.last_used_ms = now_ms

    def take_back(self, amount: float, charged_ms: int, now_ms: int) -> None:
        """Un-record ``amount``, charged at ``charged_ms`` for a request that did not reach the broker."""
        self._rate.take_back(amount, charged_ms)
        if self.gate_ms > now_ms and self.limit is not None:
            self._shorten_wait(self._rate.throttle_ms(self.limit, now_ms), now_ms)

    def settle(self, amount: float, reserved: float, now_ms: int) -> None:
        """Record ``amount``, the actual cost of a request for which ``reserved`` was reserved.

        For paced enforcement.
        """
        self.record(amount, now_ms)
        self.correct(amount - reserved, now_ms, forwarded=True)
        self.typical += (amount - self.typical) / 8 if self.typical else amount

    def observed(self, now_ms: int) -> float:
        """Return the rate in units a second over the window."""
        return self._rate.rate(now_ms)

    def measures(self, now_ms: int) -> Iterator[tuple[str, float]]:
        """Yield ``byte-rate``, ``request-time`` or, for keys of plugins, ``rate``; and ``throttle-time``."""
        yield RATE_MEASURES.get(self.key, "rate"), self._rate.rate(now_ms)
        yield "throttle-time", self._throttle_time(now_ms)

    def state(self, now_ms: int) -> dict[str, Any]:
        """Return timeline and samples."""
        return super().state(now_ms) | {"rate": self._rate.state(now_ms)}

    def restore(self, state: Mapping[str, Any], now_ms: int) -> None:
        """Restore timeline and samples."""
        super().restore(state, now_ms)
        self._rate.restore(state.get("rate"), now_ms)


class MutationBucket(QuotaBucket):
    """Controller mutations (KIP-599): a token bucket that is enforced, and a rate that is only measured."""

    __slots__ = ("_bucket",)

    def __init__(self, key: str, tags: Tags, window: Window) -> None:
        super().__init__(key, tags, window, METRICS_WINDOW)
        self._bucket = TokenBucket.over(window)

    def admit(self, mutations: float, now_ms: int) -> Throttle | None:
        """Charge any amount and return ``None`` while the bucket is not overdrawn (strict: KIP-599).

        Otherwise charge nothing and return the time until the bucket is no longer overdrawn, which is 0 ms if it is
        less than half a millisecond (``StrictControllerMutationQuota.record``).
        """
        limit = self._refill_rate()
        tokens = self._bucket.tokens(limit, now_ms)
        if tokens < 0:
            return self._verdict(self._bucket.throttle_ms(limit, now_ms), tokens, limit, now_ms)
        self.last_used_ms = now_ms  # not after a refusal: Kafka's sensor expires an hour after its last record
        self._rate.record(mutations, now_ms)
        self._bucket.take(mutations, limit, now_ms)
        return None

    def charge(self, mutations: float, now_ms: int) -> None:
        """Charge any amount, even if the bucket is overdrawn (``PermissiveControllerMutationQuota.record``)."""
        self.last_used_ms = now_ms
        self._rate.record(mutations, now_ms)
        self._bucket.take(mutations, self._refill_rate(), now_ms)
        self._note_debt(now_ms)

    def record(self, mutations: float, now_ms: int) -> None:
        """Record ``mutations`` in the rate only."""
        self.last_used_ms = now_ms
        self._rate.record(mutations, now_ms)

    def give_back(self, mutations: float, now_ms: int) -> None:
        """Give back tokens for mutations that the broker refused."""
        self.last_used_ms = now_ms
        self._bucket.take(-mutations, self._refill_rate(), now_ms)
        if self.gate_ms > now_ms:
            self._shorten_wait(self._bucket.throttle_ms(self._refill_rate(), now_ms), now_ms)

    def _note_debt(self, now_ms: int) -> None:
        """Make new connections wait from the charge on, since the sender gets the throttle time only with the reply."""
        throttle_ms = self._bucket.throttle_ms(self._refill_rate(), now_ms)
        if throttle_ms:
            self._note_throttle(throttle_ms, now_ms)

    def throttle(self, now_ms: int) -> Throttle | None:
        """Return the time until the bucket is no longer overdrawn; ``None`` if it is not."""
        limit = self._refill_rate()
        throttle_ms = self._bucket.throttle_ms(limit, now_ms)
        if throttle_ms == 0:
            return None
        return self._verdict(throttle_ms, self._bucket.tokens(limit, now_ms), limit, now_ms)

    def burst(self, limit: float) -> float:
        """Return the burst of the policy, or else that of the token bucket: the whole window."""
        burst_s = self.policy.burst_s
        return limit * (self._bucket.burst_s if burst_s is None else burst_s)

    def tokens(self, now_ms: int) -> float:
        """Return the tokens that are left; of a paced quota, of the burst."""
        if self.paced and self.limit is not None:
            return self.burst_left(self.limit, now_ms)
        return self._bucket.tokens(self._refill_rate(), now_ms)

    def forgotten(self, now_ms: int) -> bool:
        """Return whether a new bucket would decide as this one, which has all its tokens."""
        return super().forgotten(now_ms) and self._bucket.is_full(self._refill_rate(), now_ms)

    def _refill_rate(self) -> float:
        """Return the limit; without one ``Long.MAX_VALUE`` as Kafka does, so that any use refills the bucket."""
        return float(LONG_MAX) if self.limit is None else self.limit

    def rate(self, now_ms: int) -> float:
        """Return the mutations in partitions a second, over the window of Kafka's metrics."""
        return self._rate.rate(now_ms)

    def observed(self, now_ms: int) -> float:
        """Return the tokens."""
        return self.tokens(now_ms)

    def measures(self, now_ms: int) -> Iterator[tuple[str, float]]:
        """Yield ``mutation-rate``, ``tokens`` and ``throttle-time``."""
        yield "mutation-rate", self._rate.rate(now_ms)
        yield "tokens", self.tokens(now_ms)
        yield "throttle-time", self._throttle_time(now_ms)

    def state(self, now_ms: int) -> dict[str, Any]:
        """Return timeline, tokens and samples."""
        mine = {"rate": self._rate.state(now_ms), "tokens": self._bucket.state(now_ms)}
        return super().state(now_ms) | mine

    def restore(self, state: Mapping[str, Any], now_ms: int) -> None:
        """Restore timeline, tokens and samples."""
        super().restore(state, now_ms)
        self._rate.restore(state.get("rate"), now_ms)
        self._bucket.restore(state.get("tokens"), now_ms)


class SeenIds(Protocol):
    """Producer ids that cost nothing for some time."""

    def add(self, producer_id: int, until_ms: int, /) -> None:
        """Note that ``producer_id`` costs nothing before ``until_ms``."""

    def close(self) -> None:
        """End the use of these ids: from now on, each Produce request is passed to the bucket itself."""


class ProducerIdBucket(QuotaBucket):
    """Producer ids (KIP-936): an id that was not seen in the window takes a token. The limit is ids per window."""

    __slots__ = ("_bucket", "_filters", "_seen_until_ms", "new_ids", "seen")

    has_kafkas_sensor = False

    def __init__(self, key: str, tags: Tags, window: Window) -> None:
        super().__init__(key, tags, window)
        self.span_ms = window.seconds * 1000  # the number of samples is that of a metric alone
        self._bucket = TokenBucket(window.seconds)
        self._filters: TimedBloomFilters | None = None
        self.new_ids = 0
        """Number of ids that were charged to this bucket."""
        self.seen: SeenIds | None = None
        """The native data plane's copy of the ids that cost nothing; ``None`` if it has none."""
        self._seen_until_ms: dict[int, int] | None = None
        """Recent producer ids, and the time until which the filters contain them. Most requests have one of these."""

    def charge(self, producer_id: int, now_ms: int) -> Throttle | None:
        """Look up the id and charge it if it is new; return the throttle, ``None`` without one.

        An id below 0 means that the batch has no producer id. The limit is the burst, and the refill of each window.
        """
        recent = self._seen_until_ms
        if recent is None:
            recent = self._seen_until_ms = {}
        if producer_id < 0 or now_ms < recent.get(producer_id, NEVER_USED):
            return None
        filters = self.filters
        seen = filters.seen_or_add(producer_id, now_ms)
        if len(recent) >= RECENT_IDS:
            recent.clear()
        recent[producer_id] = filters.remembers_until_ms
        if self.seen is not None:
            self.seen.add(producer_id, filters.remembers_until_ms)
        if seen:
            return None
        return self.charge_new(now_ms)

    def _extend_wait(self, since_ms: int, until_ms: int, now_ms: int) -> None:
        """Extend the wait, and close `seen`: from now on, requests whose ids cost nothing may have to wait, too."""
        super()._extend_wait(since_ms, until_ms, now_ms)
        if self.seen is not None and self.gate_ms > now_ms:
            self.seen.close()
            self.seen = None

    @property
    def seen_until_ms(self) -> Mapping[int, int]:
        """The recent producer ids, with the time until which each costs nothing."""
        return self._seen_until_ms or {}

    @property
    def filters(self) -> TimedBloomFilters:
        """The filters with the ids that were seen in the window; created at the first use to save memory."""
        if self._filters is None:
            window_ms = self.window.seconds * 1000
            self._filters = TimedBloomFilters(window_ms, FALSE_POSITIVE_RATE, FIRST_FILTER_IDS, seed=_SEED)
        return self._filters

    def charge_new(self, now_ms: int, count: int = 1) -> Throttle | None:
        """Charge ids that are new or unknown; return the throttle for the last one, ``None`` without one."""
        self.last_used_ms = now_ms
        self.new_ids += count
        self._rate.record(count, now_ms)
        limit = self.limit
        if limit is None:
            return None
        if self.paced:
            return self._mute_only(self.reserve(count, now_ms), now_ms)
        rate = self.per_second(limit)
        tokens = self._bucket.take(count, rate, now_ms)
        if tokens >= 0:
            return None
        return self._verdict(self._bucket.throttle_ms(rate, now_ms), tokens, limit, now_ms)

    def forgotten(self, now_ms: int) -> bool:
        """Return whether a new bucket would decide as this one, which has all its tokens and knows no producer id."""
        limit, filters = self.limit, self._filters
        if not super().forgotten(now_ms) or not (limit is None or self._bucket.is_full(self.per_second(limit), now_ms)):
            return False
        if filters is not None:
            filters.expire(now_ms)
        return filters is None or filters.empty

    def per_second(self, limit: float) -> float:
        """Return ``limit``, which is per window, in ids a second."""
        return limit / self.window.seconds

    def burst(self, limit: float) -> float:
        """Return the burst of the policy, or else the ids of a whole window."""
        burst_s = self.policy.burst_s
        return limit if burst_s is None else self.per_second(limit) * burst_s

    def tokens(self, now_ms: int) -> float:
        """Return the number of new ids that would not be throttled now; infinity without a limit."""
        if self.paced and self.limit is not None:
            return self.burst_left(self.limit, now_ms)
        return math.inf if self.limit is None else self._bucket.tokens(self.per_second(self.limit), now_ms)

    @property
    def limit_window_s(self) -> int:
        """The length of the quota's window."""
        return self.window.seconds

    def rate(self, now_ms: int) -> float | None:
        """Return the number of new ids that count against the limit now: the tokens taken and not refilled yet."""
        limit = self.limit
        if limit is None:
            return None
        return (self.burst(limit) if self.paced else limit) - self.tokens(now_ms)

    def observed(self, now_ms: int) -> float:
        """Return the tokens."""
        return self.tokens(now_ms)

    def measures(self, now_ms: int) -> Iterator[tuple[str, float]]:
        """Yield ``rate``, ``tokens`` and ``throttle-time``."""
        yield "rate", self._rate.rate(now_ms)
        yield "tokens", self.tokens(now_ms)
        yield "throttle-time", self._throttle_time(now_ms)

    def state(self, now_ms: int) -> dict[str, Any]:
        """Return timeline, tokens, samples and filters."""
        return super().state(now_ms) | {
            "rate": self._rate.state(now_ms),
            "tokens": self._bucket.state(now_ms),
            "filters": None if self._filters is None else self._filters.state(now_ms),
        }

    def restore(self, state: Mapping[str, Any], now_ms: int) -> None:
        """Restore timeline, tokens, samples and filters."""
        super().restore(state, now_ms)
        self._rate.restore(state.get("rate"), now_ms)
        self._bucket.restore(state.get("tokens"), now_ms)
        if state.get("filters") is not None:
            self.filters.restore(state["filters"], now_ms)


BUCKET_KINDS: Final[Mapping[str, type[QuotaBucket]]] = {
    QuotaKey.PRODUCER_BYTE_RATE: RateBucket,
    QuotaKey.CONSUMER_BYTE_RATE: RateBucket,
    QuotaKey.REQUEST_PERCENTAGE: RateBucket,
    QuotaKey.CONTROLLER_MUTATION_RATE: MutationBucket,
    QuotaKey.PRODUCER_IDS_RATE: ProducerIdBucket,
}
"""The bucket class of each built-in quota key. Keys of plugins have `RateBucket`."""

RATE_MEASURES: Final[Mapping[str, str]] = {
    QuotaKey.PRODUCER_BYTE_RATE: "byte-rate",
    QuotaKey.CONSUMER_BYTE_RATE: "byte-rate",
    QuotaKey.REQUEST_PERCENTAGE: "request-time",
}
"""The name of the rate's metric by quota key."""
