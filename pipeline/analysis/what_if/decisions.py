"""The verdict on each event of a trace, which is that of ``headrace replay``.

Events (`schemas.EVENTS`) are grouped by the bucket that they are charged to, ordered, and charged by
`headrace.quota_callbacks.records.replay` in Arrow batches, one bucket after the other. Only the state of a bucket is in
memory, not its events.
"""

from __future__ import annotations

from collections.abc import Iterator  # noqa: TC003 -- Spark reads the annotations of what it calls
from typing import TYPE_CHECKING, Any, Final, cast

import pandas as pd
from pyspark.sql import functions as sf
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import StringType

from headrace.pipeline.analysis.what_if.answers import partitions
from headrace.pipeline.lake import schemas
from headrace.quota_callbacks.records.replay import KEYS, Op, Replay, Usage
from headrace.quota_callbacks.verdicts import Refuse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame

    from headrace.pipeline.analysis.what_if.quotas import Quotas
    from headrace.quota_callbacks.verdicts import Throttle

MAX_NAMES: Final = 100_000
"""Maximum number of bucket names that an executor's process caches."""

_OPS: Final = {op.value: op for op in Op}
_SENDER: Final = ("op", "user", "client_id")
_EVENT: Final = ("bucket", "t_ms", "user", "client_id", "op", "amount", "producer_id", "strict")

_SEPARATOR: Final = "\x1f"
"""Separator of the parts of a bucket's name."""

# --- pure: DataFrames to DataFrames -----------------------------------------------------------------------------------


def decide(events: DataFrame, quotas: Quotas) -> DataFrame:
    """Return the verdict on each event as recorded, without waiting senders (`schemas.DECISIONS`)."""

    def decide_all(batches: Iterable[Any]) -> Iterator[Any]:
        run = _Run(quotas)
        for batch in batches:
            rows = [(order, *_decision(run.charge(order, *event))) for order, *event in _rows(batch, "order", *_EVENT)]
            yield pd.DataFrame(rows, columns=schemas.DECISIONS.names)

    charged = _by_bucket(events, quotas)
    free = charged.where(sf.col("bucket").isNull()).select(
        "order", sf.lit(0).cast("long").alias("throttle_time_ms"), sf.lit(True).alias("accepted"),
        sf.lit(None).cast("string").alias("entity"),
    )  # fmt: skip
    decided = _in_order(charged.where(sf.col("bucket").isNotNull())).mapInPandas(decide_all, schemas.DECISIONS)
    return decided.unionByName(free)


def _by_bucket(events: DataFrame, quotas: Quotas) -> DataFrame:
    """Add ``bucket``, the name of the bucket that an event is charged to; null without one."""

    def name_all(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.Series]:
        namer = _Namer(quotas)
        for batch in batches:
            yield pd.Series(namer.names(*(column.tolist() for column in batch)), dtype=object)

    # Declared nondeterministic, since Spark would otherwise call it twice: for the column, and for the condition on it.
    bucket_of = cast("Any", pandas_udf)(name_all, StringType()).asNondeterministic()
    return events.withColumn("bucket", bucket_of("order", *_SENDER))


def _in_order(events: DataFrame) -> DataFrame:
    """Sort each bucket's events by time, then by sender, so that results are reproducible; a bucket is in one
    partition.
    """
    by_bucket = events.repartition(partitions(events.sparkSession), "bucket")
    return by_bucket.sortWithinPartitions("bucket", "t_ms", "order", "user", "client_id")


# --- on the executors -------------------------------------------------------------------------------------------------


class _Namer:
    """The names of events' buckets, by the quotas that apply at the lines of the events."""

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
        return [self._name_at(*each) for each in zip(orders, *senders, strict=True)]

    def _name_at(self, order: int, *sender: str) -> str | None:
        self._go_to(order)
        return self._name(*sender)

    def _name(self, op_name: str, user: str, client_id: str) -> str | None:
        key = (op_name, user, client_id)
        if key not in self._names:
            op = Op(op_name)
            tags = self._replay.tags(op, user, client_id)
            if len(self._names) > MAX_NAMES:
                self._names.clear()
            self._names[key] = None if tags is None else _SEPARATOR.join((KEYS[op].value, *tags.values()))
        return self._names[key]

    def _go_to(self, order: int) -> None:
        if order < self._order:
            self._begin()
            self._names.clear()
        self._order = order
        changes = self._quotas.changes
        while self._applied < len(changes) and changes[self._applied][0] <= order:
            self._replay.alter(changes[self._applied][1])
            self._applied += 1
            self._names.clear()


class _Run:
    """A run that charges the events of one bucket after the other."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._bucket_name: str | None = None
        self._replay: Replay
        self._applied: int

    def charge(self, order: int, bucket: str, *event: Any) -> Throttle | Refuse | None:
        """Charge an event at its recorded time and return the verdict."""
        if bucket != self._bucket_name:
            self._begin_bucket(bucket)
        changes = self._quotas.changes
        while self._applied < len(changes) and changes[self._applied][0] <= order:
            self._replay.alter(changes[self._applied][1])
            self._applied += 1
        return self._replay.charge(_usage_of(*event))

    def _begin_bucket(self, name: str) -> None:
        """Discard the previous bucket's state and start this one."""
        self._bucket_name = name
        self._replay = Replay(self._quotas.windows, began_ms=self._quotas.began_ms)
        self._applied = 0


def _usage_of(
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
