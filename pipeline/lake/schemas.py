"""The columns of every table. Names contain units; times are seconds since 1970 (UTC) or Spark timestamps.

Jobs that work on the usage of one cluster compute rows without its name; their tables (`OF_ONE_CLUSTER`) have the
column ``cluster`` as well.

The fields of a usage record are defined in `headrace.quota_callbacks.records.usage_records`. `RECORD` is the same
schema for Spark, with all columns nullable, since `ingest` itself checks for missing values and names them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import DataType

_TEXT, _LONG, _INT, _DOUBLE = StringType(), LongType(), IntegerType(), DoubleType()

COUNTS: Final = ("requests", "errors", "request_bytes", "response_bytes", "mutations", "producer_ids")
TIMES: Final = ("thread_ms", "broker_ms")
BY_QUOTA: Final = ("throttle_ms", "throttled", "refused")
"""Maps from quota keys to numbers. Together with `COUNTS` and `TIMES`: the columns that a usage record sums."""


def _columns(**types: DataType) -> StructType:
    return StructType([StructField(name, each) for name, each in types.items()])


RECORD: Final = _columns(
    schema=_INT,
    kind=_TEXT,
    instance=_TEXT,
    sequence=_LONG,
    second=_LONG,
    cluster=_TEXT,
    user=_TEXT,
    client_id=_TEXT,
    api_key=_INT,
    topic=_TEXT,
    **dict.fromkeys(COUNTS, _LONG),
    **dict.fromkeys(TIMES, _DOUBLE),
    **dict.fromkeys(BY_QUOTA, MapType(_TEXT, _LONG)),
    records=_LONG,
    reason=_TEXT,
)
"""A line of any kind (`headrace.quota_callbacks.records.usage_records`)."""

RAW: Final = _columns(value=_TEXT, origin=_TEXT)
"""A line as read from a source. ``origin`` is ``topic/partition/offset`` or the path of the file."""

USAGE: Final = StructType(
    [StructField("date", DateType()), StructField("hour", _INT)]
    + [field for field in RECORD.fields if field.name not in ("schema", "kind", "records", "reason")]
)
"""The table ``usage``: usage records without duplicates, partitioned by ``date`` and ``hour`` of their second."""

MARKS: Final = StructType(
    [StructField("date", DateType())]
    + [RECORD[name] for name in (
        "kind", "instance", "sequence", "second", "records", "requests", "request_bytes", "response_bytes", "reason",
    )]
)  # fmt: skip
"""The table ``marks``: records of the kinds ``lost`` and ``end``, which an instance writes about itself."""

QUARANTINE: Final = _columns(date=DateType(), origin=_TEXT, value=_TEXT, reason=_TEXT, ingested=TimestampType())
"""The table ``quarantine``: lines that were rejected, with the reason. ``date`` is the day on which they were ingested.
"""

EVENTS: Final = _columns(
    order=_LONG,
    t_ms=_LONG,
    user=_TEXT,
    client_id=_TEXT,
    op=_TEXT,
    amount=_DOUBLE,
    producer_id=_LONG,
    strict=BooleanType(),
)
"""Charges to quotas, of a trace (`headrace.pipeline.analysis.what_if.traces`). ``order`` orders events of the same
millisecond.

``producer_id`` is set for events whose ``op`` is ``producer_id``, since a double cannot hold these ids; else 0.
"""

DECISIONS: Final = _columns(order=_LONG, throttle_time_ms=_LONG, accepted=BooleanType(), entity=_TEXT)
"""The verdict on each event without waiting senders: what ``headrace replay`` answers for the line ``order``."""

WHAT_IF: Final = _columns(
    hour=TimestampType(),
    key=_TEXT,
    user=_TEXT,
    client_id=_TEXT,
    entity=_TEXT,
    quota=_DOUBLE,
    events=_LONG,
    amount=_DOUBLE,
    throttled=_LONG,
    refused=_LONG,
    throttle_ms=_LONG,
    longest_throttle_ms=_LONG,
    waits=_LONG,
    waited_ms=_LONG,
    shifted_amount=_DOUBLE,
    mean_shift_ms=_DOUBLE,
    longest_shift_ms=_LONG,
    with_demand=BooleanType(),
)
"""The table ``what_if``: by hour and bucket, whose metric tags are ``user`` and ``client_id``.

