"""Sketches of the usage of an entity on a day (`schemas.ANOMALY_SKETCHES`), and the past as the sum of such sketches.

The sketches of several days are also stored as one, a block (`schemas.ANOMALY_PAST`).

A sketch has a histogram of each quantity with fixed buckets on a logarithmic scale, as DDSketch has (Masson, Rim and
Lee, VLDB 2019), so histograms of several days are added bucket by bucket. A bucket also keeps the mean of its values,
which takes the place of each of them. All values of a bucket are within `WIDTH` of each other on the scale on which
values are compared, the logarithm of value and negligible amount. Therefore every quantile differs from that of the
values themselves by less than `WIDTH`, and not at all (but for the 24 bits of the mean) if the bucket has equal values.

Spark 4.0 has no sketch of its own for this: `percentile_approx` returns quantiles that cannot be merged, and KLL
sketches are functions of later versions. Their error is in ranks, and so has no limit in values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from headrace.pipeline.analysis.anomalies.rules import DAY_S, ENTITY, HOUR_S, QUANTITIES
from headrace.pipeline.analysis.anomalies.windows import Windows, group_column, groups_for, numbered, packed
from headrace.pipeline.lake import schemas

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    from headrace.pipeline.analysis.anomalies.rules import Rules
    from headrace.pipeline.analysis.anomalies.windows import Starts

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

WIDTH: Final = 0.02
"""Width of a bucket: values in it differ by less than 2 %. A fifth of the least spread that is assumed."""
HOURS: Final = 24
BUCKET: Final = np.dtype([("bucket", "<i2"), ("windows", "<u2"), ("mean", "<f4")])
"""An entry of a histogram. A day has at most 1,440 windows; buckets are between -231 (0.01) and 2,185 (2^63)."""
BUCKET_OF_BLOCK: Final = np.dtype([("bucket", "<i2"), ("windows", "<u4"), ("sum", "<f8")])
"""An entry of a histogram of a block. A day's mean has 24 bits and its number of windows 11, so that sums of them have
no rounding errors, except of values that are nearly 0: the quartiles of blocks are those of their days.
"""
MOST_CELLS: Final = 1 << 23
"""Arrays with a cell for each possible bucket are used up to this size; beyond it, the keys are sorted."""
Q: Final = len(QUANTITIES)
NOTHING: Final = np.array(list(QUANTITIES.values()))
NEVER: Final = np.iinfo(np.int64).max
"""Later than any second."""


def sketches_of(windows: DataFrame, seconds: range, starts: Starts, rules: Rules, rows: int) -> DataFrame:
    """Return the sketches of the days whose ``seconds`` are given: a row for each entity and ``date``.

    ``windows`` (`windows_of`), about ``rows`` of them, should include the last ones of the day before, after which an
    entity may have stopped.
    """
    groups = windows.withColumn("group", group_column(groups_for(rows))).groupBy("group")
    return groups.applyInArrow(lambda table: sketched(table, seconds, starts, rules), _schema())


def block_of(parts: DataFrame, seconds: range, starts: Starts, rules: Rules, rows: int) -> DataFrame:
    """Return the block of whole days whose ``seconds`` are given: a row for each entity.

    ``parts`` are the sketches and shorter blocks that together have these days; about ``rows`` of them.
    """
    groups = parts.withColumn("group", group_column(groups_for(rows))).groupBy("group")
    return groups.applyInArrow(lambda table: joined(table, seconds, starts, rules), _schema())


KEPT: Final = (*ENTITY, "first", "windows", "sizes", "histogram", "highest", "lowest")
"""The columns of an entity's sketch or block."""


def _schema() -> str:
    names = ["date", "days", *KEPT, "starts"]
    return ", ".join(f"{name} {schemas.ANOMALY_PAST[name].dataType.simpleString()}" for name in names)


