"""``headrace quotas``: quotas of the proxy or of a broker, described, resolved and changed while they are in force."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.proxy.admin.command_options import reaches_admin
from headrace.proxy.quota_tools import plan_commands
from headrace.proxy.quota_tools.options import (
    add_option,
    any_option,
    defaults_option,
    delete_option,
    fail,
    json_option,
    names_option,
    print_json,
    print_lines,
    reaches_cluster,
    report,
    reported_errors,
    validate_option,
    warn,
)

if TYPE_CHECKING:
    from headrace.proxy.admin.client import AdminClient
    from headrace.proxy.quota_tools.options import ClusterOptions

MOST_CHANGES = 10_000
"""Changes in one page of the admin server (`headrace.proxy.admin.server.MOST_CHANGES`)."""


@click.group("quotas")
def command() -> None:
    """Describe, resolve and change quotas, at the running proxy or at a broker.

    A change is durable when the command returns, and in force on live connections within a second. See
    docs/changing-quotas.md for the format of names and files, and for the JSON output.
    """


@command.command()
@names_option
@defaults_option
@any_option
@click.option("--strict", is_flag=True, help="Leave out entities that have further entity types.")
@json_option
@reaches_cluster
def describe(
    options: ClusterOptions,
    names: tuple[str, ...],
    defaults: tuple[str, ...],
    any_types: tuple[str, ...],
    strict: bool,
    as_json: bool,
) -> None:
    """Print the quotas that are set, of all entities or of those that match every option.

    \b
    Example: headrace quotas describe --names user=alice
    """
    with reported_errors():
        from headrace.proxy.quota_tools.arguments import filter_of
        from headrace.proxy.quota_tools.json_form import quotas_json
        from headrace.proxy.quota_tools.text import described_lines

        wanted = filter_of(names, defaults, any_types, strict=strict)
        with options.open() as cluster:
            quotas = cluster.describe(wanted, report=warn)
    if as_json:
        print_json(quotas_json(quotas))
        return
    print_lines(described_lines(quotas))
    if not quotas:
        report("no quota is set" if not wanted.components else "no quota is set for such an entity")


@command.command()
@names_option
@defaults_option
@json_option
@reaches_cluster
def resolve(options: ClusterOptions, names: tuple[str, ...], defaults: tuple[str, ...], as_json: bool) -> None:
    """Print which quotas apply to a client, where they come from, and what they override.

    The client need not be known. A user or client id that is not named stands for one without quotas of its own, as
    do --defaults; "client-id=" is a client that sends no client id. Keys that are not listed are unlimited.

    \b
    Example: headrace quotas resolve --names user=alice,client-id=app
    """
    with reported_errors():
        from headrace.proxy.quota_tools import resolution
        from headrace.proxy.quota_tools.arguments import client_of
        from headrace.proxy.quota_tools.json_form import resolved_json
        from headrace.proxy.quota_tools.plans import sort_key
        from headrace.proxy.quota_tools.text import entity_text, resolved_lines

        client = client_of(names, defaults)
        with options.open() as cluster:
            quotas = cluster.describe(report=warn)
        resolved = resolution.resolve(quotas, client)
    if as_json:
        print_json(resolved_json(resolved))
        return
    print_lines(resolved_lines(resolved, overridden=True))
    if not resolved:
        report("no quota applies: unlimited")
    if others := sorted(resolution.more_specific(quotas, client), key=sort_key):
        report(f"entities with more names have quotas of their own: {len(others)}, such as {entity_text(others[0])}")


@command.command()
@names_option
@defaults_option
@add_option
@delete_option
@validate_option
@json_option
@reaches_cluster
def alter(
    options: ClusterOptions,
    names: tuple[str, ...],
    defaults: tuple[str, ...],
    add: tuple[str, ...],
    delete: tuple[str, ...],
    validate_only: bool,
    as_json: bool,
) -> None:
    """Set and remove quotas of one entity, completely or not at all. Prints nothing if it succeeds.

    \b
    Example: headrace quotas alter --names user=alice --defaults client-id --add producer_byte_rate=2MiB
    """
    with reported_errors():
        from headrace.proxy.quota_tools.arguments import alteration_of
        from headrace.proxy.quota_tools.json_form import alteration_json
        from headrace.proxy.quota_tools.text import refusal_text

        entity, values = alteration_of(names, defaults, add, delete)
        with options.open() as cluster:
            refused = cluster.alter({entity: values}, validate_only=validate_only)
    if as_json:
        print_json(alteration_json(entity, values, refused, validate_only=validate_only))
    if refused:
        fail(*map(refusal_text, refused))


@command.command()
@json_option
@reaches_cluster
def export(options: ClusterOptions, as_json: bool) -> None:
    """Print all quotas as [[quotas]] tables, which the configuration and "headrace quotas apply" accept.

    \b
    Example: headrace quotas export > quotas.toml
    """
    with reported_errors():
        from headrace.proxy.quota_tools import files
        from headrace.proxy.quota_tools.json_form import quotas_json
        from headrace.proxy.quota_tools.plans import sort_key

        with options.open() as cluster:
            quotas, left_out = files.writable(cluster.changeable())
    warn(*left_out)
    if as_json:
        print_json(quotas_json(quotas))
        return
    print_lines(files.toml_lines({entity: quotas[entity] for entity in sorted(quotas, key=sort_key)}))
    warn(*files.refused_by_configuration(quotas))


@command.command()
@click.option(
    "--newest", type=click.IntRange(1, MOST_CHANGES), default=20, show_default=True, help="Changes to list, at most."
)
@json_option
@reaches_admin
def audit(newest: int, as_json: bool, admin: AdminClient) -> None:
    """List who has changed which quota, newest first. Asks the admin server of a running proxy.

    \b
    Example: headrace quotas audit --admin 127.0.0.1:9190 --newest 5
    """
    from headrace.proxy.quota_tools.audit import audit_json, audit_lines

    changes = admin.quota_changes(newest=newest)
    if as_json:
        print_json(audit_json(changes))
        return
    print_lines(audit_lines(changes))


command.add_command(plan_commands.apply)
command.add_command(plan_commands.diff)
command.add_command(plan_commands.import_)
