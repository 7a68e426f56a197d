"""The report: numbers computed by hand, names that stay text, a file that loads nothing; also in a real browser."""

from __future__ import annotations

import datetime as dt
import shutil
import subprocess
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from pyspark.sql import functions as sf

from headrace.pipeline.cli import pipeline
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import MADE_BY, Lake
from headrace.pipeline.report import SECTIONS, Days, report, sums
from headrace.pipeline.report.bills import bills
from headrace.pipeline.report.page import Table
from tests.pipeline.records import NOON, record, usage
from tests.pipeline.report.report_pages import (
    CONSUMER,
    MADE,
    ODD,
    PRODUCER,
    REQUESTS,
    SCRIPT,
    Read,
    answer,
    bill,
    no_references,
    pixels_of,
    tables_of,
)
from tests.pipeline.report.report_pages import table as table_of

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result
    from pyspark.sql import SparkSession


BY = {"usage": ("date", "hour"), "chargeback": ("period", "date"), "budgets": ("month",)}
"""The columns by which tables are partitioned here."""
LATER = dt.date(2026, 9, 25)


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a lake of all tables and an older report. On later days, there is another cluster."""
    folder = tmp_path_factory.mktemp("report")
    lake = Lake(spark, str(folder / "lake"))
    others = {
        "usage": usage(spark, [record(NOON + 86_400, instance="proxy-c-1", sequence=0, cluster="cluster-2")]),
        "chargeback": table_of(
            spark,
            schemas.CHARGEBACK,
            *(line | {"cluster": f"cluster-{n}", "date": LATER} for n in (1, 2) for line in bill("search", n)),
        ),
    }
    with lake.release() as tables:
        for name, frame in tables_of(spark).items():
            whole = frame.unionByName(others[name]) if name in others else frame
            tables.replace(name, whole.coalesce(1), *BY.get(name, ()))
    (folder / "report.html").write_text("an older one")
    return folder


@pytest.fixture(scope="module")
def done(folder: Path) -> Result:
    """What the command has returned that wrote the report."""
    title = ("--title", "Ours & theirs", "--to", "2026-09-21", "--cluster", "cluster-1")
    return run(folder / "lake", "--output", str(folder / "report.html"), *title)


@pytest.fixture(scope="module")
def page(folder: Path, done: Result) -> str:
    assert done.exit_code == 0, done.stderr
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def read(page: str) -> Read:
    return Read(page)


# --- the file ---


def test_it_has_every_section_under_a_heading_and_a_link(read: Read) -> None:
    assert [attributes["id"] for tag, attributes in read.tags if tag == "section"] == list(SECTIONS)
    links = [attributes["href"] for tag, attributes in read.tags if tag == "a"]
    assert links == [f"#{anchor}" for anchor in SECTIONS]
    for anchor, title in SECTIONS.items():
        assert read.texts[anchor][0].strip() == ""
        assert title in read.texts[anchor]
    assert [tag for tag, _ in read.tags if tag == "h1"] == ["h1"]


def test_it_loads_nothing_and_runs_nothing(read: Read) -> None:
    no_references(read)
    (policy,) = [attributes["content"] for tag, attributes in read.tags if "http-equiv" in attributes]
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline';")


def test_names_are_text(page: str, read: Read) -> None:
    assert SCRIPT not in page
    assert "<img" not in page
    assert "<b>" not in page
    assert read.row("senders", SCRIPT, table=0)[0] == "1,000"
    assert read.row("senders", ODD, table=0)[0] == "1"
    assert read.row("bills", "<b>payments</b>") == ["1", "6.00"]
    assert {SCRIPT, ODD} <= {text.strip() for text in read.texts["senders"]}


def test_what_would_turn_a_line_around_is_seen(page: str, read: Read) -> None:
    assert "\u202e" not in page
    assert read.row("senders", ODD, r"safe\u202egro.live")[0] == "1"


def test_figures_have_descriptions_and_tables_have_heads(read: Read) -> None:
    figures = [attributes for tag, attributes in read.tags if tag == "figure"]
    assert len(figures) == 9
    assert all(attributes["aria-label"] for attributes in figures)
    pictures = [attributes for tag, attributes in read.tags if tag == "svg"]
    assert len(pictures) == 9
    assert all(attributes["aria-hidden"] == "true" for attributes in pictures)
    heads = [attributes["scope"] for tag, attributes in read.tags if tag == "th"]
    assert set(heads) == {"col", "row"}


# --- the numbers ---


def test_the_sums(read: Read) -> None:
    assert read.row("glance", "time, UTC") == ["2026-09-21 13:00:00 to 2026-09-21 16:00:00"]
    assert read.row("glance", "usage records") == ["5"]
    assert read.row("glance", "requests") == ["1,005"]
    assert read.row("glance", "bytes in") == ["3.00 GiB"]  # and a KiB
    assert read.row("glance", "bytes out") == ["1.00 GiB"]
    # 3,600 ms in 10,801 s
    assert read.row("glance", "thread time of the brokers, estimated") == ["3.60 s (0.033 % of one thread)"]
    assert read.row("glance", "users") == ["3"]
    assert read.row("glance", "requests throttled") == ["8"]
    assert read.row("glance", "requests refused, completely or in part") == ["1"]


def test_hours(read: Read) -> None:
    assert read.row("used", "2026-09-21 13:00") == ["3", "1", "3", "0", "3.60", "3", "1"]
    assert read.row("used", "2026-09-21 14:00") == ["1,000", "0", "0", "1", "0", "5", "0"]
    assert read.row("used", "2026-09-21 16:00") == ["2", "0", "< 0.001", "< 0.001", "0", "0", "0"]
    titles = read.tables["used"][0][0]
    assert titles[3:6] == ["bytes in, GiB", "bytes out, GiB", "thread time, s"]
    assert "maximum in the hour from 2026-09-21 13:00 UTC, 3 GiB in and 0 B out" in str(read.tags)
    assert "2026-09-21 13:00 UTC: 3 GiB in" in read.texts["used"]


def test_who_used_it(read: Read) -> None:
    assert read.row("senders", "alice", table=0) == ["3", "1", "3", "0", "3.60", "3", "1", "75.0 %"]
    assert read.row("senders", SCRIPT, "<img src=x>") == ["1,000", "0", "0", "1", "0", "5", "0", "25.0 %"]
    total = ["1,005", "1", "3.00", "1.00", "3.60", "8", "1", "100.0 %"]
    assert read.row("senders", "all", table=0) == total
    assert read.row("senders", "all", "", table=1) == total
    # Of the bytes out, thread time or requests, each has all but nothing; names decide between equals.
    assert [row[0] for row in read.tables["senders"][0]] == ["user", "alice", SCRIPT, "(unnamed)", ODD, "all"]
    assert "(unnamed) stands for senders whose names were not recorded (1 request):" in read.text("senders")


def test_throttling(read: Read) -> None:
    assert "8 of 1,005 requests (0.8 %) were throttled, for 1.85 s in total; 1 were refused" in read.text("throttling")
    assert read.row("throttling", PRODUCER) == ["2", "1.50", "750", "0"]
    assert read.row("throttling", "controller_mutation_rate") == ["0", "0", "-", "1"]
    assert read.row("throttling", "alice", "app-1", REQUESTS) == ["1", "0.250", "250", "0"]
    assert read.row("throttling", SCRIPT, "<img src=x>", CONSUMER) == ["5", "0.100", "20", "0"]
    assert read.tables["throttling"][1][0][4:6] == ["total throttle time, s", "mean, ms"]


def test_recommendations(read: Read) -> None:
    assert read.row("recommendations", SCRIPT, "-") == [
        "2 MiB/s", "1 MiB/s", "1 KiB/s", "1 MiB/s", "1.50 MiB/s", "3", "3,600", "4", "retry-storm", f"of {ODD}",
    ]  # fmt: skip
    assert read.row("recommendations", "bob", "app-1") == [
        "12.5 %", "-", "1 %", "3 %", "4 %", "-", "60", "0", "-", "the least",
    ]  # fmt: skip
    assert f"{SCRIPT}: quota 2 MiB/s, p99 1 MiB/s, peak 1.50 MiB/s" in read.texts["recommendations"]


def test_the_back_test(read: Read) -> None:
    assert "applied to the usage from 2026-09-21 to 2026-09-21" in read.text("backtest")
    assert "1 of 2 buckets would have been throttled" in read.text("backtest")
    assert read.row("backtest", SCRIPT, "-", PRODUCER) == [
        f"user={SCRIPT}", "1 MiB/s", "6 of 60", "10.0 %", "0", "3", "7.20", "50.0 %",
    ]  # fmt: skip
    assert "bob" not in read.text("backtest")


def test_what_if(read: Read) -> None:
    assert read.row("what-if", PRODUCER) == ["2", "1", "6", "0", "5", "7.20", "25.0 %"]
    assert read.row("what-if", SCRIPT, "-", PRODUCER) == [
        f"user={SCRIPT}", "1 MiB/s", "6 of 60", "0", "3", "7.20", "50.0 %", "1.80",
    ]  # fmt: skip
    assert "bob" not in read.text("what-if")


def test_bills_costs_and_anomalies(read: Read) -> None:
    assert read.row("bills", "all") == ["2", "8.00"]
    assert read.row("bills", "produced") == ["4", "GiB", "8.00"]
    fitted = ["0.071 ms", "0.0015 ms", "90,000", "100", "0.020 ms", "0.050 ms", "yes", "better"]
    assert read.row("costs", "Produce") == fitted
    assert read.row("costs", "API 99") == [*["-"] * 6, "no", "too few requests"]
    cells = ["c", "120", "1.50", "9", "3", f"{SCRIPT}: 120"]
    assert read.row("anomalies", "2026-09-21 13:00", "retry storm", SCRIPT) == cells


def test_data_quality(read: Read) -> None:
    """Instance a has the sequence numbers 0, 1, 2 (lost), 3, 4 and 9."""
    assert "with records: 3. Of these, 1 ended normally" in read.text("quality"), "it is that of all clusters"
    assert "Missing: 4 records in 1 gap of 1 instance" in read.text("quality")
    assert read.row("quality", "proxy-a-1") == ["2026-09-21 13:00:00", "2026-09-21 16:00:00", "6", "4", "1", "7", "no"]
    assert read.row("quality", "no room for N s") == ["1", "7", "30", "4", "0"]
    assert read.row("quality", "late: second N") == ["3", "2026-09-21 13:00:00"]
    assert read.row("quality", "no kind") == ["1", "2026-09-21 13:00:00"]


def test_budgets_of_the_newest_month_with_the_largest_share_first(read: Read) -> None:
    assert "2026-09, as of 2026-09-21 13:00 UTC: 1 alert for 2 budgets." in read.text("budgets")
    (rows,) = read.tables["budgets"]
    assert rows[1:] == [
        ["<b>payments</b>", "all", "50.00", "45.00", "90.00", "EUR", "90.0 %", "alert at 80 %"],
        ["search", "cluster-1", "50.00", "5.00", "10.00", "EUR", "10.0 %", "no alert"],
    ]


def test_others_are_summed_so_that_all_is_all(spark: SparkSession) -> None:
    records = [
        record(user=f"user-{each:02}", requests=each, request_bytes=10 * each, response_bytes=0, thread_ms=0.0)
        for each in range(1, 26)
    ]
    hours = sums.hourly(usage(spark, records))
    found = sums.top_senders(hours, sums.overall(hours), "user")
    assert [row["user"] for row in found.rows] == [f"user-{number:02}" for number in range(25, 5, -1)]
    assert (found.other_rows, found.others["requests"], found.others["request_bytes"]) == (5, 15, 150)
    assert found.total["requests"] == sum(range(26)) == 325


def test_few_rows_are_one_query_and_many_have_the_same_ranking(
    spark: SparkSession, queries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sums are of a decimal number of more digits than Python's sums have, and of a column with a null."""
    large = Decimal("1234567890123456789012345678.25")
    frame = spark.createDataFrame(
        [(1, large, 5), (2, Decimal(1), None), (3, Decimal("0.5"), 7)], "id int, amount decimal(38,2), count long"
    )
    few = sums.ranking(frame, ("amount", "count"), sf.desc("id"), limit=1)
    assert len(queries) == 1
    monkeypatch.setattr(sums, "FEW", 2)
    assert sums.ranking(frame, ("amount", "count"), sf.desc("id"), limit=1) == few
    assert (few.rows, few.other_rows) == ([{"id": 3, "amount": Decimal("0.5"), "count": 7}], 2)
    assert (few.others, few.total) == (
        {"amount": Decimal("1234567890123456789012345679.25"), "count": 5},
        {"rows": 3, "amount": Decimal("1234567890123456789012345679.75"), "count": 12},
    )


