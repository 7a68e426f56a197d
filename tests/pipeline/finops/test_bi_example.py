"""The example for DuckDB: its views have the sums of the newest release, and not those of a run that goes on."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING

from examples import bi_with_duckdb
from headrace.pipeline.lake import schemas
from tests.pipeline.finops.billing import SEPTEMBER, lines, table, write_bills

if TYPE_CHECKING:
    import pytest

    from headrace.pipeline.lake.tables import Lake


def test_the_views_are_those_of_the_newest_release(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    days = [
        {"date": dt.date(2026, 9, day), "user": user, "team": team, "requests": 10, "request_bytes": 2**30,
         "response_bytes": 2**29}
        for day in (1, 30) for user, team in (("alice", "payments"), ("bob", None), (None, None))
    ]  # fmt: skip
    with lake.release() as tables:
        tables.replace("rollup_day", table(lake.spark, schemas.ROLLUP_DAY, *days), "date")
    write_bills(
        lake,
        lines("payments", ("produced", "4.50"), ("discount", "-0.50")),
        lines("payments", ("produced", "1.25"), cluster="c2"),
        lines("(none)", ("produced", "2.00")),
        lines("payments", ("produced", "9.00"), period="day"),
    )
    # What a run has written that is not released yet.
    rows = table(lake.spark, schemas.CHARGEBACK, *lines("payments", ("produced", "1000")))
    rows.write.format("delta").mode("append").save(lake.path("chargeback"))
    found = bi_with_duckdb.connect(lake.root).sql(bi_with_duckdb.COSTS).fetchall()
    assert found == [
        (SEPTEMBER, "payments", 20, 3.0, Decimal("5.25"), "EUR"),
        (SEPTEMBER, "(none)", 20, 3.0, Decimal("2.00"), "EUR"),
        (SEPTEMBER, "(unattributed)", 20, 3.0, None, None),
    ]
    bi_with_duckdb.main([lake.root])
    assert "payments" in capsys.readouterr().out
