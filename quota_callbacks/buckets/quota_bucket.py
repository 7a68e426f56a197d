"""The base class of all buckets: key and tags, limit and policy, and the timeline of paced requests.

The subclasses are in `headrace.quota_callbacks.buckets.kinds`; `headrace.quota_callbacks.buckets.client_quotas` creates
and drops buckets. Pure: time is an argument, in whole milliseconds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from headrace.quota_callbacks.buckets.sampled_rate import SampledRate, Window
from headrace.quota_callbacks.buckets.throttle_times import METRICS_WINDOW, ThrottleTimes
from headrace.quota_callbacks.buckets.timeline import Timeline
from headrace.quota_callbacks.buckets.waiting import NEVER, Wait
from headrace.quota_callbacks.entities import ANONYMOUS, USER
from headrace.quota_callbacks.policies import KAFKA_POLICY, EnforcementMode, NewConnections
from headrace.quota_callbacks.verdicts import Reason, Throttle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.quota_callbacks.policies import QuotaPolicy
    from headrace.quota_callbacks.requests import Request

Tags = tuple[tuple[str, str], ...]
"""Metric tags, in the order in which the callback returned them."""

Owner = tuple[str, str]
"""User and address of the client whose client id a bucket was created for."""

NEVER_USED: Final = -(2**63)


class Meter(Protocol):
    """What charges a bucket in other threads, within the bucket's credit."""

    def withdraw(self) -> None:
        """Record what was charged, and charge nothing more until the caller's event has been handled."""

    def collect(self) -> None:
        """Record what was charged."""


PACED_BURST_S: Final = 1.0
"""The default burst of a paced rate, in seconds of the limit. A client that pauses for less still gets its limit."""


