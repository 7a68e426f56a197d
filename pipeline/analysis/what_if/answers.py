"""Usage charged to quotas that never change: who would be throttled, by hour and bucket.

Spark finds the bucket of each record by a join, brings the records of a bucket together, and sorts them by one number.
`headrace.pipeline.analysis.what_if.totals` sums them up in Arrow batches. So a job's memory does not grow with the
number of records but with that of senders, of which the driver and each executor have a list; and its speed grows with
the number of cores, unless a single bucket has most of the records.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.types import DoubleType, StructField, StructType

from headrace.pipeline.analysis.events import amounts
from headrace.pipeline.analysis.usage import by_sender
from headrace.pipeline.analysis.what_if.buckets import Buckets, find_buckets
from headrace.pipeline.analysis.what_if.never_throttled import SECOND_BITS
from headrace.pipeline.analysis.what_if.totals import Charges, LoopedHours, QuietHours, Totals
from headrace.pipeline.errors import InputError
from headrace.pipeline.lake import schemas
from headrace.quota_callbacks.records.replay import KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from headrace.pipeline.analysis.what_if.quotas import Quotas

BROADCAST: Final = 1_000_000
"""Number of senders up to which each executor gets the list of them for the join; some 100 bytes each."""

_COLUMNS: Final = schemas.WHAT_IF.names[: schemas.WHAT_IF.names.index("with_demand")]

ANSWERS: Final = StructType([*(schemas.WHAT_IF[name] for name in _COLUMNS), StructField("certain_quota", DoubleType())])
"""The columns of the table but ``with_demand``, and ``certain_quota``: from this quota on, the records prove that no
usage of the bucket is throttled, however it was spread over each second. It is null if ``quota`` is not below it, and
for mutations and producer ids."""

_SUMS: Final = _COLUMNS[_COLUMNS.index("events") :]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedUsage:
    """Usage, the quotas to apply to it, and the buckets that it is charged to."""

    usage: DataFrame
    quotas: Quotas
    buckets: Buckets
    throttled: Mapping[int, tuple[int, int]]
    """For buckets whose recorded usage has been throttled or refused by a quota of their key: the numbers of requests.
    """
    demand: DataFrame | None = None
    """The demand beyond the recorded usage (`headrace.pipeline.analysis.what_if.demand.unserved`) to charge as well."""

    def with_demand(self, unserved: DataFrame) -> NamedUsage:
        """Return the same usage with demand."""
        return replace(self, demand=unserved)


def what_if(usage: DataFrame, quotas: Quotas) -> DataFrame:
    """Return, by hour and bucket, who would be throttled, for how long, and how much would be delayed
    (`schemas.WHAT_IF`).

    Raises `InputError` if the quotas change.
    """
    return answers(name_buckets(usage, quotas, senders_of(usage, quotas))).select(*schemas.WHAT_IF.names)


def senders_of(usage: DataFrame, quotas: Quotas) -> DataFrame:
    """Return usage `by_sender`, with the numbers of requests that quotas of these keys have throttled and refused."""
    held = sf.size("throttled") + sf.size("refused") > 0
    return by_sender(
        usage,
        *(
            sf.coalesce(sf.sum(sf.when(held, sf.try_element_at(name, sf.lit(key)))), sf.lit(0)).alias(f"{name}_{key}")
            for key in _keys(quotas)
            for name in ("throttled", "refused")
        ),
    )


def _keys(quotas: Quotas) -> list[str]:
    return sorted({KEYS[op].value for op in amounts()} & {key for _, each in quotas.changes for key in each.values})


def name_buckets(usage: DataFrame, quotas: Quotas, senders: DataFrame) -> NamedUsage:
    """Return the usage with the buckets of its ``senders`` (`senders_of`). Usage without a sender is left out, since it
    cannot be charged.

    Raises `InputError` if the quotas change.
    """
    if not quotas.fixed:
        raise InputError("quotas that change are only supported with --trace; over usage, quotas must apply throughout")
    names = [f"{name}_{key}" for key in _keys(quotas) for name in ("throttled", "refused")]
    rows = _named(senders).groupBy("user", "client_id").agg(*(sf.sum(name).alias(name) for name in names)).collect()
    buckets = find_buckets([(row.user, row.client_id) for row in rows], quotas)
    counts = {(row.user, row.client_id): row for row in rows}
    throttled: dict[int, tuple[int, int]] = {}
    for op, numbers in buckets.by_op.items():
        key = KEYS[op].value
        for sender, number in zip(buckets.senders, numbers, strict=True):
            row = counts[sender]
            found = row[f"throttled_{key}"], row[f"refused_{key}"]
            if number is not None and any(found):
                before = throttled.get(number, (0, 0))
                throttled[number] = before[0] + found[0], before[1] + found[1]
    return NamedUsage(usage=_named(usage), quotas=quotas, buckets=buckets, throttled=throttled)


def _named(frame: DataFrame) -> DataFrame:
    return frame.where(sf.col("user").isNotNull()).withColumn("client_id", sf.coalesce("client_id", sf.lit("")))


def answers(named: NamedUsage) -> DataFrame:
    """Return the answers by hour and bucket (`ANSWERS`, and ``with_demand``)."""
    buckets, quotas = named.buckets, named.quotas
    with_demand = sf.lit(named.demand is not None)
    if not buckets.buckets:
        return named.usage.sparkSession.createDataFrame([], ANSWERS).withColumn("with_demand", with_demand)

    def total_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        totals, table = Totals(buckets, quotas), _Table(buckets)
        for batch in batches:
            columns = (batch.column(name).to_numpy(zero_copy_only=False) for name in ("key", "sender", "amount"))
            yield from map(table.batch, totals.add(Charges(*columns)))
        yield from map(table.batch, totals.finish())

    return _charges(named).mapInArrow(total_all, ANSWERS).withColumn("with_demand", with_demand)


def _charges(named: NamedUsage) -> DataFrame:
    """Return the charges of all records, ordered by ``key`` in each partition, with all of a bucket in one of them."""
    spark, buckets, usage = named.usage.sparkSession, named.buckets, named.usage
    if named.demand is not None:
        usage = usage.unionByName(named.demand, allowMissingColumns=True)
    users, client_ids = zip(*buckets.senders, strict=True)
    columns = {op.value: pa.array(numbers, pa.int64()) for op, numbers in buckets.by_op.items()}
    numbers = pa.array(range(len(users)), pa.int64())
    names = {"user": pa.array(users, pa.string()), "client_id": pa.array(client_ids, pa.string())}
    senders = spark.createDataFrame(pa.table({**names, "sender": numbers, **columns}))
    if len(users) <= BROADCAST:
        senders = sf.broadcast(senders)
    charged = {op.value: amount.cast("double") for op, amount in amounts().items() if op in buckets.by_op}
    cells = [cell for name, amount in charged.items() for cell in (sf.col(name), amount)]
    stacked = sf.stack(sf.lit(len(charged)), *cells).alias("bucket", "amount")
    charges = (
        usage.join(senders, ["user", "client_id"])
        .select("second", "sender", stacked)
        .where("amount > 0 and bucket is not null")
        .select((sf.shiftleft("bucket", SECOND_BITS) + sf.col("second")).alias("key"), "sender", "amount")
    )
    return charges.repartition(partitions(spark), sf.shiftright("key", SECOND_BITS)).sortWithinPartitions("key")


def partitions(spark: SparkSession) -> int:
    """Return the number of partitions for work in Python: that of a shuffle, or more to use all cores.

    It is given to Spark, which would otherwise merge small ones: their cost is Python time, not bytes. On one machine,
    a shuffle has `headrace.pipeline.lake.session.LOCAL_SHUFFLE_PARTITIONS`, however many cores there are.
    """
    return max(int(spark.conf.get("spark.sql.shuffle.partitions") or 200), spark.sparkContext.defaultParallelism)


class _Table:
    """A maker of record batches with the columns `ANSWERS`."""

    def __init__(self, buckets: Buckets) -> None:
        each = buckets.buckets
        self._key = pa.array([str(KEYS[bucket.op]) for bucket in each], pa.string())
        self._user = pa.array([bucket.user or None for bucket in each], pa.string())
        self._client_id = pa.array([bucket.client_id or None for bucket in each], pa.string())
        self._entity = pa.array([bucket.entity or None for bucket in each], pa.string())
        self._quota = pa.array([float(bucket.limit) for bucket in each], pa.float64())

    def batch(self, hours: QuietHours | LoopedHours) -> pa.RecordBatch:
        """Return the rows of the hours."""
        if isinstance(hours, LoopedHours):
            bucket, needed, sums = zip(*hours.rows, strict=True)
            hour, *columns = zip(*sums, strict=True)
            return self._rows(np.array(bucket), np.array(hour), columns, np.array(needed))
        count = len(hours.bucket)
        none, zero = np.zeros(count, np.int64), np.zeros(count)
        waiting: list[Any] = [none, none, zero, [None] * count, none]
        recorded = [hours.events, hours.amount, none, none, none, none]
        return self._rows(hours.bucket, hours.hour, recorded + waiting, hours.needed)

    def _rows(self, bucket: Any, hour: Any, sums: Sequence[Any], needed: Any) -> pa.RecordBatch:
        at = pa.array(bucket)
        quota = self._quota.take(at)
        types = [_ARROW[schemas.WHAT_IF[name].dataType.typeName()] for name in _SUMS]
        return pa.RecordBatch.from_arrays(
            [
                pa.array(hour * 3_600_000_000, pa.timestamp("us", "UTC")),
                *(names.take(at) for names in (self._key, self._user, self._client_id, self._entity)),
                quota,
                *(pa.array(column, kind) for column, kind in zip(sums, types, strict=True)),
                pa.array(needed, pa.float64(), mask=~(needed > quota.to_numpy())),
            ],
            names=ANSWERS.names,
        )


_ARROW: Final = {"long": pa.int64(), "double": pa.float64()}
