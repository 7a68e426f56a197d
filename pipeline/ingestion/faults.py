"""The checks of a record, which may be a line or a row of a Parquet file, and the reasons for rejecting it.

Called by `parsing` and `columnar`. Converts columns to columns, without an action of Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from headrace.pipeline.lake import schemas
from headrace.quota_callbacks.records.usage_records import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

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


def first_fault(of: Callable[[str], str], newest_schema: int, has_form: str, *of_form: tuple[str, str]) -> Column:
    """Return the first fault of a record with the columns of `schemas.RECORD`; null for a valid one.

    ``of`` returns the name of one of these columns in SQL. ``newest_schema`` is `usage_records.SCHEMA_VERSION`.
    ``of_form`` are conditions, each with the fault, that precede those of a record; if a record has a schema, none of
    them holds if ``has_form`` does. All are in SQL, since Spark parses a text in a fraction of the time in which it
    makes a thousand objects.
    """
    faults = [
        *of_form,
        *_faults_of_schema(of, newest_schema),
        *_faults_of_columns(of),
        *_faults_of_numbers(of),
    ]
    plain = f"WHEN {has_form} AND {_is_plain(of, newest_schema)} THEN NULL"
    return sf.expr(f"CASE {plain} {' '.join(f'WHEN {condition} THEN {why}' for condition, why in faults)} END")


def _of_usage(of: Callable[[str], str]) -> str:
    return f"{of('kind')} = '{Kind.USAGE.value}'"


def _is_plain(of: Callable[[str], str], newest_schema: int) -> str:
    """Return whether a record is valid as most are: of usage without a throttle or refusal. Null is as false.

    One condition takes a fraction of the time of all conditions for faults.
    """
    conditions = [
        _of_usage(of),
        f"{of('schema')} BETWEEN 1 AND {newest_schema}",
        f"{of('instance')} <> ''",
        f"{of('sequence')} BETWEEN 0 AND {MAX_LOST}",
        f"{of('second')} BETWEEN {FIRST_SECOND} AND {LAST_SECOND}",
        f"{of('api_key')} BETWEEN 0 AND {LAST_API_KEY}",
        *(f"{of(name)} BETWEEN 0 AND {MAX_PER_RECORD}" for name in (*schemas.COUNTS, *schemas.TIMES)),
        f"coalesce({of('records')}, 0) BETWEEN 0 AND {MAX_PER_RECORD}",
        *(f"coalesce(size({of(name)}), 0) = 0" for name in schemas.BY_QUOTA),
    ]
    return " AND ".join(conditions)


def _faults_of_schema(of: Callable[[str], str], newest: int) -> list[tuple[str, str]]:
    """Return conditions for a schema that is missing or not supported."""
    schema = of("schema")
    newer = (
        f"schema %d is newer than {newest}, the newest version that this pipeline supports;"
        " update it, then ingest --quarantined"
    )
    return [
        (f"{schema} IS NULL", "'no schema'"),
        (f"{schema} > {newest}", f"format_string('{newer}', {schema})"),
        (f"{schema} < 1", f"format_string('schema is %d; expected 1 or more', {schema})"),
    ]


def _faults_of_columns(of: Callable[[str], str]) -> list[tuple[str, str]]:
    """Return conditions for a kind, identity, second or API that is missing or out of range."""
    kind, sequence, second, api_key = map(of, ("kind", "sequence", "second", "api_key"))
    kinds = [kind.value for kind in Kind]
    with_second, of_usage = f"{kind} <> '{Kind.END.value}'", _of_usage(of)
    years = f"{FIRST_SECOND} (2020-01-01 UTC) to {LAST_SECOND}"
    return [
        (f"{kind} IS NULL", "'no kind'"),
        (
            f"{kind} NOT IN ({', '.join(map(repr, kinds))})",
            f"format_string('kind is %s; expected {', '.join(kinds)}', {kind})",
        ),
        (f"coalesce({of('instance')}, '') = ''", "'no instance'"),
        (f"{sequence} IS NULL", "'no sequence'"),
        (
            f"{sequence} NOT BETWEEN 0 AND {MAX_LOST}",
            f"format_string('sequence is %d; expected 0 to {MAX_LOST}', {sequence})",
        ),
        (f"{with_second} AND {second} IS NULL", "'no second'"),
        (
            f"{with_second} AND {second} NOT BETWEEN {FIRST_SECOND} AND {LAST_SECOND}",
            f"format_string('second is %d; expected {years}', {second})",
        ),
        (f"{of_usage} AND {api_key} IS NULL", "'no api_key'"),
        (
            f"{api_key} NOT BETWEEN 0 AND {LAST_API_KEY}",
            f"format_string('api_key is %d; expected 0 to {LAST_API_KEY}', {api_key})",
        ),
    ]


def _faults_of_numbers(of: Callable[[str], str]) -> list[tuple[str, str]]:
    """Return conditions for numbers that are missing, negative or too large. Spark orders NaN above all numbers."""
    of_usage = _of_usage(of)
    most = f"CASE WHEN {of_usage} THEN {MAX_PER_RECORD} ELSE {MAX_LOST} END"
    faults = []
    for name in (*schemas.COUNTS, *schemas.TIMES, "records"):
        number = of(name)
        is_missing = "" if name == "records" else f"({of_usage} AND {number} IS NULL) OR "
        why = f"format_string('{name} is %s; expected 0 to %d', CAST({number} AS STRING), {most})"
        faults.append((f"{is_missing}{number} < 0 OR {number} > {most}", why))
    for name in schemas.BY_QUOTA:
        wrong = f"exists(map_values({of(name)}), each -> each < 0 OR each > {most})"
        faults.append((wrong, f"format_string('{name} has a number that is not 0 to %d', {most})"))
    return faults
