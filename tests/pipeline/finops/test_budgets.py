"""Budgets: spending and forecasts computed by hand, and the command with its table, file and webhook."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from headrace.pipeline.cli import pipeline
from headrace.pipeline.finops.spending import Bill, Progress, progress_of
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import Lake
from tests.pipeline.finops.billing import SEPTEMBER, lines, table, write_bills
from tests.pipeline.finops.http_server import Receiver, receiver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

NOW = dt.datetime(2026, 9, 21, 12, 30, tzinfo=dt.UTC)
FILE = """
currency = "EUR"
[teams.payments]
amount = 100
[teams.search]
amount = 100
alert_percent = [90]
cluster = "c2"
[teams.web]
amount = 10
"""


class Clock(dt.datetime):
    """The time at which the command runs."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:  # type: ignore[override]
        return NOW.astimezone(tz)


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.pipeline.jobs.budgets.datetime", Clock)
    monkeypatch.setattr("headrace.pipeline.finops.webhook.FIRST_PAUSE_S", 0.0)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiver() as running:
        yield running


@pytest.fixture
def billed(lake: Lake) -> Lake:
    """Half of the month is over, of which there is usage on two days, until noon of the 15th."""
    write_bills(
        lake,
        lines("payments", ("produced", "70"), ("discount", "-10"), ("shared: x", "20")),
        lines("payments", ("produced", "5"), cluster="c2"),
        lines("search", ("produced", "500")),
        lines("search", ("produced", "44"), cluster="c2"),
        hours=[dt.datetime(2026, 9, day, 11, tzinfo=dt.UTC) for day in (1, 15)],
    )
    return lake


def run(lake: Lake, folder: Path, *arguments: str, file: str = FILE) -> Result:
    (folder / "budgets.toml").write_text(file, encoding="utf-8")
    options = ["--lake", lake.root, "--budgets", str(folder / "budgets.toml"), "--json", *arguments]
    return CliRunner().invoke(pipeline, ["budgets", *options])


def rows(lake: Lake, *columns: str) -> list[tuple[Any, ...]]:
    table = Lake(lake.spark, lake.root).read("budgets", schemas.BUDGETS)
    return [tuple(row) for row in table.orderBy("month", "team").select(*columns).collect()]


# --- the forecast ---


@pytest.mark.parametrize(
    ("shared", "minimum", "expected"),
    [
        (0, 0, 30),  # 10 in 5 days, so 20 in the 10 that remain
        (4, 0, 22),  # 6 were used; shared costs do not grow
        (0, 4, 18),  # 6 were used
        (0, 8, 10),  # 2 were used: 6 are expected, and the minimum is 10
        (1, 8, 10),
    ],
)
def test_a_forecast_is_of_what_was_used(shared: int, minimum: int, expected: int) -> None:
    bill = Bill(cluster=None, team="a", total=Decimal(10), shared=Decimal(shared), minimum=Decimal(minimum))
    assert bill.forecast(Progress(days=Fraction(5), remaining=Fraction(10))) == expected


def test_the_progress_of_a_month_is_that_of_its_last_hour(lake: Lake) -> None:
    hours = [dt.datetime(2026, 8, 31, 23), dt.datetime(2026, 9, 10, 3), dt.datetime(2026, 9, 12, 5)]  # noqa: DTZ001
    write_bills(lake, hours=[hour.replace(tzinfo=dt.UTC) for hour in hours])
    tables = lake.read("rollup_day", schemas.ROLLUP_DAY), lake.read("rollup_hour", schemas.ROLLUP_HOUR)
    during, after = dt.date(2026, 9, 12), dt.date(2026, 10, 1)
    assert progress_of(*tables, SEPTEMBER, during) == Progress(days=Fraction(5, 4), remaining=Fraction(75, 4))
    assert progress_of(*tables, SEPTEMBER, after) == Progress(days=Fraction(5, 4), remaining=Fraction(0))
    assert progress_of(*tables, dt.date(2026, 7, 1), during) is None
    empty = tables[1].limit(0)
    assert progress_of(tables[0], empty, SEPTEMBER, during) == Progress(days=Fraction(2), remaining=Fraction(18))


# --- the command ---


