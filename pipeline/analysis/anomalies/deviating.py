"""A day's windows compared with the past: those that deviate, or that are suspicious without any past.

The past of a window consists of the windows with usage of the same entity on the days before (`sketches`) and in the
earlier hours of its day. Loads vary in proportion, so logarithms are compared: the usual value is the median, the
spread is the distance of the quartiles, converted to standard deviations of a normal distribution, and the score is the
number of spreads between a value and the median.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from headrace.pipeline.analysis.anomalies.rules import DAY_S, ENTITY, HOUR_S, QUANTITIES
from headrace.pipeline.analysis.anomalies.sketches import (
    NEVER,
    NOTHING,
    Histograms,
    Past,
    Q,
    extremes,
    known_levels,
    most_extreme,
)
from headrace.pipeline.analysis.anomalies.windows import Windows, group_column, groups_for, numbered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    from headrace.pipeline.analysis.anomalies.rules import Rules
    from headrace.pipeline.analysis.anomalies.windows import Starts

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]
    Recorded = list[tuple[Bools, NDArray[np.int64]]]
    """For each cluster: which entities are of it, and the sorted starts of the windows with usage of any of them."""

SIGMAS_BETWEEN_QUARTILES: Final = 1.349
"""Distance of the quartiles of a normal distribution, in standard deviations."""
LEAST_SPREAD: Final = 0.1
"""Minimum spread of logarithms, about 10 %: even entities with a steadier past may vary by this much."""
STEADY: Final = 0.9
"""Share of the windows since the first one in which the cluster has usage. An entity that is active in fewer may stop
without being reported.
"""
IDS_PER_PRODUCE: Final = 0.05
"""Minimum of new producer ids per Produce request. A producer with twenty requests has made use of its id, so a hundred
new pods are not churn.
"""
ABSOLUTE: Final = 5
"""The rules without a past apply from this multiple of the minimum amounts."""
FAILED_SHARE: Final = 0.1
"""Minimum share of failed requests, for entities with a past."""
HALF: Final = 0.5
"""Minimum share without a past: of requests that fail, of Produce requests with a new id, of requests that open a
connection.
"""
LEAST_REQUESTS: Final = 1000
"""Minimum for requests that carry little data; fewer come from a client that polls idle topics."""
WINDOWS_OF_A_SKETCH: Final = 20
"""Number of windows that take about as much memory as the sketches of an entity's day."""

NUMBER: Final = {name: index for index, name in enumerate(QUANTITIES)}
REQUESTS, EACH = NUMBER["requests"], NUMBER["bytes_per_request"]

DEVIATIONS: Final = (
    "start bigint, cluster string, user string, client_id string, quantity string, value double, usual double,"
    " score double, usual_each double, requests double, produced double, bytes_per_request double"
)
"""A row for each window and quantity that deviates. ``usual`` and ``score`` are null if the past is too short;
``usual_each`` is the usual number of bytes per request; it is set only if the window has fewer, by ``Rules.factor`` or
more.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The windows to examine."""

    since_s: int
    """The first second of the day."""
    until_s: int
    """Windows that end after this second are not examined yet."""
    starts: Starts
    """The starts of the windows with usage, of the day and of its past."""
    rules: Rules


def deviations(windows: DataFrame, past: DataFrame, examined: Examined, rows: int) -> DataFrame:
    """Return the windows of a day that deviate (`DEVIATIONS`).

    ``windows`` (`windows_of`) must have that day and should have the last windows of the day before, after which an
    entity may have stopped. ``past`` (sketches and blocks) must have the days of the past, each once, and no others.
    ``rows``: about how many windows, sketches and blocks there are, of which the latter count as
    `WINDOWS_OF_A_SKETCH`.
    """
    group = group_column(groups_for(rows))
    of_day = windows.withColumn("group", group).groupBy("group")
    of_past = past.withColumn("group", group).groupBy("group")
    return of_day.cogroup(of_past).applyInArrow(lambda left, right: compared(left, right, examined), DEVIATIONS)


def compared(windows: Any, sketches: Any, examined: Examined) -> Any:
    """Return the windows of a group of entities that deviate: `deviations` for Arrow tables."""
    entities, (entity, of_sketch) = numbered(windows, sketches)
    seen = np.zeros(entities.num_rows, dtype=np.bool_)
    seen[entity] = True  # others have no window, and cannot have stopped on this day
    clusters = entities["cluster"].to_pylist()
    whole = Windows.of(windows, entity, clusters, examined.starts, examined.rules)
    of_day = whole.at((whole.start >= examined.since_s) & (whole.start < examined.since_s + DAY_S))
    known = seen[of_sketch]
    recorded = [
        (np.array([each == cluster for each in clusters], dtype=np.bool_), np.unique(np.asarray(starts, np.int64)))
        for cluster, starts in examined.starts.items()
    ]
    past = _Past.of(of_day, sketches.filter(pa.array(known)), of_sketch[known], recorded, len(seen), examined.rules)
    return pa.concat_tables([_table(each, entities) for each in _by_hour(of_day, past, examined)])


