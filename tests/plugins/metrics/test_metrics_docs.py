"""docs/metrics.md names all that there is, and its example works."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from headrace.plugins.metrics.names import ENTITIES, LIMIT, LONGEST_TEXT, MEASURES, OTHER, others, series_of
from headrace.plugins.metrics.options import MetricsOptions, MetricsTable, options_of
from headrace.plugins.metrics.snapshot import STATES
from headrace.quota_callbacks.entities import QuotaKey
from tests.plugins.asked_variables import AskedVariables
from tests.plugins.metrics.metered import KAFKA_TYPES

PAGE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| `headrace_quota_")
]


@pytest.mark.parametrize("name", MetricsTable.model_fields)
def test_every_option_is_documented(name: str) -> None:
    assert f"| `{name}` |" in PAGE


def test_every_variable_is_documented() -> None:
    variables = AskedVariables()
    for endpoint in ({}, {"otlp_endpoint": "http://collector"}):
        options_of(endpoint, variables)
    assert {"OTEL_METRIC_EXPORT_INTERVAL", "OTEL_EXPORTER_OTLP_PROTOCOL"} <= variables.asked
    for name in variables.asked:
        assert name in PAGE, name


def test_every_series_is_documented_by_kafkas_name() -> None:
    rows = {(row[0].strip("`"), row[3].strip("`")) for row in ROWS}
    assert rows == {
        (measure.instrument.replace(".", "_"), "" if measure.kafka in (LIMIT, ENTITIES) else measure.kafka)
        for measure in MEASURES
    }


@pytest.mark.parametrize("key", QuotaKey)
def test_every_quota_of_every_series_is_documented_with_kafkas_type(key: QuotaKey) -> None:
    for name in set(series_of(key)) - {LIMIT}:
        rows = [row for row in ROWS if row[3] == f"`{name}`" and (key.value in row[1] or row[1] == "every key")]
        assert rows, name
        assert any(f"type={KAFKA_TYPES[key]}" in row[2] or row[2] == "of each `type`" for row in rows), name


def test_states_and_other_labels_are_documented() -> None:
    for state in STATES:
        assert f"`{state}`" in PAGE
    labels = others(QuotaKey.PRODUCER_BYTE_RATE, ("user", "client-id"))
    assert labels["user"] == labels["client_id"] == OTHER
    assert f'`user="{OTHER}",client_id="{OTHER}"`' in PAGE
    assert f"cut at {LONGEST_TEXT} characters" in PAGE


def test_the_defaults_are_those_of_the_page() -> None:
    defaults = MetricsOptions()
    assert f"| `max_series` | {defaults.max_series} |" in PAGE
    assert f"| `idle_s` | {defaults.idle_s} |" in PAGE
    assert f"or {defaults.push_interval_s:g} |" in PAGE


def test_the_example_is_taken() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    taken = options_of(tomllib.loads(block)["plugins"]["options"]["metrics"], {})
    assert (taken.max_series, taken.idle_s, taken.push_interval_s) == (20_000, 600, 15)
    assert taken.endpoint == "http://collector:4318/v1/metrics"
