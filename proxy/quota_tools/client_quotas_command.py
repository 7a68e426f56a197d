"""``headrace client-quotas``: the command of KIP-546 (``kafka-client-quotas.sh``), with its options and its output."""

from __future__ import annotations

import click

from headrace.proxy.quota_tools.options import (
    DEFAULT_TIMEOUT_S,
    ClusterOptions,
    add_option,
    bootstrap_option,
    defaults_option,
    delete_option,
    names_option,
    print_lines,
    reported_errors,
    validate_option,
    warn,
)
from headrace.quota_callbacks.commands import Command, fail


@click.command("client-quotas", cls=Command)
@click.option("--describe", is_flag=True, help="Print the quotas of the entities that match.")
@click.option("--resolve", is_flag=True, help="Print the effective quotas of an entity, and where they come from.")
@click.option("--alter", is_flag=True, help="Change the quotas of an entity.")
@bootstrap_option
@names_option
@defaults_option
@add_option
@delete_option
@validate_option
def command(
    describe: bool,
    resolve: bool,
    alter: bool,
    bootstrap_server: str | None,
    command_config: str | None,
    names: tuple[str, ...],
    defaults: tuple[str, ...],
    add: tuple[str, ...],
    delete: tuple[str, ...],
    validate_only: bool,
) -> None:
    """Describe, resolve or alter quotas, with the options of KIP-546.

    Exactly one of --describe, --resolve and --alter is needed. "headrace quotas" can do more.

    \b
    Example: headrace client-quotas --bootstrap-server localhost:9192 --describe --names client-id=my-client
    """
    if describe + resolve + alter != 1:
        raise click.UsageError("exactly one of --describe, --resolve and --alter is needed")
    if not alter and (add or delete or validate_only):
        raise click.UsageError("--add, --delete and --validate-only are for --alter only")
    options = ClusterOptions(
        bootstrap_server=bootstrap_server, command_config=command_config, timeout_s=DEFAULT_TIMEOUT_S
    )
    with reported_errors():
        if describe:
            _describe(options, names, defaults)
        elif resolve:
            _resolve(options, names, defaults)
        else:
            _alter(options, names, defaults, add, delete, validate_only=validate_only)


def _describe(options: ClusterOptions, names: tuple[str, ...], defaults: tuple[str, ...]) -> None:
    from headrace.proxy.quota_tools.arguments import filter_of
    from headrace.proxy.quota_tools.text import described_lines

    wanted = filter_of(names, defaults)
    with options.open() as cluster:
        print_lines(described_lines(cluster.describe(wanted, report=warn)))


def _resolve(options: ClusterOptions, names: tuple[str, ...], defaults: tuple[str, ...]) -> None:
    from headrace.proxy.quota_tools.arguments import client_of
    from headrace.proxy.quota_tools.resolution import resolution_warnings, resolve, unknown_types
    from headrace.proxy.quota_tools.text import resolved_lines

    client = client_of(names, defaults)
    with options.open() as cluster:
        cluster.check_types(unknown_types(client))
        quotas = cluster.describe(report=warn)
    print_lines(resolved_lines(resolve(quotas, client), overridden=False))
    warn(*(f'{warning}; see "headrace quotas resolve --help"' for warning in resolution_warnings(quotas, client)))


def _alter(
    options: ClusterOptions,
    names: tuple[str, ...],
    defaults: tuple[str, ...],
    add: tuple[str, ...],
    delete: tuple[str, ...],
    *,
    validate_only: bool,
) -> None:
    from headrace.proxy.quota_tools.arguments import alteration_of
    from headrace.proxy.quota_tools.text import refusal_text

    entity, values = alteration_of(names, defaults, add, delete)
    with options.open() as cluster:
        refused = cluster.alter({entity: values}, validate_only=validate_only)
    if refused:
        fail(*map(refusal_text, refused))
