"""The checks of a record, which may be a line or a row of a Parquet file, and the reasons for rejecting it.

Called by `parsing` and `columnar`. Converts columns to columns, without an action of Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from headrace.pipeline.lake import schemas
from headrace.quota_callbacks.records.usage_records import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column

FIRST_SECOND: Final = 1_577_836_800
"""2020-01-01 00:00 UTC. A record of an earlier time, when there was no Headrace, is of a machine whose clock was not
set; it would create a day of its own in each table.
"""
LAST_SECOND: Final = 253_402_300_799
"""The end of the year 9999, the last year that Spark's dates support."""
MAX_PER_RECORD: Final = 2**40
"""Maximum of a usage record's counts, bytes and milliseconds: a tebibyte, or the waiting times of a billion requests of
a quarter of an hour each. The sum of eight million such records still fits a long.
"""
MAX_LOST: Final = 2**53
"""Maximum of the sequence number, and of the records in one ``lost`` mark; above it, numbers in JSON are not exact."""
LAST_API_KEY: Final = 2**15 - 1


def first_fault(
    record: Mapping[str, Column], newest_schema: int, has_form: Column, *of_form: tuple[Column, Column]
) -> Column:
    """Return the first fault of a record, whose columns are those of `schemas.RECORD` by name; null for a valid one.

    ``newest_schema`` is `usage_records.SCHEMA_VERSION`. ``of_form`` are conditions, each with the fault, that precede
    those of a record; if a record has a schema, none of them holds if ``has_form`` does. Making the column takes a
    thousand calls of the JVM: callers keep it, which is possible since it belongs to no session.
    """
    of_usage = record["kind"] == Kind.USAGE.value
    faults = [
        *of_form,
        *_faults_of_schema(record, newest_schema),
        *_faults_of_columns(record, of_usage),
        *_faults_of_numbers(record, of_usage),
    ]
    first = sf.coalesce(*(sf.when(condition, why) for condition, why in faults))
    return sf.when(has_form & _is_plain(record, newest_schema), sf.lit(None).cast("string")).otherwise(first)


def _is_plain(record: Mapping[str, Column], newest_schema: int) -> Column:
    """Return whether a record is valid as most are: of usage without a throttle or refusal. Null is as false.

    One condition takes a fraction of the time of all conditions for faults.
    """
    is_plain = (
        (record["kind"] == Kind.USAGE.value)
        & record["schema"].between(1, newest_schema)
        & (record["instance"] != "")
        & record["sequence"].between(0, MAX_LOST)
        & record["second"].between(FIRST_SECOND, LAST_SECOND)
        & record["api_key"].between(0, LAST_API_KEY)
    )
    for name in (*schemas.COUNTS, *schemas.TIMES):
        is_plain &= record[name].between(0, MAX_PER_RECORD)
    is_plain &= sf.coalesce(record["records"], sf.lit(0)).between(0, MAX_PER_RECORD)
    for name in schemas.BY_QUOTA:
        is_plain &= sf.coalesce(sf.size(record[name]), sf.lit(0)) == 0
    return is_plain


def _faults_of_schema(record: Mapping[str, Column], newest: int) -> list[tuple[Column, Column]]:
    """Return conditions for a schema that is missing or not supported."""
    return [
        (record["schema"].isNull(), sf.lit("no schema")),
        (
            record["schema"] > newest,
            sf.format_string(
                f"schema %d is newer than {newest}, the newest version that this pipeline supports;"
                " update it, then ingest --quarantined",
                record["schema"],
            ),
        ),
        (record["schema"] < 1, sf.format_string("schema is %d; expected 1 or more", record["schema"])),
    ]


def _faults_of_columns(record: Mapping[str, Column], of_usage: Column) -> list[tuple[Column, Column]]:
    """Return conditions for a kind, identity, second or API that is missing or out of range."""
    kinds = [kind.value for kind in Kind]
    with_second = record["kind"] != Kind.END.value
    return [
        (record["kind"].isNull(), sf.lit("no kind")),
        (~record["kind"].isin(kinds), sf.format_string(f"kind is %s; expected {', '.join(kinds)}", record["kind"])),
        (sf.coalesce(record["instance"], sf.lit("")) == "", sf.lit("no instance")),
        (record["sequence"].isNull(), sf.lit("no sequence")),
        (
            ~record["sequence"].between(0, MAX_LOST),
            sf.format_string(f"sequence is %d; expected 0 to {MAX_LOST}", record["sequence"]),
        ),
        (with_second & record["second"].isNull(), sf.lit("no second")),
        (
            with_second & ~record["second"].between(FIRST_SECOND, LAST_SECOND),
            sf.format_string(
                f"second is %d; expected {FIRST_SECOND} (2020-01-01 UTC) to {LAST_SECOND}", record["second"]
            ),
        ),
        (of_usage & record["api_key"].isNull(), sf.lit("no api_key")),
        (
            ~record["api_key"].between(0, LAST_API_KEY),
            sf.format_string(f"api_key is %d; expected 0 to {LAST_API_KEY}", record["api_key"]),
        ),
    ]


def _faults_of_numbers(record: Mapping[str, Column], of_usage: Column) -> list[tuple[Column, Column]]:
    """Return conditions for numbers that are missing, negative or too large. Spark orders NaN above all numbers."""
    most = sf.when(of_usage, sf.lit(MAX_PER_RECORD)).otherwise(sf.lit(MAX_LOST))
    faults: list[tuple[Column, Column]] = []
    for name in (*schemas.COUNTS, *schemas.TIMES, "records"):
        wrong = (record[name] < 0) | (record[name] > most)
        if name != "records":
            wrong = (of_usage & record[name].isNull()) | wrong
        why = sf.format_string(f"{name} is %s; expected 0 to %d", record[name].cast("string"), most)
        faults.append((wrong, why))
    for name in schemas.BY_QUOTA:
        wrong = sf.exists(sf.map_values(record[name]), lambda each: (each < 0) | (each > most))
        faults.append((wrong, sf.format_string(f"{name} has a number that is not 0 to %d", most)))
    return faults