class QuotaBucket(ABC):
    """The state that one set of metric tags has for one quota key."""

    __slots__ = (
        "_rate",
        "_tags",
        "_throttled_ms",
        "_throttles",
        "_timeline",
        "_wait",
        "dropped",
        "entity",
        "gate_ms",
        "key",
        "last_used_ms",
        "limit",
        "limit_of",
        "meter",
        "overflow",
        "owner",
        "policy",
        "span_ms",
        "window",
    )

    has_kafkas_sensor: ClassVar[bool] = True
    """Whether Kafka measures this quota, too."""

    def __init__(self, key: str, tags: Tags, window: Window, measured_over: Window | None = None) -> None:
        """Create an empty bucket; ``measured_over`` is the window of the measured rate, by default ``window``."""
        self.key: str = key
        self._tags = tags
        self.window = window
        self._rate = SampledRate(measured_over or window)
        self.limit: float | None = None
        """The limit in the key's unit; ``None`` is unlimited, and still recorded."""
        self.entity = ""
        """The entity that has the quota, as Kafka's tools print it."""
        self.span_ms = window.samples * window.seconds * 1000
        """Time that the measurement covers."""
        self.policy: QuotaPolicy = KAFKA_POLICY
        self.last_used_ms = NEVER_USED
        self.meter: Meter | None = None
        """Charges the bucket in other threads; ``None`` if nothing does."""
        self.limit_of = -1
        """`ClientQuotas.generation` when the limit was resolved."""
        self.owner: Owner | None = None
        """The user and address whose maximum (`MAX_OWNED`) includes this bucket; ``None`` if no client chose its
        name."""
        self.overflow = False
        """Whether many client ids share the bucket, since there are too many buckets."""
        self.dropped = False
        """Whether the bucket was dropped from the table, so that cached references to it are invalid."""
        self._throttled_ms = NEVER
        """Time of the last throttle that was imposed."""
        self._throttles: ThrottleTimes | None = None
        self._timeline: Timeline | None = None
        self._wait: Wait | None = None
        self.gate_ms = NEVER
        """Before this time, `wait` must be called before a request is charged."""

    def was_throttled(self, now_ms: int) -> bool:
        """Return whether a throttle was imposed within a window, so that the next one is likely."""
        return now_ms - self._throttled_ms < self.span_ms

    @property
    def tags(self) -> dict[str, str]:
        """The metric tags of the bucket."""
        return dict(self._tags)

    def is_of(self, user: str) -> bool:
        """Return whether the bucket is for ``user``, who has authenticated, so that no other client can name it."""
        return user != ANONYMOUS and (USER, user) in self._tags

    @property
    def name(self) -> tuple[str, Tags]:
        """The bucket's name in the table: key and metric tags."""
        return self.key, self._tags

    def outlasts_idling(self, now_ms: int) -> bool:
        """Return whether the bucket is kept, however long it is not used, since its entity has to wait or owes.

        A broker forgets a wait of more than an hour with its sensor, and so does this code where it enforces as Kafka.
        """
        return self._owes(now_ms) if self.paced else self.gate_ms > now_ms and not self.has_kafkas_sensor

    def _owes(self, now_ms: int) -> bool:
        limit, timeline = self.limit, self._timeline
        return timeline is not None and limit is not None and timeline.debt(self.per_second(limit), now_ms) > 0

    def forgotten(self, now_ms: int) -> bool:
        """Return whether a new bucket would make the same decisions as this one: this one has no wait and no debt, and
        was not used within the window."""
        if now_ms - self.last_used_ms <= self.span_ms or self.gate_ms > now_ms:
            return False
        return not self._owes(now_ms)

    # --- the wait of new connections ---

    def wait(self, request: Request, first_used_ms: int, now_ms: int) -> Throttle | None:
        """Return how long to hold ``request``, which has not been charged; ``None`` admits it.

        ``first_used_ms`` is the time at which its connection first used the bucket, `NEVER` if it has waited once. A
        connection is held if it first used the bucket in a later millisecond than that in which the throttle was
        imposed: the request that caused the throttle may have come in the same millisecond. While the entity has to
        wait for more than a window, which is longer than Kafka's rate covers, every connection is held.
        """
        wait, limit = self._wait, self.limit
        if wait is None or limit is None or wait.is_over(now_ms):
            return None
        if not wait.waits(request) and not self._holds(wait, first_used_ms, now_ms):
            return None
        hold_ms = wait.hold_ms(request, self.last_used_ms, now_ms)
        self.gate_ms = wait.gate_ms
        if hold_ms == 0:
            return None
        reason = self._reason(self.observed(now_ms), limit, now_ms)
        return Throttle(throttle_ms=hold_ms, reason=reason, hold=True, ask_again=True)

    def _holds(self, wait: Wait, first_used_ms: int, now_ms: int) -> bool:
        return first_used_ms > wait.since_ms or wait.until_ms - now_ms > self.span_ms

    def rest_of_wait(self, first_used_ms: int, now_ms: int) -> Throttle | None:
        """Return how long to hold a request of a new connection that need not be charged to this bucket: for the rest
        of the present throttle, without a place in the queue. ``None`` admits it. See `wait`."""
        wait, limit = self._wait, self.limit
        if wait is None or limit is None or wait.until_ms <= now_ms or not self._holds(wait, first_used_ms, now_ms):
            return None
        reason = self._reason(self.observed(now_ms), limit, now_ms)
        return Throttle(throttle_ms=wait.until_ms - now_ms, reason=reason, hold=True)

    def leave(self, request: Request) -> None:
        """Remove ``request`` from those that wait, if it is one of them."""
        if self._wait is not None:
            self._wait.leave(request)
            self.gate_ms = self._wait.gate_ms

    def end_wait(self) -> None:
        """End the wait of the entity, since its quota was changed or enforcement was switched off."""
        if self._wait is not None:
            self._wait.end()
            self.gate_ms = self._wait.gate_ms

    def _shorten_wait(self, throttle_ms: int, now_ms: int) -> None:
        """Let the entity wait for ``throttle_ms`` at most, since a part of what it waits for was given back."""
        if self._wait is not None:
            self._wait.shorten(now_ms + throttle_ms)
            self.gate_ms = self._wait.gate_ms

    def _note_throttle(self, throttle_ms: int, now_ms: int) -> None:
        """Note that the entity has to wait, unless its policy leaves new connections alone."""
        self._extend_wait(now_ms, now_ms + min(throttle_ms, self.policy.longest_throttle_ms), now_ms)

    def _extend_wait(self, since_ms: int, until_ms: int, now_ms: int) -> None:
        policy = self.policy
        if policy.observe or policy.new_connections is NewConnections.KAFKA or self.limit is None:
            return
        if self._wait is None:
            self._wait = Wait()
        self._wait.extend(since_ms, until_ms, now_ms)
        self.gate_ms = self._wait.gate_ms

    # --- paced ---

    @property
    def paced(self) -> bool:
        """Whether the bucket's requests are paced."""
        return self.policy.mode is EnforcementMode.PACED and self.limit is not None

    def reserve(self, amount: float, now_ms: int) -> Throttle | None:
        """Reserve ``amount`` in the timeline; return how long to hold the request, ``None`` if it is not held.

        For paced enforcement. The actual amount is recorded with `record`, and its difference to the reserved amount is
        corrected with `correct`.
        """
        limit = self.limit
        if limit is None:
            return None
        if self._timeline is None:
            self._timeline = Timeline()
        self.last_used_ms = max(self.last_used_ms, now_ms)
        rate, burst = self.per_second(limit), self.burst(limit)
        wait_ms = self._timeline.reserve(amount, rate, burst, now_ms)
        if self.policy.observe:  # no request is held, so the debt must not grow
            self._timeline.correct(min(0.0, burst + amount - self._timeline.debt(rate, now_ms)), rate, now_ms)
        if wait_ms == 0:
            return None
        return self._verdict(wait_ms, self.observed(now_ms), limit, now_ms, hold=True)

    def _mute_only(self, verdict: Throttle | None, now_ms: int) -> Throttle | None:
        """Return a verdict that mutes instead of holding, since the request has been forwarded already."""
        if verdict is None:
            return None
        self._note_throttle(verdict.throttle_ms, now_ms)
        return replace(verdict, hold=False)

    def settled(self) -> float:
        """Return the sum of what requests have cost beyond their reservations, for `delay`. For paced enforcement."""
        return 0.0 if self._timeline is None else self._timeline.settled()

    def delay(self, settled: float, longest_ms: int, now_ms: int) -> Throttle | None:
        """Return how much longer to hold a request whose hold ends now; ``None`` if it can be forwarded.

        For paced enforcement. Requests before it may have cost more than was reserved for them. ``settled`` is what the
        method `settled` returned when the request reserved its slot, or was held again.
        """
        limit = self.limit
        if limit is None or self._timeline is None or self.policy.observe:
            return None
        delay_ms = min(self._timeline.delay_ms(settled, self.per_second(limit), self.burst(limit), now_ms), longest_ms)
        if delay_ms <= 0:
            return None
        reason = self._reason(self.observed(now_ms), limit, now_ms)
        return Throttle(throttle_ms=delay_ms, reason=reason, hold=True, ask_again=True)

    def correct(self, difference: float, now_ms: int, *, forwarded: bool = False) -> None:
        """Add ``difference`` to the debt; a negative difference reduces or cancels a reservation.

        For paced enforcement. ``forwarded``: the difference is for a request that was forwarded, so the requests that
        are held behind it wait for the difference, too.
        """
        if self.limit is None or self._timeline is None:
            return
        self.last_used_ms = max(self.last_used_ms, now_ms)
        if forwarded:
            self._timeline.settle(difference, self.per_second(self.limit), now_ms)
        else:
            self._timeline.correct(difference, self.per_second(self.limit), now_ms)

    def per_second(self, limit: float) -> float:
        """Return ``limit`` in units a second."""
        return limit

    def burst(self, limit: float) -> float:
        """Return the burst of a paced quota, in the quota's unit."""
        burst_s = self.policy.burst_s
        return limit * (PACED_BURST_S if burst_s is None else burst_s)

    @property
    def limit_window_s(self) -> int:
        """The number of seconds that the limit applies to."""
        return 1

    def rate(self, now_ms: int) -> float | None:  # noqa: ARG002 -- token buckets use it
        """Return the measured rate in the limit's unit; ``None`` if `observed` returns it, or if it is unknown."""
        return None

    @abstractmethod
    def observed(self, now_ms: int) -> float:
        """Return the value that is compared with the limit."""

    def burst_left(self, limit: float, now_ms: int) -> float:
        """Return the amount that would be forwarded now without a hold; if it is negative, requests are held.

        For paced enforcement.
        """
        debt = 0.0 if self._timeline is None else self._timeline.debt(self.per_second(limit), now_ms)
        return self.burst(limit) - debt

    @abstractmethod
    def measures(self, now_ms: int) -> Iterator[tuple[str, float]]:
        """Yield names and values of Kafka's metrics of this bucket. ``throttle-time`` is NaN without throttles."""

    def state(self, now_ms: int) -> dict[str, Any]:
        """Return the state for `restore`: plain values, with ages instead of times."""
        state: dict[str, Any] = {}
        if self._timeline is not None:
            state["timeline"] = self._timeline.state(now_ms)
        wait = self._wait
        if wait is not None and wait.until_ms > now_ms:
            state["wait"] = [now_ms - wait.since_ms, wait.until_ms - now_ms, self.limit]
        return state

    def restore(self, state: Mapping[str, Any], now_ms: int) -> None:
        """Restore a `state`; its ages count back from ``now_ms``."""
        self.last_used_ms = now_ms
        if "timeline" in state:
            if self._timeline is None:
                self._timeline = Timeline()
            self._timeline.restore(state["timeline"], now_ms)
        if "wait" in state:
            age_ms, left_ms, limit = state["wait"]
            if limit == self.limit:
                self._extend_wait(now_ms - int(age_ms), now_ms + int(left_ms), now_ms)

    def _throttle_time(self, now_ms: int) -> float:
        return math.nan if self._throttles is None else self._throttles.average(now_ms)

    def _verdict(self, throttle_ms: int, observed: float, limit: float, now_ms: int, *, hold: bool = False) -> Throttle:
        policy = self.policy
        throttle_ms = min(throttle_ms, policy.longest_throttle_ms)
        if self._throttles is None:
            self._throttles = ThrottleTimes(METRICS_WINDOW)
        self._throttles.record(throttle_ms, now_ms)
        if not policy.observe:
            self._throttled_ms = now_ms
        if not hold:
            self._note_throttle(throttle_ms, now_ms)
        reason = self._reason(observed, limit, now_ms)
        return Throttle(throttle_ms=throttle_ms, reason=reason, hold=hold, observe=policy.observe)

    def _reason(self, observed: float, limit: float, now_ms: int) -> Reason:
        return Reason(
            quota=str(self.key),
            entity=self.entity,
            observed=observed,
            limit=limit,
            rate=self.rate(now_ms),
            window_s=self.limit_window_s,
        )
