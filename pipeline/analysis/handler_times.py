"""Handler times of brokers: reads the output of Kafka's JmxTool as a table (`schemas.TRUTH`).

    kafka-run-class org.apache.kafka.tools.JmxTool --jmx-url … --reporting-interval 1000 --attributes Count,Mean
        --object-name 'kafka.network:type=RequestMetrics,name=LocalTimeMs,request=*' > broker-0.csv

All four report formats of the tool are supported: ``original``, its default (a header with quoted names, then one line
per sample), and ``csv``, ``tsv`` and ``properties``, which have one line per value. The files of several runs may be
concatenated. Other lines, such as the tool's message that it connects, are skipped.

``Count`` and ``Mean`` cover all requests since the broker's start (the histogram's mean is its sum divided by its
count), so their product is the sum of all times. Kafka rounds each time to a whole millisecond before it adds it
(``RequestChannel.updateRequestMetrics``).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

from headrace.pipeline.errors import InputError
from headrace.pipeline.lake.stores import exists
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

METRIC: Final = "LocalTimeMs"
FETCH: Final = API_NAMES[ApiKey.FETCH]
FETCH_OF_CONSUMERS: Final = "FetchConsumer"
"""The metric of consumers' fetches. ``Fetch`` also counts replicas' requests, which do not pass the proxy, so it is
ignored where this metric was sampled.
"""
HOW: Final = (
    "kafka-run-class org.apache.kafka.tools.JmxTool --jmx-url service:jmx:rmi:///jndi/rmi://BROKER:PORT/jmxrmi"
    " --reporting-interval 1000 --attributes Count,Mean"
    " --object-name 'kafka.network:type=RequestMetrics,name=LocalTimeMs,request=*' > broker-0.csv"
)

_HEAD: Final = '"time"'
_BETWEEN: Final = r'(?:,"|\t|=)'
"""The separator of name and value in csv, tsv and properties. Names contain commas and equals signs: the last one
counts.
"""


def read_jmx(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Read JmxTool's output, one file per broker (`schemas.TRUTH`). Raises `InputError`."""
    for path in paths:
        if not exists(spark, path):
            raise InputError(f"--truth {path} does not exist")
    texts = spark.read.text(list(paths), wholetext=True).select(sf.col("_metadata.file_path").alias("broker"), "value")
    entries = entries_of(texts).persist()
    try:
        _check(entries, ", ".join(paths))
        return truth_of(entries).localCheckpoint()
    finally:
        entries.unpersist()


def entries_of(texts: DataFrame) -> DataFrame:
    """Return one row per value of each sample, from whole files (``value``) by ``broker``.

    Columns: ``broker``, ``sample`` (a number within its file), ``t_ms``, ``time`` (as written), ``request``,
    ``attribute``, ``number``.
    """
    lines = texts.select("broker", sf.posexplode(sf.split("value", r"\r?\n")).alias("position", "line"))
    up_to_here = Window.partitionBy("broker").orderBy("position").rowsBetween(Window.unboundedPreceding, 0)
    head = sf.last(sf.when(sf.col("line").startswith(_HEAD), sf.col("line")), ignorenulls=True)
    time = sf.regexp_extract("line", f'^time{_BETWEEN}(.*?)"?$', 1)
    latest = sf.max(sf.when(time != "", sf.col("position")))
    lines = lines.withColumns(
        {
            "head": head.over(up_to_here),
            "own_time": time,
            "sample": latest.over(up_to_here),
        }
    )
    lines = lines.withColumn(
        "sample_time", sf.last(sf.when(sf.col("own_time") != "", sf.col("own_time")), ignorenulls=True).over(up_to_here)
    )
    entries = _of_tables(lines).unionByName(_of_single_values(lines))
    name = sf.col("name")
    return entries.where(name.contains(f"name={METRIC}")).select(
        "broker",
        "sample",
        "time",
        _milliseconds(sf.col("time")).alias("t_ms"),
        sf.regexp_extract(name, "request=([^,:]+)", 1).alias("request"),
        sf.substring_index(name, ":", -1).alias("attribute"),
        sf.col("number").try_cast("double").alias("number"),
    )


