"""docs/tracing.md names all that there is, and its example works."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.plugins.tracing import attributes
from headrace.plugins.tracing.options import TracingTable, options_of
from tests.plugins.asked_variables import AskedVariables

if TYPE_CHECKING:
    from tests.plugins.tracing.traced import Traced

PAGE = (Path(__file__).parents[3] / "docs" / "tracing.md").read_text()


@pytest.mark.parametrize("name", [value for name, value in vars(attributes).items() if name.isupper()])
def test_every_attribute_is_documented(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", TracingTable.model_fields)
def test_every_option_is_documented(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_every_variable_is_documented() -> None:
    variables = AskedVariables()
    options_of({"enabled": True}, variables)
    assert {"OTEL_TRACES_SAMPLER_ARG", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} <= variables.asked
    for name in variables.asked:
        assert name in PAGE, name


def test_every_metric_is_documented(tracing: Traced) -> None:
    for metric in tracing.hooks.collect_metrics():
        total = "_total" if metric.total else ""
        assert f"`headrace_{metric.name}{total}`" in PAGE
        for value in metric.labels.values():
            assert f"`{value}`" in PAGE


def test_the_example_is_taken() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    taken = options_of(tomllib.loads(block)["plugins"]["options"]["tracing"], {})
    assert (taken.enabled, taken.sample_ratio, taken.queue_size) == (True, 0.05, 4096)
