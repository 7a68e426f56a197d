"""The report: numbers worked out by hand, names that stay text, a file that loads nothing; in a real browser, too."""

from __future__ import annotations

import datetime as dt
import shutil
import struct
import subprocess
import zlib
from decimal import Decimal
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from pipeline import schemas
from pipeline.cli import pipeline
from pipeline.lake import MADE_BY, Lake
from pipeline.report import SECTIONS, Days, report, sums, words
from pipeline.report.figures import over_time, ranked
from tests.pipeline.records import NOON, record, usage

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

GIB = 2**30
HOUR_S = 3600
SCRIPT = "<script>alert(1)</script>"
ODD = 'Jörg "J" O\'Neil & 漢字'
REVERSED = "safe\u202egro.live"
MADE = dt.datetime(2026, 9, 22, 8, 30, tzinfo=dt.UTC)
MONDAY = dt.date(2026, 9, 21)
ONE_O_CLOCK = dt.datetime(2026, 9, 21, 13, tzinfo=dt.UTC)

PRODUCER, CONSUMER, REQUESTS = "producer_byte_rate", "consumer_byte_rate", "request_percentage"


class Read(HTMLParser):
    """The document, as a browser would have it: texts by section, every tag with its attributes. Tags must match."""

    VOID = frozenset({"meta"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.tables: dict[str, list[list[list[str]]]] = {}
        self.open: list[str] = []
        self._section = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "section":
            self._section = dict(attrs)["id"] or ""
        if tag == "table":
            self.tables.setdefault(self._section, []).append([])
        if tag == "tr":
            self.tables[self._section][-1].append([])
        if tag in ("td", "th"):
            self.tables[self._section][-1][-1].append("")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._section, []).append(data)
        if {"td", "th"} & set(self.open):
            self.tables[self._section][-1][-1][-1] += data

    def text(self, section: str) -> str:
        return " ".join(self.texts[section])

    def row(self, section: str, *first: str, table: int | None = None) -> list[str]:
        """The one that begins so: what it has behind that. In one table of the section, or in any."""
        tables = self.tables[section] if table is None else [self.tables[section][table]]
        (found,) = [row for rows in tables for row in rows if tuple(row[: len(first)]) == first]
        return found[len(first) :]


def no_references(read: Read) -> None:
    """Nothing that a browser would fetch, or run."""
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in read.tags}
    for tag, attributes in read.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href", "action", "data", "srcset"):
                assert (value or "").startswith("#"), (tag, name, value)
    style = " ".join(read.texts[""])
    assert "url(" not in style
    assert "@import" not in style


RECORDS = [
    # 13:00: alice, 3 GiB in; 14:00: the one with the script, 1 GiB out; 15:00: nobody; 16:00: odd ones.
    record(NOON, sequence=0, requests=2, request_bytes=2 * GIB, response_bytes=0, thread_ms=3000.0,
           throttled={PRODUCER: 2}, throttle_ms={PRODUCER: 1500}),
    record(NOON + 59, sequence=1, requests=1, errors=1, request_bytes=GIB, response_bytes=0, thread_ms=600.0,
           throttled={REQUESTS: 1}, throttle_ms={REQUESTS: 250}, refused={"controller_mutation_rate": 1}),
    record(NOON + HOUR_S, sequence=3, user=SCRIPT, client_id="<img src=x>", api_key=1, requests=1000, request_bytes=0,
           response_bytes=GIB, thread_ms=0.0, throttled={CONSUMER: 5}, throttle_ms={CONSUMER: 100}),
    record(NOON + 3 * HOUR_S, sequence=4, user=ODD, client_id=REVERSED, requests=1, request_bytes=1024,
           response_bytes=512, thread_ms=0.0),
    record(NOON + 3 * HOUR_S, sequence=9, user=None, client_id=None, requests=1, request_bytes=0, response_bytes=0,
           thread_ms=0.0),
]  # fmt: skip


def table(spark: SparkSession, schema: StructType, *rows: dict[str, Any]) -> DataFrame:
    """What a row does not say is null."""
    return spark.createDataFrame([tuple(row.get(name) for name in schema.names) for row in rows], schema)


