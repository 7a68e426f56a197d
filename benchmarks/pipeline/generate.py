"""Usage as it could be, straight into a lake's table: ``python -m benchmarks.pipeline.generate --output LAKE``.

Every value follows from the record's number and the seed, by hashing, so that the same call makes the same records on
any machine, in any number of tasks. Users are chosen by a Zipf law; a day is busiest at noon and quietest at midnight;
now and then somebody sends twenty times as much for a minute, and may be throttled for it. Records come in the order of
their time, so that a task writes only its own few hours: nothing is shuffled or kept, and memory does not grow.

Records of one second, sender and API are as if each were of another instance: a proxy would have summed up its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Final

import click
from pyspark.sql import functions as sf

from headrace.pipeline.cli import spark_options
from headrace.pipeline.errors import OutputError
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.session import start_session
from headrace.pipeline.lake.tables import Lake
from headrace.quota_callbacks.builtin.request_costs import DEFAULT_COSTS
from headrace.quota_callbacks.entities import QuotaKey

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from headrace.pipeline.lake.session import SparkOptions

DAY_S: Final = 86_400
FIRST_SECOND: Final = 1_789_948_800
"""2026-09-21 00:00 UTC, a Monday."""
INSTANCES: Final = 8
CLIENT_IDS: Final = 3
"""Of a user, at most."""
SWING: Final = 0.6
"""Of a day's rate: at noon 1 / (1 - SWING) of the mean, at midnight 1 / (1 + SWING); 4 to 1."""
BURST: Final = 20
BURST_ODDS: Final = 400
"""One minute of a user's in so many is a burst."""
RECORDS_A_TASK: Final = 1_000_000
FILES_AT_ONCE: Final = 24

PRODUCE, FETCH, METADATA, OFFSET_COMMIT, HEARTBEAT, CREATE_TOPICS, INIT_PRODUCER_ID = 0, 1, 3, 8, 12, 19, 22
SHARES: Final = {
    PRODUCE: 0.45,
    FETCH: 0.36,
    HEARTBEAT: 0.09,
    OFFSET_COMMIT: 0.06,
    METADATA: 0.035,
    INIT_PRODUCER_ID: 0.0045,
    CREATE_TOPICS: 0.0005,
}
"""Of records, by API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is made."""

    records: int
    users: int = 10_000
    days: int = 7
    seed: int = 1


def made_usage(spark: SparkSession, shape: Shape, tasks: int) -> DataFrame:
    """The records (`schemas.USAGE`), in ``tasks`` partitions that follow each other in time."""
    chosen = spark.range(0, shape.records, 1, tasks).select(
        "id",
        _second(shape).alias("second"),
        _zipf(_uniform(shape.seed, "user"), shape.users).alias("rank"),
        _api(_uniform(shape.seed, "api")).alias("api_key"),
        (1 - sf.log(1 - _uniform(shape.seed, "requests")) * 4).alias("drawn"),
        _uniform(shape.seed, "client").alias("client"),
        _uniform(shape.seed, "luck").alias("luck"),
    )
    minute = sf.floor(sf.col("second") / 60)
    burst = sf.pmod(sf.xxhash64("rank", minute, sf.lit(shape.seed)), sf.lit(BURST_ODDS)) == 0
    used = chosen.withColumn("burst", burst).select(
        *chosen.columns,
        "burst",
        sf.floor(sf.when(sf.col("burst"), sf.col("drawn") * BURST).otherwise(sf.col("drawn"))).alias("requests"),
        (200 * sf.pow(sf.lit(2.0), _of_user(shape.seed, "size", 10))).alias("size"),
        sf.floor(sf.col("client") * (1 + _of_user(shape.seed, "clients", CLIENT_IDS))).alias("client_number"),
    )
    return _as_records(used)


