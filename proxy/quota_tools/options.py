"""Options, completion, errors and output of the quota commands. Imported to show the help, so it imports little."""

from __future__ import annotations

import functools
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem

from headrace.config.overrides import BOOTSTRAP_SERVER
from headrace.config.problems import ConfigError
from headrace.proxy.errors import StartupError
from headrace.proxy.quota_tools.errors import ArgumentError, ClusterError
from headrace.quota_callbacks.commands import fail, report
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA
from headrace.quota_callbacks.escaping import json_text, printable
from headrace.quota_callbacks.units import parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headrace.proxy.quota_tools.cluster import QuotaCluster
    from headrace.quota_callbacks.definitions import QuotaSchema

DEFAULT_SERVER: Final = "127.0.0.1:9192"
"""The address of the proxy in all examples."""
DEFAULT_TIMEOUT_S: Final = 30.0
SHORTEST_TIMEOUT_S: Final = 0.001
LONGEST_TIMEOUT_S: Final = 86_400.0


# --- output ---


def warn(*lines: str) -> None:
    """Print warnings to standard error."""
    report(*(f"warning: {line}" for line in lines))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines, all at once: there may be hundreds of thousands."""
    if text := "\n".join(lines):
        click.echo(text)


def print_json(value: object) -> None:
    """Print an object as JSON of printable ASCII characters."""
    click.echo(json_text(value, indent=2))


@contextmanager
def reported_errors(*, status: int = 1) -> Iterator[None]:
    """Exit with this status and an error message at errors of files and clusters, and with 2 at wrong arguments."""
    try:
        yield
    except ArgumentError as error:
        raise click.UsageError(printable(str(error)), click.get_current_context(silent=True)) from error
    except ConfigError as error:
        fail(*map(str, error.problems), status=status)
    except ClusterError as error:
        fail(str(error), status=status)


# --- the cluster ---


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """How to reach a cluster."""

    bootstrap_server: str | None
    command_config: str | None
    timeout_s: float
    has_default: bool = True
    """Whether the usual servers are used if neither of the two above names one."""

    def open(self, schema: QuotaSchema = BUILTIN_SCHEMA) -> QuotaCluster:
        """Return the cluster, for errors that suggest the names of ``schema``. Nothing is connected to yet.

        Raises `ClusterError`.
        """
        from headrace.proxy.quota_tools.cluster import QuotaCluster, client_settings

        return QuotaCluster(
            client_settings(
                servers=self.bootstrap_server,
                default_servers=(
                    os.environ.get(BOOTSTRAP_SERVER, "").strip() or DEFAULT_SERVER if self.has_default else None
                ),
                properties=self.command_config,
                timeout_ms=round(self.timeout_s * 1000),
                report=warn,
            ),
            schema,
        )


def _timeout_s(_ctx: click.Context, _param: click.Parameter, text: str) -> float:
    """Return the seconds of a duration such as ``30s``, or of a number of seconds."""
    try:
        timeout_s = parse_duration_s(float(text) if text.replace(".", "", 1).isdecimal() else text)
    except ValueError:
        timeout_s = 0.0
    if not SHORTEST_TIMEOUT_S <= timeout_s <= LONGEST_TIMEOUT_S:
        raise click.BadParameter(f"{text!r}: expected a duration from 1ms to 1d, such as 30s")
    return timeout_s


def bootstrap_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of KIP-546 that name the cluster."""
    command = click.option(
        "--command-config",
        type=click.Path(),
        metavar="FILE",
        help="The file with the client's settings, such as its user and password, as for Kafka's tools.",
    )(command)
    return click.option(
        "--bootstrap-server",
        metavar="HOST:PORT",
        help=f"The proxy, or a broker.  [default: {BOOTSTRAP_SERVER}, or {DEFAULT_SERVER}]",
    )(command)


