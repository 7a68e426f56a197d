"""Calibrate: reading JmxTool's output, joining usage and truth, and the fitted lines."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.calibrate import Method, calibrate, samples, span_of
from headrace.pipeline.analysis.handler_times import read_jmx
from headrace.pipeline.cli import pipeline
from headrace.pipeline.errors import InputError
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import Lake
from headrace.proxy.wire.apis import API_NAMES as PROXYS_NAMES
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey
from headrace.quota_callbacks.builtin.cost_files import load_costs
from headrace.quota_callbacks.builtin.request_costs import DEFAULT_COSTS, RequestCost
from tests.pipeline.records import NOON, record, usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

PRODUCE, FETCH, METADATA, OFFSET_COMMIT = (
    ApiKey.PRODUCE.value,
    ApiKey.FETCH.value,
    ApiKey.METADATA.value,
    ApiKey.OFFSET_COMMIT.value,
)
NAMES = {PRODUCE: "Produce", FETCH: "FetchConsumer", METADATA: "Metadata", OFFSET_COMMIT: "OffsetCommit"}
EXACT = Method(interval_s=1, least_samples=4, held_out=0.5, mismatch=0.1, step_ms=0.0)
NAME = "kafka.network:type=RequestMetrics,name=LocalTimeMs,request="


def test_the_names_are_the_proxys() -> None:
    assert API_NAMES == PROXYS_NAMES


# --- what JmxTool prints ---

ORIGINAL = f"""Trying to connect to JMX url: service:jmx:rmi:///jndi/rmi://127.0.0.1:9999/jmxrmi
"time","{NAME}Fetch:Count","{NAME}Fetch:Mean","{NAME}Produce:Count","{NAME}Produce:Mean"
1790000400250,10,0.5,4,2.0
1790000401250,12,0.75,4,2.0
"""
CSV = f"""time,"1790000400250"
{NAME}Fetch:Count,"10"
{NAME}Fetch:Mean,"0.5"
{NAME}Produce:Count,"4"
{NAME}Produce:Mean,"2.0"
time,"1790000401250"
{NAME}Fetch:Count,"12"
{NAME}Fetch:Mean,"0.75"
{NAME}Produce:Count,"4"
{NAME}Produce:Mean,"2.0"
"""
TSV = re.sub(r'^(.*),"(.*)"$', r"\1\t\2", CSV, flags=re.MULTILINE)
PROPERTIES = TSV.replace("\t", "=")
DATES = ORIGINAL.replace("1790000400250", "2026-09-21T16:20:00.250+02:00").replace(
    "1790000401250", "2026-09-21T14:20:01.250Z"
)
PLAIN = [(1_790_000_400_250, FETCH, 10, 5.0), (1_790_000_400_250, PRODUCE, 4, 8.0),
         (1_790_000_401_250, FETCH, 12, 9.0), (1_790_000_401_250, PRODUCE, 4, 8.0)]  # fmt: skip


def read(spark: SparkSession, folder: Path, *texts: str) -> list[tuple[Any, ...]]:
    paths = [folder / f"broker-{number}.csv" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    truth = read_jmx(spark, [str(path) for path in paths])
    assert truth.schema.names == schemas.TRUTH.names
    return sorted(tuple(row)[1:] for row in truth.collect())


def test_every_format_of_the_tool_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """A file of each format, as of several brokers, whose rows are the same but for the broker."""
    texts = (ORIGINAL, CSV, TSV, PROPERTIES, DATES, ORIGINAL.replace("\n", "\r\n"))
    assert read(spark, tmp_path, *texts) == sorted(PLAIN * len(texts))


def test_a_file_may_have_several_runs_and_a_broker_a_file(spark: SparkSession, tmp_path: Path) -> None:
    again = ORIGINAL.replace("17900004", "17900005")
    found = read(spark, tmp_path, ORIGINAL + again, CSV)
    later = [(t_ms + 100_000, *rest) for t_ms, *rest in PLAIN]
    assert found == sorted(PLAIN + later + PLAIN)


def test_consumers_fetches_are_read_where_they_are_sampled(spark: SparkSession, tmp_path: Path) -> None:
    text = CSV + CSV.replace("request=Fetch", "request=FetchConsumer").replace('"10"', '"7"').replace('"12"', '"8"')
    text += CSV.replace("request=Fetch", "request=FetchFollower").replace("0400250", "0402250").replace('"12"', '"99"')
    fetches = [row for row in read(spark, tmp_path, text) if row[1] == FETCH]
    assert fetches == [(1_790_000_400_250, FETCH, 7, 3.5), (1_790_000_401_250, FETCH, 8, 6.0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "no samples of LocalTimeMs", marks=pytest.mark.exhaustive),
        pytest.param(
            ORIGINAL.replace("LocalTimeMs", "TotalTimeMs"),
            "no samples of LocalTimeMs.*\n.*JmxTool .*Count,Mean",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            ORIGINAL.replace(",10,0.5", ",x,y").replace(",12,0.75", ",x,y").replace(",4,2.0", ",,"),
            "no samples",
            marks=pytest.mark.exhaustive,
        ),
        (ORIGINAL.replace("1790000401250", "noon"), "the time 'noon' is neither milliseconds .* --date-format"),
    ],
)
def test_other_files_than_the_tools_are_errors(spark: SparkSession, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(spark, tmp_path, text)


def test_a_missing_file_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--truth .*none.csv does not exist"):
        read_jmx(spark, [str(tmp_path / "none.csv")])


# --- intervals ---


def truth_of(spark: SparkSession, *rows: tuple[float, int, float], broker: str = "b", api_key: int = 0) -> DataFrame:
    """Return truth from seconds after noon, and requests and milliseconds until then."""
    values = [(broker, round((NOON + s) * 1000), api_key, requests, float(ms)) for s, requests, ms in rows]
    return spark.createDataFrame(values, schemas.TRUTH)


def intervals(frame: DataFrame) -> dict[int, tuple[Any, ...]]:
    columns = ("requests", "kib", "broker_ms", "truth_requests", "truth_ms", "agrees")
    return {row.start - NOON: tuple(row[name] for name in columns) for row in frame.collect()}


def test_what_comes_between_two_samples_is_spread_over_the_time_between_them(spark: SparkSession) -> None:
    """Samples at 0, 3, 11, 19 and 20 s. The first ten seconds have 4 requests and 7 of the 8 from 3 to 11 s; the next
    have the eighth, and 8 and 4 more."""
    used = usage(
        spark, [record(NOON + second, requests=2, request_bytes=3072, response_bytes=1024) for second in range(20)]
    )
    truth = truth_of(spark, (0, 100, 50), (3, 104, 58), (11, 112, 74), (19, 120, 90), (20, 124, 98))
    found = intervals(samples(used, truth, Method(interval_s=10, mismatch=1.0)))
    assert found.keys() == {0, 10}
    assert [found[start][:3] for start in found] == [(20.0, 40.0, 10.0)] * 2
    assert {start: row[3] for start, row in found.items()} == {0: 4 + 7, 10: 1 + 8 + 4}
    # 2 ms a request, for the 40 requests that were recorded in place of the 24 that brokers count.
    assert found[0][4] == pytest.approx(11 * 2 * 40 / 24)


def test_an_interval_counts_if_every_broker_was_sampled_throughout(spark: SparkSession) -> None:
    used = usage(spark, [record(NOON + second, requests=2) for second in range(40)])
    one = [(s, s, s) for s in range(0, 41, 5)]
    other = [(s, s, s) for s in (0, 5, 10, 15, 20)] + [(s, s - 25, s - 25) for s in (25, 30)] + [(41, 40, 40)]
    both = truth_of(spark, *one).unionByName(truth_of(spark, *other, broker="other"))
    found = intervals(samples(used, both, Method(interval_s=10)))
    assert {start: row[3] for start, row in found.items()} == {0: 20, 10: 20, 20: None, 30: None}
    assert [row[5] for row in found.values()] == [row[3] is not None for row in found.values()]


def test_an_interval_counts_if_brokers_and_proxies_count_alike(spark: SparkSession) -> None:
    used = usage(spark, [record(NOON + second, requests=100) for second in range(5)])
    truth = truth_of(spark, (0, 0, 0), (1, 100, 0), (2, 190, 0), (3, 279, 0), (4, 389, 0), (5, 500, 0))
    found = intervals(samples(used, truth, Method(interval_s=1, mismatch=0.1)))
    assert [found[start][5] for start in range(5)] == [True, True, False, True, False]


@pytest.mark.parametrize(
    ("share", "held"),
    [
        (0.3, {3, 6, 9}),
        pytest.param(0.2, {4, 9}, marks=pytest.mark.exhaustive),
        pytest.param(0.5, {1, 3, 5, 7, 9}, marks=pytest.mark.exhaustive),
    ],
)
def test_the_same_intervals_are_held_out_each_time(spark: SparkSession, share: float, held: set[int]) -> None:
    used = usage(spark, [record(NOON + second) for second in range(10)])
    truth = truth_of(spark, *((s, s, s) for s in range(11)))
    found = samples(used, truth, Method(interval_s=1, held_out=share))
    assert {row.start - NOON for row in found.where("held_out").collect()} == held


def test_a_single_sample_spans_nothing(spark: SparkSession) -> None:
    with pytest.raises(InputError, match="less than two samples"):
        span_of(truth_of(spark, (0, 1, 1)))


# --- lines ---


def made(spark: SparkSession, rows: Iterable[tuple[float, float, float]], api_key: int = PRODUCE) -> DataFrame:
    """Return samples of requests, KiB and ms; every other one is held out."""
    values = [
        (api_key, NOON + number, float(requests), float(kib), 1e9, float(requests), float(ms), True, number % 2 == 1)
        for number, (requests, kib, ms) in enumerate(rows)
    ]
    return spark.createDataFrame(values, schemas.SAMPLES)


def line(frame: DataFrame, in_force: Mapping[int, RequestCost] = DEFAULT_COSTS, method: Method = EXACT) -> Row:
    (row,) = calibrate(frame, in_force, method).collect()
    return row


SIZES = [(10, 20), (10, 40), (20, 400), (20, 100), (40, 80), (40, 90), (5, 300), (5, 200), (8, 8), (8, 16),
         (30, 30), (30, 50)]  # fmt: skip


def test_a_line_without_noise_is_met(spark: SparkSession) -> None:
    row = line(made(spark, [(n, kib, 0.25 * n + 0.125 * kib) for n, kib in SIZES]))
    assert (row.base_ms, row.per_kib_ms) == (pytest.approx(0.25), pytest.approx(0.125))
    assert row.error_ms == pytest.approx(0, abs=1e-9)
    assert (row.samples, row.requests, row.accepted) == (6, 10 + 20 + 40 + 5 + 8 + 30, True)
    assert row.reason.startswith("accepted: error of ")


def test_the_error_is_that_of_a_request_in_what_was_held_out(spark: SparkSession) -> None:
    """The fitted intervals have 1 ms a request. Two held-out intervals of 10 requests and one of 40 have errors of 1, 2
    and 0 ms a request. Weighted by requests: the root of (10 * 1 + 10 * 4 + 40 * 0) / 60.
    """
    ms = {1: 20, 3: 30, 5: 40}
    rows = [(40 if number == 5 else 10, 0, ms.get(number, 10)) for number in range(6)]
    rows += [(10, 0, 10), (30, 0, 30), (10, 0, 10), (30, 0, 30)]
    method = Method(interval_s=1, least_samples=2, held_out=0.5, step_ms=0)
    row = line(made(spark, rows), {PRODUCE: RequestCost(base_ms=3)}, method)
    assert row.base_ms == pytest.approx(1)
    assert row.error_ms == pytest.approx(((10 * 1 + 10 * 4) / 120) ** 0.5)
    assert row.default_error_ms == pytest.approx(((10 * 1 + 10 * 0 + 100 * 4) / 120) ** 0.5)
    assert row.accepted


@pytest.mark.exhaustive
def test_an_interval_of_many_requests_weighs_more(spark: SparkSession) -> None:
    """Weights are 1/n: 1 ms and 3 ms a request in intervals of 10 and 90 requests of one size have the mean 2.8."""
    row = line(made(spark, [(n, 0, ms) for n, ms in ((10, 10), (90, 270)) for _ in range(12)]))
    assert row.base_ms == pytest.approx(2.8)


def test_a_price_below_nothing_is_left_out(spark: SparkSession) -> None:
    row = line(made(spark, [(n, kib, 2 * n - 0.001 * kib) for n, kib in SIZES]))
    assert row.per_kib_ms == 0
    assert row.base_ms == pytest.approx(2, rel=0.02)


def test_a_base_below_nothing_is_left_out(spark: SparkSession) -> None:
    row = line(made(spark, [(n, kib, kib - 0.01 * n) for n, kib in SIZES]), {PRODUCE: RequestCost(base_ms=0)})
    assert row.base_ms == 0
    assert row.per_kib_ms == pytest.approx(1, rel=0.02)


@pytest.mark.exhaustive
def test_a_base_below_the_resolution_is_kept(spark: SparkSession) -> None:
    """In whole milliseconds the small requests took 0 ms, so the fitted base is 0. A base of 0.1 ms is kept, and the
    price is 2 - 0.1/40 a KiB for requests of 40 KiB.
    """
    rows = [(10, 400, 800), (10, 10, 0)] * 6
    frame = made(spark, [each for each in rows for _ in range(2)])
    row = line(frame, {PRODUCE: RequestCost(base_ms=0.1)}, Method(least_samples=4, step_ms=1.0))
    assert row.base_ms == 0.1
    weighted = (400 * (800 - 1) + 10 * (0 - 1)) / (400 * 400 + 10 * 10)
    assert row.per_kib_ms == pytest.approx(weighted)
    assert row.reason.endswith("its base is the base in force, 0.1 ms, since less cannot be measured")
    unrounded = line(frame, {PRODUCE: RequestCost(base_ms=0.1)}, EXACT)
    assert unrounded.base_ms == 0, "a truth that does not round is believed"


def test_requests_of_one_size_scale_the_line_in_force(spark: SparkSession) -> None:
    row = line(
        made(spark, [(n, 10 * n, 3 * n) for n in range(10, 22)]), {PRODUCE: RequestCost(base_ms=1, per_kib_ms=0.05)}
    )
    assert (row.base_ms, row.per_kib_ms) == (pytest.approx(2), pytest.approx(0.1))
    assert "2 times the line in force" in row.reason


def test_a_worse_line_is_not_accepted(spark: SparkSession) -> None:
    """The line is fitted to intervals of 2 ms a request; the held-out ones have 1 ms, as the costs in force."""
    row = line(made(spark, [(10, 0, 10 if n % 2 else 20) for n in range(12)]), {PRODUCE: RequestCost(base_ms=1)})
    assert (row.base_ms, row.error_ms, row.default_error_ms) == (pytest.approx(2), pytest.approx(1), pytest.approx(0))
    assert not row.accepted
    assert row.reason.startswith("not accepted: error of 1 ms")


def test_nothing_is_charged_beyond_what_was_observed(spark: SparkSession) -> None:
    frame = made(spark, [(10, 0, 10)] * 12).withColumn("broker_ms", sf.lit(20.0))
    row = line(frame, {PRODUCE: RequestCost(base_ms=9)})
    assert row.default_error_ms == pytest.approx(1), "9 ms a request, but 2 at most"


def test_too_few_samples(spark: SparkSession) -> None:
    few = made(spark, [(10, kib, 10) for kib in range(20)])
    row = line(few, method=Method(least_samples=11, step_ms=0))
    assert row.reason == "not fitted: 10 intervals to fit and 10 to test with; expected 11 and 5"
    assert (row.base_ms, row.per_kib_ms, row.error_ms, row.accepted) == (None, None, None, False)


def test_counts_that_differ(spark: SparkSession) -> None:
    frame = made(spark, [(10, kib, 10) for kib in range(8)]).selectExpr(
        "api_key", "start", "requests", "kib", "broker_ms", "requests * 2 as truth_requests", "truth_ms",
        "false as agrees", "false as held_out",
    )  # fmt: skip
    assert line(frame).reason == (
        "not fitted: 0 intervals to fit and 0 to test with; in 8 others the counts of brokers and proxies differ (160"
        " and 80 requests in all); expected 4 and 5"
    )


def test_requests_that_no_broker_sampled(spark: SparkSession) -> None:
    used = usage(spark, [record(NOON + second, api_key=METADATA) for second in range(10)])
    frame = samples(used, truth_of(spark, *((s, s, s) for s in range(10))), EXACT)
    assert line(frame).reason == (
        "not fitted: all brokers were sampled in none of the 10 intervals with requests; sample this request at least"
        " every 1 s"
    )


def test_requests_below_the_resolution(spark: SparkSession) -> None:
    """One of twenty fitted intervals is above the resolution, then two of twenty are."""
    rows = [(100, kib, 4) for kib in range(40)]
    row = line(made(spark, [*rows[:-2], (100, 38, 50), (100, 39, 4)]), method=Method(least_samples=4))
    assert row.reason == (
        "not fitted: brokers count 0.063 ms a request, in steps of 1 ms, and 0.5 ms or more in 1 of 20 intervals;"
        " shorter times cannot be measured"
    )
    assert not row.accepted
    assert line(made(spark, [*rows[:-4], *[(100, 38, 50)] * 4]), method=Method(least_samples=4)).base_ms is not None


# --- a planted model, through the command ---

PLANTED = {
    PRODUCE: RequestCost(base_ms=0.31, per_kib_ms=0.0042),
    FETCH: RequestCost(base_ms=0.12),
    METADATA: RequestCost(base_ms=0.21, per_kib_ms=0.061),
    OFFSET_COMMIT: RequestCost(base_ms=0.0, per_kib_ms=0.45),
}
MEAN_KIB = {PRODUCE: 60.0, FETCH: 200.0, METADATA: 4.0, OFFSET_COMMIT: 1.5}
SECONDS = 600


def planted(seed: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Write ten minutes of four APIs by two senders with random errors of up to half of each time: usage, and the
    tool's lines.
    """
    dice = random.Random(seed)  # noqa: S311
    records, sums = [], {api_key: [0, 0.0] for api_key in PLANTED}
    rows = [jmx_line(NOON, sums)]
    for second in range(SECONDS):
        for api_key, cost in PLANTED.items():
            for client in ("app-1", "app-2"):
                requests = dice.randint(5, 40)
                kib = [dice.uniform(0, 2 * MEAN_KIB[api_key] * (1 + second // 20 % 7) / 4) for _ in range(requests)]
                ms = sum((cost.base_ms + cost.per_kib_ms * each) * dice.uniform(0.5, 1.5) for each in kib)
                sums[api_key][0] += requests
                sums[api_key][1] += ms
                size = round(sum(kib) * 1024)
                more = {"client_id": client, "requests": requests, "broker_ms": 10 * ms}
                more |= {"request_bytes": size - size // 3, "response_bytes": size // 3}
                records.append(record(NOON + second, api_key=api_key, **more))
        rows.append(jmx_line(NOON + second + 1, sums))
    return records, [jmx_head(sums), *rows]


def jmx_head(sums: Iterable[int]) -> str:
    return ",".join(['"time"', *(f'"{NAME}{NAMES[key]}:{each}"' for key in sums for each in ("Count", "Mean"))])


def jmx_line(second: int, sums: Mapping[int, Sequence[float]]) -> str:
    values = (f"{count},{total / count if count else 0.0!r}" for count, total in sums.values())
    return f"{second * 1000}," + ",".join(values)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(pipeline, ["calibrate", *arguments], catch_exceptions=False)
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def plants(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plants")
    records, lines = planted(7)
    Lake(spark, str(folder / "lake")).append("usage", usage(spark, records), "date", "hour")
    (folder / "truth.csv").write_text("\n".join(lines), encoding="utf-8")
    return folder


def test_a_planted_model_is_recovered_within_five_percent(plants: Path, spark: SparkSession) -> None:
    output = plants / "costs.toml"
    given = ("--lake", f"{plants}/lake", "--truth", f"{plants}/truth.csv", "--truth-step", "0", "--output", str(output))
    status, printed = run(*given)
    assert status == 0, printed
    assert "4 of 4 APIs have better costs than those in force" in printed
    found = load_costs(str(output))
    assert found.keys() == PLANTED.keys()
    for api_key, cost in PLANTED.items():
        typical_ms = cost.base_ms + cost.per_kib_ms * MEAN_KIB[api_key]
        slack_ms = 0.05 * typical_ms
        assert found[api_key].base_ms == pytest.approx(cost.base_ms, rel=0.05, abs=slack_ms if not cost.base_ms else 0)
        assert found[api_key].per_kib_ms == pytest.approx(
            cost.per_kib_ms, rel=0.05, abs=slack_ms / MEAN_KIB[api_key] if not cost.per_kib_ms else 0
        )
    rows = Lake(spark, f"{plants}/lake").read("costs", schemas.COSTS).collect()
    assert {row.api_key: row.error_ms < row.default_error_ms / 4 for row in rows} == dict.fromkeys(PLANTED, True)


def test_costs_in_force_that_are_better_stay_in_the_file(plants: Path) -> None:
    """Metadata's costs in force are right, except for noise; API 12 has no samples."""
    before, after = plants / "before.toml", plants / "after.toml"
    before.write_text("[costs]\n3 = { base_ms = 0.21, per_kib_ms = 0.061 }\n12 = { base_ms = 7 }\n", encoding="utf-8")
    given = ("--lake", f"{plants}/lake", "--truth", f"{plants}/truth.csv", "--truth-step", "0")
    status, printed = run(*given, "--against", str(before), "--output", str(after))
    assert status == 0, printed
    found = load_costs(str(after))
    assert found[12] == RequestCost(base_ms=7)
    assert found[PRODUCE].base_ms == pytest.approx(0.31, rel=0.05)
    assert "12 = { base_ms = 7, per_kib_ms = 0 }  # Heartbeat: unchanged" in after.read_text(encoding="utf-8")


# --- the command's mistakes ---


def test_without_a_truth_there_is_no_fit(tmp_path: Path) -> None:
    status, printed = run("--lake", str(tmp_path))
    assert status == 2
    assert re.search(r"expected --truth.*broker_ms cannot replace them.*JmxTool --jmx-url", " ".join(printed.split()))


NO_USAGE = "there is no usage from 2026-09-21 13:00:00 to 2026-09-21 13:10:00 UTC, when --truth was sampled"


def test_no_usage_while_the_truth_was_sampled(plants: Path, spark: SparkSession, tmp_path: Path) -> None:
    Lake(spark, str(tmp_path / "lake")).append("usage", usage(spark, [record(NOON - 7200)]), "date", "hour")
    status, printed = run("--lake", f"{tmp_path}/lake", "--truth", f"{plants}/truth.csv")
    assert (status, printed.splitlines()[-1]) == (1, f"headrace pipeline: {NO_USAGE}")


@pytest.mark.exhaustive
def test_usage_of_several_clusters(plants: Path, spark: SparkSession, tmp_path: Path) -> None:
    records = [record(NOON + 1, cluster=cluster) for cluster in ("a", "b", None)]
    Lake(spark, str(tmp_path / "lake")).append("usage", usage(spark, records), "date", "hour")
    given = ("--lake", f"{tmp_path}/lake", "--truth", f"{plants}/truth.csv")
    status, printed = run(*given)
    assert status == 1
    assert "the usage is of 2 clusters, a, b; expected --cluster ID" in printed
    status, printed = run(*given, "--cluster", "b")
    assert status == 0
    assert "0 of 1 APIs have better costs" in printed
    status, printed = run(*given, "--cluster", "c")
    assert status == 1
    assert "there is no usage of cluster c from" in printed


def test_a_lake_without_usage_and_a_file_without_costs(plants: Path, tmp_path: Path) -> None:
    status, printed = run("--lake", str(tmp_path), "--truth", f"{plants}/truth.csv")
    assert status == 1
    assert "there is no table 'usage'" in printed
    status, printed = run(
        "--lake", str(tmp_path), "--truth", f"{plants}/truth.csv", "--against", f"{tmp_path}/none.toml"
    )
    assert status == 1
    assert "--against = " in printed
    assert "No such file" in printed


def test_an_output_that_cannot_be_written_is_an_error(plants: Path) -> None:
    output = plants / "no" / "such" / "folder.toml"
    given = ("--lake", f"{plants}/lake", "--truth", f"{plants}/truth.csv", "--truth-step", "0")
    status, printed = run(*given, "--output", str(output))
    assert status == 1
    assert f"--output {output}: the folder {output.parent} does not exist" in printed
