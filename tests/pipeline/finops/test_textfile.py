"""Budgets as metrics: the text that a parser of Prometheus' format reads."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from prometheus_client.parser import text_string_to_metric_families

from headrace.pipeline.finops.spending import Spending
from headrace.pipeline.finops.textfile import metrics
from tests.pipeline.finops.billing import SEPTEMBER


def spent(team: str, amount: str, cluster: str | None = None) -> Spending:
    checked = dt.datetime(2026, 9, 22, tzinfo=dt.UTC)
    amounts = {"budget": Decimal(100), "spent": Decimal(amount), "share": 0.5, "forecast": Decimal("1E+3")}
    return Spending(
        month=SEPTEMBER, cluster=cluster, team=team, state=None, currency="EUR", checked=checked, delivered=None,
        **amounts,
    )  # fmt: skip


def test_a_metric_has_the_labels_as_they_are() -> None:
    odd = 'a "b"\\n\nc'
    text = "".join(metrics([spent("payments", "50.000000"), spent(odd, "0.05", cluster="lkc-1")]))
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(found) == {"headrace_budget_amount", "headrace_budget_spent", "headrace_budget_forecast"}
    assert all(family.type == "gauge" and family.documentation for family in found.values())
    assert [(sample.labels, sample.value) for sample in found["headrace_budget_spent"].samples] == [
        ({"team": "payments", "cluster": "", "currency": "EUR"}, 50.0),
        ({"team": odd, "cluster": "lkc-1", "currency": "EUR"}, 0.05),
    ]
    assert 'headrace_budget_forecast{team="payments",cluster="",currency="EUR"} 1000\n' in text
