"""Calibrate: the cost model of requests (`quota_callbacks.request_costs`), fitted to the time of brokers' handlers.

What proxies have recorded, and what brokers have counted (`schemas.TRUTH`), is brought to the same intervals. For each
API a line goes through them by weighted least squares::

    handler ms = base_ms * requests + per_kib_ms * KiB of requests and replies

An interval of n requests is a sum of n times, so its variance grows with n, and its weight is 1/n. Some intervals are
held out: on them, and not on those it was drawn through, the line is compared with the one in force.

Brokers round each time to whole milliseconds, so that most requests of most APIs are counted as none at all. An API
whose requests take less than half a step on average is not fitted; and where the line's base would be below the one in
force, and that is less than half a step, the base stays as it is and only the price is fitted: zeros prove nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from pipeline import schemas
from pipeline.errors import InputError
from quota_callbacks.request_costs import FALLBACK_COST, RequestCost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, Row

LEAST_HELD_OUT: Final = 5
"""Intervals; an error over fewer says little."""
LEAST_SPREAD: Final = 0.05
"""Of KiB a request, standard deviation over mean: below it, base and price cannot be told apart."""
LEAST_SPREAD_KIB: Final = 0.1
"""Likewise, absolute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How it is done; the command's options."""

    interval_s: int = 10
    """Brokers are sampled at other moments than a second's end; over ten seconds that is little."""
    held_out: float = 0.2
    """The share of intervals that the error is measured on."""
    least_samples: int = 30
    """Intervals to fit an API to."""
    mismatch: float = 0.1
    """By how much proxies and brokers may differ in the count of an interval's requests."""
    step_ms: float = 1.0
    """What the truth is rounded to; 0 for one that is not."""

    @property
    def resolution_ms(self) -> float:
        """A request that takes less is rounded to nothing."""
        return self.step_ms / 2


# --- intervals --------------------------------------------------------------------------------------------------------


def samples(usage: DataFrame, truth: DataFrame, method: Method) -> DataFrame:
    """Usage (`schemas.USAGE`) beside the truth, by API and interval (`schemas.SAMPLES`)."""
    start = F.col("second") - F.pmod("second", F.lit(method.interval_s))
    recorded = usage.groupBy("api_key", start.alias("start")).agg(
        F.sum("requests").cast("double").alias("requests"),
        (F.sum(F.col("request_bytes") + F.col("response_bytes")) / 1024).alias("kib"),
        F.sum("broker_ms").alias("broker_ms"),
    )
    told = _truth_of_intervals(truth, method.interval_s)
    both = recorded.where("requests > 0").join(told, ["api_key", "start"], "left")
    off = F.abs(F.col("truth_requests") - F.col("requests"))
    alike = F.coalesce(off <= F.greatest(F.lit(1.0), F.col("requests") * method.mismatch), F.lit(False))
    alike_of_api = Window.partitionBy("api_key", "agrees")
    number = F.row_number().over(alike_of_api.orderBy("start"))
    held_out = F.floor(number * method.held_out) > F.floor((number - 1) * method.held_out)
    # What others send to the brokers, as far as counts may differ, is not to be paid for by those who are recorded.
    recorded_share = F.try_divide(F.sum("requests").over(alike_of_api), F.sum("truth_requests").over(alike_of_api))
    return (
        both.withColumn("agrees", alike)
        .withColumns({"held_out": F.col("agrees") & held_out, "truth_ms": F.col("truth_ms") * recorded_share})
        .select(*(F.col(field.name).cast(field.dataType) for field in schemas.SAMPLES.fields))
    )


def _truth_of_intervals(truth: DataFrame, interval_s: int) -> DataFrame:
    """Requests and milliseconds of each interval that all brokers were sampled throughout.

    What comes between two samples is spread evenly over the time between them. Two that are further apart than an
    interval, and those with a broker's restart between them, tell nothing.
    """
    interval_ms = interval_s * 1000
    before = Window.partitionBy("broker", "api_key").orderBy("t_ms")
    steps = truth.select(
        "broker",
        "api_key",
        F.lag("t_ms").over(before).alias("from_ms"),
        F.col("t_ms").alias("to_ms"),
        (F.col("requests") - F.lag("requests").over(before)).alias("requests"),
        (F.col("local_ms") - F.lag("local_ms").over(before)).alias("local_ms"),
    )
    took_ms = F.col("to_ms") - F.col("from_ms")
    steps = steps.where(took_ms.between(1, interval_ms) & (F.col("requests") >= 0) & (F.col("local_ms") > -0.5))
    first, last = (F.floor(each / interval_ms) for each in (F.col("from_ms"), F.col("to_ms") - 1))
    parts = steps.withColumn("index", F.explode(F.sequence(first, last)))
    begin_ms = F.col("index") * interval_ms
    within_ms = F.least("to_ms", begin_ms + interval_ms) - F.greatest("from_ms", begin_ms)
    parts = parts.withColumn("within_ms", within_ms).withColumn("share", F.col("within_ms") / took_ms)
    brokers = truth.groupBy("api_key").agg(F.count_distinct("broker").alias("brokers"))
    return (
        parts.groupBy("api_key", "index")
        .agg(
            F.sum(F.col("requests") * F.col("share")).alias("truth_requests"),
            F.sum(F.col("local_ms") * F.col("share")).alias("truth_ms"),
            F.sum("within_ms").alias("covered_ms"),
        )
        .join(brokers, "api_key")
        .where(F.col("covered_ms") == F.col("brokers") * interval_ms)
        .select("api_key", (F.col("index") * interval_s).alias("start"), "truth_requests", "truth_ms")
    )


