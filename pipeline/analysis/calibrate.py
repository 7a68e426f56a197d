"""Calibrate: fits the cost model of requests (`headrace.quota_callbacks.builtin.request_costs`) to handler times.

The usage that proxies recorded and the numbers that brokers counted (`schemas.TRUTH`) are summed over the same
intervals. For each API, a line is fitted by weighted least squares::

    handler ms = base_ms * requests + per_kib_ms * KiB of requests and replies

An interval of n requests is a sum of n times, so its variance is proportional to n and its weight is 1/n. Some
intervals are held out: on them the line is compared with the one in force.

Brokers round each time to whole milliseconds, so most requests of most APIs count as 0 ms. An API is not fitted if
hardly any interval has a mean time of half a step or more. The fitted base is at least half a step, or the base in
force if that is less, since times rounded to 0 do not show that it is smaller. If the fit has less, the base is set to
that, and only ``per_kib_ms`` is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

from headrace.pipeline.errors import InputError
from headrace.pipeline.lake import schemas
from headrace.quota_callbacks.builtin.request_costs import FALLBACK_COST, RequestCost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import Column, DataFrame, Row

LEAST_HELD_OUT: Final = 5
"""Minimum number of held-out intervals for a meaningful error."""
LEAST_RESOLVED: Final = 0.1
"""Minimum share of intervals whose mean time per request is not below the resolution of the truth."""
LEAST_SPREAD: Final = 0.05
"""Minimum of the standard deviation of KiB per request, divided by the mean; below it, base and price cannot be
separated.
"""
LEAST_SPREAD_KIB: Final = 0.1
"""Minimum of the standard deviation itself, in KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """The parameters of the fit, which are the command's options."""

    interval_s: int = 10
    """Brokers are not sampled exactly at the end of a second; over ten seconds the difference is small."""
    held_out: float = 0.2
    """Share of the intervals on which the error is measured."""
    least_samples: int = 30
    """Minimum number of intervals to fit an API."""
    mismatch: float = 0.1
    """Maximum difference between the request counts of proxies and brokers in an interval, as a share."""
    step_ms: float = 1.0
    """The step to which the truth is rounded; 0 if it is not rounded."""

    @property
    def resolution_ms(self) -> float:
        """Times below this are rounded to 0."""
        return self.step_ms / 2


# --- intervals --------------------------------------------------------------------------------------------------------


def samples(usage: DataFrame, truth: DataFrame, method: Method) -> DataFrame:
    """Return usage (`schemas.USAGE`) and truth by API and interval (`schemas.SAMPLES`)."""
    start = sf.col("second") - sf.pmod("second", sf.lit(method.interval_s))
    recorded = usage.groupBy("api_key", start.alias("start")).agg(
        sf.sum("requests").cast("double").alias("requests"),
        (sf.sum(sf.col("request_bytes") + sf.col("response_bytes")) / 1024).alias("kib"),
        sf.sum("broker_ms").alias("broker_ms"),
    )
    truth_sums = _truth_of_intervals(truth, method.interval_s)
    both = recorded.where("requests > 0").join(truth_sums, ["api_key", "start"], "left")
    off = sf.abs(sf.col("truth_requests") - sf.col("requests"))
    alike = sf.coalesce(off <= sf.greatest(sf.lit(1.0), sf.col("requests") * method.mismatch), sf.lit(False))
    alike_of_api = Window.partitionBy("api_key", "agrees")
    number = sf.row_number().over(alike_of_api.orderBy("start"))
    held_out = sf.floor(number * method.held_out) > sf.floor((number - 1) * method.held_out)
    # Remove the time of requests that other clients sent to the brokers directly, up to the permitted difference.
    recorded_share = sf.try_divide(sf.sum("requests").over(alike_of_api), sf.sum("truth_requests").over(alike_of_api))
    return (
        both.withColumn("agrees", alike)
        .withColumns({"held_out": sf.col("agrees") & held_out, "truth_ms": sf.col("truth_ms") * recorded_share})
        .select(*(sf.col(field.name).cast(field.dataType) for field in schemas.SAMPLES.fields))
    )