def answer(user: str, **members: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(("throttled", "refused", "throttle_ms", "longest_throttle_ms", "waits", "waited_ms"), 0)
    return {
        "hour": ONE_O_CLOCK, "key": PRODUCER, "user": user, "entity": f"user={user}", "quota": 2.0**20, "events": 4,
        "amount": 2e6, "shifted_amount": 0.0, "longest_shift_ms": 0, **nothing, **members,
    }  # fmt: skip


def bill(team: str, gib: int) -> list[dict[str, Any]]:
    head = {"period": "day", "date": MONDAY, "team": team, "currency": "EUR", "amount": Decimal(2 * gib)}
    used = {"used": Decimal(gib * GIB), "unit": "bytes", "quantity": Decimal(gib), "per": "GiB", "price": Decimal(2)}
    return [{**head, "line": 1, "item": "produced", **used}, {**head, "line": 2, "item": "total"}]


def tables_of(spark: SparkSession) -> dict[str, DataFrame]:
    """Every table, with something in it."""
    lost = {"records": 7, "requests": 30, "request_bytes": 4096, "response_bytes": 0, "reason": "no room for 12 s"}
    late = [
        {"date": MONDAY, "value": "{}", "reason": f"late: second {second}", "ingested": ONE_O_CLOCK}
        for second in (1, 22, 333)
    ]
    held = {
        "throttled": 6, "throttle_ms": 9000, "longest_throttle_ms": 3000, "waits": 5, "waited_ms": 7200,
        "shifted_amount": 1e6, "mean_shift_ms": 900.0, "longest_shift_ms": 1800, "events": 60,
    }  # fmt: skip
    quota = {"p50": 1024.0, "p95": 2048.0, "p99": 2.0**20, "peak": 1.5 * 2**20, "burst": 2.0, "headroom": 2.0}
    percent = {"p50": 1.0, "p95": 2.0, "p99": 3.0, "peak": 4.0, "burst": 2.0, "headroom": 2.0}
    odd = {"kind": "retry storm", "user": SCRIPT, "client_id": "c", "observed": 120.0, "usual": 1.5, "score": 9.0}
    fitted = {"base_ms": 0.0712, "per_kib_ms": 0.0015, "samples": 100, "requests": 90_000, "error_ms": 0.02}
    return {
        "usage": usage(spark, RECORDS),
        "marks": table(
            spark,
            schemas.MARKS,
            {"date": MONDAY, "kind": "lost", "instance": "proxy-a-1", "sequence": 2, "second": NOON, **lost},
            {"date": dt.date(1970, 1, 1), "kind": "end", "instance": "proxy-b-1", "sequence": 0},
        ),
        "quarantine": table(
            spark,
            schemas.QUARANTINE,
            *late,
            {"date": MONDAY, "value": SCRIPT, "reason": "no kind", "ingested": ONE_O_CLOCK},
        ),
        "recommendations": table(
            spark,
            schemas.RECOMMENDATIONS,
            {"user": SCRIPT, "key": PRODUCER, "quota": 2.0**21, **quota, "active_seconds": 3600, "throttled": 4,
             "reason": f"of {ODD}"},
            {"user": "bob", "client_id": "app-1", "key": REQUESTS, "quota": 12.5, **percent, "active_seconds": 60,
             "throttled": 0, "reason": "the least"},
        ),
        "what_if": table(spark, schemas.WHAT_IF, answer(SCRIPT, **held), answer("bob")),
        "chargeback": table(spark, schemas.CHARGEBACK, *bill("<b>payments</b>", 3), *bill("search", 1)),
        "costs": table(
            spark,
            schemas.COSTS,
            {"api_key": 0, **fitted, "default_error_ms": 0.05, "taken": True},
            {"api_key": 99, **fitted, "default_error_ms": 0.01, "taken": False},
        ),
        "anomalies": table(spark, schemas.ANOMALIES, {"start": ONE_O_CLOCK, **odd, "told": f"{SCRIPT}: 120"}),
    }  # fmt: skip


@pytest.fixture(scope="module")
def page(spark: SparkSession) -> str:
    return report(tables_of(spark), made=MADE)


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


def test_figures_are_told_and_tables_have_heads(read: Read) -> None:
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
    assert read.row("glance", "requests refused, whole or in part") == ["1"]


def test_hours(read: Read) -> None:
    assert read.row("used", "2026-09-21 13:00") == ["3", "1", "3 GiB", "0 B", "3.60 s", "3", "1"]
    assert read.row("used", "2026-09-21 14:00") == ["1,000", "0", "0 B", "1 GiB", "0 ms", "5", "0"]
    assert read.row("used", "2026-09-21 16:00") == ["2", "0", "1 KiB", "512 B", "0 ms", "0", "0"]
    assert "most in the hour from 2026-09-21 13:00 UTC, 3 GiB in and 0 B out" in str(read.tags)
    assert "2026-09-21 13:00 UTC: 3 GiB in" in read.texts["used"]


def test_who_used_it(read: Read) -> None:
    assert read.row("senders", "alice", table=0) == ["3", "1", "3 GiB", "0 B", "3.60 s", "3", "1", "75.0 %"]
    assert read.row("senders", SCRIPT, "<img src=x>") == ["1,000", "0", "0 B", "1 GiB", "0 ms", "5", "0", "25.0 %"]
    everybody = ["1,005", "1", "3.00 GiB", "1.00 GiB", "3.60 s", "8", "1", "100.0 %"]
    assert read.row("senders", "all", table=0) == everybody
    assert read.row("senders", "all", "", table=1) == everybody
    # Of the bytes out, thread time or requests, each has all but nothing; names decide between equals.
    assert [row[0] for row in read.tables["senders"][0]] == ["user", "alice", SCRIPT, "(unnamed)", ODD, "all"]
    assert "(unnamed) made 1 request:" in read.text("senders")


def test_throttling(read: Read) -> None:
    assert "8 of 1,005 requests (0.8 %) were throttled, for 1.85 s in all; 1 were refused" in read.text("throttling")
    assert read.row("throttling", PRODUCER) == ["2", "1.50 s", "750 ms", "0"]
    assert read.row("throttling", "controller_mutation_rate") == ["0", "0 ms", "-", "1"]
    assert read.row("throttling", "alice", "app-1", REQUESTS) == ["1", "250 ms", "250 ms", "0"]
    assert read.row("throttling", SCRIPT, "<img src=x>", CONSUMER) == ["5", "100 ms", "20 ms", "0"]


def test_recommendations(read: Read) -> None:
    assert read.row("recommendations", SCRIPT, "-") == [
        "2 MiB/s", "1 KiB/s", "1 MiB/s", "1.50 MiB/s", "3,600", "4", f"of {ODD}",
    ]  # fmt: skip
    assert read.row("recommendations", "bob", "app-1") == ["12.5 %", "1 %", "3 %", "4 %", "60", "0", "the least"]
    assert f"{SCRIPT}: quota 2 MiB/s, p99 1 MiB/s, peak 1.50 MiB/s" in read.texts["recommendations"]


def test_what_if(read: Read) -> None:
    assert read.row("what-if", PRODUCER) == ["2", "1", "6", "0", "5", "7.20 s", "25.0 %"]
    assert read.row("what-if", SCRIPT, "-", PRODUCER) == [
        f"user={SCRIPT}", "1 MiB/s", "6 of 60", "0", "3 s", "7.20 s", "50.0 %", "1.80 s",
    ]  # fmt: skip
    assert "bob" not in read.text("what-if")


def test_bills_costs_and_anomalies(read: Read) -> None:
    assert read.row("bills", "all") == ["2", "8.00"]
    assert read.row("bills", "produced") == ["4", "GiB", "8.00"]
    assert read.row("costs", "Produce") == ["0.071 ms", "0.0015 ms", "90,000", "100", "0.020 ms", "0.050 ms", "yes"]
    assert read.row("costs", "API 99")[-1] == "no"
    assert read.row("anomalies", "2026-09-21 13:00", "retry storm", SCRIPT) == [
        "c",
        "120",
        "1.50",
        "9",
        f"{SCRIPT}: 120",
    ]


def test_data_quality(read: Read) -> None:
    """Instance a has 0, 1, 2 (lost), 3, 4 and 9."""
    assert "Missing: 4 records in 1 gap of 1 instance" in read.text("quality")
    assert read.row("quality", "proxy-a-1") == ["2026-09-21 13:00:00", "2026-09-21 16:00:00", "6", "4", "1", "7", "no"]
    assert read.row("quality", "no room for N s") == ["1", "7", "30", "4 KiB", "0 B"]
    assert read.row("quality", "late: second N") == ["3", "2026-09-21 13:00:00"]
    assert read.row("quality", "no kind") == ["1", "2026-09-21 13:00:00"]


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


# --- what is not there ---


def test_without_tables_it_says_which_job_makes_them() -> None:
    read = Read(report({}, made=MADE))
    no_references(read)
    for anchor, table in {
        "glance": "usage", "used": "usage", "senders": "usage", "throttling": "usage", "what-if": "what_if",
        "recommendations": "recommendations", "bills": "chargeback", "costs": "costs", "anomalies": "anomalies",
    }.items():  # fmt: skip
        told = f"There is no table {table} yet: headrace pipeline {MADE_BY[table]} makes it."
        assert told in read.texts[anchor]
    assert "No instance has recorded anything." in read.texts["quality"]


def test_empty_tables_say_so(spark: SparkSession) -> None:
    empty = {name: frame.limit(0) for name, frame in tables_of(spark).items()}
    read = Read(report(empty, made=MADE))
    assert "The table usage has no records of this time." in read.texts["glance"]
    assert "There is no usage of this time." in read.texts["used"]
    assert "The table recommendations is empty." in read.texts["recommendations"]
    assert "The table costs is empty." in read.texts["costs"]
    assert "The table chargeback has no bills" in read.text("bills")
    assert "no usage would be charged" in read.text("what-if")
    assert "Nothing was unlike each entity's own past." in read.texts["anomalies"]
    assert "No line was put aside." in read.texts["quality"]
    assert not [tag for tag, _ in read.tags if tag in ("svg", "table")]


def test_usage_without_throttles_or_bytes(spark: SparkSession) -> None:
    records = [record(sequence=0, requests=0, request_bytes=0, response_bytes=0, thread_ms=0.0)]
    read = Read(report({"usage": usage(spark, records)}, made=MADE))
    assert "None of 0 requests was throttled or refused." in read.texts["throttling"]
    assert read.row("senders", "alice", "app-1")[-1] == "-"
    assert "No record is missing in between." in read.text("quality")


# --- days and steps ---


def test_days_are_those_asked_for(spark: SparkSession) -> None:
    records = [record(NOON + 86_400 * day, requests=10**day) for day in range(4)]
    tables = {"usage": usage(spark, records), "anomalies": tables_of(spark)["anomalies"]}
    days = Days(first=dt.date(2026, 9, 22), last=dt.date(2026, 9, 23))
    read = Read(report(tables, made=MADE, days=days, title=SCRIPT))
    assert read.row("glance", "requests") == ["110"]
    assert "Nothing was unlike each entity's own past." in read.texts["anomalies"]
    assert SCRIPT in read.texts[""]
    about = "From 2026-09-22 to 2026-09-23, UTC. Made by headrace pipeline report on 2026-09-22 at 08:30 UTC."
    assert about in read.texts[""]


@pytest.mark.parametrize(
    ("hours", "step_s", "told"),
    [
        (1, 3600, "hour"),
        (240, 3600, "hour"),
        (241, 3 * 3600, "3 hours"),
        (24 * 240, 86_400, "day"),
        (24 * 240 + 1, 2 * 86_400, "2 days"),
        (24 * 365 * 8000, 16_384 * 86_400, "16384 days"),
    ],
)
def test_bars_are_few(hours: int, step_s: int, told: str) -> None:
    assert sums.step_of(0, hours * HOUR_S - 1) == step_s
    assert words.step(step_s) == told


# --- words ---


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (words.bytes_of(0), "0 B"),
        (words.bytes_of(1023), "1,023 B"),
        (words.bytes_of(1536), "1.50 KiB"),
        (words.bytes_of(5 * 2**40), "5 TiB"),
        (words.bytes_of(2000 * 2**60), "2,000 EiB"),
        (words.count(1234567), "1,234,567"),
        (words.number(1234.56), "1,235"),
        (words.number(12.345), "12.3"),
        (words.number(0.000123), "0.00012"),
        (words.number(float("nan")), "-"),
        (words.number(float("inf")), "-"),
        (words.duration(999), "999 ms"),
        (words.duration(1500), "1.50 s"),
        (words.duration(61_000), "1 min 1 s"),
        (words.duration(7_200_000), "2 h"),
        (words.duration(90_000_000), "1 d 1 h"),
        (words.share(1, 3), "33.3 %"),
        (words.share(1, 10_000), "< 0.1 %"),
        (words.share(0, 5), "0.0 %"),
        (words.share(1, 0), "-"),
        (words.money(Decimal("1234.5")), "1,234.50"),
        (words.of_key(PRODUCER, 2048.0), "2 KiB/s"),
        (words.of_key(REQUESTS, 50.0), "50 %"),
        (words.of_key("controller_mutation_rate", 2.5), "2.50/s"),
        (words.name(None), "-"),
        (words.name(""), '""'),
        (words.name("  "), '"  "'),
        (words.name("a\nb\x00\ue000"), r"a\nb\x00\ue000"),
        (words.name("x" * 500), "x" * 119 + "…"),
        (words.second(NOON + 61), "2026-09-21 13:01:01"),
    ],
)
def test_words(said: str, expected: str) -> None:
    assert said == expected


