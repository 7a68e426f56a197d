"""Small tables for a report, and readers of a report: as text, and as an image."""

from __future__ import annotations

import datetime as dt
import struct
import zlib
from decimal import Decimal
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

from headrace.pipeline.lake import schemas
from headrace.quota_callbacks.api_keys import ApiKey
from tests.pipeline.records import NOON, record, usage

if TYPE_CHECKING:
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


# --- the tables ---

RECORDS = [
    # 13:00: alice, 3 GiB in; 14:00: the name with a script, 1 GiB out; 15:00: none; 16:00: unusual names.
    record(NOON, sequence=0, requests=2, request_bytes=2 * GIB, response_bytes=0, thread_ms=3000.0,
           throttled={PRODUCER: 2}, throttle_ms={PRODUCER: 1500}),
    record(NOON + 59, sequence=1, requests=1, errors=1, request_bytes=GIB, response_bytes=0, thread_ms=600.0,
           throttled={REQUESTS: 1}, throttle_ms={REQUESTS: 250}, refused={"controller_mutation_rate": 1}),
    record(NOON + HOUR_S, sequence=3, user=SCRIPT, client_id="<img src=x>", api_key=ApiKey.FETCH, requests=1000,
           request_bytes=0, response_bytes=GIB, thread_ms=0.0, throttled={CONSUMER: 5}, throttle_ms={CONSUMER: 100}),
    record(NOON + 3 * HOUR_S, sequence=4, user=ODD, client_id=REVERSED, requests=1, request_bytes=1024,
           response_bytes=512, thread_ms=0.0),
    record(NOON + 3 * HOUR_S, sequence=9, user=None, client_id=None, requests=1, request_bytes=0, response_bytes=0,
           thread_ms=0.0),
]  # fmt: skip


def table(spark: SparkSession, schema: StructType, *rows: dict[str, Any]) -> DataFrame:
    """Return a table; columns that a row lacks are null."""
    return spark.createDataFrame([tuple(row.get(name) for name in schema.names) for row in rows], schema)


def answer(user: str, **members: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(("throttled", "refused", "throttle_ms", "longest_throttle_ms", "waits", "waited_ms"), 0)
    return {
        "hour": ONE_O_CLOCK, "key": PRODUCER, "user": user, "entity": f"user={user}", "quota": 2.0**20, "events": 4,
        "amount": 2e6, "shifted_amount": 0.0, "longest_shift_ms": 0, **nothing, **members,
    }  # fmt: skip


def tested(user: str, **members: Any) -> dict[str, Any]:
    return {
        "key": PRODUCER, "user": user, "entity": f"user={user}", "quota": 2.0**20, "first_day": MONDAY,
        "last_day": MONDAY, "seconds": 60, "throttled_seconds": 0, "refused_seconds": 0, "longest_throttle_ms": 3000,
        "waited_ms": 7200, "amount": 2e6, "shifted_amount": 1e6, **members,
    }  # fmt: skip


def bill(team: str, gib: int) -> list[dict[str, Any]]:
    head = {"period": "day", "date": MONDAY, "team": team, "currency": "EUR", "amount": Decimal(2 * gib)}
    used = {"used": Decimal(gib * GIB), "unit": "bytes", "quantity": Decimal(gib), "per": "GiB", "price": Decimal(2)}
    return [{**head, "line": 1, "item": "produced", **used}, {**head, "line": 2, "item": "total"}]


def budget(team: str, spent: int, state: int | None, month: int = 9, cluster: str | None = None) -> dict[str, Any]:
    amounts = {"budget": Decimal(50), "spent": Decimal(spent), "share": spent / 50, "forecast": Decimal(2 * spent)}
    head = {"month": dt.date(2026, month, 1), "team": team, "cluster": cluster, "state": state, "currency": "EUR"}
    return {**head, **amounts, "checked": ONE_O_CLOCK}


def tables_of(spark: SparkSession) -> dict[str, DataFrame]:
    """Return every table with some rows."""
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
    odd = {
        "kind": "retry storm",
        "user": SCRIPT,
        "client_id": "c",
        "observed": 120.0,
        "usual": 1.5,
        "score": 9.0,
        "windows": 3,
    }
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
             "reason": f"of {ODD}", "misbehaviour": "retry-storm", "present_quota": 2.0**20, "peaks": 3},
            {"user": "bob", "client_id": "app-1", "key": REQUESTS, "quota": 12.5, **percent, "active_seconds": 60,
             "throttled": 0, "reason": "the least"},
        ),
        "backtest": table(spark, schemas.BACKTEST, tested(SCRIPT, throttled_seconds=6), tested("bob")),
        "what_if": table(spark, schemas.WHAT_IF, answer(SCRIPT, **held), answer("bob")),
        "chargeback": table(spark, schemas.CHARGEBACK, *bill("<b>payments</b>", 3), *bill("search", 1)),
        "budgets": table(
            spark,
            schemas.BUDGETS,
            budget("search", 5, None, cluster="cluster-1"),
            budget("<b>payments</b>", 45, 80),
            budget("payments", 50, 100, month=8),
        ),
        "costs": table(
            spark,
            schemas.COSTS,
            {"api_key": ApiKey.PRODUCE.value, **fitted, "default_error_ms": 0.05, "accepted": True, "reason": "better"},
            {"api_key": 99, "accepted": False, "reason": "too few requests"},
        ),
        "anomalies": table(spark, schemas.ANOMALIES, {"start": ONE_O_CLOCK, **odd, "description": f"{SCRIPT}: 120"}),
    }  # fmt: skip


# --- the file ---


class Read(HTMLParser):
    """A document as a browser parses it: texts by section, and every tag with its attributes. Tags must match."""

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
        """Return the cells after the first ones given, of a row in one table of the section, or in any."""
        tables = self.tables[section] if table is None else [self.tables[section][table]]
        (found,) = [row for rows in tables for row in rows if tuple(row[: len(first)]) == first]
        return found[len(first) :]


def no_references(read: Read) -> None:
    """Check that the document has nothing that a browser would fetch or run."""
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in read.tags}
    for tag, attributes in read.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href", "action", "data", "srcset"):
                assert (value or "").startswith("#"), (tag, name, value)
    style = " ".join(read.texts[""])
    assert "url(" not in style
    assert "@import" not in style


def pixels_of(png: bytes) -> list[bytes]:
    """Return the pixels of a PNG with 8 bits a colour."""
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
