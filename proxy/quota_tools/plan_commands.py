"""``headrace quotas apply``, ``diff`` and ``import``: from the quotas of a file or another cluster to those in force.

All three make a plan. ``apply`` and ``import`` let the cluster check it, show it, ask for a confirmation, read the
quotas again, since they may have been changed meanwhile, and only then change anything.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import click

from headrace.proxy.quota_tools.options import (
    ClusterOptions,
    json_option,
    print_json,
    print_lines,
    reaches_cluster,
    reported_errors,
    warn,
)
from headrace.quota_callbacks.commands import Command, fail, report

if TYPE_CHECKING:
    from headrace.proxy.quota_tools.cluster import QuotaCluster
    from headrace.proxy.quota_tools.plans import Action, Plan, Refusal

STANDARD_INPUT: Final = "-"
LISTED_REFUSALS: Final = 50
"""Refusals that are printed one by one; any others are only counted."""

file_argument = click.argument("file", metavar="FILE", type=click.Path(allow_dash=True))
prune_option = click.option(
    "--prune",
    is_flag=True,
    help="Remove quotas that the file, or the other cluster, does not have, instead of keeping them.",
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask for a confirmation.")


@click.command(cls=Command)
@file_argument
@prune_option
@yes_option
@json_option
@reaches_cluster
def apply(options: ClusterOptions, file: str, prune: bool, yes: bool, as_json: bool) -> None:
    """Set the quotas of a file: print a plan, ask, and change what differs.

    FILE has [[quotas]] tables, as "export" prints them and as a configuration file has them, or JSON; "-" is standard
    input. The cluster checks the plan first: if it refuses a part, nothing is changed. There is one exception: --prune
    keeps quotas that are in the proxy's configuration file, since they cannot be removed, and prints a warning.

    \b
    Example: headrace quotas apply quotas.toml
    """
    if file == STANDARD_INPUT and not yes:
        hint = "the confirmation cannot be read from standard input, too"
        raise click.UsageError(f"--yes is required if the file is standard input, since {hint}")
    with reported_errors():
        from headrace.proxy.quota_tools.files import read_quota_file
        from headrace.proxy.quota_tools.plans import Action, make_plan

        found = read_quota_file(file)
        _warn_of_policies(file, found.policies)
        with options.open() as cluster:
            plan = make_plan(cluster.changeable(), found.quotas, prune=prune)
            plan, left_out = _checked(cluster, plan, leaves_out=(Action.REMOVE,), as_json=as_json)
            _carry_out(cluster, plan, yes=yes, as_json=as_json, left_out=left_out)


@click.command(cls=Command)
@file_argument
@json_option
@reaches_cluster
def diff(options: ClusterOptions, file: str, as_json: bool) -> None:
    """Compare the quotas in force with a file, without changing anything.

    A line with + is a quota that only the file has, - one that only the cluster has, and ~ one with another value in
    the file. The exit status is 0 if there is no difference, 1 if there is one, and 2 if something fails.
    """
    with reported_errors(status=2):
        from headrace.proxy.quota_tools.files import read_quota_file
        from headrace.proxy.quota_tools.plans import make_plan
        from headrace.proxy.quota_tools.text import plan_lines

        found = read_quota_file(file)
        _warn_of_policies(file, found.policies)
        with options.open() as cluster:
            plan = make_plan(cluster.changeable(), found.quotas, prune=True)
    if as_json:
        _print_result(plan, applied=False)
    else:
        print_lines(plan_lines(plan))
    sys.exit(1 if plan.steps else 0)


@click.command("import", cls=Command)
@click.option("--from", "source_server", metavar="HOST:PORT", help="A broker of the cluster whose quotas are copied.")
@click.option(
    "--from-config",
    "source_config",
    type=click.Path(),
    metavar="FILE",
    help="The settings for that cluster, as --command-config.",
)
@prune_option
@yes_option
@json_option
@reaches_cluster
def import_(
    options: ClusterOptions,
    source_server: str | None,
    source_config: str | None,
    prune: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Copy the quotas of a cluster into the proxy: print a plan, ask, and change what differs.

    What the proxy cannot keep is left out, with a warning. The cluster keeps its quotas, and enforces them beside the
    proxy's.

    \b
    Example: headrace quotas import --from kafka-1:9092 --bootstrap-server localhost:9192
    """
    if source_server is None and source_config is None:
        raise click.UsageError("--from is needed, or --from-config with a file that has bootstrap.servers")
    source = ClusterOptions(
        bootstrap_server=source_server,
        command_config=source_config,
        timeout_s=options.timeout_s,
        has_default=False,  # that is the proxy itself
    )
    with reported_errors():
        from headrace.proxy.quota_tools.files import writable
        from headrace.proxy.quota_tools.plans import Action, make_plan

        with source.open() as other:
            wanted, not_finite = writable(other.changeable())
        warn(*not_finite)
        with options.open() as cluster:
            plan = make_plan(cluster.changeable(), wanted, prune=prune)
            plan, left_out = _checked(cluster, plan, leaves_out=tuple(Action), as_json=as_json)
            _carry_out(cluster, plan, yes=yes, as_json=as_json, left_out=left_out)


