"""What usage is charged to: one bucket for each quota key and set of metric tags, of the kind that its key is measured
by.

A bucket knows its limit, whose it is and how it is enforced (`QuotaPolicy`);
`headrace.quota_callbacks.buckets.client_quotas` sets these when quotas change and keeps the table. What a charge
answers is a verdict with its reason. Pure: time is an argument, in whole milliseconds.
"""

from __future__ import annotations

import math
from dataclasses import replace
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Final

from headrace.quota_callbacks.buckets.bloom_filters import TimedBloomFilters
from headrace.quota_callbacks.buckets.quota_bucket import NEVER_USED, QuotaBucket, Tags
from headrace.quota_callbacks.buckets.shared.debts import SharedTokens
from headrace.quota_callbacks.buckets.throttle_times import METRICS_WINDOW
from headrace.quota_callbacks.buckets.token_bucket import TokenBucket
from headrace.quota_callbacks.entities import LONG_MAX, QuotaKey
from headrace.quota_callbacks.verdicts import MAX_THROTTLE_MS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.quota_callbacks.buckets.sampled_rate import Window
    from headrace.quota_callbacks.buckets.shared.usage import SharedRow
    from headrace.quota_callbacks.verdicts import Throttle

__all__ = ["BUCKET_KINDS", "MutationBucket", "ProducerIdBucket", "QuotaBucket", "RateBucket"]

FALSE_POSITIVE_RATE: Final = 0.001
"""One in a thousand new producer ids may pass for one that was seen, and costs nothing."""

_SEED: Final = SystemRandom().getrandbits(32)
"""Of the filters' hash: a client that knew it could make up ids that pass for seen."""

SEEN_LATELY: Final = 256
"""Producer ids of a user that are looked up without the filters, some 30 KiB."""

FIRST_FILTER_IDS: Final = 64
"""Producer ids that a user's first filter has room for; filters grow with demand."""


class RateBucket(QuotaBucket):
    """Byte rates and request time: Kafka's rate with its bound."""

    __slots__ = ("typical",)

    def __init__(self, key: QuotaKey, tags: Tags, window: Window, row: SharedRow | None = None) -> None:
        super().__init__(key, tags, window, row)
        self.typical = 0.0
        """What a request usually costs, for reservations made before the cost is known: a moving average."""

    def charge(self, amount: float, now_ms: int, *, longest_ms: int = MAX_THROTTLE_MS) -> Throttle | None:
        """Record ``amount`` and say, Kafka's way, how long its sender has to wait, if at all."""
        rate = self._rate
        rate.record(amount, now_ms)
        self.last_used_ms = now_ms
        limit = self.limit
        if limit is None:
            return None
        throttle_ms = rate.throttle_ms(limit, now_ms, longest_ms=longest_ms)
        if throttle_ms == 0:
            return None
        return self._verdict(throttle_ms, rate.rate(now_ms), limit, now_ms)

    def record(self, amount: float, now_ms: int) -> None:
        """Record ``amount`` and ask nobody to wait; below 0 un-records what was charged at the same ``now_ms``."""
        self._rate.record(amount, now_ms)
        self.last_used_ms = now_ms

    def take_back(self, amount: float, charged_ms: int) -> None:
        """Un-record ``amount``, which was charged at ``charged_ms`` for something that did not come to pass."""
        self._rate.take_back(amount, charged_ms)

    def settle(self, amount: float, reserved: float, now_ms: int) -> None:
        """Paced: a request for which ``reserved`` was taken has cost ``amount``."""
        self.record(amount, now_ms)
        self.correct(amount - reserved, now_ms)
        self.typical += (amount - self.typical) / 8 if self.typical else amount

    def observed(self, now_ms: int) -> float:
        """The rate: units a second over the window."""
        return self._rate.rate(now_ms)

    def measures(self, now_ms: int) -> Iterator[tuple[str, float]]:
        """``byte-rate`` or ``request-time``, and ``throttle-time``."""
        yield "request-time" if self.key is QuotaKey.REQUEST_PERCENTAGE else "byte-rate", self._rate.rate(now_ms)
        yield "throttle-time", self._throttle_time(now_ms)

    def state(self, now_ms: int) -> dict[str, Any]:
        """The samples."""
        return super().state(now_ms) | {"rate": self._rate.state(now_ms)}

    def restore(self, state: Mapping[str, Any], now_ms: int) -> None:
        """Take up the samples."""
        super().restore(state, now_ms)
        self._rate.restore(state.get("rate"), now_ms)