``with_demand``: whether the demand of throttled senders was charged besides their recorded usage; null in rows of
versions before 0.1.0.

``throttled`` to ``longest_throttle_ms`` are for the usage as recorded, with no sender waiting. ``waits`` and the
columns after it are for senders that wait for each throttle time, so that their usage is delayed.
"""

TEAMS: Final = _columns(user=_TEXT, client_id=_TEXT, topic=_TEXT, team=_TEXT)
"""The teams file. A null ``client_id`` matches all client ids of the user, a null ``user`` all users of the client id.
A row with a ``topic`` has neither; it matches usage of the topic by senders that match no other row.
"""

TOTALS: Final = _columns(
    cluster=_TEXT,
    user=_TEXT,
    client_id=_TEXT,
    team=_TEXT,
    requests=_LONG,
    errors=_LONG,
    produced_bytes=_LONG,
    fetched_bytes=_LONG,
    request_bytes=_LONG,
    response_bytes=_LONG,
    thread_ms=_DOUBLE,
    broker_ms=_DOUBLE,
    mutations=_LONG,
    producer_ids=_LONG,
    throttled=_LONG,
    throttle_ms=_LONG,
    refused=_LONG,
    records=_LONG,
)
"""The columns of the rollups. ``user`` is null for usage whose sender was not recorded. ``records`` is the number of
usage records.
"""

ROLLUP_HOUR: Final = StructType([StructField("date", DateType()), StructField("hour", TimestampType()), *TOTALS.fields])
"""The table ``rollup_hour``. ``hour`` is the start of the hour; ``team`` is null for usage without a team. A sender
whose team is that of the topic has a row for each team.
"""

ROLLUP_DAY: Final = StructType([StructField("date", DateType()), *TOTALS.fields, StructField("records_of_day", _LONG)])
"""The table ``rollup_day``. ``records_of_day`` is the sum of ``records`` of the day, the same in all of its rows; null
in rows of older versions.
"""

USED: Final = DecimalType(22, 3)
PRICE: Final = DecimalType(14, 6)
AMOUNT: Final = DecimalType(28, 6)
"""Decimal types of usage (to the byte and the microsecond), prices and money. The product of usage and price has at
most 37 digits; Spark's maximum is 38.
"""

CHARGEBACK: Final = _columns(
    period=_TEXT,
    date=DateType(),
    cluster=_TEXT,
    team=_TEXT,
    line=_INT,
    item=_TEXT,
    used=USED,
    unit=_TEXT,
    quantity=AMOUNT,
    per=_TEXT,
    price=PRICE,
    amount=AMOUNT,
    currency=_TEXT,
    records=_LONG,
)
"""The table ``chargeback``: lines of bills. ``date`` is the first day of the ``period``, a day or a month.
A null ``cluster`` stands for all clusters.

``used`` is exact, in ``unit``; ``quantity`` is the same amount in the unit of the ``price`` (``per``). Both are null in
the lines of shared costs, ``discount``, ``minimum`` and ``total``. The line ``total`` is the sum of the lines before
it. Its ``records`` is the number of usage records from which the bill was computed; ``records`` is null in the other
lines, and in bills of older versions.
"""

BUDGETS: Final = _columns(
    month=DateType(),
    cluster=_TEXT,
    team=_TEXT,
    budget=AMOUNT,
    spent=AMOUNT,
    share=_DOUBLE,
    forecast=AMOUNT,
    state=_INT,
    currency=_TEXT,
    checked=TimestampType(),
    delivered=_INT,
)
"""The table ``budgets``: what a team has spent of its budget of a ``month``, given by its first day, when it was
``checked``. A null ``cluster`` stands for all clusters.

