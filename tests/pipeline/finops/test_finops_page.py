"""The page about budgets, FOCUS and BI: inputs are accepted, and names and numbers are those of the code."""

from __future__ import annotations

import json
import re
import shlex
from functools import partial
from pathlib import Path

import click
import pytest

from headrace.pipeline.cli import pipeline
from headrace.pipeline.finops import webhook
from headrace.pipeline.finops.budget_files import TeamBudget, read_budgets
from headrace.pipeline.finops.focus import COLUMNS, SERVICE, SKUS, VERSION
from headrace.pipeline.finops.textfile import METRICS
from headrace.pipeline.lake import schemas
from tests.pages import blocks_of

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "pipeline-finops.md").read_text(encoding="utf-8")
blocks = partial(blocks_of, PAGE)
WORDS = " ".join(PAGE.split())


def names_in(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def first_column(title: str) -> set[str]:
    """Return the names in the first column of the tables whose first row begins with ``title``."""
    tables = [each for each in PAGE.split("\n\n") if each.startswith(f"| {title} |")]
    return {name for each in tables for row in each.splitlines()[2:] for name in names_in(row.split("|")[1])}


@pytest.mark.parametrize("block", blocks("sh"))
def test_the_commands_have_options_that_there_are(block: str) -> None:
    _, _, job, *options = shlex.split(block.replace("\\\n", ""))
    command = pipeline.get_command(click.Context(pipeline), job)
    assert command is not None
    known = {name for parameter in command.params for name in parameter.opts}
    assert {each for each in options if each.startswith("--")} <= known


def test_the_budgets_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "budgets.toml").write_text(blocks("toml")[0], encoding="utf-8")
    budgets = read_budgets(str(tmp_path / "budgets.toml"))
    assert set(budgets.teams) == {"payments", "search", "(none)"}
    assert f"the default is {list(TeamBudget.model_fields['alert_percent'].default)}" in PAGE


def test_columns_and_metrics_are_all_there() -> None:
    (heading,) = [line for line in PAGE.splitlines() if line.startswith("| line of the bill |")]
    assert first_column("column") | names_in(heading) == set(schemas.BUDGETS.names) | set(COLUMNS)
    assert first_column("metric") == {name for name, _ in METRICS.values()}


def test_the_document_of_the_webhook() -> None:
    (alert,) = json.loads(blocks("json")[0])["alerts"]
    members = ("team", "cluster", "budget", "spent", "share", "forecast", "state", "currency")
    assert list(alert) == ["id", "percent", *members]
    assert f"within {webhook.TIMEOUT_S:g} seconds" in WORDS
    assert webhook.ATTEMPTS == 3
    assert "The job tries three times, with pauses of 1 and 2 seconds" in WORDS
    assert webhook.FIRST_PAUSE_S == 1


def test_the_values_of_focus() -> None:
    assert f"[FOCUS](https://focus.finops.org) {VERSION}" in PAGE
    for sku in SKUS.values():
        assert f"`{sku.consumed}`" in PAGE
        assert f"`{sku.priced}`" in PAGE
    assert all(f"`{value}`" in PAGE for value in SERVICE.values())


def test_the_example_and_its_packages_are_named() -> None:
    example = (ROOT / "examples" / "bi_with_duckdb.py").read_text(encoding="utf-8")
    (commands,) = re.findall(r"```\n(pip install .*?)```", PAGE, re.DOTALL)
    for command in commands.splitlines():
        assert f"    {command}\n" in example
