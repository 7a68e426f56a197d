"""The page of calibrate and anomalies: its options are those of the commands, and its configuration is valid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click
import pytest

from headrace.config import loads
from headrace.config.editing import sample_text
from headrace.pipeline.analysis.anomalies.findings import Kind
from headrace.pipeline.analysis.handler_times import HOW
from headrace.pipeline.cli import pipeline
from headrace.pipeline.lake import schemas

PAGE: Final = (Path(__file__).parents[3] / "docs" / "pipeline-calibrate-anomalies.md").read_text(encoding="utf-8")
OF_ALL: Final = {"lake", "master", "packages", "conf", "json", "help"}


def section(job: str) -> str:
    return PAGE.split(f"\n## {job}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("job", ["calibrate", "anomalies"])
def test_its_options_are_those_of_the_command_with_their_defaults(job: str) -> None:
    command = pipeline.get_command(click.Context(pipeline), job)
    assert command is not None
    options = {each.opts[0]: each.default for each in command.params if each.opts[0][2:] not in OF_ALL}
    rows = re.findall(r"^\| (`--.*?) \| (.*?) \|", section(job), re.MULTILINE)
    documented = {option: default for names, default in rows for option in re.findall(r"`(--[\w-]+)", names)}
    assert documented.keys() == options.keys()
    numbers = {option: default for option, default in options.items() if isinstance(default, int | float)}
    assert len(numbers) >= 5
    assert {option: documented[option] for option in numbers} == {
        option: str(value) for option, value in numbers.items()
    }


def test_its_configuration_is_taken() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    options = loads(f"{sample_text()}\n{text}").plugins.options
    assert options == {"request_percentage": {"costs_file": "/etc/headrace/costs.toml"}}


def test_the_page_shows_the_command_that_samples_brokers() -> None:
    (command,) = re.findall(r"```\n(kafka-run-class .*?)\n\n", PAGE, re.DOTALL)
    documented = command.replace("\\\n", " ").split()
    assert sorted(documented) == sorted(HOW.replace("BROKER:PORT", "broker-0:9999").split())


def test_every_kind_and_column_stands_there() -> None:
    text = section("anomalies")
    assert re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)[: len(Kind)] == [kind.value for kind in Kind]
    assert [name for name in schemas.ANOMALIES.names if f"`{name}`" not in text] == []