# --- pictures ---


def test_two_of_the_same_name_are_two_bars() -> None:
    same = {"name": "same", "series": "in", "value": 1}
    rows: list[dict[str, Any]] = [{"place": place, "told": f"number {place}", **same} for place in range(2)]
    svg = ranked(caption="", told="", unit="B", rows=rows, series=["in"]).svg
    assert svg.count("<title>number ") == 2
    assert svg.count(">same<") == 4  # the text and its tooltip


def test_bars_stand_on_each_other_in_order() -> None:
    rows = [
        {"start": 0, "end": 3600, "series": series, "value": value, "told": f"{series}!"}
        for series, value in (("out", 1), ("in", 3))
    ]
    svg = over_time(caption="", told="", unit="B", rows=rows, series=["in", "out"]).svg
    assert 0 < svg.index("in!") < svg.index("out!")
    assert 'fill="var(--c1)"><title>in!' in svg.replace(' stroke="var(--paper)" stroke-width="0.3"', "")


# --- the command ---


def run(lake: str | Path, *arguments: str) -> Result:
    return CliRunner().invoke(pipeline, ["report", "--lake", str(lake), *arguments])


def test_the_command_writes_what_is_in_the_lake(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, str(tmp_path / "lake"))
    tables = tables_of(spark)
    lake.append("usage", tables["usage"].coalesce(1), "date", "hour")
    lake.replace("chargeback", tables["chargeback"].coalesce(1), "period", "date")
    file = tmp_path / "report.html"
    file.write_text("an older one")
    result = run(lake.root, "--output", str(file), "--title", "Ours & theirs", "--to", "2026-09-21")
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"KiB in {file}" in result.stderr
    read = Read(file.read_text(encoding="utf-8"))
    assert "Ours & theirs" in read.texts[""]
    assert read.row("glance", "requests") == ["1,005"]
    assert read.row("bills", "search") == ["1", "2.00"]
    assert "headrace pipeline what-if makes it" in read.text("what-if")
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".draft"] == []