class MutationBucket(QuotaBucket):
    """Controller mutations (KIP-599): a token bucket that is enforced, and a rate beside it that is only measured."""

    __slots__ = ("_bucket",)

    def __init__(self, key: QuotaKey, tags: Tags, window: Window, row: SharedRow | None = None) -> None:
        super().__init__(key, tags, window, row, METRICS_WINDOW)
        self._bucket = _tokens(window.samples * window.seconds, row)

    def admit(self, mutations: float, now_ms: int) -> Throttle | None:
        """Strict: while the bucket is not overdrawn, charge any amount and return ``None``.

        Otherwise charge nothing, and return how long until it is paid off, which can be 0 ms when less than half a
        millisecond is missing (``StrictControllerMutationQuota.record``).
        """
        limit = self._speed()
        tokens = self._bucket.tokens(limit, now_ms)
        if tokens < 0:
            return self._verdict(self._bucket.throttle_ms(limit, now_ms), tokens, limit, now_ms)
        self.last_used_ms = now_ms  # not for a refusal: Kafka's sensor expires an hour after its last record
        self._rate.record(mutations, now_ms)
        self._bucket.take(mutations, limit, now_ms)
        return None

    def charge(self, mutations: float, now_ms: int) -> None:
        """Permissive: charge any amount, overdrawn or not (``PermissiveControllerMutationQuota.record``)."""
        self.last_used_ms = now_ms
        self._rate.record(mutations, now_ms)
        self._bucket.take(mutations, self._speed(), now_ms)

    def record(self, mutations: float, now_ms: int) -> None:
        """Measure ``mutations`` and charge nothing."""
        self.last_used_ms = now_ms
        self._rate.record(mutations, now_ms)

    def give_back(self, mutations: float, now_ms: int) -> None:
        """What was charged did not come to pass: the broker refused it."""
        self.last_used_ms = now_ms
        self._bucket.take(-mutations, self._speed(), now_ms)

    def throttle(self, now_ms: int) -> Throttle | None:
        """How long until the bucket is no longer overdrawn."""
        limit = self._speed()
        throttle_ms = self._bucket.throttle_ms(limit, now_ms)
        if throttle_ms == 0:
            return None
        return self._verdict(throttle_ms, self._bucket.tokens(limit, now_ms), limit, now_ms)

    def burst(self, limit: float) -> float:
        """The whole window, as in the token bucket, unless it is set."""
        burst_s = self.policy.burst_s
        return limit * (self._bucket.burst_s if burst_s is None else burst_s)

    def tokens(self, now_ms: int) -> float:
        """What is left; where requests take turns, of the burst."""
        if self.paced and self.limit is not None:
            return self.places(self.limit, now_ms)
        return self._bucket.tokens(self._speed(), now_ms)

    def _leave(self) -> None:
        super()._leave()
        if isinstance(self._bucket, SharedTokens):
            self._bucket = self._bucket.alone()

    def _speed(self) -> float:
        """Without a limit, Kafka refills at ``Long.MAX_VALUE``, so that a touch clears any debt."""
        return float(LONG_MAX) if self.limit is None else self.limit

    def rate(self, now_ms: int) -> float:
        """Return the partitions a second, over the window of Kafka's metrics."""
        return self._rate.rate(now_ms)

    def observed(self, now_ms: int) -> float:
        """The tokens."""
        return self.tokens(now_ms)

    def measures(self, now_ms: int) -> Iterator[tuple[str, float]]:
        """``mutation-rate``, ``tokens`` and ``throttle-time``."""
        yield "mutation-rate", self._rate.rate(now_ms)
        yield "tokens", self.tokens(now_ms)
        yield "throttle-time", self._throttle_time(now_ms)

    def state(self, now_ms: int) -> dict[str, Any]:
        """Tokens and samples."""
        mine = {"rate": self._rate.state(now_ms), "tokens": self._bucket.state(now_ms)}
        return super().state(now_ms) | mine

    def restore(self, state: Mapping[str, Any], now_ms: int) -> None:
        """Take up tokens and samples."""
        super().restore(state, now_ms)
        self._rate.restore(state.get("rate"), now_ms)
        self._bucket.restore(state.get("tokens"), now_ms)


