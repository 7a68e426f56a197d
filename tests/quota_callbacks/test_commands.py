"""Commands of plugins refuse an option with one value that is given twice."""

from __future__ import annotations

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from headrace.quota_callbacks.commands import Group


@click.group(cls=Group)
@click.option("--file")
def tool(file: str | None) -> None:
    click.echo(f"file {file}")


@tool.group()
def inner() -> None:
    pass


@inner.command()
@click.option("--name")
@click.option("--each", multiple=True)
@click.option("-v", "verbosity", count=True)
@click.option("--yes", is_flag=True)
def leaf(name: str | None, each: tuple[str, ...], verbosity: int, yes: bool) -> None:
    click.echo(f"{name} {each} {verbosity} {yes}")


@pytest.mark.parametrize(
    ("arguments", "status", "printed"),
    [
        ("--file a inner leaf --name b", 0, "b () 0 False"),
        ("inner leaf --each 1 --each 2 -vv --yes --yes", 0, "None ('1', '2') 2 True"),
        ("inner leaf --name a --name a", 2, "Invalid value for '--name': it has one value, and is given 2 times"),
        ("--file a --file b inner leaf", 2, "Invalid value for '--file': it has one value, and is given 2 times"),
        ("inner leaf --name a --name b --help", 0, "Usage: tool inner leaf"),
    ],
)
def test_one_value_is_given_once(arguments: str, status: int, printed: str) -> None:
    result = CliRunner().invoke(tool, arguments.split())
    assert result.exit_code == status, result.output
    assert printed in result.output


def test_a_line_with_a_repeated_option_is_completed() -> None:
    shell = ShellComplete(tool, {}, "tool", "_TOOL_COMPLETE")
    assert [each.value for each in shell.get_completions(["inner", "leaf", "--name", "a", "--name", "b"], "--ye")] == [
        "--yes"
    ]