def _truth_of_intervals(truth: DataFrame, interval_s: int) -> DataFrame:
    """Return requests and milliseconds of each interval in which all brokers were sampled throughout.

    The difference between two samples is spread evenly over the time between them. Samples further apart than an
    interval, and those with a broker's restart between them, are not used.
    """
    interval_ms = interval_s * 1000
    before = Window.partitionBy("broker", "api_key").orderBy("t_ms")
    steps = truth.select(
        "broker",
        "api_key",
        sf.lag("t_ms").over(before).alias("from_ms"),
        sf.col("t_ms").alias("to_ms"),
        (sf.col("requests") - sf.lag("requests").over(before)).alias("requests"),
        (sf.col("local_ms") - sf.lag("local_ms").over(before)).alias("local_ms"),
    )
    took_ms = sf.col("to_ms") - sf.col("from_ms")
    steps = steps.where(took_ms.between(1, interval_ms) & (sf.col("requests") >= 0) & (sf.col("local_ms") > -0.5))
    first, last = (sf.floor(each / interval_ms) for each in (sf.col("from_ms"), sf.col("to_ms") - 1))
    parts = steps.withColumn("index", sf.explode(sf.sequence(first, last)))
    begin_ms = sf.col("index") * interval_ms
    within_ms = sf.least("to_ms", begin_ms + interval_ms) - sf.greatest("from_ms", begin_ms)
    parts = parts.withColumn("within_ms", within_ms).withColumn("share", sf.col("within_ms") / took_ms)
    brokers = truth.groupBy("api_key").agg(sf.count_distinct("broker").alias("brokers"))
    return (
        parts.groupBy("api_key", "index")
        .agg(
            sf.sum(sf.col("requests") * sf.col("share")).alias("truth_requests"),
            sf.sum(sf.col("local_ms") * sf.col("share")).alias("truth_ms"),
            sf.sum("within_ms").alias("covered_ms"),
        )
        .join(brokers, "api_key")
        .where(sf.col("covered_ms") == sf.col("brokers") * interval_ms)
        .select("api_key", (sf.col("index") * interval_s).alias("start"), "truth_requests", "truth_ms")
    )


def span_of(truth: DataFrame) -> tuple[int, int]:
    """Return the first and the last second of the truth. Raises `InputError` for a single sample."""
    first, last = truth.agg(sf.floor(sf.min("t_ms") / 1000), sf.floor(sf.max("t_ms") / 1000)).collect()[0]
    if first is None or first == last:
        raise InputError("--truth has less than two samples; let JmxTool run beside the proxy for some minutes")
    return first, last


# --- fit --------------------------------------------------------------------------------------------------------------


def calibrate(samples: DataFrame, in_force: Mapping[int, RequestCost], method: Method) -> DataFrame:
    """Return the fitted line of each API with its error, and the error of the line ``in_force`` (`schemas.COSTS`).

    ``samples`` is read several times for each API: persist it.
    """
    found = _counts(samples, method).orderBy("api_key").collect()  # a row for each API
    fits = [_Fit(row, in_force.get(row.api_key, FALLBACK_COST), method) for row in found]
    for fit in fits:
        if fit.reason is None:
            fit.draw(samples.where((sf.col("api_key") == fit.api_key) & sf.col("agrees") & ~sf.col("held_out")))
    drawn = [fit for fit in fits if fit.cost is not None]
    errors = {row.api_key: (row.error_ms, row.default_error_ms) for row in _errors(samples, drawn)} if drawn else {}
    rows = [fit.row(errors.get(fit.api_key)) for fit in fits]
    return samples.sparkSession.createDataFrame(rows, schemas.COSTS)