def sketched(table: Any, seconds: range, starts: Starts, rules: Rules) -> Any:
    """Return the sketches of a group of entities: `sketches_of` for Arrow tables."""
    entities, (entity,) = numbered(table)
    whole = Windows.of(table, entity, entities["cluster"].to_pylist(), starts, rules)
    windows = whole.at((whole.start >= seconds.start) & (whole.start < seconds.stop))
    day = windows.start // DAY_S
    days = day - day.min(initial=NEVER)
    count = int(days.max(initial=0)) + 1
    keys, first, row = np.unique(windows.entity * count + days, return_index=True, return_inverse=True)
    used = windows.at(windows.active)
    histograms = Histograms.of(used, row[windows.active], len(keys))
    kept = min(rules.known_hours, HOURS)
    highest, lowest = extremes(windows, row, len(keys), windows.start % DAY_S // HOUR_S, HOURS)
    numbers = day[first]
    date = pa.array(numbers.astype(np.int32)).cast(pa.date32())
    of_entity = entities.take(pa.array(keys // count))
    of_day = {
        (cluster, number): packed(starts, cluster, range(number * DAY_S, (number + 1) * DAY_S), rules.window_s)
        for number in np.unique(numbers).tolist()
        for cluster in set(entities["cluster"].to_pylist())
    }
    of_rows = zip(of_entity["cluster"].to_pylist(), numbers.tolist(), strict=True)
    columns = {
        "date": date,
        "days": pa.array(np.ones(len(keys), dtype=np.int32)),
        **{name: of_entity[name] for name in ENTITY},
        "first": pa.array(windows.start[first]),
        "windows": pa.array(np.bincount(row[windows.active], minlength=len(keys)).astype(np.int32)),
        "sizes": _binary(histograms.sizes().astype("<u2")),
        "histogram": _binary_runs(histograms.entries(), histograms.sizes().sum(axis=1) * BUCKET.itemsize),
        "highest": _binary(-np.sort(-highest, axis=2)[:, :, :kept]),
        "lowest": _binary(np.sort(lowest, axis=2)[:, :, :kept]),
        "starts": pa.array([of_day[each] for each in of_rows], pa.binary()),
    }
    return pa.table(columns)


def joined(parts: Any, seconds: range, starts: Starts, rules: Rules) -> Any:
    """Return the block of a group of entities: `block_of` for Arrow tables."""
    entities, (entity,) = numbered(parts)
    rows = entities.num_rows
    none = np.zeros((0, Q)), np.zeros(0, dtype=np.int64)
    histograms, _ = Histograms.with_room_for(*none, rows, Past.of(parts, entity))
    first = np.full(rows, NEVER)
    np.minimum.at(first, entity, parts["first"].to_numpy())
    clusters = entities["cluster"].to_pylist()
    of_cluster = {cluster: packed(starts, cluster, seconds, rules.window_s) for cluster in set(clusters)}
    columns = {
        "date": pa.array(np.full(rows, seconds.stop // DAY_S - 1, dtype=np.int32)).cast(pa.date32()),
        "days": pa.array(np.full(rows, len(seconds) // DAY_S, dtype=np.int32)),
        **{name: entities[name] for name in ENTITY},
        "first": pa.array(first),
        "windows": pa.array(np.bincount(entity, parts["windows"].to_numpy(), rows).astype(np.int32)),
        "sizes": _binary(histograms.sizes().astype("<u2")),
        "histogram": _binary_runs(
            histograms.entries_of_block(), histograms.sizes().sum(axis=1) * BUCKET_OF_BLOCK.itemsize
        ),
        "highest": _binary(known_levels(parts, "highest", entity, rows, rules)),
        "lowest": _binary(known_levels(parts, "lowest", entity, rows, rules)),
        "starts": pa.array([of_cluster[cluster] for cluster in clusters], pa.binary()),
    }
    return pa.table(columns)


def extremes(windows: Windows, row: Ints, rows: int, hour: Ints, hours: int) -> tuple[Floats, Floats]:
    """Return the highest and lowest value by row, quantity and hour; minus infinity and infinity for hours without
    windows. The windows must be sorted by row and hour.
    """
    highest, lowest = np.full((rows, hours, Q), -np.inf), np.full((rows, hours, Q), np.inf)
    if len(row):
        firsts = np.flatnonzero(np.diff(row * hours + hour, prepend=-1))
        highest[row[firsts], hour[firsts]] = np.maximum.reduceat(windows.values, firsts)
        lowest[row[firsts], hour[firsts]] = np.minimum.reduceat(windows.values, firsts)
    return highest.transpose(0, 2, 1), lowest.transpose(0, 2, 1)


def _binary(array: NDArray[Any]) -> Any:
    """Return an Arrow column of bytes with a value for each row of an array."""
    contiguous = np.ascontiguousarray(array)
    each = contiguous.nbytes // len(contiguous) if len(contiguous) else 0
    return _binary_runs(contiguous, np.full(len(contiguous), each))


def _binary_runs(array: NDArray[Any], sizes: NDArray[Any]) -> Any:
    offsets = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(array.tobytes())])


def _bytes_of(table: Any, name: str, dtype: Any) -> NDArray[Any]:
    """Return the values of a column of bytes, one after the other."""
    return np.frombuffer(b"".join(table[name].to_pylist()), dtype=dtype)


@dataclass(slots=True, kw_only=True)
class Histograms:
    """The histograms of some rows (entities, or entities and days), of all quantities.

    A cell is a bucket that has any values, or may get some: see ``positions``. Cells are sorted by row, quantity and
    bucket.
    """

    rows: int
    cells: Ints
    """For each cell: row, quantity and bucket as one number."""
    span: int
    low: int
    counts: Floats
    sums: Floats

    @classmethod
    def of(cls, windows: Windows, row: Ints, rows: int) -> Histograms:
        """Return the histograms of windows."""
        histograms, positions = cls.with_room_for(windows.values, row, rows, Past.none())
        histograms.add(positions, windows.values)
        return histograms

    @classmethod
    def with_room_for(cls, values: Floats, row: Ints, rows: int, past: Past) -> tuple[Histograms, Ints]:
        """Return the histograms of the past with cells for windows that may be added, and the cells of these."""
        bucket = np.floor(np.log(values + NOTHING) / WIDTH).astype(np.int64)
        low = min(int(bucket.min(initial=0)), int(past.bucket.min(initial=0)))
        span = max(int(bucket.max(initial=0)), int(past.bucket.max(initial=0))) - low + 1
        keys = ((row[:, None] * Q + np.arange(Q)) * span + bucket - low).ravel()
        past_keys = past.row * span + past.bucket - low
        cells, positions = _distinct(np.concatenate([past_keys, keys]), rows * Q * span)
        of_past = positions[: len(past_keys)]
        counts = np.bincount(of_past, past.windows, len(cells)).astype(np.float64)  # whole numbers if it has none
        sums = np.bincount(of_past, past.sums, len(cells)).astype(np.float64)
        histograms = cls(rows=rows, cells=cells, span=span, low=low, counts=counts, sums=sums)
        return histograms, positions[len(past_keys) :].reshape(-1, Q)

    def add(self, positions: Ints, values: Floats) -> None:
        """Add windows, by their cells."""
        self.counts += np.bincount(positions.ravel(), minlength=len(self.cells))
        self.sums += np.bincount(positions.ravel(), values.ravel(), len(self.cells))

    def sizes(self) -> Ints:
        """Return the number of cells by row and quantity."""
        return np.bincount(self.cells // self.span, minlength=self.rows * Q).reshape(-1, Q)

    def entries(self) -> NDArray[Any]:
        """Return the cells as they are stored (`BUCKET`)."""
        entries = np.empty(len(self.cells), dtype=BUCKET)
        entries["bucket"] = self.cells % self.span + self.low
        entries["windows"] = self.counts
        entries["mean"] = self.sums / self.counts
        return entries

    def entries_of_block(self) -> NDArray[Any]:
        """Return the cells as a block has them (`BUCKET_OF_BLOCK`)."""
        entries = np.empty(len(self.cells), dtype=BUCKET_OF_BLOCK)
        entries["bucket"] = self.cells % self.span + self.low
        entries["windows"], entries["sum"] = self.counts, self.sums
        return entries

    def quartiles(self) -> Floats:
        """Return the three quartiles by row and quantity: of n values, those of the ranks n / 4, n / 2 and 3 n / 4,
        rounded up. Rows without values have NaN.
        """
        ends = np.cumsum(self.sizes())
        total = np.concatenate([[0.0], np.cumsum(self.counts)])
        before = total[np.concatenate([[0], ends[:-1]])]
        number = total[ends] - before
        ranks = before[:, None] + np.maximum(np.ceil(number[:, None] * np.array([0.25, 0.5, 0.75])), 1.0)
        found = np.searchsorted(total[1:], ranks).clip(max=len(self.cells) - 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            values = np.where(number[:, None] > 0, self.sums[found] / self.counts[found], np.nan)
        return values.reshape(-1, Q, 3)


def _distinct(keys: Ints, size: int) -> tuple[Ints, Ints]:
    """Return the distinct keys in ascending order, and the place of each key among them; keys are below ``size``."""
    if size > MOST_CELLS:
        distinct, places = np.unique(keys, return_inverse=True)
        return distinct, places
    present = np.zeros(size, dtype=np.bool_)
    present[keys] = True
    places = np.cumsum(present) - 1
    return np.flatnonzero(present), places[keys]


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Sketches and blocks, in NumPy: the entries of all histograms, one after the other."""

    row: Ints
    """For each entry: the entity and quantity as one number."""
    bucket: Ints
    windows: Floats
    sums: Floats

    @classmethod
    def none(cls) -> Past:
        """Return a past without days."""
        whole, number = np.zeros(0, dtype=np.int64), np.zeros(0)
        return cls(row=whole, bucket=whole, windows=number, sums=number)

    @classmethod
    def of(cls, table: Any, entity: Ints) -> Past:
        """Convert an Arrow table of sketches (``days`` is 1) and blocks."""
        days, blocks = (_of_kind(table, entity, is_block=is_block) for is_block in (False, True))
        of_days, of_blocks = _bytes_of(days[0], "histogram", BUCKET), _bytes_of(blocks[0], "histogram", BUCKET_OF_BLOCK)
        windows = of_days["windows"].astype(np.float64)
        return cls(
            row=np.concatenate([_rows_of_entries(*each) for each in (days, blocks)]),
            bucket=np.concatenate([each["bucket"].astype(np.int64) for each in (of_days, of_blocks)]),
            windows=np.concatenate([windows, of_blocks["windows"].astype(np.float64)]),
            sums=np.concatenate([windows * of_days["mean"], of_blocks["sum"]]),
        )


def _of_kind(table: Any, entity: Ints, *, is_block: bool) -> tuple[Any, Ints]:
    """Return the blocks or the sketches of days, and their entities."""
    chosen = (table["days"].to_numpy() > 1) == is_block
    return table.filter(pa.array(chosen)), entity[chosen]


def _rows_of_entries(table: Any, entity: Ints) -> Ints:
    sizes = _bytes_of(table, "sizes", "<u2")
    return np.repeat((entity[:, None] * Q + np.arange(Q)).ravel(), sizes)


def known_levels(table: Any, name: str, entity: Ints, entities: int, rules: Rules) -> Floats:
    """Return the most extreme levels of past hours, in ``known_hours`` columns, the most extreme first. Where there
    were fewer hours, they are minus infinity if ``name`` is ``highest``, and infinity if it is ``lowest``.
    """
    highest = name == "highest"
    levels = np.full((entities, Q, rules.known_hours), -np.inf if highest else np.inf)
    for is_block in (False, True):  # a block has all of the known hours, a day at most its own
        of_kind, kind_entity = _of_kind(table, entity, is_block=is_block)
        if of_kind.num_rows:
            stored = _bytes_of(of_kind, name, "<f8").reshape(of_kind.num_rows, Q, -1)
            _take_in(levels, stored, kind_entity, highest=highest)
    return levels


def _take_in(levels: Floats, stored: Floats, entity: Ints, *, highest: bool) -> None:
    """Replace the levels of each entity by the most extreme of them and those that are stored."""
    order = np.argsort(entity, kind="stable")
    sorted_entity = entity[order]
    begins = np.searchsorted(sorted_entity, sorted_entity)
    turn = np.arange(len(order)) - begins
    for number in range(int(turn.max(initial=-1)) + 1):  # one sketch of each entity at a time
        rows = order[turn == number]
        levels[entity[rows]] = most_extreme(levels[entity[rows]], stored[rows], highest=highest)


def most_extreme(levels: Floats, more: Floats, *, highest: bool) -> Floats:
    """Return the most extreme of both, as many as ``levels`` has."""
    both = np.concatenate([levels, more], axis=2)
    return (-np.sort(-both, axis=2) if highest else np.sort(both, axis=2))[:, :, : levels.shape[2]]
