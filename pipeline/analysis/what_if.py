"""What-if: usage charged to quotas by the code with which the proxy enforces them.

Events (`schemas.EVENTS`) are grouped by the bucket that they are charged to, ordered, and charged by
`headrace.quota_callbacks.records.replay` in Arrow batches, one bucket after the other. Only the state of a bucket is in
memory, not its events. So a job's memory does not grow with the number of events, and its speed grows with the number
of cores, unless a single bucket has most of the events.
"""

from __future__ import annotations

from collections.abc import Iterator  # noqa: TC003 -- Spark reads the annotations of what it calls
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import pandas as pd
from pyspark.sql import functions as sf
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import StringType

from headrace.pipeline.analysis.events import open_second
from headrace.pipeline.analysis.waiting import WaitingSenders
from headrace.pipeline.errors import InputError
from headrace.pipeline.lake import schemas
from headrace.quota_callbacks.records.replay import KEYS, Op, Replay, Usage, charge
from headrace.quota_callbacks.verdicts import Refuse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from headrace.pipeline.analysis.waiting import Shift
    from headrace.quota_callbacks.buckets.kinds import QuotaBucket
    from headrace.quota_callbacks.buckets.sampled_rate import Window
    from headrace.quota_callbacks.entities import QuotaKey
    from headrace.quota_callbacks.records.replay import Change
    from headrace.quota_callbacks.verdicts import Throttle

MAX_NAMES: Final = 100_000
"""Maximum number of bucket names that an executor's process caches."""

_OPS: Final = {op.value: op for op in Op}
_SENDER: Final = ("op", "user", "client_id")
_EVENT: Final = ("bucket", "t_ms", "user", "client_id", "op", "amount", "producer_id", "strict")

_SEPARATOR: Final = "\x1f"
"""Separator of the parts of a bucket's name."""