def test_what_cannot_be_done_is_told(spark: SparkSession, tmp_path: Path) -> None:
    missing = run(tmp_path / "nowhere", "--output", str(tmp_path / "report.html"))
    assert (missing.exit_code, missing.stderr) == (
        1,
        f"headrace pipeline: --lake {tmp_path}/nowhere does not exist; headrace pipeline ingest makes it\n",
    )
    folder = run(tmp_path, "--output", str(tmp_path / "no" / "report.html"))
    assert folder.exit_code == 1
    assert f"there is no folder {tmp_path}/no" in folder.stderr
    turned = run(tmp_path, "--output", "x.html", "--from", "2026-09-22", "--to", "2026-09-21")
    assert turned.exit_code == 2
    assert "--from 2026-09-22 is after --to 2026-09-21" in turned.stderr
    assert not (tmp_path / "report.html").exists()


# --- a real browser ---

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BLUE = (0x00, 0x72, 0xB2)
"""The first colour of `pipeline.report.style`, in the light."""


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
    """As chromium has understood it: its own HTML of the document, where a script would be one."""
    read = Read(browse(page, tmp_path, "--dump-dom"))
    no_references(read)
    assert SCRIPT in {text.strip() for text in read.texts["senders"]}
    assert list(SECTIONS) == [attributes["id"] for tag, attributes in read.tags if tag == "section"]


