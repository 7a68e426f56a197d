"""What-if: usage against quotas, with the very code that the proxy enforces them with.

Events (`schemas.EVENTS`) are brought together by the bucket that they would be charged to, in order, and charged by
`headrace.quota_callbacks.records.replay` in Arrow batches, one bucket after the other. A bucket is never in memory
whole: what is kept is its state, as in the proxy. So a job's memory does not grow with its events, and its speed does
with its cores, as long as no bucket has most of them.
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
"""Names of buckets that an executor's process keeps."""

_OPS: Final = {op.value: op for op in Op}
_SENDER: Final = ("op", "user", "client_id")
_EVENT: Final = ("bucket", "t_ms", "user", "client_id", "op", "amount", "producer_id", "strict")

_SEPARATOR: Final = "\x1f"
"""Between the parts of a bucket's name."""

OrderedChange = tuple[int, "Change"]
"""A change, and the number of its line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """What is asked about: quotas, how they change, and what they are measured over."""

    windows: Mapping[QuotaKey, Window]
    changes: Sequence[OrderedChange]
    """In order; those with order 0 hold from the beginning."""
    began_ms: int | None = None
    """When the record begins; idle buckets are looked for from then on."""

    @property
    def fixed(self) -> bool:
        """Whether they stay as they are from the beginning."""
        return all(order == 0 for order, _ in self.changes)


def fixed_quotas(changes: Sequence[Change], windows: Mapping[QuotaKey, Window]) -> Quotas:
    """Quotas that hold from the beginning."""
    return Quotas(windows=windows, changes=[(0, change) for change in changes])


# --- pure: DataFrames to DataFrames -----------------------------------------------------------------------------------


def decide(events: DataFrame, quotas: Quotas) -> DataFrame:
    """What quotas say of each event, as it was recorded, nobody waiting (`schemas.DECISIONS`)."""

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
    """Who would be throttled, for how long, and how much would come later (`schemas.WHAT_IF`), by hour and bucket."""
    if not quotas.fixed:
        raise InputError("quotas that change are for --trace; what-if over usage takes quotas that hold throughout")

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
    """With ``bucket``, the name of what they are charged to; those without one only where they are asked for."""

    def name_all(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.Series]:
        namer = _Namer(quotas)
        for batch in batches:
            yield pd.Series(namer.names(*(column.tolist() for column in batch)), dtype=object)

    # not deterministic, or Spark would ask it twice: once for the column, and once for the condition on it
    bucket_of = cast("Any", pandas_udf)(name_all, StringType()).asNondeterministic()
    named = events.withColumn("bucket", bucket_of("order", *_SENDER))
    return named if keep_free else named.where(sf.col("bucket").isNotNull())


def _in_order(events: DataFrame) -> DataFrame:
    """Each bucket's events behind each other, in time, then by sender, so that the answer is always the same; a bucket
    is in one partition.

    Their number is given, so that Spark does not put small ones together: what they cost is Python, not bytes.
    """
    partitions = int(events.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200)
    return events.repartition(partitions, "bucket").sortWithinPartitions("bucket", "t_ms", "order", "user", "client_id")


# --- on the executors -------------------------------------------------------------------------------------------------


class _Namer:
    """Names the bucket of an event by the quotas as they are at its line."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._names: dict[tuple[str, str, str], str | None] = {}
        self._begin()

    def _begin(self) -> None:
        self._replay = Replay(self._quotas.windows)
        self._applied = 0
        self._order = -1

    def names(self, orders: list[int], *senders: list[str]) -> list[str | None]:
        """Of each event, by what makes up `_SENDER`."""
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
        """None, too, for a bucket that will never have a limit."""
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
        """The verdict, as it was recorded."""
        if bucket != self._bucket_name:
            self.begin_bucket(bucket)
        if not self._quotas.fixed:
            self._apply(order)
        return self.replay.charge(usage_of(*event))

    def begin_bucket(self, name: str) -> None:
        """Forget the one before."""
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
    """Of one hour, as recorded."""

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
    """Both ways at once: as recorded, and with senders that wait.

    They are the same until somebody is told to wait; from then on, the bucket of those that wait is one of its own.
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
        """One more event."""
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
            self._waiting.told(usage, verdict)

    def take(self) -> list[tuple[Any, ...]]:
        """The rows of buckets that are over."""
        rows, self.rows = self.rows, []
        return rows

    def end_bucket(self) -> None:
        """The bucket's last event was added."""
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
                    pd.Timestamp(hour * 3600, unit="s"), bucket.key.value, tags.get("user") or None,
                    tags.get("client-id") or None, bucket.entity or None, bucket.limit, tally.events, tally.amount,
                    tally.throttled, tally.refused, tally.throttle_ms, tally.longest_ms, *shifted,
                )
            )  # fmt: skip
        self._bucket = self._waiting = None
        self._hours = {}


def _bucket_of(run: _Run, name: str, usage: Usage) -> QuotaBucket:
    bucket = run.replay.bucket(usage.op, usage.user, usage.client_id)
    if bucket is None:
        raise ValueError(f"{name!r} is no bucket of its event")
    return bucket


def usage_of(
    t_ms: int, user: str, client_id: str, op_name: str, amount: float, producer_id: int, strict: bool
) -> Usage:
    """A row of `schemas.EVENTS` as the event that is charged."""
    op = _OPS[op_name]
    if op is Op.PRODUCER_ID:
        amount = producer_id
    return Usage(t_ms=t_ms, user=user, client_id=client_id, op=op, amount=amount, strict=strict)


def _rows(batch: Any, *columns: str) -> Iterator[Any]:
    """As tuples of Python's own values, which are faster to reckon with than numpy's."""
    return zip(*(batch[column].tolist() for column in columns), strict=True)


def _decision(verdict: Throttle | Refuse | None) -> tuple[int, bool, str | None]:
    if verdict is None:
        return 0, True, None
    entity = verdict.reason.entity if verdict.reason is not None else None
    return verdict.throttle_ms, not isinstance(verdict, Refuse), entity