def test_the_table_the_file_and_the_result(billed: Lake, tmp_path: Path) -> None:
    metrics = tmp_path / "budgets.prom"
    result = run(billed, tmp_path, "--prometheus", str(metrics))
    assert result.exit_code == 0, result.output
    # payments: 60 and 5 were used in 1.5 days, 15.5 remain, and 20 are shared; search has bills of two clusters.
    columns = ("month", "cluster", "team", "budget", "spent", "share", "state", "currency", "delivered")
    assert rows(billed, *columns) == [
        (SEPTEMBER, None, "payments", 100, 85, 0.85, 80, "EUR", None),
        (SEPTEMBER, "c2", "search", 100, 44, 0.44, None, "EUR", None),
        (SEPTEMBER, None, "web", 10, 0, 0.0, None, "EUR", None),
    ]
    forecasts = [Decimal("756.666667"), Decimal("498.666667"), Decimal(0)]
    assert [forecast for (forecast,) in rows(billed, "forecast")] == forecasts
    assert 'headrace_budget_spent{team="payments",cluster="",currency="EUR"} 85\n' in metrics.read_text()
    assert 'headrace_budget_forecast{team="search",cluster="c2",currency="EUR"} 498.666667\n' in metrics.read_text()
    found = json.loads(result.stdout)
    assert (found["month"], found["alerts"], found["delivered"]) == ("2026-09", 1, 0)
    assert found["teams"][0] == {
        "team": "payments", "cluster": None, "budget": "100", "spent": "85", "share": 0.85, "forecast": "756.666667",
        "state": 80, "currency": "EUR",
    }  # fmt: skip
    assert "3 budgets of 2026-09, 1 of them with an alert" in result.stderr
    assert "payments: 85.00 of 100.00 EUR (85 %) are spent, the alert is at 80 %; 756.67 EUR at" in result.stderr


def test_an_alert_is_delivered_once_and_a_further_one_when_it_is_reached(
    billed: Lake, tmp_path: Path, server: Receiver
) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    options = ("--webhook", server.url, "--webhook-token-file", str(tmp_path / "token"))
    for delivered in (1, 0):
        result = run(billed, tmp_path, *options)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["delivered"] == delivered
    ((_, headers, document),) = server.received
    assert headers["authorization"] == "Bearer s3cret"
    assert (document["month"], document["checked"]) == ("2026-09", "2026-09-21T12:30:00+00:00")
    assert document["alerts"] == [{
        "id": "2026-09/*/payments/100/80", "percent": 80, "team": "payments", "cluster": None, "budget": "100",
        "spent": "85", "share": 0.85, "forecast": "756.666667", "state": 80, "currency": "EUR",
    }]  # fmt: skip
    assert rows(billed, "team", "state", "delivered") == [
        ("payments", 80, 80),
        ("search", None, None),
        ("web", None, None),
    ]
    write_bills(billed, lines("payments", ("produced", "100")), lines("web", ("produced", "50")))
    assert run(billed, tmp_path, *options).exit_code == 0
    _, (_, _, document) = server.received
    assert [alert["id"] for alert in document["alerts"]] == ["2026-09/*/payments/100/100", "2026-09/*/web/10/100"]
    # With another budget, it is another alert.
    assert run(billed, tmp_path, *options, file=FILE.replace("amount = 10\n", "amount = 20\n")).exit_code == 0
    assert [alert["id"] for alert in server.received[-1][2]["alerts"]] == ["2026-09/*/web/20/100"]


def test_what_was_not_delivered_is_sent_by_the_next_run(billed: Lake, tmp_path: Path, server: Receiver) -> None:
    metrics = tmp_path / "budgets.prom"
    server.answers = [500, 500, 500]
    result = run(billed, tmp_path, "--webhook", server.url, "--prometheus", str(metrics))
    assert result.exit_code == 1
    failed = json.loads(result.stdout)
    assert failed["error"] == (
        f"--webhook http://127.0.0.1:{server.server_port}: HTTP status 500; 1 alerts were not delivered, the next run"
        " sends them"
    )
    assert "secret" not in result.output
    assert rows(billed, "team", "state", "delivered")[0] == ("payments", 80, None)
    assert "headrace_budget_spent" in metrics.read_text()
    assert run(billed, tmp_path).exit_code == 0, "without a webhook nothing is delivered"
    result = run(billed, tmp_path, "--webhook", server.url)
    assert (result.exit_code, json.loads(result.stdout)["delivered"]) == (0, 1)
    assert rows(billed, "team", "state", "delivered")[0] == ("payments", 80, 80)


def test_months_stand_beside_each_other(billed: Lake, tmp_path: Path) -> None:
    write_bills(billed, lines("web", ("produced", "9"), date=dt.date(2026, 8, 1)))
    for month in ("2026-08", "2026-09"):
        assert run(billed, tmp_path, "--month", month).exit_code == 0
    assert rows(billed, "month", "team", "spent", "forecast")[2] == (dt.date(2026, 8, 1), "web", 9, 9)
    assert len(rows(billed, "month")) == 6


