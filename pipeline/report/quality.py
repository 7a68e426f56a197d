"""The section about data quality: rejected lines, and records that are missing or lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.pipeline.lake.schemas import MARKS
from headrace.pipeline.report import sums, words
from headrace.pipeline.report.page import Column, Content, Table
from headrace.pipeline.report.usage import others

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date

    from pyspark.sql import DataFrame

Found = tuple[str, Table | None]
"""A sentence, and its table."""


def quality(
    usage: DataFrame | None, marks: DataFrame | None, quarantine: DataFrame | None, kept_from: date | None = None
) -> Content:
    """Return the section. It covers the whole lake, not a range of days, since a gap lies between two sequence numbers.

    ``None`` stands for a table that does not exist. Usage was removed before ``kept_from``.
    """
    sentences: list[str] = ["This section covers the whole lake."]
    tables: list[Table] = []
    for sentence, table in (_missing(usage, marks, kept_from), _lost(marks), _quarantined(quarantine)):
        sentences.append(sentence)
        tables += [] if table is None else [table]
    return Content(sentences=tuple(sentences), parts=tuple(tables))


def _missing(usage: DataFrame | None, marks: DataFrame | None, kept_from: date | None) -> Found:
    if usage is None:
        return "There are no records of any instance.", None
    marks = usage.sparkSession.createDataFrame([], MARKS) if marks is None else marks
    numbers = sums.numbered(usage, marks, kept_from)
    ended = (
        f"Instances (runs of a process of the proxy) with records: {words.count(numbers['instances'])}."
        f" Of these, {words.count(numbers['ended'])} ended normally; the others still run or were killed, and"
        " their last second may be missing."
    )
    if not numbers["short"]:
        return f"{ended} No gaps were found.", None
    gaps = sums.top_gaps(usage, marks, kept_from)
    summed = gaps.total
    found = (
        f"{ended} Missing: {words.some(summed['missing'], 'record')} in {words.some(summed['gaps'], 'gap')} of"
        f" {words.some(summed['rows'], 'instance')}; all sums over the times of these gaps are too low."
    )
    rows = [
        (
            words.name(row["instance"]), words.second(row["first_second"]), words.second(row["last_second"]),
            *_counts(row), "yes" if row["ended"] else "no",
        )
        for row in gaps.rows
    ]  # fmt: skip
    if gaps.other_rows:
        rows.append((others(gaps.other_rows), "", "", *_counts(gaps.others), ""))
    table = Table(
        caption=f"Instances with gaps, at most {sums.SHOWN}",
        columns=(
            Column(title="instance"), Column(title="from, UTC", whole=True), Column(title="to, UTC", whole=True),
            Column(title="seen", number=True), Column(title="missing", number=True), Column(title="gaps", number=True),
            Column(title="reported as lost", number=True), Column(title="ended"),
        ),
        rows=tuple(rows),
    )  # fmt: skip
    return found, table


def _counts(row: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(words.count(row[name]) for name in ("seen", "missing", "gaps", "lost"))


def _lost(marks: DataFrame | None) -> Found:
    lost = None if marks is None else sums.top_losses(marks)
    if lost is None or not lost.rows:
        return "No instance reported lost records.", None
    rows = [(words.text(row["reason"]), words.count(row["instances"]), *_losses(row)) for row in lost.rows]
    if lost.other_rows:
        rows.append((others(lost.other_rows), "", *_losses(lost.others)))
    titles = ("instances", "records", "requests, as far as known", "bytes in", "bytes out")
    table = Table(
        caption="Lost records, by reason",
        columns=(Column(title="reason"), *(Column(title=title, number=True) for title in titles)),
        rows=tuple(rows),
    )
    return f"Instances reported as lost: {words.some(lost.total['records'], 'record')}.", table


def _losses(row: Mapping[str, int]) -> tuple[str | words.Quantity, ...]:
    return (
        words.count(row["records"]),
        words.count(row["requests"]),
        words.size_of(row["request_bytes"]),
        words.size_of(row["response_bytes"]),
    )


def _quarantined(quarantine: DataFrame | None) -> Found:
    reasons = None if quarantine is None else sums.top_reasons(quarantine)
    if reasons is None or not reasons.rows:
        return "No lines are in quarantine.", None
    rows = [
        (words.text(row["reason"]), words.count(row["lines"]), words.second(row["last_second"])) for row in reasons.rows
    ]
    if reasons.other_rows:
        rows.append((others(reasons.other_rows), words.count(reasons.others["lines"]), ""))
    table = Table(
        caption="Lines in quarantine, by reason; N is any number",
        columns=(
            Column(title="reason"),
            Column(title="lines", number=True),
            Column(title="last found, UTC", whole=True),
        ),
        rows=tuple(rows),
    )
    sentence = (
        f"In quarantine (the table quarantine): {words.some(reasons.total['lines'], 'line')}. headrace pipeline ingest"
        " --quarantined ingests those that are valid by now."
    )
    return sentence, table