def _counts(samples: DataFrame, method: Method) -> DataFrame:
    """Return, for each API, the numbers that decide whether and how a line is fitted."""
    fitted = sf.col("agrees") & ~sf.col("held_out")

    def total(value: Column, condition: Column = fitted) -> Column:
        return sf.coalesce(sf.sum(sf.when(condition, value)), sf.lit(0.0))

    covered = sf.col("truth_ms").isNotNull()
    return samples.groupBy("api_key").agg(
        sf.count("*").alias("intervals"),
        sf.count_if(covered).alias("covered"),
        total(sf.col("requests"), covered).alias("covered_requests"),
        total(sf.col("truth_requests"), covered).alias("covered_truth"),
        sf.count_if("agrees").alias("agreeing"),
        sf.count_if(fitted).alias("fitted"),
        sf.count_if("held_out").alias("held_out"),
        sf.count_if(fitted & (sf.col("truth_ms") >= sf.col("requests") * method.resolution_ms)).alias("resolved"),
        total(sf.col("requests")).alias("requests"),
        total(sf.col("truth_ms")).alias("truth_ms"),
        total(sf.col("kib")).alias("kib"),
        total(sf.col("kib") * sf.col("kib") / sf.col("requests")).alias("kib_squared"),
    )


class _Fit:
    """The fit of one API."""

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
                f"not fitted: all brokers were sampled in none of the {counts.intervals:,} intervals with requests;"
                f" sample this request at least every {method.interval_s} s"
            )
        if counts.fitted < method.least_samples or counts.held_out < LEAST_HELD_OUT:
            reason = f"not fitted: {counts.fitted:,} intervals to fit and {counts.held_out:,} to test with"
            if counts.agreeing < counts.covered:
                reason += (
                    f"; in {counts.covered - counts.agreeing:,} others the counts of brokers and proxies differ"
                    f" ({counts.covered_truth:,.0f} and {counts.covered_requests:,.0f} requests in all)"
                )
            return f"{reason}; expected {method.least_samples:,} and {LEAST_HELD_OUT}"
        if counts.resolved < LEAST_RESOLVED * counts.fitted:
            return (
                f"not fitted: brokers count {counts.truth_ms / counts.requests:.2g} ms a request, in steps of"
                f" {method.step_ms:g} ms, and {method.resolution_ms:g} ms or more in {counts.resolved:,} of"
                f" {counts.fitted:,} intervals; shorter times cannot be measured"
            )
        return None

    def draw(self, fitted: DataFrame) -> None:
        """Fit the line to these samples."""
        if not self._varies():
            self._scale(fitted)
            return
        base_ms, per_kib_ms = _line(fitted)
        least_base_ms = float(min(self.in_force.base_ms, self._method.resolution_ms))
        if base_ms < least_base_ms:
            rest = sf.col("truth_ms") - sf.col("requests") * least_base_ms
            self.cost = RequestCost(base_ms=least_base_ms, per_kib_ms=max(0.0, _factor(fitted, sf.col("kib"), rest)))
            if least_base_ms:
                kept = "the base in force" if least_base_ms == self.in_force.base_ms else "half a step"
                self.how = f"its base is {kept}, {least_base_ms:g} ms, since less cannot be measured"
        elif per_kib_ms < 0:
            self.cost = RequestCost(base_ms=_factor(fitted, sf.col("requests"), sf.col("truth_ms")))
        else:
            self.cost = RequestCost(base_ms=base_ms, per_kib_ms=per_kib_ms)

    def _varies(self) -> bool:
        counts = self._counts
        mean = counts.kib / counts.requests
        spread = max(0.0, counts.kib_squared / counts.requests - mean * mean) ** 0.5
        return bool(spread >= max(LEAST_SPREAD * mean, LEAST_SPREAD_KIB))

    def _scale(self, fitted: DataFrame) -> None:
        """Scale the line in force, for requests of one size."""
        line = self.in_force if self.in_force != RequestCost(base_ms=0) else RequestCost(base_ms=1)
        estimate = sf.col("requests") * line.base_ms + sf.col("kib") * line.per_kib_ms
        factor = _factor(fitted, estimate, sf.col("truth_ms"))
        self.cost = RequestCost(base_ms=line.base_ms * factor, per_kib_ms=line.per_kib_ms * factor)
        self.how = f"{factor:.3g} times the line in force, since all intervals have requests of one size"

    def row(self, errors: tuple[float, float] | None) -> tuple[object, ...]:
        """Return the row of `schemas.COSTS`; ``errors`` are of this line and of the one in force."""
        counts = self._counts
        if self.cost is None or errors is None:
            samples, requests = counts.fitted, round(counts.requests)
            return self.api_key, None, None, samples, requests, None, None, False, self.reason
        error_ms, default_error_ms = errors
        accepted = error_ms < default_error_ms
        reason = (
            f"{'accepted' if accepted else 'not accepted'}: error of {error_ms:.3g} ms a request in"
            f" {counts.held_out:,} held-out intervals, {default_error_ms:.3g} ms for the costs in force"
            + (f"; {self.how}" if self.how else "")
        )
        line = (float(self.cost.base_ms), float(self.cost.per_kib_ms), counts.fitted, round(counts.requests))
        return self.api_key, *line, error_ms, default_error_ms, accepted, reason