# --- what is not there ---


def test_without_tables_the_report_names_the_jobs_that_write_them() -> None:
    read = Read(report({}, made=MADE))
    no_references(read)
    for anchor, table in {
        "glance": "usage", "used": "usage", "senders": "usage", "throttling": "usage", "what-if": "what_if",
        "recommendations": "recommendations", "backtest": "backtest", "bills": "chargeback", "costs": "costs",
        "anomalies": "anomalies", "budgets": "budgets",
    }.items():  # fmt: skip
        sentence = f"There is no table {table} yet: headrace pipeline {MADE_BY[table]} creates it."
        assert sentence in read.texts[anchor]
    assert "There are no records of any instance." in read.texts["quality"]


def test_empty_tables_say_so(spark: SparkSession) -> None:
    empty = {name: frame.limit(0) for name, frame in tables_of(spark).items()}
    read = Read(report(empty, made=MADE))
    assert "The table usage has no records in this period." in read.texts["glance"]
    assert "There is no usage in this period." in read.texts["used"]
    assert "The table recommendations is empty." in read.texts["recommendations"]
    sentence = "There is no back-test: headrace pipeline recommend --backtest-from makes one for later days."
    assert sentence in read.texts["backtest"]
    assert "The table costs is empty." in read.texts["costs"]
    assert "The table chargeback has no bills" in read.text("bills")
    assert "The table budgets has no months" in read.text("budgets")
    assert "the given quotas apply to none of the usage" in read.text("what-if")
    assert "No usage was unlike an entity's own past." in read.texts["anomalies"]
    assert "No lines are in quarantine." in read.texts["quality"]
    assert not [tag for tag, _ in read.tags if tag in ("svg", "table")]