def test_a_browser_draws_the_bars(page: str, tmp_path: Path) -> None:
    shot = tmp_path / "shot.png"
    browse(page, tmp_path, f"--screenshot={shot}", "--window-size=700,1300")
    # One bar of each of the three plots is of this colour: 100 pixels high, a fourth of the width of some 630.
    assert pixels_of(shot.read_bytes()).count(bytes(BLUE)) > 2 * 100 * 630 // 4


def pixels_of(png: bytes) -> list[bytes]:
    """Of a PNG of 8 bits a colour."""
    width, height, depth, kind = struct.unpack(">IIBB", png[16:26])
    assert (depth, kind in (2, 6)) == (8, True)
    size = 3 if kind == 2 else 4
    data, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += length + 12
    lines, above = zlib.decompress(data), bytearray(width * size)
    pixels: list[bytes] = []
    for row in range(height):
        begin = row * (width * size + 1)
        line = unfiltered(lines[begin], bytearray(lines[begin + 1 : begin + 1 + width * size]), above, size)
        pixels += [bytes(line[x : x + 3]) for x in range(0, len(line), size)]
        above = line
    return pixels


def unfiltered(kind: int, line: bytearray, above: bytearray, size: int) -> bytearray:
    for index in range(len(line)):
        left = line[index - size] if index >= size else 0
        corner = above[index - size] if index >= size else 0
        up = above[index]
        guess = left + up - corner
        nearest = min((left, up, corner), key=lambda each: abs(guess - each))
        line[index] = (line[index] + (0, left, up, (left + up) // 2, nearest)[kind]) & 0xFF
    return line
