"""Writes generated usage records to a lake's table: ``python -m benchmarks.pipeline.generate --output LAKE``.

Every value is a hash of the record's number and the seed, so that the same call generates the same records on any
machine, with any number of tasks. Users follow a Zipf distribution; a day is busiest at noon and quietest at midnight;
occasionally a user sends twenty times as much for a minute, and may be throttled. Records are generated in the order of
their time, so that a task writes only a few hours: there is no shuffle, and memory does not grow.

Several records of the same second, user, client id and API represent different instances, since a proxy sums up its
own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Final

import click
from pyspark.sql import functions as sf

from headrace.pipeline.cli import job_options
from headrace.pipeline.errors import OutputError
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.session import start_session
from headrace.pipeline.lake.tables import Lake
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.builtin.request_costs import DEFAULT_COSTS
from headrace.quota_callbacks.entities import QuotaKey

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from headrace.pipeline.lake.session import SparkOptions
    from headrace.pipeline.output import Result

DAY_S: Final = 86_400
FIRST_SECOND: Final = 1_789_948_800
"""2026-09-21 00:00 UTC, a Monday."""
INSTANCES: Final = 8
CLIENT_IDS: Final = 3
"""Maximum number of client ids of a user."""
SWING: Final = 0.6
"""Variation of the rate in a day: at noon 1 / (1 - SWING) of the mean, at midnight 1 / (1 + SWING); 4 to 1."""
BURST: Final = 20
BURST_ODDS: Final = 400
"""One of this number of minutes of a user is a burst."""
RECORDS_A_TASK: Final = 1_000_000
FILES_AT_ONCE: Final = 24

PRODUCE = ApiKey.PRODUCE.value
FETCH = ApiKey.FETCH.value
METADATA = ApiKey.METADATA.value
OFFSET_COMMIT = ApiKey.OFFSET_COMMIT.value
HEARTBEAT = ApiKey.HEARTBEAT.value
CREATE_TOPICS = ApiKey.CREATE_TOPICS.value
INIT_PRODUCER_ID = ApiKey.INIT_PRODUCER_ID.value
SHARES: Final = {
    PRODUCE: 0.45,
    FETCH: 0.36,
    HEARTBEAT: 0.09,
    OFFSET_COMMIT: 0.06,
    METADATA: 0.035,
    INIT_PRODUCER_ID: 0.0045,
    CREATE_TOPICS: 0.0005,
}
"""Fractions of the records, by API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The parameters of the generated records."""

    records: int
    users: int = 10_000
    days: int = 7
    seed: int = 1


def made_usage(spark: SparkSession, shape: Shape, tasks: int) -> DataFrame:
    """Return the records (`schemas.USAGE`), in ``tasks`` partitions that are consecutive in time."""
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
    """Return one of ``count`` names, from a list: formatting a name for each record would take most of the time."""
    return sf.elt(number.cast("int") + 1, *(sf.lit(f"{prefix}-{each}") for each in range(count)))


def _uniform(seed: int, what: str) -> Column:
    """Return a uniform value in [0, 1) for the record's number."""
    return sf.shiftrightunsigned(sf.xxhash64("id", sf.lit(f"{seed} {what}")), 11) * sf.lit(2.0**-53)


def _of_user(seed: int, what: str, count: int) -> Column:
    """Return a whole number below ``count`` that is the same for all records of a user."""
    return sf.pmod(sf.xxhash64("rank", sf.lit(f"{seed} {what}")), sf.lit(count))


def _second(shape: Shape) -> Column:
    """Return the record's second, ascending over the days, with more records in busy hours."""
    days = sf.col("id") / sf.lit(float(shape.records)) * shape.days
    swung = days + SWING / (2 * math.pi) * sf.sin(days * (2 * math.pi))
    return FIRST_SECOND + sf.floor(sf.least(swung * DAY_S, sf.lit(shape.days * DAY_S - 1)))


def _zipf(uniform: Column, count: int) -> Column:
    """Return a number from 1 to ``count``; n has the weight ln((n + 1) / n), nearly 1/n except for the first few."""
    return sf.least(sf.floor(sf.exp(uniform * math.log(count + 1))), sf.lit(count))


def _api(uniform: Column) -> Column:
    *others, last = SHARES
    chosen = sf.lit(last)
    for index in reversed(range(len(others))):
        chosen = sf.when(uniform < sum(SHARES[each] for each in others[: index + 1]), others[index]).otherwise(chosen)
    return chosen


def _cost(api_key: Column) -> Column:
    """Return the thread time by the default cost model."""
    kib = (sf.col("request_bytes") + sf.col("response_bytes")) / 1024
    cost = sf.lit(0.0)
    for key in SHARES:
        each = DEFAULT_COSTS[key]
        cost = sf.when(api_key == key, sf.col("requests") * each.base_ms + kib * each.per_kib_ms).otherwise(cost)
    return cost


@click.command()
@click.option("--records", type=click.IntRange(min=1), default=50_000_000, show_default=True)
@click.option("--output", required=True, metavar="LAKE", help="The lake to write to; it must not have a table usage.")
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
@job_options
def command(*, spark: SparkOptions, records: int, output: str, users: int, days: int, seed: int) -> Result:
    """Write generated usage records, the same for the same options."""
    # Hours are in order, so a task has few files open at a time, and need not sort its rows by hour.
    conf = {"spark.sql.maxConcurrentOutputFileWriters": str(FILES_AT_ONCE), **spark.conf}
    session = start_session("generate", replace(spark, conf=conf), output)
    lake = Lake(session, output)
    if lake.has("usage"):
        raise OutputError(f"--output {output} already has a table usage; choose another lake, or remove the table")
    shape = Shape(records=records, users=users, days=days, seed=seed)
    tasks = max(math.ceil(records / RECORDS_A_TASK), session.sparkContext.defaultParallelism)
    began = perf_counter()
    lake.append("usage", made_usage(session, shape, tasks), "date", "hour")
    took = perf_counter() - began
    click.echo(f"{records:,} records in {took:.1f} s, {records / took:,.0f} a second, in {output}")
    return {"records": records, "seconds": took, "output": output}


if __name__ == "__main__":
    command()