def test_what_has_no_rows_is_not_asked_for(spark: SparkSession, queries: list[str]) -> None:
    """No sender is throttled, no sender would be, and no records are missing."""
    tables = {
        "usage": usage(spark, [record(sequence=0)]),
        "what_if": table_of(spark, schemas.WHAT_IF, answer("alice")),
        "recommendations": tables_of(spark)["recommendations"],
    }
    read = Read(report(tables, made=MADE))
    assert "No sender would be throttled." in read.text("what-if")
    assert "No gaps were found." in read.text("quality")
    # Usage: all, by time, by user, by client id and by quota key; and one for each table of other jobs, and for gaps.
    assert len(queries) == 8, queries


def test_usage_without_throttles_or_bytes(spark: SparkSession) -> None:
    records = [record(sequence=0, requests=0, request_bytes=0, response_bytes=0, thread_ms=0.0)]
    read = Read(report({"usage": usage(spark, records)}, made=MADE))
    assert "None of 0 requests was throttled or refused." in read.texts["throttling"]
    assert read.row("senders", "alice", "app-1")[-1] == "-"
    assert "No gaps were found." in read.text("quality")


# --- days and steps ---


def test_days_are_those_asked_for(spark: SparkSession) -> None:
    records = [record(NOON + 86_400 * day, requests=10**day) for day in range(4)]
    tables = {"usage": usage(spark, records), "anomalies": tables_of(spark)["anomalies"]}
    days = Days(first=dt.date(2026, 9, 22), last=dt.date(2026, 9, 23))
    read = Read(report(tables, made=MADE, days=days, title=SCRIPT))
    assert read.row("glance", "requests") == ["110"]
    assert "No usage was unlike an entity's own past." in read.texts["anomalies"]
    assert SCRIPT in read.texts[""]
    about = "From 2026-09-22 to 2026-09-23, UTC. Made by headrace pipeline report on 2026-09-22 at 08:30 UTC."
    assert about in read.texts[""]