def span_of(truth: DataFrame) -> tuple[int, int]:
    """The first and the last second of the truth. Raises `InputError` for a single sample."""
    first, last = truth.agg(F.floor(F.min("t_ms") / 1000), F.floor(F.max("t_ms") / 1000)).collect()[0]
    if first is None or first == last:
        raise InputError("--truth has less than two samples; let JmxTool run beside the proxy for some minutes")
    return first, last


# --- fit --------------------------------------------------------------------------------------------------------------


def calibrate(samples: DataFrame, in_force: Mapping[int, RequestCost], method: Method) -> DataFrame:
    """The line of each API, its error, and that of the line ``in_force`` (`schemas.COSTS`).

    ``samples`` is read several times for each API: persist it.
    """
    found = _counts(samples).orderBy("api_key").collect()  # a row for each API
    fits = [_Fit(row, in_force.get(row.api_key, FALLBACK_COST), method) for row in found]
    for fit in fits:
        if fit.reason is None:
            fit.draw(samples.where((F.col("api_key") == fit.api_key) & F.col("agrees") & ~F.col("held_out")))
    drawn = [fit for fit in fits if fit.cost is not None]
    errors = {row.api_key: (row.error_ms, row.default_error_ms) for row in _errors(samples, drawn)} if drawn else {}
    rows = [fit.row(errors.get(fit.api_key)) for fit in fits]
    return samples.sparkSession.createDataFrame(rows, schemas.COSTS)


def _counts(samples: DataFrame) -> DataFrame:
    """For each API what decides whether, and how, a line is drawn."""
    fitted = F.col("agrees") & ~F.col("held_out")

    def total(value: Column, condition: Column = fitted) -> Column:
        return F.coalesce(F.sum(F.when(condition, value)), F.lit(0.0))

    covered = F.col("truth_ms").isNotNull()
    return samples.groupBy("api_key").agg(
        F.count("*").alias("intervals"),
        F.count_if(covered).alias("covered"),
        total(F.col("requests"), covered).alias("covered_requests"),
        total(F.col("truth_requests"), covered).alias("covered_truth"),
        F.count_if("agrees").alias("agreeing"),
        F.count_if(fitted).alias("fitted"),
        F.count_if("held_out").alias("held_out"),
        total(F.col("requests")).alias("requests"),
        total(F.col("truth_ms")).alias("truth_ms"),
        total(F.col("kib")).alias("kib"),
        total(F.col("kib") * F.col("kib") / F.col("requests")).alias("kib_squared"),
    )