def _as_records(used: DataFrame) -> DataFrame:
    api_key, requests = sf.col("api_key"), sf.col("requests")
    payload = sf.floor(requests * sf.col("size"))
    when = sf.timestamp_seconds("second")
    sized = used.withColumns(
        {
            "request_bytes": sf.when(api_key == PRODUCE, payload).otherwise(requests * 80),
            "response_bytes": sf.when(api_key == FETCH, payload).otherwise(requests * 60),
        }
    )
    thread_ms = _cost(api_key)
    throttled_key = sf.when(api_key == PRODUCE, QuotaKey.PRODUCER_BYTE_RATE.value).otherwise(
        QuotaKey.CONSUMER_BYTE_RATE.value
    )
    throttled = sf.col("burst") & api_key.isin(PRODUCE, FETCH) & (sf.col("luck") < 0.5)
    none = sf.expr("map_from_arrays(cast(array() as array<string>), cast(array() as array<bigint>))")
    columns: dict[str, Column] = {
        "date": sf.to_date(when),
        "hour": sf.hour(when),
        "instance": _chosen("made", sf.pmod("id", sf.lit(INSTANCES)), INSTANCES),
        "sequence": sf.floor(sf.col("id") / INSTANCES),
        "cluster": sf.lit("made"),
        "user": sf.concat(sf.lit("user-"), sf.col("rank").cast("string")),
        "client_id": _chosen("app", sf.col("client_number"), CLIENT_IDS),
        "topic": sf.lit(None),
        "errors": sf.when(sf.col("luck") > 0.99, 1).otherwise(0),
        "thread_ms": thread_ms,
        "broker_ms": thread_ms * (1 + 4 * sf.col("luck")) + requests * 0.5,
        "mutations": sf.when(api_key == CREATE_TOPICS, requests * 3).otherwise(0),
        "producer_ids": sf.when(api_key == INIT_PRODUCER_ID, requests).otherwise(0),
        "throttle_ms": sf.when(throttled, sf.create_map(throttled_key, sf.floor(requests * 40))).otherwise(none),
        "throttled": sf.when(throttled, sf.create_map(throttled_key, requests)).otherwise(none),
        "refused": none,
    }
    types = {field.name: field.dataType for field in schemas.USAGE.fields}
    return sized.select(
        *(columns.get(name, sf.col(name)).cast(types[name]).alias(name) for name in schemas.USAGE.names)
    )


def _chosen(prefix: str, number: Column, count: int) -> Column:
    """One of ``count`` names. Names that are put together, record by record, take longer than all else."""
    return sf.elt(number.cast("int") + 1, *(sf.lit(f"{prefix}-{each}") for each in range(count)))


def _uniform(seed: int, what: str) -> Column:
    """From 0 to just below 1, by the record's number."""
    return sf.shiftrightunsigned(sf.xxhash64("id", sf.lit(f"{seed} {what}")), 11) * sf.lit(2.0**-53)


def _of_user(seed: int, what: str, count: int) -> Column:
    """A whole number below ``count`` that is the user's for good."""
    return sf.pmod(sf.xxhash64("rank", sf.lit(f"{seed} {what}")), sf.lit(count))


def _second(shape: Shape) -> Column:
    """Along the days in order, and slower where more is to happen."""
    days = sf.col("id") / sf.lit(float(shape.records)) * shape.days
    swung = days + SWING / (2 * math.pi) * sf.sin(days * (2 * math.pi))
    return FIRST_SECOND + sf.floor(sf.least(swung * DAY_S, sf.lit(shape.days * DAY_S - 1)))


def _zipf(uniform: Column, count: int) -> Column:
    """From 1 to ``count``; the n-th is drawn as ln((n + 1) / n), which is 1/n but for the first few."""
    return sf.least(sf.floor(sf.exp(uniform * math.log(count + 1))), sf.lit(count))


def _api(uniform: Column) -> Column:
    *others, last = SHARES
    chosen = sf.lit(last)
    for index in reversed(range(len(others))):
        chosen = sf.when(uniform < sum(SHARES[each] for each in others[: index + 1]), others[index]).otherwise(chosen)
    return chosen


def _cost(api_key: Column) -> Column:
    """Thread time, by the defaults."""
    kib = (sf.col("request_bytes") + sf.col("response_bytes")) / 1024
    cost = sf.lit(0.0)
    for key in SHARES:
        each = DEFAULT_COSTS[key]
        cost = sf.when(api_key == key, sf.col("requests") * each.base_ms + kib * each.per_kib_ms).otherwise(cost)
    return cost


@click.command()
@click.option("--records", type=click.IntRange(min=1), default=50_000_000, show_default=True)
@click.option("--output", required=True, metavar="LAKE", help="Where its table usage goes; it must have none.")
@click.option(
    "--entities",
    "users",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    help="Users, each with a few client ids.",
)
@click.option("--days", type=click.IntRange(min=1), default=7, show_default=True, help="Over how many days.")
@click.option("--seed", type=int, default=1, show_default=True)
@spark_options
def command(*, spark: SparkOptions, records: int, output: str, users: int, days: int, seed: int) -> None:
    """Write usage that is made up, the same for the same options."""
    # Hours come one after the other: a task has few files open, and need not sort its rows by hour to have one.
    conf = {"spark.sql.maxConcurrentOutputFileWriters": str(FILES_AT_ONCE), **spark.conf}
    session = start_session("generate", replace(spark, conf=conf))
    lake = Lake(session, output)
    if lake.has("usage"):
        raise OutputError(f"--output {output} has a table usage already; give another place, or remove it")
    shape = Shape(records=records, users=users, days=days, seed=seed)
    tasks = max(math.ceil(records / RECORDS_A_TASK), session.sparkContext.defaultParallelism)
    began = perf_counter()
    lake.append("usage", made_usage(session, shape, tasks), "date", "hour")
    took = perf_counter() - began
    click.echo(f"{records:,} records in {took:.1f} s, {records / took:,.0f} a second, in {output}")


if __name__ == "__main__":
    command()
