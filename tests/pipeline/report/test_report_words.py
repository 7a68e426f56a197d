"""Numbers, names and times as text, and plots; without Spark."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from headrace.pipeline.report import sums, words
from headrace.pipeline.report.figures import over_time, ranked
from tests.pipeline.records import NOON
from tests.pipeline.report.report_pages import HOUR_S, PRODUCER, REQUESTS


@pytest.mark.parametrize(
    ("hours", "step_s", "expected"),
    [
        (1, 3600, "hour"),
        (240, 3600, "hour"),
        (241, 3 * 3600, "3 hours"),
        (24 * 240, 86_400, "day"),
        (24 * 240 + 1, 2 * 86_400, "2 days"),
        (24 * 365 * 8000, 16_384 * 86_400, "16384 days"),
    ],
)
def test_bars_are_few(hours: int, step_s: int, expected: str) -> None:
    assert sums.step_of(0, hours * HOUR_S - 1) == step_s
    assert words.step(step_s) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
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
def test_words(text: str, expected: str) -> None:
    assert text == expected


# --- pictures ---


def test_two_of_the_same_name_are_two_bars() -> None:
    same = {"name": "same", "series": "in", "value": 1}
    rows: list[dict[str, Any]] = [{"place": place, "description": f"number {place}", **same} for place in range(2)]
    svg = ranked(caption="", description="", unit="B", rows=rows, series=["in"]).svg
    assert svg.count("<title>number ") == 2
    assert svg.count(">same<") == 4  # the text and its tooltip


def test_bars_stand_on_each_other_in_order() -> None:
    rows = [
        {"start": 0, "end": 3600, "series": series, "value": value, "description": f"{series}!"}
        for series, value in (("out", 1), ("in", 3))
    ]
    svg = over_time(caption="", description="", unit="B", rows=rows, series=["in", "out"]).svg
    assert 0 < svg.index("in!") < svg.index("out!")
    assert 'fill="var(--c1)"><title>in!' in svg.replace(' stroke="var(--paper)" stroke-width="0.3"', "")


def test_a_column_has_one_unit() -> None:
    sizes = [words.size_of(each) for each in (None, 0, 512, 3 * 2**20, 1536 * 2**10)]
    assert words.unit_of_all(sizes) == (2**20, "MiB")
    assert [each.in_unit(2**20) for each in sizes] == ["-", "0", "< 0.001", "3", "1.50"]
    assert words.unit_of_all([words.size_of(None), words.size_of(0)]) == (1, "B")
    assert words.unit_of_all([words.time_of(59_999), words.time_of(1)]) == (1000, "s")
    assert words.time_of(5_400_000).in_unit(words.unit_of_all([words.time_of(5_400_000)])[0]) == "1.50"
