"""The sections about throttling: by recorded usage, and by the quotas of what-if."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.pipeline.report import sums, words
from headrace.pipeline.report.figures import over_time
from headrace.pipeline.report.page import Column, Content, Figure, Table
from headrace.pipeline.report.usage import UNNAMED, others

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from headrace.pipeline.report.sums import Numbers

OTHER_KEYS: Final = "other keys"
MOST_KEYS: Final = 7
"""Maximum number of keys in a plot, which has eight colours; plugins' quotas have keys of their own."""

_THROTTLED: Final = (
    Column(title="requests throttled", number=True),
    Column(title="total throttle time", number=True),
    Column(title="mean", number=True),
    Column(title="requests refused", number=True),
)
_SENDER: Final = (Column(title="user"), Column(title="client id"), Column(title="quota key", whole=True))


def throttling(throttled: DataFrame, total: Numbers) -> Content:
    """Return the section from `sums.throttles` and `sums.overall` usage that is not empty."""
    by_key = sums.by_key(throttled)
    if not by_key.rows:
        sentence = f"None of {words.count(total['requests'])} requests was throttled or refused."
        return Content(sentences=(sentence,))
    top = sums.top_throttled(throttled)
    summed = by_key.total
    sentence = (
        f"{words.count(summed['throttled'])} of {words.count(total['requests'])} requests"
        f" ({words.share(summed['throttled'], total['requests'])}) were throttled, for"
        f" {words.duration(summed['throttle_ms'])} in total; {words.count(summed['refused'])} were refused,"
        " completely or in part."
    )
    keys = [(words.name(row["key"]), *_throttled(row)) for row in by_key.rows]
    senders = [
        (
            words.name(row["user"], UNNAMED),
            words.name(row["client_id"], UNNAMED),
            words.name(row["key"]),
            *_throttled(row),
        )
        for row in top.rows
    ]
    if by_key.other_rows:
        keys.append((others(by_key.other_rows), *_throttled(by_key.others)))
    if top.other_rows:
        senders.append((others(top.other_rows), "", "", *_throttled(top.others)))
    senders.append(("all", "", "", *_throttled(top.total)))
    figures = (_over_time(throttled, total, [row["key"] for row in by_key.rows]),) if summed["throttled"] else ()
    tables = (
        Table(caption="By quota key", columns=(Column(title="quota key", whole=True), *_THROTTLED), rows=tuple(keys)),
        Table(
            caption=f"By sender and quota key, at most {sums.SHOWN}: the longest total first",
            columns=(*_SENDER, *_THROTTLED),
            rows=tuple(senders),
        ),
    )
    return Content(sentences=(sentence,), parts=(*figures, *tables))


def _throttled(row: Mapping[str, Any]) -> tuple[str | words.Quantity, ...]:
    mean = row["throttle_ms"] / row["throttled"] if row["throttled"] else None
    return (
        words.count(row["throttled"]),
        words.time_of(row["throttle_ms"]),
        words.time_of(mean),
        words.count(row["refused"]),
    )


def _over_time(throttled: DataFrame, total: Numbers, keys: Sequence[str]) -> Figure:
    step_s = sums.step_of(total["first_second"], total["last_second"])
    step = words.step(step_s)
    shown = keys[:MOST_KEYS]
    rows = [row.asDict() for row in sums.throttled_over_time(throttled, step_s, shown, OTHER_KEYS).collect()]
    series = [words.name(key) for key in shown] + ([OTHER_KEYS] if len(keys) > len(shown) else [])
    return over_time(
        caption=f"Requests throttled, by {step} and quota key",
        description=f"Requests throttled by {step} and quota key. The sums are in the table below.",
        unit=f"requests per {step}",
        series=series,
        rows=[
            {
                "start": row["start"],
                "end": row["start"] + step_s,
                "series": words.name(row["series"]),
                "value": row["throttled"],
                "description": f"{words.minute(row['start'])} UTC: {words.count(row['throttled'])} requests by"
                f" {words.name(row['series'])}, {words.duration(row['throttle_ms'])} in total",
            }
            for row in rows
        ],
    )


# --- what-if ----------------------------------------------------------------------------------------------------------


