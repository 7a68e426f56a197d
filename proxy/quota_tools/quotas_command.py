"""``headrace quotas``: quotas of the proxy or of a broker, described, resolved and changed while they are in force."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.proxy.admin.command_options import reaches_admin
from headrace.proxy.quota_tools import plan_commands
from headrace.proxy.quota_tools.options import (
    ALSO_WITH_PLUGINS,
    add_option,
    any_option,
    config_option,
    defaults_option,
    delete_option,
    json_option,
    names_option,
    print_json,
    print_lines,
    reaches_cluster,
    reported_errors,
    schema_of,
    validate_option,
    warn,
)
from headrace.quota_callbacks.commands import Group, fail, report
from headrace.quota_callbacks.entities import LONG_MAX

if TYPE_CHECKING:
    from headrace.proxy.admin.client import AdminServerClient
    from headrace.proxy.quota_tools.options import ClusterOptions


@click.group("quotas", cls=Group)
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
@config_option
@json_option
@reaches_cluster
def describe(
    options: ClusterOptions,
    names: tuple[str, ...],
    defaults: tuple[str, ...],
    any_types: tuple[str, ...],
    strict: bool,
    config: str | None,
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
        with options.open(schema_of(config)) as cluster:
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
@config_option
@json_option
@reaches_cluster
def resolve(
    options: ClusterOptions, names: tuple[str, ...], defaults: tuple[str, ...], config: str | None, as_json: bool
) -> None:
    """Print which quotas apply to a client, where they come from, and what they override.

    The client need not be known. If the user or the client id is not named, or is given by --defaults, the result is
    for a user or client id without quotas of its own; "client-id=" is a client that sends no client id. Keys that are
    not listed are unlimited.

    Entity types of plugins can be named, too. With --config, the quotas of all of them that apply to the client are
    printed: they are enforced beside the others, and the longest throttle counts. Without it, only those of exactly the
    given names, and of the default, are found.

    \b
    Example: headrace quotas resolve --names user=alice,client-id=app
    """
    with reported_errors():
        from headrace.proxy.quota_tools import resolution
        from headrace.proxy.quota_tools.arguments import client_of
        from headrace.proxy.quota_tools.json_form import resolved_json
        from headrace.proxy.quota_tools.plans import sort_key
        from headrace.proxy.quota_tools.text import entity_text, resolved_lines

        schema = schema_of(config)
        client = client_of(names, defaults)
        with options.open(schema) as cluster:
            cluster.check_types(resolution.unknown_types(client, schema))
            quotas = cluster.describe(report=warn)
        resolved = resolution.resolve(quotas, client, schema)
    advice = ALSO_WITH_PLUGINS if config is None else f"no plugin of {config} defines these entity types"
    warn(*(f"{warning}; {advice}" for warning in resolution.resolution_warnings(quotas, client, schema)))
    if as_json:
        print_json(resolved_json(resolved))
        return
    print_lines(resolved_lines(resolved, overridden=True))
    if not resolved:
        report("no quota applies: unlimited")
    if others := sorted(resolution.more_specific(quotas, client), key=sort_key):
        example = entity_text(others[0])
        report(f"more specific entities whose quotas may apply instead: {len(others)}, such as {example}")


@command.command()
@names_option
@defaults_option
@add_option
@delete_option
@validate_option
@config_option
@json_option
@reaches_cluster
def alter(
    options: ClusterOptions,
    names: tuple[str, ...],
    defaults: tuple[str, ...],
    add: tuple[str, ...],
    delete: tuple[str, ...],
    validate_only: bool,
    config: str | None,
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
        with options.open(schema_of(config)) as cluster:
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
@click.option("--newest", type=click.IntRange(1), default=20, show_default=True, help="Changes to list, at most.")
@click.option(
    "--before",
    type=click.IntRange(1, LONG_MAX),
    metavar="POSITION",
    help="List changes before this one only: the position that is printed if there are older changes.",
)
@names_option
@defaults_option
@json_option
@reaches_admin
def audit(
    newest: int,
    before: int | None,
    names: tuple[str, ...],
    defaults: tuple[str, ...],
    as_json: bool,
    admin: AdminServerClient,
) -> None:
    """List who has changed which quota, newest first. Asks the admin server of a running proxy.

    With --names and --defaults, lists changes of the entities that match every option, as "describe" does; the records
    are read from the newest on until enough are found.

    \b
    Example: headrace quotas audit --admin 127.0.0.1:9190 --newest 5 --names user=alice
    """
    with reported_errors():
        from headrace.proxy.quota_tools.arguments import filter_of
        from headrace.proxy.quota_tools.audit import audit_json, audit_lines, find_changes

        wanted = filter_of(names, defaults)
    found = find_changes(
        lambda size, position: admin.quota_changes(newest=size, before=position), wanted, newest=newest, before=before
    )
    if as_json:
        print_json(audit_json(found))
        return
    print_lines(audit_lines(found.changes))
    if found.next_before is not None:
        report(f"there are older changes: --before {found.next_before}")
    elif not found.changes:
        report("no change is recorded")


command.add_command(plan_commands.apply)
command.add_command(plan_commands.diff)
command.add_command(plan_commands.import_)