def test_the_month_before_is_checked_on_the_first_days(
    lake: Lake, tmp_path: Path, server: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 1 October, payments has spent 150 of 100 in September; web has another budget since then, search none."""
    stored = [
        {"month": SEPTEMBER, "team": team, "budget": Decimal(100), "spent": Decimal(50), "currency": "EUR"}
        for team in ("payments", "search", "web")
    ]
    lake.replace("budgets", table(lake.spark, schemas.BUDGETS, *stored), "month")
    write_bills(lake, *(lines(team, ("produced", "150")) for team in ("payments", "search", "web")))
    metrics = tmp_path / "budgets.prom"
    file = 'currency = "EUR"\n[teams.payments]\namount = 100\n[teams.web]\namount = 20\n'
    for day, checked in ((4, False), (3, True)):
        monkeypatch.setattr(f"{__name__}.NOW", dt.datetime(2026, 10, day, 3, tzinfo=dt.UTC))
        result = run(lake, tmp_path, "--webhook", server.url, "--prometheus", str(metrics), file=file)
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        assert (found["month"], found["alerts"], "previous" in found) == ("2026-10", 0, checked)
    assert [(each["team"], each["spent"]) for each in found["previous"]["teams"]] == [("payments", "150")]
    ((_, _, document),) = server.received
    assert [alert["id"] for alert in document["alerts"]] == ["2026-09/*/payments/100/100"]
    assert rows(lake, "month", "team", "budget", "spent", "delivered") == [
        (SEPTEMBER, "payments", 100, 150, 100),
        (SEPTEMBER, "search", 100, 50, None),
        (SEPTEMBER, "web", 100, 50, None),
        (dt.date(2026, 10, 1), "payments", 100, 0, None),
        (dt.date(2026, 10, 1), "web", 20, 0, None),
    ]
    assert 'headrace_budget_spent{team="payments",cluster="",currency="EUR"} 0\n' in metrics.read_text()


def test_an_alert_of_the_month_before_is_sent_until_it_is_delivered(
    lake: Lake, tmp_path: Path, server: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the first days of the month, and although another run has written the table meanwhile."""
    amounts = {"budget": Decimal(100), "spent": Decimal(150), "state": 100, "currency": "EUR"}
    lake.replace("budgets", table(lake.spark, schemas.BUDGETS, {"month": SEPTEMBER, "team": "web", **amounts}), "month")
    write_bills(lake, lines("web", ("produced", "150")))
    monkeypatch.setattr(f"{__name__}.NOW", dt.datetime(2026, 10, 9, 3, tzinfo=dt.UTC))
    file = 'currency = "EUR"\n[teams.web]\namount = 100\n'
    for sent in (1, 1):
        result = run(lake, tmp_path, "--webhook", server.url, file=file)
        assert result.exit_code == 0, result.output
        assert len(server.received) == sent
    assert [each["id"] for each in server.received[0][2]["alerts"]] == ["2026-09/*/web/100/100"]


def test_bills_that_do_not_fit_the_budgets_are_errors(billed: Lake, tmp_path: Path) -> None:
    result = run(billed, tmp_path, file=FILE.replace("EUR", "USD"))
    assert 'budgets.toml: currency = "USD": the bills of 2026-09 are in EUR' in result.output
    write_bills(billed, lines("search", ("produced", "1"), cluster=None))
    result = run(billed, tmp_path)
    assert "the budget of team search is for cluster c2, and its bill for all clusters" in result.output
    assert result.exit_code == 1


def test_bills_by_day_alone_are_an_error_and_a_month_without_bills_is_none(lake: Lake, tmp_path: Path) -> None:
    write_bills(lake, lines("web", ("produced", "9"), period="day"))
    assert "there are no bills by month; headrace pipeline rollup --prices" in run(lake, tmp_path).output
    write_bills(lake, lines("web", ("produced", "9")))
    result = run(lake, tmp_path, "--month", "2026-10")
    assert result.exit_code == 0, result.output
    assert [each["spent"] for each in json.loads(result.stdout)["teams"]] == ["0", "0", "0"]


def test_budgets_and_focus_are_jobs_of_a_plan(billed: Lake, tmp_path: Path) -> None:
    (tmp_path / "budgets.toml").write_text(FILE, encoding="utf-8")
    plan = tmp_path / "plan.toml"
    plan.write_text(
        f"""
        lake = "{billed.root}"
        [focus]
        output = "{tmp_path}/focus.csv"
        [budgets]
        budgets = "{tmp_path}/budgets.toml"
        month = "2026-09"
        """,
        encoding="utf-8",
    )
    result = CliRunner().invoke(pipeline, ["run", str(plan), "--json"])
    assert result.exit_code == 0, result.output
    budgets, focus = json.loads(result.stdout)["jobs"]
    assert (budgets["job"], budgets["month"], budgets["alerts"]) == ("budgets", "2026-09", 1)
    assert (focus["job"], focus["bills"]) == ("focus", 4)