def _by_hour(windows: Windows, past: _Past, examined: Examined) -> Iterator[_Compared]:
    """Yield the windows of each hour, compared with what was before it."""
    rules = examined.rules
    yield past.compare(windows.at(np.zeros(0, dtype=np.int64)), 0, rules)  # the result has columns in any case
    hour = windows.start - windows.start % HOUR_S
    for begin in np.unique(hour):
        rows = np.flatnonzero(hour == begin)
        over = rows[windows.start[rows] + rules.window_s <= examined.until_s]
        yield past.compare(windows.at(over), int(begin), rules)
        past.add(windows.at(rows), rows)


@dataclass(slots=True, kw_only=True)
class _Past:
    """The earlier usage of a group's entities; the hours of the examined day are added one after the other."""

    histograms: Histograms
    cells: NDArray[np.int64]
    """For each window of the day and each quantity: its place in the histograms."""
    windows: Floats
    """Number of windows with usage, by entity."""
    since: NDArray[np.int64]
    """Start of the first one."""
    most: Floats
    least: Floats
    """The most extreme levels of hours (`known_levels`)."""
    recorded: Recorded

    @classmethod
    def of(
        cls,
        windows: Windows,
        sketches: Any,
        entity: NDArray[np.int64],
        recorded: Recorded,
        entities: int,
        rules: Rules,
    ) -> _Past:
        """Return the past at the beginning of the day. ``entity`` has the entity of each of the ``sketches``."""
        histograms, cells = Histograms.with_room_for(
            windows.values, windows.entity, entities, Past.of(sketches, entity)
        )
        since = np.full(entities, NEVER)
        np.minimum.at(since, entity, sketches["first"].to_numpy())
        return cls(
            histograms=histograms,
            cells=cells,
            windows=np.bincount(entity, sketches["windows"].to_numpy(), entities).astype(np.float64),
            since=since,
            most=known_levels(sketches, "highest", entity, entities, rules),
            least=known_levels(sketches, "lowest", entity, entities, rules),
            recorded=recorded,
        )

    def compare(self, windows: Windows, hour: int, rules: Rules) -> _Compared:
        """Return windows of the ``hour`` (its first second) with what is usual for their entities."""
        entity = windows.entity
        quartiles = self.histograms.quartiles()[entity] if len(entity) else np.zeros((0, Q, 3))
        log = np.log(quartiles + NOTHING[:, None])
        spread = np.maximum((log[:, :, 2] - log[:, :, 0]) / SIGMAS_BETWEEN_QUARTILES, LEAST_SPREAD)
        long_enough = self.windows[entity] >= rules.least_past
        usual = np.where(long_enough[:, None], quartiles[:, :, 1], np.nan)
        score = (np.log(windows.values + NOTHING) - log[:, :, 1]) / spread
        share = self.windows / np.maximum(self._recorded_until(hour), 1)
        return _Compared(
            windows=windows,
            usual=usual,
            score=np.where(long_enough[:, None], score, np.nan),
            most=self.most[entity, :, -1],
            least=self.least[entity, :, -1],
            steady=long_enough & (share[entity] >= STEADY),
            rules=rules,
        )

    def _recorded_until(self, hour: int) -> NDArray[np.int64]:
        """Return the number of windows with usage of the cluster since the first one of each entity."""
        number = np.zeros(len(self.since), dtype=np.int64)
        for of_cluster, starts in self.recorded:
            number[of_cluster] = np.searchsorted(starts, hour) - np.searchsorted(starts, self.since[of_cluster])
        return number

    def add(self, windows: Windows, rows: NDArray[np.int64]) -> None:
        """Add an hour. ``rows``: the numbers of its windows in the day."""
        used, entities = windows.at(windows.active), len(self.since)
        self.histograms.add(self.cells[rows][windows.active], used.values)
        self.windows += np.bincount(used.entity, minlength=entities)
        np.minimum.at(self.since, windows.entity, windows.start)
        highest, lowest = extremes(windows, windows.entity, entities, windows.start * 0, 1)
        self.most = most_extreme(self.most, highest, highest=True)
        self.least = most_extreme(self.least, lowest, highest=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """Windows with what is usual for their entities: a column for each of `QUANTITIES`."""

    windows: Windows
    usual: Floats
    """NaN, as ``score``, if the past is too short."""
    score: Floats
    most: Floats
    """The level that values exceeded in ``known_hours`` earlier hours; minus infinity if there were fewer hours."""
    least: Floats
    """The level that values were below in ``known_hours`` earlier hours; infinity if there were fewer hours."""
    steady: Bools
    """Whether the entity had usage in nine of ten earlier windows in which its cluster had any."""
    rules: Rules

    def emptier(self) -> Bools:
        """Return whether the requests carry unusually little data; without a past, NaN makes it false."""
        return self.windows.values[:, EACH] * self.rules.factor < self.usual[:, EACH]

    def deviating(self) -> Bools:
        """Return whether each value is an anomaly."""
        found = (self._above() & self._large_enough()) | (self._below() & self._usually_large_enough())
        found |= self._wrong_without_past()
        found[:, NUMBER["requests"]] &= self.emptier()
        found[:, EACH] = False
        return found

    def _above(self) -> Bools:
        values = self.windows.values
        far = (values > self.usual * self.rules.factor) & (self.score >= self.rules.score)
        return far & (values > self.most)

    def _below(self) -> Bools:
        """Return whether a value is unusually low, for entities that are active nearly always."""
        values = self.windows.values
        far = (values * self.rules.factor < self.usual) & (self.score <= -self.rules.score)
        return far & (values < self.least) & self.steady[:, None]

    def _large_enough(self) -> Bools:
        value, rules = self._value, self.rules
        return self._by_quantity(
            new_ids=(value("new_ids") >= rules.least_ids)
            & (value("new_ids") >= self.windows.produced * IDS_PER_PRODUCE),
            failed_share=(self.windows.failed >= rules.least_failed) & (value("failed_share") >= FAILED_SHARE),
            requests=value("requests") >= LEAST_REQUESTS,
            connections=value("connections") >= rules.least_connections,
            bytes=value("bytes") >= rules.least_bytes,
            thread_ms=value("thread_ms") >= rules.least_thread_ms,
        )

    def _usually_large_enough(self) -> Bools:
        return self._by_quantity(
            bytes=self.usual[:, NUMBER["bytes"]] >= self.rules.least_bytes,
            thread_ms=self.usual[:, NUMBER["thread_ms"]] >= self.rules.least_thread_ms,
        )

    def _wrong_without_past(self) -> Bools:
        value, rules = self._value, self.rules
        return self._by_quantity(
            new_ids=(value("new_ids") >= rules.least_ids * ABSOLUTE)
            & (value("new_ids") >= self.windows.produced * HALF),
            failed_share=(self.windows.failed >= rules.least_failed * ABSOLUTE) & (value("failed_share") >= HALF),
            connections=(value("connections") >= rules.least_connections * ABSOLUTE)
            & (value("connections") >= value("requests") * HALF),
        )

    def _value(self, name: str) -> Floats:
        return self.windows.values[:, NUMBER[name]]

    def _by_quantity(self, **verdicts: Bools) -> Bools:
        """Return a column for each of `QUANTITIES`, false for those without a verdict."""
        none = np.zeros(len(self.windows.start), dtype=np.bool_)
        return np.column_stack([verdicts.get(name, none) for name in QUANTITIES])


def _table(compared: _Compared, entities: Any) -> Any:
    """Return the windows that deviate (`DEVIATIONS`), as an Arrow table."""
    row, quantity = np.nonzero(compared.deviating())
    windows = compared.windows.at(row)
    of_entity = entities.take(pa.array(windows.entity))
    usual_each = np.where(compared.emptier()[row], compared.usual[row, EACH], np.nan)
    columns = {
        "start": pa.array(windows.start),
        **{name: of_entity[name] for name in ENTITY},
        "quantity": pa.array([list(QUANTITIES)[each] for each in quantity], pa.string()),
        "value": pa.array(windows.values[np.arange(len(row)), quantity]),
        "usual": _or_null(compared.usual[row, quantity]),
        "score": _or_null(compared.score[row, quantity]),
        "usual_each": _or_null(usual_each),
        "requests": pa.array(windows.values[:, NUMBER["requests"]]),
        "produced": pa.array(windows.produced),
        "bytes_per_request": pa.array(windows.values[:, EACH]),
    }
    return pa.table(columns)


def _or_null(values: Floats) -> Any:
    return pa.array(values, mask=np.isnan(values))