class _Fit:
    """One API's line."""

    def __init__(self, counts: Row, in_force: RequestCost, method: Method) -> None:
        self.api_key: int = counts.api_key
        self.in_force = in_force
        self.cost: RequestCost | None = None
        self.how = ""
        self._counts = counts
        self._method = method
        self.reason = self._why_not()

    def _why_not(self) -> str | None:
        counts, method = self._counts, self._method
        if counts.covered == 0:
            return (
                f"not fitted: in none of {counts.intervals:,} intervals with requests were all brokers sampled; sample"
                f" this request, too, at least every {method.interval_s} s"
            )
        if counts.fitted < method.least_samples or counts.held_out < LEAST_HELD_OUT:
            told = f"not fitted: {counts.fitted:,} intervals to fit and {counts.held_out:,} to test with"
            if counts.agreeing < counts.covered:
                told += (
                    f"; in {counts.covered - counts.agreeing:,} others brokers and proxies count differently"
                    f" ({counts.covered_truth:,.0f} and {counts.covered_requests:,.0f} requests in all)"
                )
            return f"{told}; expected {method.least_samples:,} and {LEAST_HELD_OUT}"
        mean_ms = counts.truth_ms / counts.requests
        if mean_ms < method.resolution_ms:
            return (
                f"not fitted: brokers count {mean_ms:.2g} ms a request, in steps of {method.step_ms:g} ms; below"
                f" {method.resolution_ms:g} ms they cannot tell what it costs"
            )
        return None

    def draw(self, fitted: DataFrame) -> None:
        """Fit it to these samples."""
        free = _line(fitted, ("requests", "kib")) if self._varies() else None
        least_base_ms = min(self.in_force.base_ms, self._method.resolution_ms)
        if free is None:
            self._scale(fitted)
        elif free["requests"] < least_base_ms or free["requests"] < 0:
            rest = fitted.withColumn("truth_ms", F.col("truth_ms") - F.col("requests") * least_base_ms)
            self.cost = RequestCost(base_ms=least_base_ms, per_kib_ms=max(0.0, _line(rest, ("kib",))["kib"]))
            if least_base_ms:
                self.how = f"the base of {least_base_ms:g} ms in force kept, which is too small to be told"
        elif free["kib"] < 0:
            self.cost = RequestCost(base_ms=_line(fitted, ("requests",))["requests"])
        else:
            self.cost = RequestCost(base_ms=free["requests"], per_kib_ms=free["kib"])

    def _varies(self) -> bool:
        counts = self._counts
        mean = counts.kib / counts.requests
        spread = max(0.0, counts.kib_squared / counts.requests - mean * mean) ** 0.5
        return bool(spread >= max(LEAST_SPREAD * mean, LEAST_SPREAD_KIB))

    def _scale(self, fitted: DataFrame) -> None:
        """Requests of one size: the line in force, times what it is off by."""
        line = self.in_force if self.in_force != RequestCost(base_ms=0) else RequestCost(base_ms=1)
        factor = _line(fitted.withColumn("line", _estimate(line)), ("line",))["line"]
        self.cost = RequestCost(base_ms=line.base_ms * factor, per_kib_ms=line.per_kib_ms * factor)
        self.how = f"{factor:.3g} times the line in force, since all intervals have requests of one size"

    def row(self, errors: tuple[float, float] | None) -> tuple[object, ...]:
        """As `schemas.COSTS` has it; ``errors`` of this line and of the one in force."""
        counts = self._counts
        if self.cost is None or errors is None:
            samples, requests = counts.fitted, round(counts.requests)
            return self.api_key, None, None, samples, requests, None, None, False, self.reason
        error_ms, default_error_ms = errors
        taken = error_ms < default_error_ms
        reason = (
            f"{'taken' if taken else 'not taken'}: off by {error_ms:.3g} ms a request in {counts.held_out:,} held-out"
            f" intervals, {default_error_ms:.3g} ms in force" + (f"; {self.how}" if self.how else "")
        )
        line = (self.cost.base_ms, self.cost.per_kib_ms, counts.fitted, round(counts.requests))
        return self.api_key, *line, error_ms, default_error_ms, taken, reason


def _line(fitted: DataFrame, features: Sequence[str]) -> dict[str, float]:
    """Coefficients of ``features`` that make up ``truth_ms``, by weighted least squares without an intercept."""
    from pyspark.ml.feature import VectorAssembler
    from pyspark.ml.regression import LinearRegression

    weighted = fitted.select("truth_ms", *features, (1 / F.col("requests")).alias("weight"))
    rows = VectorAssembler(inputCols=list(features), outputCol="features").transform(weighted)
    regression = LinearRegression(
        labelCol="truth_ms", weightCol="weight", fitIntercept=False, standardization=False, solver="normal"
    )
    model = regression.fit(rows)
    return dict(zip(features, (float(each) for each in model.coefficients), strict=True))


def _estimate(cost: RequestCost) -> Column:
    return F.col("requests") * cost.base_ms + F.col("kib") * cost.per_kib_ms


def _errors(samples: DataFrame, fits: Iterable[_Fit]) -> list[Row]:
    """Of each API, on what was held out: the root mean square of what a request is off by."""
    lines = [
        (fit.api_key, cost.base_ms, cost.per_kib_ms, fit.in_force.base_ms, fit.in_force.per_kib_ms)
        for fit in fits
        if (cost := fit.cost) is not None
    ]
    schema = "api_key int, base_ms double, per_kib_ms double, default_base_ms double, default_per_kib_ms double"
    costs = F.broadcast(samples.sparkSession.createDataFrame(lines, schema))

    def error(prefix: str) -> Column:
        line = F.col("requests") * F.col(f"{prefix}base_ms") + F.col("kib") * F.col(f"{prefix}per_kib_ms")
        off = F.least(line, F.col("broker_ms")) - F.col("truth_ms")  # the proxy, too, charges no more than it observed
        return F.sqrt(F.sum(off * off / F.col("requests")) / F.sum("requests"))

    return (
        samples.where("held_out")
        .join(costs, "api_key")
        .groupBy("api_key")
        .agg(error("").alias("error_ms"), error("default_").alias("default_error_ms"))
        .collect()
    )


# --- the outcome ------------------------------------------------------------------------------------------------------


def taken_of(costs: DataFrame) -> dict[int, RequestCost]:
    """The lines that are better than those in force, of `schemas.COSTS`."""
    rows = costs.where("taken").collect()  # a row for each API
    return {row.api_key: RequestCost(base_ms=row.base_ms, per_kib_ms=row.per_kib_ms) for row in rows}
