"""What every kind of bucket has: whose it is, its limit and how it is enforced, and the timeline of paced requests.

The kinds are `headrace.quota_callbacks.buckets.kinds`; the table that makes and drops them is
`headrace.quota_callbacks.buckets.client_quotas`. With a row of `headrace.quota_callbacks.buckets.shared.usage`, a
bucket is that of all workers. Pure: time is an argument, in whole milliseconds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from headrace.quota_callbacks.buckets.sampled_rate import SampledRate, Window
from headrace.quota_callbacks.buckets.shared.debts import SharedTimeline
from headrace.quota_callbacks.buckets.shared.rates import SharedRate
from headrace.quota_callbacks.buckets.throttle_times import METRICS_WINDOW, ThrottleTimes
from headrace.quota_callbacks.buckets.timeline import Timeline
from headrace.quota_callbacks.policies import KAFKAS_WAY, EnforcementMode
from headrace.quota_callbacks.verdicts import Reason, Throttle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.quota_callbacks.buckets.shared.usage import SharedRow
    from headrace.quota_callbacks.entities import QuotaKey
    from headrace.quota_callbacks.policies import QuotaPolicy

Tags = tuple[tuple[str, str], ...]
"""Metric tags, in the order of who named them."""

NEVER_USED: Final = -(2**63)

PACED_BURST_S: Final = 1.0
"""The burst of a paced rate unless it is set: a second of the limit, so that what pauses for less loses nothing."""


class QuotaBucket(ABC):
    """What all kinds have: whose it is, its limit, and when it was used."""

    __slots__ = (
        "_rate",
        "_row",
        "_tags",
        "_throttles",
        "_timeline",
        "dropped",
        "entity",
        "key",
        "last_used_ms",
        "limit",
        "limit_of",
        "policy",
        "window",
    )

    def __init__(
        self,
        key: QuotaKey,
        tags: Tags,
        window: Window,
        row: SharedRow | None = None,
        measured_over: Window | None = None,
    ) -> None:
        """``row``: where workers share it. ``measured_over``: the window of its rate, if that is another one."""
        self.key = key
        self._tags = tags
        self.window = window
        self._row = row
        over = measured_over or window
        self._rate = SampledRate(over) if row is None else row.rate(over)
        self.limit: float | None = None
        """In the key's unit; ``None`` is unlimited, and still recorded."""
        self.entity = ""
        """The entity whose quota the limit is, as tools print it."""
        self.policy: QuotaPolicy = KAFKAS_WAY
        self.last_used_ms = NEVER_USED
        self.limit_of = -1
        """The generation of quotas that the limit is of."""
        self.dropped = False
        """Whether it is no longer in the table, so that whoever has kept it has to ask again."""
        self._throttles: ThrottleTimes | None = None
        self._timeline: Timeline | None = None if row is None else row.timeline()

    @property
    def tags(self) -> dict[str, str]:
        """The metric tags that name it."""
        return dict(self._tags)

    def drop(self) -> None:
        """It is no longer in the table: what is still charged to it (a reservation that is settled) counts nowhere."""
        self.dropped = True
        if self._row is not None:
            self._leave()
            self._row.give_back()
            self._row = None

    def _leave(self) -> None:
        """Go on without the row."""
        if isinstance(self._rate, SharedRate):
            self._rate = self._rate.alone()
        if isinstance(self._timeline, SharedTimeline):
            self._timeline = self._timeline.alone()

    @property
    def paced(self) -> bool:
        """Whether requests of this bucket take turns."""
        return self.policy.mode is EnforcementMode.PACED and self.limit is not None

    def reserve(self, amount: float, now_ms: int) -> Throttle | None:
        """Paced: take a place for ``amount``; the request is to be held until it comes.

        What it really was is told by `record`, and a difference by `correct`.
        """
        limit = self.limit
        if limit is None:
            return None
        if self._timeline is None:
            self._timeline = Timeline()
        self.last_used_ms = now_ms
        speed, burst = self.per_second(limit), self.burst(limit)
        wait_ms = self._timeline.reserve(amount, speed, burst, now_ms)
        if self.policy.observe:  # nobody waits, so nothing is to pile up
            self._timeline.correct(min(0.0, burst + amount - self._timeline.debt(speed, now_ms)), speed, now_ms)
        if wait_ms == 0:
            return None
        return self._verdict(wait_ms, self.observed(now_ms), limit, now_ms, hold=True)

    def correct(self, difference: float, now_ms: int) -> None:
        """Paced: a reservation was too small by ``difference``; below 0, too large, or not wanted after all."""
        if self.limit is not None and self._timeline is not None:
            self.last_used_ms = now_ms
            self._timeline.correct(difference, self.per_second(self.limit), now_ms)

    def per_second(self, limit: float) -> float:
        """``limit`` as units a second."""
        return limit

    def burst(self, limit: float) -> float:
        """How much may come at once where requests take turns, in the quota's unit."""
        burst_s = self.policy.burst_s
        return limit * (PACED_BURST_S if burst_s is None else burst_s)

    @property
    def limit_window_s(self) -> int:
        """The seconds that the limit is for."""
        return 1

    def rate(self, now_ms: int) -> float | None:  # noqa: ARG002 -- kinds with tokens use it
        """Return what was measured beside tokens, in the limit's unit; ``None`` where `observed` is that itself."""
        return None

    @abstractmethod
    def observed(self, now_ms: int) -> float:
        """What is measured against the limit."""

    def places(self, limit: float, now_ms: int) -> float:
        """Paced: what may still come at once; below 0, how much is in line."""
        debt = 0.0 if self._timeline is None else self._timeline.debt(self.per_second(limit), now_ms)
        return self.burst(limit) - debt

    @abstractmethod
    def measures(self, now_ms: int) -> Iterator[tuple[str, float]]:
        """Kafka's metrics of this bucket: names and values. ``throttle-time`` is NaN while nobody was throttled."""

    def state(self, now_ms: int) -> dict[str, Any]:
        """What `restore` takes: plain values, with ages instead of times."""
        timeline = None if self._timeline is None else self._timeline.state(now_ms)
        return {"timeline": timeline} if timeline is not None and timeline[2] else {}

    def restore(self, state: Mapping[str, Any], now_ms: int) -> None:
        """Go on where `state` was taken; ``now_ms`` is the present that its ages count back from."""
        self.last_used_ms = now_ms
        if "timeline" in state:
            if self._timeline is None:
                self._timeline = Timeline()
            self._timeline.restore(state["timeline"], now_ms)

    def _throttle_time(self, now_ms: int) -> float:
        return math.nan if self._throttles is None else self._throttles.average(now_ms)

    def _verdict(self, throttle_ms: int, observed: float, limit: float, now_ms: int, *, hold: bool = False) -> Throttle:
        policy = self.policy
        throttle_ms = min(throttle_ms, policy.longest_throttle_ms)
        if self._throttles is None:
            self._throttles = ThrottleTimes(METRICS_WINDOW)
        self._throttles.record(throttle_ms, now_ms)
        reason = Reason(
            quota=self.key.value,
            entity=self.entity,
            observed=observed,
            limit=limit,
            rate=self.rate(now_ms),
            window_s=self.limit_window_s,
        )
        return Throttle(throttle_ms=throttle_ms, reason=reason, hold=hold, observe=policy.observe)
