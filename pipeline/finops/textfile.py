"""Budgets as metrics: a text file for the textfile collector of node_exporter, in Prometheus' text format 0.0.4."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.pipeline.finops.spending import Spending

METRICS: Final = {
    "budget": ("headrace_budget_amount", "Budget of the team for the month."),
    "spent": ("headrace_budget_spent", "Sum of the team's bills of the month so far."),
    "forecast": ("headrace_budget_forecast", "Sum of the team's bills at the end of the month, if usage goes on."),
}
"""Name and help text of the metric for a column of the table ``budgets``."""


def metrics(rows: Sequence[Spending]) -> Iterator[str]:
    """Yield the lines of the file. An empty label ``cluster`` stands for all clusters."""
    for column, (name, description) in METRICS.items():
        yield f"# HELP {name} {description}\n"
        yield f"# TYPE {name} gauge\n"
        for row in rows:
            labels = {"team": row.team, "cluster": row.cluster or "", "currency": row.currency}
            texts = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items())
            yield f"{name}{{{texts}}} {getattr(row, column).normalize():f}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