def _warn_of_policies(file: str, policies: tuple[str, ...]) -> None:
    if policies:
        names = ", ".join(policies)
        warn(f"{file}: {names}: policies are set in the proxy's configuration file only, and are not compared or sent")


def _checked(
    cluster: QuotaCluster, plan: Plan, *, leaves_out: tuple[Action, ...], as_json: bool
) -> tuple[Plan, list[Refusal]]:
    """Let the cluster check a plan, and return it without the steps that are left out, and why these are refused.

    Steps with the actions ``leaves_out`` are left out, with a warning, if the cluster finds them invalid. Exits with 1
    if it refuses another step, or for another reason, such as a user who may not change quotas.
    """
    from headrace.quota_callbacks.error_codes import ErrorCode

    refused = cluster.check(plan)
    optional = {(step.entity, step.key) for step in plan.steps if step.action in leaves_out}
    left_out = [
        each for each in refused if each.code == ErrorCode.INVALID_REQUEST and (each.entity, each.key) in optional
    ]
    if len(left_out) < len(refused):
        if as_json:
            _print_result(plan, applied=False, refused=refused)
        fail(*_refusal_lines([each for each in refused if each not in left_out]), "nothing was changed")
    warn(*_refusal_lines(left_out, suffix="; it is left out"))
    return plan.without({(each.entity, each.key) for each in left_out}), left_out


def _carry_out(cluster: QuotaCluster, plan: Plan, *, yes: bool, as_json: bool, left_out: list[Refusal]) -> None:
    """Show the plan, ask, and make its steps. Exits with 1 if they are declined, outdated, or partly refused.

    ``left_out`` are the refusals of steps that the plan no longer has; the JSON result lists them, too.
    """
    from headrace.proxy.quota_tools.text import plan_lines, plan_summary

    if not as_json:
        print_lines([*plan_lines(plan), plan_summary(plan)])
    if plan.kept:
        report(f"{plan.kept} quotas at {cluster.servers} that the source does not have are kept; --prune removes them")
    if plan.steps and not yes:
        if as_json:
            report(*plan_lines(plan))
        _confirm(cluster, plan)
    refused = cluster.alter(plan.by_entity(), progress=show_progress) if plan.steps else []
    if as_json:
        _print_result(plan, applied=True, refused=[*left_out, *refused])
    if refused:
        fail(*_refusal_lines(refused), f"{len(refused)} of {len(plan.by_entity())} entities are not changed")


def _confirm(cluster: QuotaCluster, plan: Plan) -> None:
    """Ask for a confirmation, and check that the quotas are still those that the plan begins with."""
    from headrace.proxy.quota_tools.text import entity_text, quota_text

    try:
        confirmed = click.confirm(f"Change the quotas at {cluster.servers}?", err=True)
    except click.Abort:  # the end of standard input, or Ctrl-C
        click.echo(err=True)
        fail("not confirmed, so nothing was changed; --yes is for programs that cannot answer")
    if not confirmed:
        fail("nothing was changed")
    current = cluster.changeable()
    outdated = [step for step in plan.steps if current.get(step.entity, {}).get(step.key) != step.old]
    if not outdated:
        return
    lines = []
    for step in outdated[:LISTED_REFUSALS]:
        value = current.get(step.entity, {}).get(step.key)
        now = f"{step.key} is not set" if value is None else quota_text(step.key, value)
        lines.append(f"{entity_text(step.entity)}: now {now}")
    fail(*lines, f"{len(outdated)} quotas of the plan have changed meanwhile, so nothing was changed; run it again")


def _refusal_lines(refused: list[Refusal], suffix: str = "") -> list[str]:
    from headrace.proxy.quota_tools.text import listed, refusal_text

    return listed([f"{refusal_text(each)}{suffix}" for each in refused], LISTED_REFUSALS)


def _print_result(plan: Plan, *, applied: bool, refused: list[Refusal] | None = None) -> None:
    from headrace.proxy.quota_tools.json_form import plan_json

    print_json(plan_json(plan, applied=applied, refused=refused or ()))


def show_progress(done: int, total: int) -> None:
    """Show on a terminal how many entities are done, if they take several requests."""
    from headrace.proxy.quota_tools.cluster import BATCH_CHANGES

    if total > BATCH_CHANGES and sys.stderr.isatty():
        click.echo(f"\r{done:,} of {total:,} entities", nl=done == total, err=True)
