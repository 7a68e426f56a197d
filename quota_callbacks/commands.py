"""Commands of the command line: options with one value may be given once, and errors are lines of printable text.

click uses the last value of an option that is given several times, and drops the others. A command would then act on
another proxy or file than on the one that is named first. Used by all commands of Headrace; plugins may use it for
commands that they register in the entry point group ``headrace.commands``.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import NoReturn

import click

from headrace.quota_callbacks.escaping import printable


def report(*lines: str) -> None:
    """Print remarks or errors to standard error, each as one line whatever is in it."""
    for line in lines:
        click.echo(f"headrace: {printable(line)}", err=True)


def fail(*lines: str, status: int = 1) -> NoReturn:
    """Print errors, and exit."""
    report(*lines)
    sys.exit(status)


class Command(click.Command):
    """A command whose options with one value may be given once."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Raises `click.BadParameter` if an option with one value is repeated."""
        if not ctx.resilient_parsing:  # as for the completion of a line, of which nothing is executed
            _, _, given = self.make_parser(ctx).parse_args([*args])
            options = Counter(each for each in given if isinstance(each, click.Option))
            is_help = any(option.is_eager for option in options)  # or --version: nothing else is done
            for option, times in options.items():
                if times > 1 and not is_help and not _may_be_repeated(option):
                    raise click.BadParameter(f"it has one value, and is given {times} times", ctx, option)
        return super().parse_args(ctx, args)


class Group(Command, click.Group):
    """A group of such commands."""

    command_class = Command
    group_class = type


def _may_be_repeated(option: click.Option) -> bool:
    return option.multiple or option.is_flag or option.count
