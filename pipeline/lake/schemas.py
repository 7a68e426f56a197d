"""The columns of every table, in one place. Units are in the names; times are seconds of UTC or Spark timestamps.

What a usage record holds is `headrace.quota_callbacks.records.usage_records`; `RECORD` is the same as Spark reads it,
with every column nullable, since `ingest` says itself what is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
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
    from pyspark.sql.types import DataType

_TEXT, _LONG, _INT, _DOUBLE = StringType(), LongType(), IntegerType(), DoubleType()

COUNTS: Final = ("requests", "errors", "request_bytes", "response_bytes", "mutations", "producer_ids")
TIMES: Final = ("thread_ms", "broker_ms")
BY_QUOTA: Final = ("throttle_ms", "throttled", "refused")
"""Maps from quota keys. With `COUNTS` and `TIMES`: what a usage record sums up."""


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
"""A line of any kind, as `headrace.quota_callbacks.records.usage_records` has it."""

RAW: Final = _columns(value=_TEXT, origin=_TEXT)
"""What a source gives: a line, and where it is from: ``topic/partition`` or a file."""

USAGE: Final = StructType(
    [StructField("date", DateType()), StructField("hour", _INT)]
    + [field for field in RECORD.fields if field.name not in ("schema", "kind", "records", "reason")]
)
"""The lake's table ``usage``: usage records, each once, by ``date`` and ``hour`` of their second."""

MARKS: Final = StructType(
    [StructField("date", DateType())]
    + [RECORD[name] for name in (
        "kind", "instance", "sequence", "second", "records", "requests", "request_bytes", "response_bytes", "reason",
    )]
)  # fmt: skip
"""The lake's table ``marks``: what instances say of themselves: ``lost`` and ``end``."""

QUARANTINE: Final = _columns(date=DateType(), origin=_TEXT, value=_TEXT, reason=_TEXT, ingested=TimestampType())
"""The lake's table ``quarantine``: lines that are no usage records, and why; ``date`` of when they were found."""

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
"""What quotas are charged with (`headrace.pipeline.analysis.events`); ``order`` decides between events of the same
millisecond. ``producer_id`` is for the op of this name, whose ids a double does not hold; else 0."""

DECISIONS: Final = _columns(order=_LONG, throttle_time_ms=_LONG, accepted=BooleanType(), entity=_TEXT)
"""What quotas say of each event, as it was recorded: what ``headrace replay`` says of the line with this number."""

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
)
"""By hour and bucket (``user``, ``client_id``: its metric tags). ``throttled`` to ``longest_throttle_ms``: as recorded,
nobody waiting. From ``waits`` on: every sender waits when told to, and what it sends comes later by that."""

TEAMS: Final = _columns(user=_TEXT, client_id=_TEXT, team=_TEXT)
"""Who belongs to which team; a null ``client_id`` is all of the user's, a null ``user`` all of the client id's."""

TOTALS: Final = _columns(
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
)
"""What the rollups have of each sender; a row without ``user`` is of those that records do not tell."""

ROLLUP_HOUR: Final = StructType([StructField("date", DateType()), StructField("hour", TimestampType()), *TOTALS.fields])
"""The lake's table ``rollup_hour``; ``hour`` is when it begins, ``team`` null where nobody knows it."""

ROLLUP_DAY: Final = StructType([StructField("date", DateType()), *TOTALS.fields])
"""The lake's table ``rollup_day``."""

USED: Final = DecimalType(22, 3)
PRICE: Final = DecimalType(14, 6)
AMOUNT: Final = DecimalType(28, 6)
"""Usage to the byte and the microsecond, prices and money: a product of the first two has 37 digits, of Spark's 38."""

CHARGEBACK: Final = _columns(
    period=_TEXT,
    date=DateType(),
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
)
"""A line of a bill. ``date``: the first day of the ``period``, which is a day or a month. ``used`` is exact, in
``unit``; ``quantity`` is the same in the unit that the ``price`` is ``per``. Those are null in the lines ``discount``,
``minimum`` and ``total``, which is the sum of the lines before it."""

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
)
"""A quota for each entity (null: not part of it) and key, in the key's unit.

``p50`` to ``peak``: the rate over the quota's own window, at the seconds in which something was used, as many as
``active_seconds``. ``burst``: the most in a second, by ``p99``; ``headroom``: the quota, by ``p99``. ``throttled``:
requests that this quota throttled. Of the default entity, ``p50`` to ``burst`` are 95th percentiles over the
entities."""

TRUTH: Final = _columns(broker=_TEXT, t_ms=_LONG, api_key=_INT, requests=_LONG, local_ms=_DOUBLE)
"""What a broker has counted since its start at a time ``t_ms`` (milliseconds since 1970): requests of an API, and the
sum of its handlers' time for them."""

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
"""What proxies have recorded of an API in an interval that begins at the second ``start``, beside what brokers say of
it (null: nothing). ``agrees``: both count alike; ``held_out``: for the error, not for the fit."""

COSTS: Final = _columns(
    api_key=_INT,
    base_ms=_DOUBLE,
    per_kib_ms=_DOUBLE,
    samples=_LONG,
    requests=_LONG,
    error_ms=_DOUBLE,
    default_error_ms=_DOUBLE,
    taken=BooleanType(),
    reason=_TEXT,
)
"""The cost model of each API (`headrace.quota_callbacks.builtin.request_costs`), with the held-out error of a request,
root mean square, beside that of the model before it; ``taken``: whether it is better, and goes into the file.
``reason``: in a sentence; of an API that was not fitted, which has nulls, why not."""

ANOMALIES: Final = _columns(
    start=TimestampType(),
    kind=_TEXT,
    user=_TEXT,
    client_id=_TEXT,
    observed=_DOUBLE,
    usual=_DOUBLE,
    score=_DOUBLE,
    told=_TEXT,
    windows=_LONG,
)
"""What is unlike an entity's own past, from ``start`` on for so many windows; ``told`` is a sentence. ``observed`` is
of the window furthest off; ``usual`` and ``score`` are null where there is no past to compare with. A null
``client_id`` is all of the user's."""
