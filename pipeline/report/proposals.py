"""The sections about results of other jobs: recommended quotas and their back-test, the cost model and anomalies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf

from headrace.pipeline.report import sums, words
from headrace.pipeline.report.figures import against_quota, over_time
from headrace.pipeline.report.page import Column, Content, Figure, Table
from headrace.pipeline.report.usage import others
from headrace.quota_callbacks.entities import QuotaKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame

    from headrace.pipeline.report.sums import Numbers

DRAWN: Final = 12
"""Maximum number of quotas in a plot, for each key."""
MOST_APIS: Final = 200
"""Maximum number of APIs shown; Kafka has about 90."""


def recommendations(table: DataFrame) -> Content:
    """Return the section from the table ``recommendations``: each quota with the usage that it applies to."""
    largest = sums.top_recommendations(table)
    if not largest:
        return Content(sentences=("The table recommendations is empty.",))
    sentence = (
        "Usage is measured over the window of the quota. p50, p99 and peak are of the entity's usage. A quota below the"
        ' peak would have throttled the entity; the column "peaks above" says how often. For an entity that misbehaves,'
        " the quota is at most its present one. The largest quotas come first."
    )
    known = [key.value for key in QuotaKey if key.value in largest]
    others_in_order = [key for key in largest if key not in known]
    parts = [part for key in [*known, *others_in_order] for part in _of_key(key, largest[key])]
    return Content(sentences=(sentence,), parts=tuple(parts))


def _of_key(key: str, rows: Sequence[Numbers]) -> Iterator[Figure | Table]:
    count = rows[0]["count"]
    if any(row["quota"] is not None and row["peak"] is not None for row in rows):
        yield _drawn(key, rows[:DRAWN])
    more = f", {sums.SHOWN} of {count:,}" if count > sums.SHOWN else ""
    titles = ("quota", "present quota", "p50", "p99", "peak", "peaks above", "active seconds", "throttled so far")
    yield Table(
        caption=f"{words.name(key)}{more}",
        columns=(
            Column(title="user"), Column(title="client id"), *(Column(title=title, number=True) for title in titles),
            Column(title="misbehaviour", whole=True), Column(title="reason", roomy=True),
        ),
        rows=tuple(
            (
                words.name(row["user"]), words.name(row["client_id"]),
                *(words.of_key(key, row[name]) for name in ("quota", "present_quota", "p50", "p99", "peak")),
                *(words.count(row[name]) for name in ("peaks", "active_seconds", "throttled")),
                words.text(row["misbehaviour"]), words.text(row["reason"]),
            )
            for row in rows
        ),
    )  # fmt: skip


def _drawn(key: str, rows: Sequence[Numbers]) -> Figure:
    largest = max(row[name] or 0 for row in rows for name in ("quota", "peak", "p99"))
    in_bytes = key in (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE)
    divisor, unit = words.byte_unit(largest) if in_bytes else (1, "")
    bars = [
        {
            "place": place,
            "name": _entity(row),
            "usual": (row["p99"] or 0) / divisor,
            "peak": (row["peak"] or 0) / divisor,
            "quota": (row["quota"] or 0) / divisor,
            "description": f"{_entity(row)}: quota {words.of_key(key, row['quota'])},"
            f" p99 {words.of_key(key, row['p99'])}, peak {words.of_key(key, row['peak'])}",
        }
        for place, row in enumerate(rows)
    ]
    return against_quota(
        caption=f"{words.name(key)}: p99 (thick bar), peak (thin bar) and the recommended quota (mark)",
        description=f"{words.name(key)}: p99, peak and recommended quota by entity. The table below has the numbers.",
        unit=f"{unit}/s" if in_bytes else words.unit_of(key).strip(),
        rows=bars,
    )


def _entity(row: Numbers) -> str:
    parts = [words.name(row[column]) for column in ("user", "client_id") if row[column] is not None]
    return " / ".join(parts) or words.NOTHING


def backtest(table: DataFrame) -> Content:
    """Return the section from the table ``backtest``."""
    first, last, buckets = table.agg(sf.min("first_day"), sf.max("last_day"), sf.count("*")).collect()[0]
    if not buckets:
        sentence = "There is no back-test: headrace pipeline recommend --backtest-from makes one for later days."
        return Content(sentences=(sentence,))
    held = sums.top_tested(table)
    number = held.other_rows + len(held.rows)
    sentence = (
        f"The recommended quotas, applied to the usage from {first} to {last}, from which they were not computed:"
        f" {words.count(number)} of {words.some(buckets, 'bucket')} would have been throttled. Seconds are those with"
        " usage, of each sender; the wait is that of senders that wait for each throttle time."
    )
    if not held.rows:
        return Content(sentences=(sentence,))
    titles = ("quota", "throttled seconds", "share", "refused", "longest throttle", "total wait", "share delayed")
    rows: list[tuple[str | words.Quantity, ...]] = [
        (
            words.name(row["user"]), words.name(row["client_id"]), words.name(row["key"]), words.name(row["entity"]),
            words.of_key(row["key"], row["quota"]),
            f"{words.count(row['throttled_seconds'])} of {words.count(row['seconds'])}",
            words.share(row["throttled_seconds"], row["seconds"]), words.count(row["refused_seconds"]),
            words.time_of(row["longest_throttle_ms"]), words.time_of(row["waited_ms"]),
            words.share(row["shifted_amount"], row["amount"]),
        )
        for row in held.rows
    ]  # fmt: skip
    if held.other_rows:
        seconds, rest = held.others["throttled_seconds"], held.others["seconds"]
        rows.append(
            (
                others(held.other_rows), "", "", "", "", f"{words.count(seconds)} of {words.count(rest)}",
                words.share(seconds, rest), words.count(held.others["refused_seconds"]), words.NOTHING,
                words.time_of(held.others["waited_ms"]), words.NOTHING,
            )
        )  # fmt: skip
    head = (Column(title="user"), Column(title="client id"), Column(title="quota key", whole=True))
    return Content(
        sentences=(sentence,),
        parts=(
            Table(
                caption=f"Who would have been throttled, at most {sums.SHOWN}: the largest number of seconds first",
                columns=(
                    *head,
                    Column(title="quota of", roomy=True),
                    *(Column(title=title, number=True) for title in titles),
                ),
                rows=tuple(rows),
            ),
        ),
    )


def costs(table: DataFrame) -> Content:
    """Return the section from the table ``costs``."""
    columns = (
        Column(title="API"),
        *(
            Column(title=title, number=True)
            for title in ("per request", "per KiB", "requests", "samples", "error", "error of the model in force")
        ),
        Column(title="accepted"),
        Column(title="reason", roomy=True),
    )
    rows = table.orderBy("api_key").limit(MOST_APIS).collect()
    if not rows:
        return Content(sentences=("The table costs is empty.",))
    sentence = (
        "request_percentage charges an estimate of a broker's thread time: a time per request, and a time per KiB of"
        " the request and its reply. The error is the root mean square for one request, on held-out data. A model is"
        " accepted if its error is lower than that of the model in force."
    )
    in_rows = tuple(
        (
            words.api(row["api_key"]), words.duration(row["base_ms"]), words.duration(row["per_kib_ms"]),
            words.count(row["requests"]), words.count(row["samples"]), words.duration(row["error_ms"]),
            words.duration(row["default_error_ms"]), {True: "yes", False: "no", None: words.NOTHING}[row["accepted"]],
            words.text(row["reason"]),
        )
        for row in rows
    )  # fmt: skip
    return Content(sentences=(sentence,), parts=(Table(caption="By API", columns=columns, rows=in_rows),))


def anomalies(table: DataFrame) -> Content:
    """Return the section from the table ``anomalies``."""
    span = sums.span(table, "start")
    if span is None:
        return Content(sentences=("No usage was unlike an entity's own past.",))
    step_s = sums.step_of(*span)
    counts = [row.asDict() for row in sums.anomalies_over_time(table, step_s).collect()]
    total = sum(row["count"] for row in counts)
    sentence = f"{words.some(total, 'anomaly', 'anomalies')} found: usage unlike an entity's own past."
    return Content(sentences=(sentence,), parts=(_anomalies_over_time(counts, step_s), _top_anomalies(table, total)))


def _anomalies_over_time(counts: list[dict[str, Any]], step_s: int) -> Figure:
    step = words.step(step_s)
    return over_time(
        caption=f"Anomalies, by {step} and kind",
        description=f"How many anomalies began, by {step} and kind. The largest are in the table below.",
        unit=f"anomalies per {step}",
        series=sorted({words.name(row["series"]) for row in counts}),
        rows=[
            {
                "start": row["start"],
                "end": row["start"] + step_s,
                "series": words.name(row["series"]),
                "value": row["count"],
                "description": f"{words.minute(row['start'])} UTC: {words.count(row['count'])} x"
                f" {words.name(row['series'])}",
            }
            for row in counts
        ],
    )


def _top_anomalies(table: DataFrame, total: int) -> Table:
    rows = tuple(
        (
            words.minute(row["start"]), words.name(row["kind"]), words.name(row["user"]), words.name(row["client_id"]),
            words.number(row["observed"]), words.number(row["usual"]), words.number(row["score"]),
            words.count(row["windows"]), words.text(row["description"]),
        )
        for row in sums.top_anomalies(table)
    )  # fmt: skip
    return Table(
        caption=f"The highest scores, {len(rows)} of {total:,}" if total > len(rows) else "The highest scores first",
        columns=(
            Column(title="from, UTC", whole=True), Column(title="kind", whole=True),
            Column(title="user"), Column(title="client id"),
            Column(title="observed", number=True), Column(title="usual", number=True),
            Column(title="score", number=True), Column(title="windows", number=True),
            Column(title="description", roomy=True),
        ),
        rows=rows,
    )  # fmt: skip