OrderedChange = tuple[int, "Change"]
"""A change, and the number of its line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """The quotas to apply, their changes, and their windows."""

    windows: Mapping[QuotaKey, Window]
    changes: Sequence[OrderedChange]
    """In order; those with order 0 apply from the beginning."""
    began_ms: int | None = None
    """The time of the first event; expiry of idle buckets is checked from then on."""

    @property
    def fixed(self) -> bool:
        """Whether the quotas never change."""
        return all(order == 0 for order, _ in self.changes)


def fixed_quotas(changes: Sequence[Change], windows: Mapping[QuotaKey, Window]) -> Quotas:
    """Return quotas that apply from the beginning and never change."""
    return Quotas(windows=windows, changes=[(0, change) for change in changes])


# --- pure: DataFrames to DataFrames -----------------------------------------------------------------------------------


def decide(events: DataFrame, quotas: Quotas) -> DataFrame:
    """Return the verdict on each event as recorded, without waiting senders (`schemas.DECISIONS`)."""

    def decide_all(batches: Iterable[Any]) -> Iterator[Any]:
        run = _Run(quotas)
        for batch in batches:
            rows = [(order, *_decision(run.charge(order, *event))) for order, *event in _rows(batch, "order", *_EVENT)]
            yield pd.DataFrame(rows, columns=schemas.DECISIONS.names)

    charged = _by_bucket(events, quotas, keep_free=True)
    free = charged.where(sf.col("bucket").isNull()).select(
        "order", sf.lit(0).cast("long").alias("throttle_time_ms"), sf.lit(True).alias("accepted"),
        sf.lit(None).cast("string").alias("entity"),
    )  # fmt: skip
    decided = _in_order(charged.where(sf.col("bucket").isNotNull())).mapInPandas(decide_all, schemas.DECISIONS)
    return decided.unionByName(free)


def what_if(events: DataFrame, quotas: Quotas) -> DataFrame:
    """Return, by hour and bucket, who would be throttled, for how long, and how much would be delayed
    (`schemas.WHAT_IF`).

    Raises `InputError` if the quotas change.
    """
    if not quotas.fixed:
        raise InputError("quotas that change are only supported with --trace; over usage, quotas must apply throughout")

    def total_all(batches: Iterable[Any]) -> Iterator[Any]:
        run = _Totals(quotas)
        for batch in batches:
            for event in _rows(batch, *_EVENT):
                run.add(*event)
            if run.rows:
                yield pd.DataFrame(run.take(), columns=schemas.WHAT_IF.names)
        run.end_bucket()
        yield pd.DataFrame(run.take(), columns=schemas.WHAT_IF.names)

    return _in_order(_by_bucket(events, quotas)).mapInPandas(total_all, schemas.WHAT_IF)


def _by_bucket(events: DataFrame, quotas: Quotas, *, keep_free: bool = False) -> DataFrame:
    """Add ``bucket``, the name of the bucket that an event is charged to; keep events without one if ``keep_free`` is
    true.
    """

    def name_all(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.Series]:
        namer = _Namer(quotas)
        for batch in batches:
            yield pd.Series(namer.names(*(column.tolist() for column in batch)), dtype=object)

    # Declared nondeterministic, since Spark would otherwise call it twice: for the column, and for the condition on it.
    bucket_of = cast("Any", pandas_udf)(name_all, StringType()).asNondeterministic()
    named = events.withColumn("bucket", bucket_of("order", *_SENDER))
    return named if keep_free else named.where(sf.col("bucket").isNotNull())


def _in_order(events: DataFrame) -> DataFrame:
    """Sort each bucket's events by time, then by sender, so that results are reproducible; a bucket is in one
    partition.

    The number of partitions is given, so that Spark does not merge small ones: their cost is Python time, not bytes.
    """
    partitions = int(events.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200)
    return events.repartition(partitions, "bucket").sortWithinPartitions("bucket", "t_ms", "order", "user", "client_id")


# --- on the executors -------------------------------------------------------------------------------------------------


class _Namer:
    """Finds the name of an event's bucket by the quotas that apply at its line."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._names: dict[tuple[str, str, str], str | None] = {}
        self._begin()

    def _begin(self) -> None:
        self._replay = Replay(self._quotas.windows)
        self._applied = 0
        self._order = -1

    def names(self, orders: list[int], *senders: list[str]) -> list[str | None]:
        """Return the bucket's name for each event, given the columns `_SENDER`."""
        keys = zip(*senders, strict=True)
        if not self._quotas.fixed:
            return [self._name_at(order, key) for order, key in zip(orders, keys, strict=True)]
        self._go_to(0)
        known = self._names
        return [known[key] if key in known else self._name(key) for key in keys]

    def _name_at(self, order: int, key: tuple[str, str, str]) -> str | None:
        self._go_to(order)
        return self._name(key)

    def _name(self, key: tuple[str, str, str]) -> str | None:
        if key not in self._names:
            op, user, client_id = key
            tags = self._tags(Op(op), user, client_id)
            named = None if tags is None else _SEPARATOR.join((KEYS[Op(op)].value, *tags.values()))
            if len(self._names) > MAX_NAMES:
                self._names.clear()
            self._names[key] = named
        return self._names[key]

    def _tags(self, op: Op, user: str, client_id: str) -> Mapping[str, str] | None:
        """Return the bucket's tags; ``None`` also for a bucket that can never have a limit."""
        if self._quotas.fixed and not self._replay.limited(op, user, client_id):
            return None
        return self._replay.tags(op, user, client_id)

    def _go_to(self, order: int) -> None:
        if order < self._order:
            if self._quotas.fixed:
                return
            self._begin()
            self._names.clear()
        self._order = order
        changes = self._quotas.changes
        while self._applied < len(changes) and changes[self._applied][0] <= order:
            self._replay.alter(changes[self._applied][1])
            self._applied += 1
            self._names.clear()


class _Run:
    """Charges the events of one bucket after the other."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._bucket_name: str | None = None
        self.replay = Replay(quotas.windows, began_ms=quotas.began_ms)
        self._applied = 0
        self._apply(0)

    def charge(self, order: int, bucket: str, *event: Any) -> Throttle | Refuse | None:
        """Charge an event at its recorded time and return the verdict."""
        if bucket != self._bucket_name:
            self.begin_bucket(bucket)
        if not self._quotas.fixed:
            self._apply(order)
        return self.replay.charge(usage_of(*event))

    def begin_bucket(self, name: str) -> None:
        """Discard the previous bucket's state and start this one."""
        self._bucket_name = name
        if self._quotas.fixed:
            self.replay.forget(self._quotas.began_ms)
            return
        self.replay = Replay(self._quotas.windows, began_ms=self._quotas.began_ms)
        self._applied = 0
        self._apply(0)

    def _apply(self, order: int) -> None:
        changes = self._quotas.changes
        while self._applied < len(changes) and changes[self._applied][0] <= order:
            self.replay.alter(changes[self._applied][1])
            self._applied += 1


