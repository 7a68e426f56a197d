"""The report: the lake's tables as one HTML file with plots, which opens anywhere, without a network.

    words           numbers, times and names as text
    style           CSS for light and dark screens and for paper
    page            sections, tables and figures as HTML; the only module that escapes text
    figures         plots as SVG
    sums            aggregates of the tables, computed by Spark
    usage           the sections on usage over time, and by user and client
    throttling      the section on throttling
    proposals       the sections on recommended quotas, their back-test, costs and anomalies
    bills           the sections on bills and budgets
    quality         the section on the quality of the data

For a missing table, the report names the job that writes it. The file is small whatever the size of the tables: plots
have a limited number of bars, and tables have only the largest rows, followed by the sums of all others.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from headrace.pipeline.lake.tables import MADE_BY
from headrace.pipeline.report import bills, proposals, quality, sums, throttling, usage, words
from headrace.pipeline.report.page import Content, Page, Section, html

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import date, datetime

    from pyspark.sql import DataFrame

TITLE: Final = "Kafka usage and quotas"
SECTIONS: Final = {
    "glance": "At a glance",
    "used": "Usage over time",
    "senders": "Usage by user and client",
    "throttling": "Throttling",
    "recommendations": "Recommended quotas and present usage",
    "backtest": "Back-test of the recommended quotas",
    "what-if": "What-if: who would be throttled",
    "bills": "Bills",
    "budgets": "Budgets",
    "costs": "Cost model of requests",
    "anomalies": "Anomalies",
    "quality": "Data quality",
}
"""The titles of the sections by their anchors, in the order of the page."""


AT_ONCE: Final = 2
"""Number of sections that are made at the same time: a query for few rows uses one processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Days:
    """A range of days, both ends included; ``None`` means no limit."""

    first: date | None = None
    last: date | None = None

    def of(self, frame: DataFrame, column: str) -> DataFrame:
        """Return the rows whose ``column``, a date or a timestamp, is in these days."""
        day = sf.col(column).cast("date")
        if self.first is not None:
            frame = frame.where(day >= sf.lit(self.first))
        return frame if self.last is None else frame.where(day <= sf.lit(self.last))

    def __str__(self) -> str:
        if self.first is None and self.last is None:
            return "All days"
        if self.first == self.last:
            return f"{self.first}"
        since = "" if self.first is None else f"from {self.first}"
        until = "" if self.last is None else f"to {self.last}"
        return " ".join(filter(None, (since, until))).capitalize()


def report(
    tables: Mapping[str, DataFrame],
    *,
    made: datetime,
    days: Days | None = None,
    title: str = TITLE,
    cluster: str | None = None,
    recorded: DataFrame | None = None,
    kept_from: date | None = None,
) -> str:
    """Return the HTML file, made at the time ``made`` (UTC).

    ``tables`` are the existing tables of `headrace.pipeline.lake.tables`, with the rows of one ``cluster`` if that is
    known. ``recorded`` is the usage of all clusters, for the section on data quality, since the marks of instances
    have no cluster; ``None``: that of ``tables``. Usage was removed before ``kept_from``.
    """
    days = days or Days()
    whose = "" if cluster is None else f"Cluster {words.name(cluster)}. "
    about = f"{whose}{days}, UTC. Made by headrace pipeline report on {made:%Y-%m-%d at %H:%M} UTC."
    return html(Page(title=title, about=about, sections=tuple(_sections(tables, days, recorded, kept_from))))


def _sections(
    tables: Mapping[str, DataFrame], days: Days, recorded: DataFrame | None, kept_from: date | None
) -> Iterator[Section]:
    recorded = tables.get("usage") if recorded is None else recorded

    def of_usage() -> dict[str, Content]:
        return dict(_of_usage(days.of(tables["usage"], "date")) if "usage" in tables else _without_usage())

    def of_table(table: str) -> dict[str, Content]:
        anchor, made, column = _MADE_BY_JOBS[table]
        if table not in tables:
            return {anchor: _absent(table)}
        frame = tables[table]
        return {anchor: made(days.of(frame, column) if column in frame.columns else frame)}

    def of_quality() -> dict[str, Content]:
        return {"quality": quality.quality(recorded, tables.get("marks"), tables.get("quarantine"), kept_from)}

    contents: dict[str, Content] = {}
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for found in threads.map(
            lambda make: make(), [of_usage, *(partial(of_table, each) for each in _MADE_BY_JOBS), of_quality]
        ):
            contents |= found
    for anchor, title in SECTIONS.items():
        yield Section(anchor=anchor, title=title, content=contents[anchor])


def _of_usage(records: DataFrame) -> Iterator[tuple[str, Content]]:
    hours, throttled = sums.hourly(records).persist(), sums.throttles(records).persist()
    try:
        total = sums.overall(hours)
        yield "glance", usage.glance(total)
        if total["records"]:
            yield "used", usage.used(hours, total)
            yield "senders", usage.senders(hours, total)
            yield "throttling", throttling.throttling(throttled, total)
        else:
            yield from ((anchor, Content(sentences=("There is no usage in this period.",))) for anchor in _USAGE[1:])
    finally:
        hours.unpersist()
        throttled.unpersist()


def _without_usage() -> Iterator[tuple[str, Content]]:
    yield from ((anchor, _absent("usage")) for anchor in _USAGE)


def _absent(table: str) -> Content:
    return Content(sentences=(f"There is no table {table} yet: headrace pipeline {MADE_BY[table]} creates it.",))


_USAGE: Final = ("glance", "used", "senders", "throttling")
_MADE_BY_JOBS: Final[Mapping[str, tuple[str, Callable[[DataFrame], Content], str]]] = {
    "recommendations": ("recommendations", proposals.recommendations, ""),
    "backtest": ("backtest", proposals.backtest, ""),
    "what_if": ("what-if", throttling.what_if, "hour"),
    "chargeback": ("bills", bills.bills, "date"),
    "budgets": ("budgets", bills.budgets, "month"),
    "costs": ("costs", proposals.costs, ""),
    "anomalies": ("anomalies", proposals.anomalies, "start"),
}
"""The section of each table, the function that renders it, and the column with the days, or ""."""
