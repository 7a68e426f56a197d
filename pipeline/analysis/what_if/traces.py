"""The traces of ``headrace replay``, as events and quotas for `headrace.pipeline.analysis.what_if.decisions`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructField, StructType

from headrace.pipeline.analysis.what_if.quotas import Quotas
from headrace.pipeline.errors import InputError
from headrace.pipeline.lake import schemas
from headrace.quota_callbacks.records.replay import Op, Usage, backwards
from headrace.quota_callbacks.records.trace_lines import BadLineError, parse, read, read_windows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

    from headrace.quota_callbacks.records.replay import Change

MAX_CHANGES: Final = 100_000
"""Maximum number of quota changes in a trace: each executor receives all of them."""


def read_trace(lines: DataFrame) -> tuple[DataFrame, Quotas]:
    """Return the events and quotas of a trace of ``headrace replay``, given as lines (``value``) numbered from 1
    (``order``).

    Raises `InputError` for the first line that replay would reject.
    """
    first = lines.where("order = 1").first()
    if first is None:
        raise InputError("line 1: the trace is empty; expected a window line")
    try:
        windows = read_windows(parse(first["value"]))
    except BadLineError as error:
        raise InputError(f"line 1: {error}") from error
    parsed = lines.where("order > 1").mapInPandas(_parse_all, _PARSED).persist()
    bad = parsed.where(sf.col("fault").isNotNull()).orderBy("order").first()
    faults = [(each.order, each.fault) for each in (bad,) if each is not None] + _times_that_go_back(parsed)
    if faults:
        raise InputError("line {}: {}".format(*min(faults)))
    altered = parsed.where(sf.col("alter").isNotNull()).select("order", "alter").orderBy("order").limit(MAX_CHANGES + 1)
    changes = [(row["order"], _change(row["alter"])) for row in altered.collect()]
    if len(changes) > MAX_CHANGES:
        raise InputError(f"the trace changes quotas more than {MAX_CHANGES:,} times, the maximum of what-if")
    began = parsed.agg(sf.min("t_ms")).first()
    events = parsed.where(sf.col("alter").isNull()).select(*schemas.EVENTS.names)
    return events, Quotas(windows=windows, changes=changes, began_ms=None if began is None else began[0])


def _times_that_go_back(parsed: DataFrame) -> list[tuple[int, str]]:
    """Return faults for times that decrease from one partition to the next; `_parse_all` checks within partitions."""
    by_partition = parsed.where("fault is null").groupBy(sf.spark_partition_id().alias("number"))
    ends = by_partition.agg(
        sf.min("order").alias("order"),
        sf.min_by("t_ms", "order").alias("first"),
        sf.max_by("t_ms", "order").alias("last"),
    )
    rows = ends.orderBy("order").collect()  # a row for each partition
    return [
        (row.order, backwards(row["first"], before["last"]))
        for before, row in itertools.pairwise(rows)
        if row["first"] < before["last"]
    ]


_PARSED: Final = StructType(
    [*schemas.EVENTS.fields, StructField("alter", StringType()), StructField("fault", StringType())]
)


def _parse_all(batches: Iterable[Any]) -> Iterator[Any]:
    """Parse the lines of a partition, which are consecutive lines of the trace."""
    last_ms = 0
    for batch in batches:
        rows = []
        for order, line in zip(batch["order"], batch["value"], strict=True):
            row = _parse_line(order, line)
            t_ms = row[1]
            if t_ms < last_ms and row[-1] is None:
                row = (*row[:-1], backwards(t_ms, last_ms))
            last_ms = max(last_ms, t_ms)
            rows.append(row)
        yield pd.DataFrame(rows, columns=_PARSED.names)


def _parse_line(order: int, line: str) -> tuple[Any, ...]:
    try:
        entry = read(parse(line))
    except BadLineError as error:
        return (order, 0, None, None, None, None, 0, None, None, str(error))
    if isinstance(entry, Usage):
        producer_id = int(entry.amount) if entry.op is Op.PRODUCER_ID else 0
        event = (
            entry.t_ms,
            entry.user,
            entry.client_id,
            entry.op.value,
            float(entry.amount),
            producer_id,
            entry.strict,
        )
        return (order, *event, None, None)
    return (order, entry.t_ms, None, None, None, None, 0, None, line, None)


def _change(line: str) -> Change:
    entry = read(parse(line))
    if isinstance(entry, Usage):
        raise TypeError(f"{line!r} changes no quota")
    return entry