class _Tally:
    """The sums of one hour, as recorded."""

    __slots__ = ("amount", "events", "longest_ms", "refused", "throttle_ms", "throttled")

    def __init__(self) -> None:
        self.events = self.throttled = self.refused = self.throttle_ms = self.longest_ms = 0
        self.amount = 0.0

    def add(self, amount: float, verdict: Throttle | Refuse | None) -> None:
        self.events += 1
        self.amount += amount
        if verdict is None:
            return
        self.throttled += verdict.throttle_ms > 0
        self.refused += isinstance(verdict, Refuse)
        self.throttle_ms += verdict.throttle_ms
        self.longest_ms = max(self.longest_ms, verdict.throttle_ms)


class _Totals:
    """Charges events both as recorded and with waiting senders.

    Both are equal until the first throttle; from then on, waiting senders have a copy of the bucket.
    """

    def __init__(self, quotas: Quotas) -> None:
        self._run = _Run(quotas)
        self._waiting_run = _Run(quotas)
        self._name: str | None = None
        self._bucket: QuotaBucket | None = None
        self._waiting: WaitingSenders | None = None
        self._hours: dict[int, _Tally] = {}
        self.rows: list[tuple[Any, ...]] = []

    def add(self, name: str, *event: Any) -> None:
        """Add one event."""
        usage = usage_of(*event)
        if name != self._name:
            self.end_bucket()
            self._name = name
            self._run.begin_bucket(name)
        replay, now_ms = self._run.replay, usage.t_ms
        replay.advance(now_ms)
        bucket = self._bucket
        if bucket is None or bucket.dropped:
            bucket = self._bucket = _bucket_of(self._run, name, usage)
        open_second(bucket, now_ms)
        verdict = charge(bucket, usage, empty_fetches=False)
        hour = now_ms // 3_600_000
        tally = self._hours.get(hour)
        if tally is None:
            tally = self._hours[hour] = _Tally()
        tally.add(usage.amount, verdict)
        if self._waiting is not None:
            self._waiting.send(usage)
        elif verdict is not None:
            self._waiting_run.begin_bucket(name)
            waiting = _bucket_of(self._waiting_run, name, usage)
            waiting.restore(bucket.state(now_ms), now_ms)
            self._waiting = WaitingSenders(waiting)
            self._waiting.throttled(usage, verdict)

    def take(self) -> list[tuple[Any, ...]]:
        """Return the rows of completed buckets, and remove them."""
        rows, self.rows = self.rows, []
        return rows

    def end_bucket(self) -> None:
        """Complete the current bucket after its last event."""
        bucket, waiting = self._bucket, self._waiting
        if bucket is None:
            return
        shifts: Mapping[int, Shift] = {}
        if waiting is not None:
            waiting.finish()
            shifts = waiting.hours
        tags = bucket.tags
        for hour, tally in self._hours.items():
            shift = shifts.get(hour)
            shifted = (0, 0, 0.0, None, 0) if shift is None else (
                shift.waits, shift.waited_ms, shift.amount,
                shift.amount_ms / shift.amount if shift.amount else None, shift.longest_ms,
            )  # fmt: skip
            self.rows.append(
                (
                    pd.Timestamp(hour * 3600, unit="s"), str(bucket.key), tags.get("user") or None,
                    tags.get("client-id") or None, bucket.entity or None, bucket.limit, tally.events, tally.amount,
                    tally.throttled, tally.refused, tally.throttle_ms, tally.longest_ms, *shifted,
                )
            )  # fmt: skip
        self._bucket = self._waiting = None
        self._hours = {}


def _bucket_of(run: _Run, name: str, usage: Usage) -> QuotaBucket:
    bucket = run.replay.bucket(usage.op, usage.user, usage.client_id)
    if bucket is None:
        raise ValueError(f"{name!r} is not a bucket of its event")
    return bucket


def usage_of(
    t_ms: int, user: str, client_id: str, op_name: str, amount: float, producer_id: int, strict: bool
) -> Usage:
    """Return a row of `schemas.EVENTS` as the event for `charge`."""
    op = _OPS[op_name]
    if op is Op.PRODUCER_ID:
        amount = producer_id
    return Usage(t_ms=t_ms, user=user, client_id=client_id, op=op, amount=amount, strict=strict)


def _rows(batch: Any, *columns: str) -> Iterator[Any]:
    """Yield rows as tuples of Python values, with which arithmetic is faster than with numpy's."""
    return zip(*(batch[column].tolist() for column in columns), strict=True)


def _decision(verdict: Throttle | Refuse | None) -> tuple[int, bool, str | None]:
    if verdict is None:
        return 0, True, None
    entity = verdict.reason.entity if verdict.reason is not None else None
    return verdict.throttle_ms, not isinstance(verdict, Refuse), entity
