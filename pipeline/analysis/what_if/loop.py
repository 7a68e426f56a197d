"""The charges of one bucket, one after the other, as recorded and with waiting senders.

Each is charged by `headrace.quota_callbacks.records.replay`, by the code with which the proxy enforces quotas.
`headrace.pipeline.analysis.what_if.totals` uses this for what may be throttled. Pure Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.pipeline.analysis.events import END_OF_SECOND_MS, open_second
from headrace.pipeline.analysis.what_if.buckets import replay_of
from headrace.pipeline.analysis.what_if.waiting import WaitingSenders
from headrace.quota_callbacks.records.replay import Op, Replay, Usage, charge
from headrace.quota_callbacks.verdicts import Refuse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headrace.pipeline.analysis.what_if.buckets import Sender
    from headrace.pipeline.analysis.what_if.quotas import Quotas
    from headrace.pipeline.analysis.what_if.waiting import HourlyDelay
    from headrace.quota_callbacks.buckets.kinds import QuotaBucket
    from headrace.quota_callbacks.verdicts import Throttle

Charge = tuple[int, int, float]
"""Second, number of the sender, amount in the unit of the operation."""

HourSums = tuple[int, int, float, int, int, int, int, int, int, float, float | None, int]
"""The hour since 1970, and the columns of `schemas.WHAT_IF` from ``events`` on."""


class Tally:
    """The sums of one hour, as recorded."""

    __slots__ = ("amount", "events", "longest_ms", "refused", "throttle_ms", "throttled")

    def __init__(self, events: int = 0, amount: float = 0.0) -> None:
        self.events, self.amount = events, amount
        self.throttled = self.refused = self.throttle_ms = self.longest_ms = 0

    def add(self, amount: float, verdict: Throttle | Refuse | None) -> None:
        """Count a charge."""
        self.events += 1
        self.amount += amount
        if verdict is None:
            return
        self.throttled += verdict.throttle_ms > 0
        self.refused += isinstance(verdict, Refuse)
        self.throttle_ms += verdict.throttle_ms
        self.longest_ms = max(self.longest_ms, verdict.throttle_ms)


class Replays:
    """Two replays of the same quotas: as recorded, and with waiting senders. One bucket uses them at a time."""

    def __init__(self, quotas: Quotas, senders: list[Sender]) -> None:
        self.recorded = replay_of(quotas)
        self.waiting = replay_of(quotas)
        self.senders = senders


class Loop:
    """The loop that charges events both as recorded and with waiting senders.

    Both are equal until the first throttle; from then on, waiting senders have a copy of the bucket.
    """

    def __init__(
        self,
        replays: Replays,
        op: Op,
        began_s: int,
        before: Iterable[Charge] = (),
        hours: Mapping[int, Tally] | None = None,
    ) -> None:
        """Begin to charge a bucket whose first charge was in the second ``began_s``.

        ``before`` has the charges that its next charges can still depend on. They are counted in ``hours`` already, and
        none of them was throttled.
        """
        self._replays = replays
        self._op = op
        self._bucket: QuotaBucket | None = None
        self._waiting: WaitingSenders | None = None
        self._hours = dict(hours or {})
        replays.recorded.forget(began_s * 1000 + END_OF_SECOND_MS)
        for each in before:
            self._charge(self._usage(*each))

    def add(self, second: int, sender: int, amount: float) -> None:
        """Charge an event."""
        usage = self._usage(second, sender, amount)
        bucket, verdict = self._charge(usage)
        hour = second // 3600
        tally = self._hours.get(hour)
        if tally is None:
            tally = self._hours[hour] = Tally()
        tally.add(amount, verdict)
        if self._waiting is not None:
            self._waiting.send(usage)
        elif verdict is not None:
            self._start_waiting(bucket, usage, verdict)

    def finish(self) -> Iterator[HourSums]:
        """Send the usage that still waits, and yield the sums of each hour."""
        delays: Mapping[int, HourlyDelay] = {}
        if self._waiting is not None:
            self._waiting.finish()
            delays = self._waiting.hours
        for hour, tally in self._hours.items():
            recorded = (
                hour, tally.events, tally.amount, tally.throttled, tally.refused, tally.throttle_ms, tally.longest_ms,
            )  # fmt: skip
            delay = delays.get(hour)
            if delay is None:
                yield (*recorded, 0, 0, 0.0, None, 0)
                continue
            mean_ms = delay.amount_ms / delay.amount if delay.amount else None
            yield (*recorded, delay.waits, delay.waited_ms, delay.amount, mean_ms, delay.longest_ms)

    def _usage(self, second: int, sender: int, amount: float) -> Usage:
        user, client_id = self._replays.senders[sender]
        strict = self._op is Op.CONTROLLER_MUTATION
        t_ms = second * 1000 + END_OF_SECOND_MS
        return Usage(t_ms=t_ms, user=user, client_id=client_id, op=self._op, amount=amount, strict=strict)

    def _charge(self, usage: Usage) -> tuple[QuotaBucket, Throttle | Refuse | None]:
        self._replays.recorded.advance(usage.t_ms)
        bucket = self._bucket
        if bucket is None or bucket.dropped:
            bucket = self._bucket = _bucket_of(self._replays.recorded, usage)
        open_second(bucket, usage.t_ms)
        return bucket, charge(bucket, usage, empty_fetches=False)

    def _start_waiting(self, bucket: QuotaBucket, usage: Usage, verdict: Throttle | Refuse) -> None:
        self._replays.waiting.forget()
        waiting = _bucket_of(self._replays.waiting, usage)
        waiting.restore(bucket.state(usage.t_ms), usage.t_ms)
        self._waiting = WaitingSenders(waiting)
        self._waiting.throttled(usage, verdict)


def _bucket_of(replay: Replay, usage: Usage) -> QuotaBucket:
    bucket = replay.bucket(usage.op, usage.user, usage.client_id)
    if bucket is None:
        raise ValueError(f"{usage.op} of {usage.user!r} and {usage.client_id!r} has no bucket")
    return bucket
