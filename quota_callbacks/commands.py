"""Commands of the command line whose options with one value may be given once.

click uses the last value of an option that is given several times and drops the others, so that a command could concern
another proxy or file than the one that its caller sees first. Used by all commands of Headrace; plugins may use it for
commands that they register in the entry point group ``headrace.commands``.
"""

from __future__ import annotations

from collections import Counter

import click


class Command(click.Command):
    """A command that refuses to take one of several values for an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Raises `click.BadParameter` if an option with one value is repeated."""
        _, _, given = self.make_parser(ctx).parse_args([*args])
        for option, times in Counter(given).items():
            if times > 1 and isinstance(option, click.Option) and not (option.multiple or option.is_flag):
                raise click.BadParameter(f"it has one value, and is given {times} times", ctx, option)
        return super().parse_args(ctx, args)


class Group(click.Group):
    """A group of such commands."""

    command_class = Command