def _line(fitted: DataFrame) -> tuple[float, float]:
    """Return base and price by weighted least squares for ``truth_ms``; either may be negative.

    The regression is on means per request with weight n and the base as intercept, which is equivalent to sums with
    weight 1/n without intercept. With sums, Spark would drop a constant number of requests as a feature without
    information.
    """
    from pyspark.ml.feature import VectorAssembler
    from pyspark.ml.regression import LinearRegression

    requests = sf.col("requests")
    means = fitted.select(
        "requests", (sf.col("kib") / requests).alias("kib"), (sf.col("truth_ms") / requests).alias("ms")
    )
    rows = VectorAssembler(inputCols=["kib"], outputCol="features").transform(means)
    model = LinearRegression(labelCol="ms", weightCol="requests", solver="normal").fit(rows)
    return float(model.intercept), float(model.coefficients[0])


def _factor(fitted: DataFrame, of: Column, label: Column) -> float:
    """Return the factor for ``of`` that fits ``label`` by weighted least squares; 0 if ``of`` is always 0."""
    weight = 1 / sf.col("requests")
    factor = sf.try_divide(sf.sum(weight * of * label), sf.sum(weight * of * of))
    return float(fitted.agg(factor).collect()[0][0] or 0.0)


def _errors(samples: DataFrame, fits: Iterable[_Fit]) -> list[Row]:
    """Return the root mean square error of one request for each API, on the held-out intervals."""
    lines = [
        (fit.api_key, *map(float, (cost.base_ms, cost.per_kib_ms, fit.in_force.base_ms, fit.in_force.per_kib_ms)))
        for fit in fits
        if (cost := fit.cost) is not None
    ]
    schema = "api_key int, base_ms double, per_kib_ms double, default_base_ms double, default_per_kib_ms double"
    costs = sf.broadcast(samples.sparkSession.createDataFrame(lines, schema))

    def error(prefix: str) -> Column:
        line = sf.col("requests") * sf.col(f"{prefix}base_ms") + sf.col("kib") * sf.col(f"{prefix}per_kib_ms")
        # The proxy charges no more than the time that it observed.
        off = sf.least(line, sf.col("broker_ms")) - sf.col("truth_ms")
        return sf.sqrt(sf.sum(off * off / sf.col("requests")) / sf.sum("requests"))

    return (
        samples.where("held_out")
        .join(costs, "api_key")
        .groupBy("api_key")
        .agg(error("").alias("error_ms"), error("default_").alias("default_error_ms"))
        .collect()
    )


# --- the outcome ------------------------------------------------------------------------------------------------------


def accepted_costs(costs: DataFrame) -> dict[int, RequestCost]:
    """Return the lines of `schemas.COSTS` that are better than those in force."""
    rows = costs.where("accepted").collect()  # a row for each API
    return {row.api_key: RequestCost(base_ms=row.base_ms, per_kib_ms=row.per_kib_ms) for row in rows}