def timeout_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option for the time-out of each call."""
    return click.option(
        "--timeout",
        "timeout_s",
        callback=_timeout_s,
        default=f"{DEFAULT_TIMEOUT_S:g}s",
        show_default=True,
        metavar="TIME",
        help="The longest time for one call, such as 30s. Long changes take several calls.",
    )(command)


def reaches_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name the cluster; the command gets them as ``options``, a `ClusterOptions`."""

    @bootstrap_option
    @timeout_option
    @functools.wraps(command)
    def with_options(
        bootstrap_server: str | None, command_config: str | None, timeout_s: float, **others: object
    ) -> None:
        options = ClusterOptions(bootstrap_server=bootstrap_server, command_config=command_config, timeout_s=timeout_s)
        command(options=options, **others)

    return with_options


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON; docs/changing-quotas.md describes it.")


# --- entities and values ---

ALSO_WITH_PLUGINS: Final = "give the proxy's configuration file, which names the plugins, with --config"
"""What to do about quotas of entity types that the command does not know."""


def schema_of(config: str | None) -> QuotaSchema:
    """Return the quota keys and entity types for a configuration file; the built-in ones without a file.

    Environment variables apply as for ``headrace run``. The plugins of the file are loaded and configured, and start
    nothing. Commands do not need those of plugins to change quotas, since the cluster checks names and values. Blocks.
    Raises `ConfigError`, and `ArgumentError` if a plugin is refused.
    """
    if config is None:
        return BUILTIN_SCHEMA
    from headrace.config.loading import load
    from headrace.proxy.server.preflight import loaded_rules

    loaded = load(config, environment=os.environ, schema=None)
    try:
        return loaded_rules(loaded).schema
    except StartupError as error:
        raise ArgumentError(f"--config {config}: {error}") from error


def _completed(incomplete: str, words: dict[str, str], end: str = "") -> list[CompletionItem]:
    """Return completions for the last element of a list, without words that the list has already."""
    *before, last = incomplete.split(",")
    used = {each.partition("=")[0] for each in before}
    prefix = "".join(f"{each}," for each in before)
    return [
        CompletionItem(f"{prefix}{word}{end}", help=text)
        for word, text in words.items()
        if word.startswith(last) and word not in used
    ]


def _known(ctx: click.Context) -> QuotaSchema:
    """Return the quota keys and entity types to complete: those of ``--config``, if the file can be loaded."""
    try:
        return schema_of(ctx.params.get("config"))
    except (ConfigError, ArgumentError):  # an error message would be mixed with what the user types
        return BUILTIN_SCHEMA


def _complete_types(end: str = "") -> Callable[..., list[CompletionItem]]:
    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        words = {each.name: each.help for each in _known(ctx).entity_types.values()}
        return _completed(incomplete, words, end)

    return complete


def _complete_keys(end: str = "") -> Callable[..., list[CompletionItem]]:
    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        words = {each.name: each.help for each in _known(ctx).keys.values()}
        return _completed(incomplete, words, end)

    return complete


config_option = click.option(
    "--config",
    type=click.Path(),
    metavar="FILE",
    help="The proxy's configuration file, whose plugins define further entity types and quota keys.",
)


names_option = click.option(
    "--names",
    multiple=True,
    metavar="TYPE=NAME,...",
    shell_complete=_complete_types("="),
    help=r"Entity types and names, such as user=alice,client-id=app. A comma in a name is written \,.",
)
defaults_option = click.option(
    "--defaults",
    multiple=True,
    metavar="TYPE,...",
    shell_complete=_complete_types(),
    help="Entity types with the default name, such as user.",
)
any_option = click.option(
    "--any",
    "any_types",
    multiple=True,
    metavar="TYPE,...",
    shell_complete=_complete_types(),
    help="Entity types with any name, the default included.",
)
add_option = click.option(
    "--add",
    multiple=True,
    metavar="KEY=VALUE,...",
    shell_complete=_complete_keys("="),
    help="Quotas to add or change, such as producer_byte_rate=2MiB,request_percentage=50.",
)
delete_option = click.option(
    "--delete",
    multiple=True,
    metavar="KEY,...",
    shell_complete=_complete_keys(),
    help="Quotas to remove, such as consumer_byte_rate.",
)
validate_option = click.option(
    "--validate-only", is_flag=True, help="Let the cluster check the change, and change nothing."
)