class ProducerIdBucket(QuotaBucket):
    """Producer ids (KIP-936): an id that was not seen in the window takes a token; all tokens come back in a window."""

    __slots__ = ("_bucket", "_filters", "_seen_until_ms", "new_ids")

    def __init__(self, key: QuotaKey, tags: Tags, window: Window, row: SharedRow | None = None) -> None:
        super().__init__(key, tags, window, row)
        self._bucket = _tokens(window.seconds, row)
        self._filters: TimedBloomFilters | None = None
        self.new_ids = 0
        """How many were charged here."""
        self._seen_until_ms: dict[int, int] | None = None
        """Producer ids that came lately, and until when the filters remember them; most requests bring one of these."""
        if row is not None:
            row.learn_ids(self._learn)

    def charge(self, producer_id: int, now_ms: int) -> Throttle | None:
        """Look the id up, charge it when it is new, and say how long its sender has to wait, if at all.

        Ids below 0 are none. The limit is ids a window: so many at once, and so many more in each window.
        """
        lately = self._seen_until_ms
        if lately is None:
            lately = self._seen_until_ms = {}
        if producer_id < 0 or now_ms < lately.get(producer_id, NEVER_USED):
            return None
        if self._row is not None:
            self._row.take_up_ids()
        filters = self.filters
        seen = filters.seen_or_add(producer_id, now_ms)
        if len(lately) >= SEEN_LATELY:
            lately.clear()
        lately[producer_id] = filters.remembers_until_ms
        if seen:
            return None
        if self._row is not None:
            self._row.tell_id(producer_id, now_ms)
        return self.charge_new(now_ms)

    def _learn(self, producer_id: int, at_ms: int) -> None:
        """Another worker has charged the id."""
        self.filters.seen_or_add(producer_id, at_ms)

    @property
    def filters(self) -> TimedBloomFilters:
        """The ids that were seen in the window; made when it is first asked for, as most users have none."""
        if self._filters is None:
            window_ms = self.window.seconds * 1000
            self._filters = TimedBloomFilters(window_ms, FALSE_POSITIVE_RATE, FIRST_FILTER_IDS, seed=_SEED)
        return self._filters

    def charge_new(self, now_ms: int) -> Throttle | None:
        """Charge an id that is new, or that cannot be told."""
        self.last_used_ms = now_ms
        self.new_ids += 1
        self._rate.record(1, now_ms)
        limit = self.limit
        if limit is None:
            return None
        if self.paced:
            return _after(self.reserve(1, now_ms))
        rate = self.per_second(limit)
        tokens = self._bucket.take(1, rate, now_ms)
        if tokens >= 0:
            return None
        return self._verdict(self._bucket.throttle_ms(rate, now_ms), tokens, limit, now_ms)

    def _leave(self) -> None:
        super()._leave()
        if isinstance(self._bucket, SharedTokens):
            self._bucket = self._bucket.alone()

    def per_second(self, limit: float) -> float:
        """The limit is so many in a window."""
        return limit / self.window.seconds

    def burst(self, limit: float) -> float:
        """All of a window's ids, unless it is set."""
        burst_s = self.policy.burst_s
        return limit if burst_s is None else self.per_second(limit) * burst_s

    def tokens(self, now_ms: int) -> float:
        """Ids that may still come at once; unlimited without a limit."""
        if self.paced and self.limit is not None:
            return self.places(self.limit, now_ms)
        return math.inf if self.limit is None else self._bucket.tokens(self.per_second(self.limit), now_ms)

    @property
    def limit_window_s(self) -> int:
        """The window."""
        return self.window.seconds

    def rate(self, now_ms: int) -> float | None:
        """Return how many new ids count against the limit now: those that were charged and have not come back."""
        limit = self.limit
        if limit is None:
            return None
        return (self.burst(limit) if self.paced else limit) - self.tokens(now_ms)

    def observed(self, now_ms: int) -> float:
        """The tokens."""
        return self.tokens(now_ms)

    def measures(self, now_ms: int) -> Iterator[tuple[str, float]]:
        """``rate``, ``tokens`` and ``throttle-time``."""
        yield "rate", self._rate.rate(now_ms)
        yield "tokens", self.tokens(now_ms)
        yield "throttle-time", self._throttle_time(now_ms)

    def state(self, now_ms: int) -> dict[str, Any]:
        """Tokens, samples and filters."""
        return super().state(now_ms) | {
            "rate": self._rate.state(now_ms),
            "tokens": self._bucket.state(now_ms),
            "filters": None if self._filters is None else self._filters.state(now_ms),
        }

    def restore(self, state: Mapping[str, Any], now_ms: int) -> None:
        """Take up tokens, samples and filters."""
        super().restore(state, now_ms)
        self._rate.restore(state.get("rate"), now_ms)
        self._bucket.restore(state.get("tokens"), now_ms)
        if state.get("filters") is not None:
            self.filters.restore(state["filters"], now_ms)


def _tokens(burst_s: float, row: SharedRow | None) -> TokenBucket:
    return TokenBucket(burst_s) if row is None else row.tokens(burst_s)


def _after(verdict: Throttle | None) -> Throttle | None:
    """The verdict on what has been forwarded already: its sender is muted, since it can no longer be held."""
    return None if verdict is None else replace(verdict, hold=False)


BUCKET_KINDS: Final[Mapping[QuotaKey, type[QuotaBucket]]] = {
    QuotaKey.PRODUCER_BYTE_RATE: RateBucket,
    QuotaKey.CONSUMER_BYTE_RATE: RateBucket,
    QuotaKey.REQUEST_PERCENTAGE: RateBucket,
    QuotaKey.CONTROLLER_MUTATION_RATE: MutationBucket,
    QuotaKey.PRODUCER_IDS_RATE: ProducerIdBucket,
}
"""How each quota key is measured."""