def truth_of(entries: DataFrame) -> DataFrame:
    """Return the requests of each broker since its start and their handler time, at each sample (`schemas.TRUTH`)."""
    keys = sf.create_map(*itertools.chain.from_iterable((sf.lit(name), sf.lit(key)) for key, name in API_NAMES.items()))
    of_broker = Window.partitionBy("broker")
    consumers_apart = sf.max(sf.col("request") == FETCH_OF_CONSUMERS).over(of_broker)
    api = sf.when(sf.col("request") == FETCH_OF_CONSUMERS, FETCH).when(
        ~((sf.col("request") == FETCH) & sf.col("consumers_apart")), sf.col("request")
    )
    known = entries.withColumn("consumers_apart", consumers_apart).withColumn("api_key", keys[api])

    def attribute(name: str) -> Column:
        return sf.max(sf.when(sf.col("attribute") == name, sf.col("number")))

    sampled = (
        known.where(sf.col("api_key").isNotNull())
        .groupBy("broker", "sample", "t_ms", "api_key")
        .agg(attribute("Count").alias("count"), attribute("Mean").alias("mean"))
    )
    return sampled.where(sf.col("count").isNotNull() & sf.col("mean").isNotNull()).select(
        "broker",
        "t_ms",
        "api_key",
        sf.col("count").cast("long").alias("requests"),
        (sf.col("count") * sf.col("mean")).alias("local_ms"),
    )


def _of_tables(lines: DataFrame) -> DataFrame:
    """Read the format ``original``: pair the names of the header with the values of each line."""
    names = sf.regexp_extract_all("head", sf.lit('"([^"]*)"'), sf.lit(1))
    values = sf.split("line", ",")
    rows = lines.where(
        sf.col("head").isNotNull() & ~sf.col("line").startswith(_HEAD) & (sf.size(names) == sf.size(values))
    )
    # A line whose number of values differs from the number of names is not a line of this format.
    zipped = sf.arrays_zip(names.alias("name"), values.alias("number"))
    return rows.select(
        "broker", sf.col("position").alias("sample"), sf.get(values, sf.lit(0)).alias("time"), sf.inline(zipped)
    )


def _of_single_values(lines: DataFrame) -> DataFrame:
    """Read the other formats: each line is a name and a value, and belongs to the preceding ``time`` line."""
    pattern = f'^(.+:(?:Count|Mean)){_BETWEEN}([^"]*)"?$'
    rows = lines.where(sf.col("sample").isNotNull() & sf.col("line").rlike(pattern))
    return rows.select(
        "broker",
        "sample",
        sf.col("sample_time").alias("time"),
        sf.regexp_extract("line", pattern, 1).alias("name"),
        sf.regexp_extract("line", pattern, 2).alias("number"),
    )


def _milliseconds(time: Column) -> Column:
    """Parse milliseconds since 1970, the tool's default, or a date in ISO 8601 format."""
    number = time.try_cast("long")
    return sf.coalesce(number, sf.unix_millis(time.try_cast("timestamp")))


def _check(entries: DataFrame, paths: str) -> None:
    (found,) = entries.agg(
        sf.count("*").alias("entries"),
        sf.count_if(sf.col("attribute").isin("Count", "Mean") & sf.col("number").isNotNull()).alias("right"),
        sf.max(sf.when(sf.col("t_ms").isNull(), sf.col("time"))).alias("no_time"),
    ).collect()
    if not found.right:
        raise InputError(
            f"--truth {paths}: no samples of {METRIC} with Count and Mean; expected the output of this command, one"
            f" file per broker:\n{HOW}"
        )
    if found.no_time is not None:
        raise InputError(
            f"--truth {paths}: the time {found.no_time!r} is neither milliseconds since 1970 nor an ISO 8601 date;"
            " leave out --date-format, or use yyyy-MM-dd'T'HH:mm:ss.SSSXXX"
        )
