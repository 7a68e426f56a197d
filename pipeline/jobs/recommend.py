"""The command ``headrace pipeline recommend``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.quota_files import as_kafka_configs, as_toml, read_windows
from headrace.pipeline.analysis.recommend import DEFAULT_LEAST, DEFAULT_WINDOWS, By, Rules, needs_of, recommendations
from headrace.pipeline.analysis.usage import of_one_cluster
from headrace.pipeline.cli import (
    CLUSTER,
    LAKE,
    check_output,
    day_options,
    number_option,
    report_progress,
    report_usage,
    settings_of,
    spark_options,
    write_file,
)
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.session import start_session
from headrace.pipeline.lake.tables import Lake, of_days
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA, check_quota_value
from headrace.quota_callbacks.entities import DEFAULT, QuotaKey

if TYPE_CHECKING:
    from datetime import date

    from pyspark.sql import DataFrame

    from headrace.pipeline.analysis.quota_files import Entity
    from headrace.pipeline.lake.session import SparkOptions

RULES = Rules()
SHOWN = 20


@click.command()
@LAKE
@day_options
@CLUSTER
@click.option(
    "--by",
    type=click.Choice([by.value for by in By]),
    default=By.USER.value,
    show_default=True,
    help="Kind of entity.",
)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="The proxy's configuration, for the windows of its quotas.",
)
@number_option(
    "--headroom", click.FloatRange(min=1), RULES.headroom, "Multiple of the 99th percentile of an entity's rate."
)
@number_option(
    "--throttled-headroom",
    click.FloatRange(min=1),
    RULES.throttled_headroom,
    "Headroom for entities that the quota has throttled, since their demand is not known.",
)
@number_option(
    "--allow-throttled",
    click.FloatRange(min=0, max=1, max_open=True),
    RULES.allow_throttled,
    "Maximum share of an entity's seconds that may be above its quota.",
    metavar="FRACTION",
)
@click.option(
    "--least",
    multiple=True,
    metavar="KEY=VALUE",
    help="Minimum quota of a key; may be repeated.  [default: "
    + ", ".join(f"{key}={DEFAULT_LEAST[key]:g}" for key in QuotaKey)
    + "]",
)
@number_option(
    "--least-seconds",
    click.IntRange(min=1),
    RULES.least_seconds,
    "Minimum number of active seconds for a quota of the entity's own.",
)
@click.option("--no-default", is_flag=True, help="Recommend no quotas for the default entity.")
@click.option("--toml", metavar="FILE", help="File for [[quotas]] tables, for the proxy's configuration.")
@click.option("--commands", metavar="FILE", help="File for kafka-configs commands that set the quotas.")
@click.option(
    "--bootstrap-server",
    "server",
    default="localhost:9092",
    show_default=True,
    metavar="HOST:PORT",
    help="The address in --commands: a broker's, to set the brokers' quotas, or the proxy's, to set Headrace's.",
)
@number_option(
    "--most",
    click.IntRange(min=1),
    10_000,
    "Maximum number of entities in --toml and --commands, the largest first.",
)
@spark_options
def command(
    *,
    spark: SparkOptions,
    lake: str,
    first: date | None,
    last: date | None,
    cluster: str | None,
    by: str,
    config: str | None,
    least: tuple[str, ...],
    least_seconds: int,
    no_default: bool,
    toml: str | None,
    commands: str | None,
    server: str,
    most: int,
    **factors: float,
) -> None:
    """Recommend a quota for each entity and quota key, with the reason, from recorded usage.

    The table recommendations has all of them; --toml and --commands write them to files. Use what-if to see what these
    quotas would have done to the same usage.
    """
    rules = Rules(
        by=By(by),
        windows=DEFAULT_WINDOWS if config is None else read_windows(config),
        least={**DEFAULT_LEAST, **_least(least)},
        least_seconds=least_seconds,
        default=not no_default,
        **factors,
    )
    check_output("--toml", toml)
    check_output("--commands", commands)
    tables = Lake(start_session("recommend", spark), lake)
    usage, what = of_one_cluster(of_days(tables.read("usage", schemas.USAGE), first, last), cluster)
    report_usage(what)
    if not what.records:
        report_progress("no quotas are recommended, and nothing was written")
        return
    brief = _write_table(tables, usage, rules)
    found = tables.read("recommendations", schemas.RECOMMENDATIONS)
    _report_result(found)
    if brief:
        report_progress(
            f"{brief:,} entities were active for less than {least_seconds:,} s, and have no quota of their own"
        )
    if toml is not None or commands is not None:
        _write(found, most, toml, commands, server)


def _write_table(tables: Lake, usage: DataFrame, rules: Rules) -> int:
    """Write the table ``recommendations``; return the number of entities that were active too briefly for a quota."""
    needs = needs_of(usage, rules).persist()
    try:
        found = recommendations(needs, rules).repartition(1).sortWithinPartitions("user", "client_id", "key")
        tables.replace("recommendations", found)
        is_brief = sf.col("entity_seconds") < rules.least_seconds
        return needs.where(is_brief).select("user", "client_id").distinct().count()
    finally:
        needs.unpersist()


def _least(given: tuple[str, ...]) -> dict[QuotaKey, float]:
    least = {}
    for name, value in settings_of(given, "--least").items():
        try:
            key, rate = QuotaKey(name), float(value)
            check_quota_value(key, rate)
        except ValueError as error:
            known = ", ".join(QuotaKey)
            raise click.BadParameter(f"--least {name}={value}: {error}; expected a rate of one of {known}") from error
        least[key] = rate
    return least


def _report_result(found: DataFrame) -> None:
    entities = found.select("user", "client_id").distinct().count()
    report_progress(f"{found.count():,} quotas for {entities:,} entities")
    for row in found.orderBy("key", sf.desc("quota"), "user", "client_id").limit(SHOWN).collect():
        click.echo(f"{row.key} = {row.quota:.10g} of {_name(row)}: {row.reason}")
    more = found.count() - SHOWN
    if more > 0:
        report_progress(f"and {more:,} more in the table recommendations")


def _name(row: Any) -> str:
    return ", ".join(f"{kind}={name}" for kind, name in (("user", row.user), ("client-id", row.client_id)) if name)


def _write(found: DataFrame, most: int, toml: str | None, commands: str | None, server: str) -> None:
    """Write the files: the default entity first, the others by the sum of their byte rates, descending."""
    rates = sf.when(
        sf.col("key").isin([key.value for key in QuotaKey if BUILTIN_SCHEMA.keys[key].integral]), sf.col("quota")
    )
    by_entity = found.groupBy("user", "client_id").agg(
        sf.coalesce(sf.sum(rates), sf.lit(0.0)).alias("size"),
        sf.collect_list(sf.struct("key", "quota", "reason")).alias("quotas"),
    )
    is_default = sf.coalesce("user", "client_id") == str(DEFAULT)
    ordered = by_entity.orderBy(sf.desc(is_default), sf.desc("size"), "user", "client_id")
    quotas: dict[Entity, dict[QuotaKey, tuple[float, str]]] = {}
    for row in ordered.limit(most).collect():
        by_key = {QuotaKey(each.key): (each.quota, each.reason) for each in row.quotas}
        quotas[row.user, row.client_id] = {key: by_key[key] for key in QuotaKey if key in by_key}
    left_out = by_entity.count() - len(quotas)
    head = ["# Recommended by headrace pipeline recommend from recorded usage.\n"]
    if left_out:
        head.append(
            f"# {left_out:,} smaller entities are left out (--most {most}); the table recommendations has them.\n"
        )
        report_progress(f"{left_out:,} smaller entities are left out of the files (--most {most})")
    if toml is not None:
        write_file(found.sparkSession, toml, [*head, "\n", as_toml(quotas)])
        report_progress(f"the quotas are in {toml}")
    if commands is not None:
        write_file(found.sparkSession, commands, head + [f"{each}\n" for each in as_kafka_configs(quotas, server)])
        report_progress(f"the commands are in {commands}")