# --- the command ---


def run(lake: str | Path, *arguments: str) -> Result:
    return CliRunner().invoke(pipeline, ["report", "--lake", str(lake), *arguments])


def test_the_command_writes_what_is_in_the_lake(folder: Path, done: Result, read: Read) -> None:
    assert (done.exit_code, done.stdout) == (0, "")
    assert f"KiB in {folder / 'report.html'}" in done.stderr
    assert "Ours & theirs" in read.texts[""]
    assert read.row("glance", "requests") == ["1,005"]
    assert read.row("bills", "search") == ["1", "2.00"]
    assert [path.name for path in folder.iterdir() if path.suffix == ".draft"] == []


@pytest.mark.exhaustive
def test_a_lake_with_bills_alone_has_a_report(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, str(tmp_path / "lake"))
    with lake.release() as tables:
        tables.replace("chargeback", tables_of(spark)["chargeback"].coalesce(1), "period", "date")
    result = run(lake.root, "--output", str(tmp_path / "report.html"))
    assert (result.exit_code, result.stdout) == (0, "")
    read = Read((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert read.row("bills", "search") == ["1", "2.00"]
    assert "headrace pipeline what-if creates it" in read.text("what-if")


def test_errors_name_their_cause(spark: SparkSession, tmp_path: Path) -> None:
    missing = run(tmp_path / "nowhere", "--output", str(tmp_path / "report.html"))
    assert (missing.exit_code, missing.stderr) == (
        1,
        f"headrace pipeline: --lake {tmp_path}/nowhere does not exist; headrace pipeline ingest creates it\n",
    )
    folder = run(tmp_path, "--output", str(tmp_path / "no" / "report.html"))
    assert folder.exit_code == 1
    assert f"the folder {tmp_path}/no does not exist" in folder.stderr
    turned = run(tmp_path, "--output", "x.html", "--from", "2026-09-22", "--to", "2026-09-21")
    assert turned.exit_code == 2
    assert "--from 2026-09-22 is after --to 2026-09-21" in turned.stderr
    assert not (tmp_path / "report.html").exists()


# --- several clusters ---


@pytest.fixture(scope="module")
def of_two(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake of usage of two clusters; on the first day, proxy-a-1 records before it knows its cluster."""
    lake = Lake(spark, str(tmp_path_factory.mktemp("two")))
    records = [
        record(NOON, sequence=0, cluster=None, requests=2),
        record(NOON + 1, sequence=1, requests=3),
        record(NOON + 86_400, instance="proxy-b-1", sequence=0, cluster="cluster-2", requests=50),
    ]
    lake.replace("usage", usage(spark, records).coalesce(1), "date", "hour")
    return lake


@pytest.mark.exhaustive
def test_records_of_other_clusters_are_left_out_and_missing_tables_are_named(of_two: Lake, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    result = run(of_two.root, "--cluster", "cluster-1", "--output", str(file))
    assert (result.exit_code, result.stdout) == (0, ""), result.output
    read = Read(file.read_text(encoding="utf-8"))
    assert "headrace pipeline what-if creates it" in read.text("what-if")
    assert read.row("glance", "requests") == ["3"]
    assert "with records: 2. Of these, 0 ended normally" in read.text("quality")
    assert "No gaps were found." in read.text("quality")
    assert "headrace pipeline rollup --prices creates it" in read.text("bills")


def test_records_without_a_cluster_are_those_of_the_only_one(of_two: Lake, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    result = run(of_two.root, "--to", "2026-09-21", "--output", str(file))
    assert result.exit_code == 0, result.output
    read = Read(file.read_text(encoding="utf-8"))
    assert "Cluster cluster-1." in read.text("")
    assert read.row("glance", "requests") == ["5"]
    assert "No gaps were found." in read.text("quality")


def test_bills_of_several_clusters_are_not_summed_without_usage(folder: Path, tmp_path: Path) -> None:
    result = run(folder / "lake", "--from", f"{LATER}", "--output", str(tmp_path / "report.html"))
    assert result.exit_code == 1
    assert "the table chargeback is of 2 clusters, cluster-1, cluster-2; expected --cluster ID" in result.output


def test_bills_of_one_cluster_and_of_all_are_apart(spark: SparkSession) -> None:
    lines = [line | {"cluster": cluster} for cluster in ("cluster-1", None) for line in bill("search", 1)]
    captions = [
        part.caption for part in bills(table_of(spark, schemas.CHARGEBACK, *lines)).parts if isinstance(part, Table)
    ]
    assert captions[::2] == [
        "Bills by day of all clusters, in EUR: teams, at most 20",
        "Bills by day of cluster cluster-1, in EUR: teams, at most 20",
    ]


# --- a real browser ---

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BLUE = (0x00, 0x72, 0xB2)
"""The first colour of `headrace.pipeline.report.style` in the light style."""


def browse(page: str, folder: Path, *options: str) -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"there is no browser on the PATH: none of {', '.join(BROWSERS)}")
    file = folder / "report.html"
    file.write_text(page, encoding="utf-8")
    command = [
        found, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
        "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}", *options, file.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_a_browser_finds_names_to_be_text(page: str, tmp_path: Path) -> None:
    """Chromium's serialization of the document would show a script as an element."""
    read = Read(browse(page, tmp_path, "--dump-dom"))
    no_references(read)
    assert SCRIPT in {text.strip() for text in read.texts["senders"]}
    assert list(SECTIONS) == [attributes["id"] for tag, attributes in read.tags if tag == "section"]


def test_a_browser_draws_the_bars(page: str, tmp_path: Path) -> None:
    shot = tmp_path / "shot.png"
    browse(page, tmp_path, f"--screenshot={shot}", "--window-size=700,1300")
    # One bar of each of the three plots is of this colour: 100 pixels high, a fourth of the width of some 630.
    assert pixels_of(shot.read_bytes()).count(bytes(BLUE)) > 2 * 100 * 630 // 4