``share`` is ``spent`` divided by ``budget``; ``forecast`` is what is spent at the end of the month if usage goes on.
``state`` is the highest percentage with an alert that was reached, ``delivered`` the highest one whose alert a webhook
has received; null: none.
"""

RECOMMENDATIONS: Final = _columns(
    user=_TEXT,
    client_id=_TEXT,
    key=_TEXT,
    quota=_DOUBLE,
    p50=_DOUBLE,
    p95=_DOUBLE,
    p99=_DOUBLE,
    peak=_DOUBLE,
    burst=_DOUBLE,
    headroom=_DOUBLE,
    active_seconds=_LONG,
    throttled=_LONG,
    reason=_TEXT,
    peaks=_LONG,
    peak_days=_LONG,
    misbehaviour=_TEXT,
    present_quota=_DOUBLE,
)
"""The table ``recommendations``: a quota for each entity and key, in the key's unit. A null ``user`` or ``client_id``
is not part of the entity.

``p50`` to ``peak``: the rate over the quota's own window, at the ``active_seconds`` in which something was used.
``burst``: the largest amount in one second, divided by ``p99``; ``headroom``: the quota divided by ``p99``.
``throttled``: number of requests that this quota throttled. ``peaks``: how often the rate was above the quota, on
``peak_days`` days; null for an entity with a ``misbehaviour`` ("retry-storm", "limit-ignored" or both; null: none).
``present_quota``: null if it is not known. For the default entity, ``p50`` to ``burst`` are 95th percentiles over the
entities, and the columns after ``reason`` are null, as in files of older versions.
"""

BACKTEST: Final = _columns(
    key=_TEXT,
    user=_TEXT,
    client_id=_TEXT,
    entity=_TEXT,
    quota=_DOUBLE,
    first_day=DateType(),
    last_day=DateType(),
    seconds=_LONG,
    throttled_seconds=_LONG,
    refused_seconds=_LONG,
    longest_throttle_ms=_LONG,
    waited_ms=_LONG,
    amount=_DOUBLE,
    shifted_amount=_DOUBLE,
)
"""The table ``backtest``: the recommended quotas, applied by what-if to the usage of later days, from ``first_day`` to
``last_day``.

A row is a bucket, whose metric tags are ``user`` and ``client_id``; ``entity`` is that of the quota. ``seconds`` is the
number of seconds with usage, of each sender; of these, ``throttled_seconds`` and ``refused_seconds`` would have been
throttled or refused as recorded, with no sender waiting. ``waited_ms`` and ``shifted_amount``, the amount that is
delayed, are for senders that wait for each throttle time.
"""

TRUTH: Final = _columns(broker=_TEXT, t_ms=_LONG, api_key=_INT, requests=_LONG, local_ms=_DOUBLE)
"""The counters of a broker at ``t_ms`` (milliseconds since 1970), since its start: the requests of an API, and the sum
of their handler times in milliseconds.
"""

SAMPLES: Final = _columns(
    api_key=_INT,
    start=_LONG,
    requests=_DOUBLE,
    kib=_DOUBLE,
    broker_ms=_DOUBLE,
    truth_requests=_DOUBLE,
    truth_ms=_DOUBLE,
    agrees=BooleanType(),
    held_out=BooleanType(),
)
"""Usage of an API in the interval that starts at the second ``start``, with the broker's numbers (null: not sampled).

``agrees``: proxies and brokers counted nearly the same number of requests. ``held_out``: used for the error, not for
the fit.
"""

COSTS: Final = _columns(
    api_key=_INT,
    base_ms=_DOUBLE,
    per_kib_ms=_DOUBLE,
    samples=_LONG,
    requests=_LONG,
    error_ms=_DOUBLE,
    default_error_ms=_DOUBLE,
    accepted=BooleanType(),
    reason=_TEXT,
)
"""The table ``costs``: the cost model of each API (`headrace.quota_callbacks.builtin.request_costs`).

