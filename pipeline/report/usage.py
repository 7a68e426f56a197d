"""The sections about usage: totals, usage over time, and usage by sender."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.pipeline.report import sums, words
from headrace.pipeline.report.figures import over_time, ranked
from headrace.pipeline.report.page import Column, Content, Figure, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from headrace.pipeline.report.sums import Numbers, Ranking

UNNAMED: Final = "(unnamed)"
"""The name in the report for the senders of a second that exceed the number of rows that a proxy keeps per second."""
BYTES: Final = (("request_bytes", "in"), ("response_bytes", "out"))

_MEASURED: Final = (
    Column(title="requests", number=True),
    Column(title="errors", number=True),
    Column(title="bytes in", number=True),
    Column(title="bytes out", number=True),
    Column(title="thread time", number=True),
    Column(title="throttled", number=True),
    Column(title="refused", number=True),
)


def others(count: int) -> str:
    """Return the label of the row with the sums of all other rows."""
    return f"all others ({count:,})"


def glance(total: Numbers) -> Content:
    """Return the section of totals (`sums.overall`)."""
    first, last = total["first_second"], total["last_second"]
    period = "" if first is None else f"{words.second(first)} to {words.second(last)}"
    seconds = 0 if first is None else last - first + 1
    rows = (
        ("time, UTC", period),
        ("usage records", words.count(total["records"])),
        ("requests", words.count(total["requests"])),
        ("requests without a reply, or refused by the proxy", words.count(total["errors"])),
        ("bytes in", words.bytes_of(total["request_bytes"])),
        ("bytes out", words.bytes_of(total["response_bytes"])),
        (
            "thread time of the brokers, estimated",
            f"{words.duration(total['thread_ms'])} ({words.number(total['thread_ms'] / seconds / 10)} % of one thread)",
        ),
        ("users", words.count(total["users"])),
        ("users with client ids", words.count(total["senders"])),
        ("requests throttled", words.count(total["throttled"])),
        ("requests refused, completely or in part", words.count(total["refused"])),
    ) if seconds else ()  # fmt: skip
    if not rows:
        return Content(sentences=("The table usage has no records in this period.",))
    table = Table(caption="Sums", columns=(Column(title="measure"), Column(title="value", number=True)), rows=rows)
    return Content(parts=(table,))


def used(hours: DataFrame, total: Numbers) -> Content:
    """Return the section of usage over time, from `sums.hourly` usage that is not empty."""
    step_s = sums.step_of(total["first_second"], total["last_second"])
    step = words.step(step_s)
    rows = [row.asDict() for row in sums.over_time(hours, step_s).collect()]
    divisor, unit = words.byte_unit(max(map(_bytes, rows)))
    figures = (
        over_time(
            caption=f"Bytes in and out, by {step}",
            description=f"Bytes in and out by {step}; {_maximum(rows, step)}. The numbers are in the table below.",
            unit=f"{unit} per {step}",
            series=[series for _, series in BYTES],
            rows=[
                _bar(row, step_s, row[name] / divisor, f"{words.bytes_of(row[name])} {series}", series)
                for row in rows
                for name, series in BYTES
            ],
        ),
        over_time(
            caption=f"Requests, by {step}",
            description=f"Requests by {step}. The numbers are in the table below.",
            unit=f"requests per {step}",
            series=["requests"],
            rows=[_bar(row, step_s, row["requests"], f"{words.count(row['requests'])} requests") for row in rows],
        ),
        over_time(
            caption=f"Thread time of the brokers, estimated, by {step}",
            description=f"Estimated thread time by {step}, in percent of one thread. The table below has the numbers.",
            unit="% of one thread",
            series=["thread time"],
            rows=[
                _bar(row, step_s, row["thread_ms"] / step_s / 10, f"{words.duration(row['thread_ms'])} of thread time")
                for row in rows
            ],
        ),
    )
    table = Table(
        caption=f"Usage in numbers, by {step}",
        columns=(Column(title="from, UTC", whole=True), *_MEASURED),
        rows=tuple((words.minute(row["start"]), *_measured(row)) for row in rows),
        folded=True,
    )
    return Content(parts=(*figures, table))


def _maximum(rows: Sequence[Numbers], step: str) -> str:
    row = max(rows, key=_bytes)
    return (
        f"maximum in the {step} from {words.minute(row['start'])} UTC, {words.bytes_of(row['request_bytes'])} in and"
        f" {words.bytes_of(row['response_bytes'])} out"
    )


def _bar(row: Numbers, step_s: int, value: float, description: str, series: str | None = None) -> dict[str, Any]:
    start = row["start"]
    bar = {
        "start": start,
        "end": start + step_s,
        "value": value,
        "description": f"{words.minute(start)} UTC: {description}",
    }
    return bar if series is None else {**bar, "series": series}


def senders(hours: DataFrame, total: Numbers) -> Content:
    """Return the section of usage by sender, from `sums.hourly` usage that is not empty."""
    users = sums.top_senders(hours, total, "user")
    pairs = sums.top_senders(hours, total, "user", "client_id")
    sentences = ["Rows are ordered by the largest share of any of bytes in, bytes out, requests and thread time."]
    if total["unnamed"]:
        requests = words.some(total["unnamed"], "request")
        sentences.append(
            f"{UNNAMED} stands for senders whose names were not recorded ({requests}): a proxy keeps a limited number"
            " of rows per second, and merges all further senders into one row."
        )
    parts = (
        _bytes_by_user(users),
        Table(
            caption=f"Users, at most {sums.SHOWN}",
            columns=(Column(title="user"), *_MEASURED, Column(title="share of bytes", number=True)),
            rows=_ranked_rows(users, 1),
        ),
        Table(
            caption=f"Users with client ids, at most {sums.SHOWN}",
            columns=(
                Column(title="user"), Column(title="client id"), *_MEASURED,
                Column(title="share of bytes", number=True),
            ),
            rows=_ranked_rows(pairs, 2),
        ),
    )  # fmt: skip
    return Content(sentences=tuple(sentences), parts=parts)


def _bytes_by_user(users: Ranking) -> Figure:
    """Return the plot by user, without all others, whose bar would make the others too small to see."""
    by_bytes = sorted(users.rows, key=_bytes, reverse=True)
    rows = [(words.name(row["user"], UNNAMED), row) for row in by_bytes]
    divisor, unit = words.byte_unit(_bytes(by_bytes[0]))
    bars = [
        {
            "place": place,
            "name": name,
            "series": series,
            "value": row[measure] / divisor,
            "description": f"{name}: {words.bytes_of(row[measure])} {series}",
        }
        for place, (name, row) in enumerate(rows)
        for measure, series in BYTES
    ]
    return ranked(
        caption="Bytes in and out, by user; all others are in the table below",
        description="Bytes in and out by user. The numbers are in the table below.",
        unit=unit,
        rows=bars,
        series=[series for _, series in BYTES],
    )


def _ranked_rows(ranking: Ranking, names: int) -> tuple[tuple[str | words.Quantity, ...], ...]:
    """Return the rows, a row for all others, if there are any, and one for the total."""
    by = ("user", "client_id")[:names]
    blank = ("",) * (names - 1)
    rows = [
        (*(words.name(row[each], UNNAMED) for each in by), *_measured(row), _share(row, ranking))
        for row in ranking.rows
    ]
    if ranking.other_rows:
        rows.append((others(ranking.other_rows), *blank, *_measured(ranking.others), _share(ranking.others, ranking)))
    rows.append(("all", *blank, *_measured(ranking.total), _share(ranking.total, ranking)))
    return tuple(rows)


def _share(row: Mapping[str, Any], ranking: Ranking) -> str:
    return words.share(_bytes(row), _bytes(ranking.total))


def _bytes(row: Mapping[str, Any]) -> int:
    both: int = row["request_bytes"] + row["response_bytes"]
    return both


def _measured(row: Mapping[str, Any]) -> tuple[str | words.Quantity, ...]:
    return (
        words.count(row["requests"]),
        words.count(row["errors"]),
        words.size_of(row["request_bytes"]),
        words.size_of(row["response_bytes"]),
        words.time_of(row["thread_ms"]),
        words.count(row["throttled"]),
        words.count(row["refused"]),
    )