def what_if(answer: DataFrame) -> Content:
    """Return the section from the table ``what_if``."""
    by_key = sums.buckets_by_key(answer)
    if not by_key:
        sentence = "The table what_if has no rows in this period: the given quotas apply to none of the usage."
        return Content(sentences=(sentence,))
    charged = (
        " Senders that had been throttled are charged with what they would have used at most, not only with what was"
        " recorded (--demand)."
        if any(row["with_demand"] for row in by_key)
        else ""
    )
    sentence = (
        "Throttled seconds and refusals are for usage as recorded, without waiting senders. Waits and delays are for"
        f' senders that wait for each throttle time. The column "throttled seconds" counts seconds with usage.{charged}'
    )
    columns = ("buckets", "throttled", "throttled seconds", "refused", "waits", "total wait", "share delayed")
    table = Table(
        caption="By quota key",
        columns=(Column(title="quota key", whole=True), *(Column(title=title, number=True) for title in columns)),
        rows=tuple(
            (
                words.name(row["key"]), words.count(row["buckets"]), words.count(row["held"]),
                words.count(row["throttled"]), words.count(row["refused"]), words.count(row["waits"]),
                words.time_of(row["waited_ms"]), words.share(row["shifted_amount"], row["amount"]),
            )
            for row in by_key
        ),
    )  # fmt: skip
    if not any(row["held"] for row in by_key):
        return Content(sentences=("No sender would be throttled.", sentence), parts=(table,))
    figures = _waits(answer, [row["key"] for row in by_key])
    return Content(sentences=(sentence,), parts=(*figures, table, _held(sums.top_held(answer))))


def _held(held: sums.Ranking) -> Table:
    titles = (
        "quota", "throttled seconds", "refused", "longest throttle", "total wait", "share delayed", "longest delay",
    )  # fmt: skip
    rows = [
        (
            words.name(row["user"]), words.name(row["client_id"]), words.name(row["key"]), words.name(row["entity"]),
            words.of_key(row["key"], row["quota"]), *_answer(row, row["longest_throttle_ms"], row["longest_shift_ms"]),
        )
        for row in held.rows
    ]  # fmt: skip
    if held.other_rows:
        rows.append((others(held.other_rows), "", "", "", "", *_answer({**held.others, "amount": None}, None, None)))
    return Table(
        caption=f"Who would be throttled, at most {sums.SHOWN}: the longest total wait first",
        columns=(
            *_SENDER,
            Column(title="quota of", roomy=True),
            *(Column(title=title, number=True) for title in titles),
        ),
        rows=tuple(rows),
    )


def _answer(row: Mapping[str, Any], longest_ms: int | None, shift_ms: int | None) -> tuple[str | words.Quantity, ...]:
    return (
        f"{words.count(row['throttled'])} of {words.count(row['events'])}",
        words.count(row["refused"]),
        words.time_of(longest_ms),
        words.time_of(row["waited_ms"]),
        words.share(row["shifted_amount"], row["amount"]),  # amounts of different keys have no common sum
        words.time_of(shift_ms),
    )


def _waits(answer: DataFrame, keys: Sequence[str]) -> tuple[Figure, ...]:
    span = sums.span(answer.where("waited_ms > 0"), "hour")
    if span is None:
        return ()
    step_s = sums.step_of(*span)
    step = words.step(step_s)
    rows = [row.asDict() for row in sums.waits_over_time(answer, step_s).collect()]
    figure = over_time(
        caption=f"Waiting of all senders, by {step} and quota key",
        description=f"Minutes that all senders would wait, by {step} and quota key. The table below has the sums.",
        unit=f"minutes per {step}",
        series=[words.name(key) for key in keys if any(row["series"] == key for row in rows)],
        rows=[
            {
                "start": row["start"],
                "end": row["start"] + step_s,
                "series": words.name(row["series"]),
                "value": row["waited_ms"] / 60_000,
                "description": f"{words.minute(row['start'])} UTC: {words.count(row['waits'])} waits for"
                f" {words.name(row['series'])}, {words.duration(row['waited_ms'])} in total",
            }
            for row in rows
        ],
    )
    return (figure,)