The errors are root mean squares for one request over the held-out intervals, of the fitted model and of the model in
force. ``accepted``: whether the fitted model is better, and is written to the file. ``reason`` is a sentence; for an
API that was not fitted, whose model and errors are null, it says why.
"""

ANOMALIES: Final = _columns(
    start=TimestampType(),
    kind=_TEXT,
    user=_TEXT,
    client_id=_TEXT,
    observed=_DOUBLE,
    usual=_DOUBLE,
    score=_DOUBLE,
    description=_TEXT,
    windows=_LONG,
    cluster=_TEXT,
)
"""The table ``anomalies``: usage that is unlike an entity's own past, for ``windows`` windows from ``start`` on.

``description`` is a sentence. ``observed``, ``usual`` and ``score`` are of the window that deviates most; ``usual`` and
``score`` are null if the past is too short. A null ``client_id`` stands for all client ids of the user. ``cluster`` is
null in rows of versions that did not distinguish clusters.
"""

ANOMALY_WINDOWS: Final = _columns(
    date=DateType(),
    start=_LONG,
    cluster=_TEXT,
    user=_TEXT,
    client_id=_TEXT,
    requests=_LONG,
    failed=_LONG,
    bytes=_LONG,
    thread_ms=_DOUBLE,
    new_ids=_LONG,
    produced=_LONG,
    connections=_LONG,
    window_s=_INT,
    records=_LONG,
)
"""The table ``anomaly_windows``: usage in the ``window_s`` seconds from the second ``start`` on.

``failed``: requests that failed or were refused, ``produced``: Produce requests. A null ``client_id`` stands for all
client ids of the user. ``records`` is the number of usage records that the day had, the same in all of its rows.
"""

_SKETCHED: Final[Mapping[str, DataType]] = {
    "cluster": _TEXT,
    "user": _TEXT,
    "client_id": _TEXT,
    "first": _LONG,
    "windows": _INT,
    "sizes": BinaryType(),
    "histogram": BinaryType(),
    "highest": BinaryType(),
    "lowest": BinaryType(),
    "starts": BinaryType(),
    "window_s": _INT,
    "known_hours": _INT,
}
"""The columns that a day and a block of days have in common."""
ANOMALY_SKETCHES: Final = _columns(
    date=DateType(),
    **_SKETCHED,
    records=_LONG,
    final=BooleanType(),
)
"""The table ``anomaly_sketches``: a day of an entity, as the past of later days.

``windows`` is the number of windows with usage, ``first`` the start of the first one. The columns of bytes have numbers
for each of the quantities of `headrace.pipeline.analysis.anomalies.rules`, in their order, little-endian: ``sizes`` the
number of buckets (16 bits); ``histogram`` for each bucket its number, the number of its windows (16 bits each) and the
mean of their values (a float of 32 bits); ``highest`` and ``lowest`` the extremes of ``known_hours`` hours (doubles),
the most extreme first. ``starts`` has a bit for each window of the day, which is set if any entity of the cluster had
usage in it. ``window_s``, ``records`` and ``final`` are the same in all rows of a day: the length of the windows, the
number of usage records, and whether the day was final.
"""

ANOMALY_PAST: Final = _columns(
    date=DateType(),
    days=_INT,
    **_SKETCHED,
)
"""The table ``anomaly_past``: the sketches of ``days`` consecutive days of an entity, the last of which is ``date``, as
one sketch. ``days`` is a power of two, and the number of the first of them (Python's ``date.toordinal``) a multiple of
it.

The columns are those of `ANOMALY_SKETCHES`, except that a bucket in ``histogram`` has its number (16 bits), the number
of its windows (32 bits) and the sum of their values (a double), so that sums of days and of blocks are the same.
"""

OF_ONE_CLUSTER: Final = ("what_if", "recommendations", "backtest", "costs")
"""The tables that are computed for one cluster at a time, whose name is in the further column ``cluster``."""

RELEASES: Final = _columns(number=_LONG, released=TimestampType(), versions=MapType(_TEXT, _LONG))
"""The table ``releases``. A row is a release: its number, and the versions of the tables of
`headrace.pipeline.lake.tables.RELEASED` that belong to it.
"""
