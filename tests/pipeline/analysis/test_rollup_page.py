"""The examples of the page of rollup and recommend: inputs are accepted, and outputs are as shown."""

from __future__ import annotations

import re
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from headrace.config.loading import load_quotas
from headrace.pipeline.analysis.prices import ITEMS, Split, read_prices
from headrace.pipeline.analysis.recommend import rules as numbers
from headrace.pipeline.analysis.recommend.rules import DEFAULT_LEAST, Rules
from headrace.pipeline.analysis.teams import read_teams
from headrace.pipeline.cli import pipeline
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import Lake
from headrace.quota_callbacks.entities import QuotaKey
from tests.pages import blocks_of
from tests.pipeline.records import NOON, record, usage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[3] / "docs" / "pipeline-rollup-recommend.md").read_text(encoding="utf-8")
blocks = partial(blocks_of, PAGE)


def columns(first: str) -> set[str]:
    """Return the columns that the table starting with ``first`` documents."""
    rows = PAGE[PAGE.index(f"| {first}") :].split("\n\n")[0].splitlines()
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


@pytest.mark.parametrize(
    "line", [line for block in blocks("sh")[:4] for line in block.replace("\\\n", "").splitlines()]
)
def test_the_commands_have_options_that_there_are(line: str) -> None:
    _, _, job, *options = shlex.split(line)
    command = pipeline.get_command(click.Context(pipeline), job)
    assert command is not None
    known = {name for parameter in command.params for name in parameter.opts}
    assert {each for each in options if each.startswith("--")} <= known


def test_the_tables_columns_are_all_there() -> None:
    assert columns("`date`, `hour`") == set(schemas.ROLLUP_HOUR.names) | set(schemas.ROLLUP_DAY.names)
    assert columns("`user`, `client_id` | the entity") == set(schemas.RECOMMENDATIONS.names)
    assert columns("`key`, `user`, `client_id` | the bucket") == set(schemas.BACKTEST.names)


def test_the_teams_file_is_taken() -> None:
    assert len(read_teams(blocks("csv")[0], "teams.csv")) == 4


def test_the_price_sheet_is_taken_and_has_all_prices(tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text(blocks("toml")[0], encoding="utf-8")
    sheet = read_prices(str(tmp_path / "prices.toml"))
    assert set(sheet.prices()) == {item.key for item in ITEMS}
    assert set(sheet.teams) == {"payments", "search"}
    assert {f'`"{split}"`' for split in Split} <= set(PAGE.split())


@pytest.mark.exhaustive
def test_the_bill_is_what_comes_out(spark: SparkSession, tmp_path: Path) -> None:
    used = record(user="eve", request_bytes=2**29)
    Lake(spark, str(tmp_path)).append("usage", usage(spark, [used]), "date", "hour")
    (tmp_path / "prices.toml").write_text(blocks("toml")[0], encoding="utf-8")
    arguments = ["--prices", str(tmp_path / "prices.toml"), "--output", str(tmp_path / "bill.csv")]
    result = CliRunner().invoke(pipeline, ["rollup", "--lake", str(tmp_path), *arguments])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "bill.csv").read_text(encoding="utf-8").startswith(blocks("csv")[1])


@pytest.mark.exhaustive
def test_the_quotas_are_what_comes_out(spark: SparkSession, tmp_path: Path) -> None:
    used = [record(NOON + second, request_bytes=1_100_000, thread_ms=0.0) for second in range(100)]
    Lake(spark, str(tmp_path)).append("usage", usage(spark, used), "date", "hour")
    toml, commands = tmp_path / "quotas.toml", tmp_path / "quotas.sh"
    arguments = ["--toml", str(toml), "--commands", str(commands), "--bootstrap-server", "kafka-1.internal:9092"]
    result = CliRunner().invoke(pipeline, ["recommend", "--lake", str(tmp_path), "--no-default", *arguments])
    assert result.exit_code == 0, result.output
    assert blocks("toml")[1] in toml.read_text(encoding="utf-8")
    assert blocks("sh")[4] in commands.read_text(encoding="utf-8")
    assert len(load_quotas(toml)[0]) == 1


def test_the_numbers_are_those_of_the_code() -> None:
    rules, words = Rules(), " ".join(PAGE.split())
    assert f"times `--headroom` ({rules.headroom:g})" in words
    assert f"times `--throttled-headroom` ({rules.throttled_headroom:g})" in words
    assert f"less than `--least-seconds` ({rules.least_seconds})" in words
    assert f"at least `--least-entities` ({rules.least_entities})" in words
    assert f"suffices for {numbers.WIDELY:.0%}".replace("%", " %") in words
    assert f"at least {numbers.STORM_SHARE:.0%} of the active seconds".replace("%", " %") in words
    assert f"has at least {numbers.STORM_REQUESTS} requests; either half of them failed" in words
    assert f"more than {numbers.STORM_FACTOR} times the entity's median" in words
    assert (numbers.STORM_FAILED, numbers.HELD_SHARE) == (0.5, 0.5)  # "half"
    assert f"`--least`): {DEFAULT_LEAST[QuotaKey.PRODUCER_BYTE_RATE]:,} bytes a second" in words
    assert f"; {DEFAULT_LEAST[QuotaKey.PRODUCER_IDS_RATE]} producer ids." in words


def test_commands_for_the_proxy_set_its_own_quotas() -> None:
    assert "With the address of the proxy, they set Headrace's quotas" in " ".join(PAGE.split())
    command = pipeline.get_command(click.Context(pipeline), "recommend")
    assert command is not None
    [option] = [each for each in command.params if isinstance(each, click.Option) and each.name == "server"]
    assert option.help is not None
    assert "the proxy's, to set Headrace's" in option.help
