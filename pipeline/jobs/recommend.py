"""The command ``headrace pipeline recommend``."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.backtest import backtest
from headrace.pipeline.analysis.quota_files import as_kafka_configs, as_toml, entity_of, read_configuration
from headrace.pipeline.analysis.recommend import needs_of, recommendations
from headrace.pipeline.analysis.recommend.rules import DEFAULT_LEAST, DEFAULT_WINDOWS, By, Rules
from headrace.pipeline.analysis.usage import of_one_cluster
from headrace.pipeline.cli import (
    CLUSTER,
    DAY,
    LAKE,
    day_options,
    job_options,
    number_option,
    refuse_unread,
    settings_of,
)
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import Lake, of_days, open_lake
from headrace.pipeline.output import check_output, report_progress, report_result, write_file
from headrace.quota_callbacks.commands import Command
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA
from headrace.quota_callbacks.entities import DEFAULT, QuotaKey
from headrace.quota_callbacks.units import parse_size_bytes

if TYPE_CHECKING:
    from datetime import date, datetime

    from pyspark.sql import DataFrame

    from headrace.pipeline.analysis.quota_files import Entity
    from headrace.pipeline.lake.session import SparkOptions
    from headrace.pipeline.output import Result

RULES = Rules()
SHOWN = 20


@click.command(cls=Command)
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
    help="The proxy's configuration, for the windows of its quotas, and the quotas that are in force.",
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
@click.option(
    "--follow-peaks", is_flag=True, help="Raise a quota until it would have throttled none of the entity's usage."
)
@number_option(
    "--allow-throttled",
    click.FloatRange(min=0, max=1, max_open=True),
    RULES.allow_throttled,
    "With --follow-peaks: maximum share of an entity's seconds that may be above its quota.",
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
@number_option(
    "--least-entities",
    click.IntRange(min=1),
    RULES.least_entities,
    "Minimum number of entities with usage of a key for a default quota of it.",
)
@click.option("--no-default", is_flag=True, help="Recommend no quotas for the default entity.")
@click.option(
    "--capacity",
    multiple=True,
    metavar="KEY=VALUE",
    help="Capacity of the cluster for a key, such as producer_byte_rate=200MiB/s; may be repeated. The default quota is"
    " at most what remains of the capacity after the other quotas, divided by the number of entities without one.",
)
@click.option(
    "--backtest-from",
    "test_from",
    type=DAY,
    metavar="DATE",
    help="First of the days, after --to, whose usage the recommended quotas are applied to.",
)
@click.option(
    "--backtest-to",
    "test_to",
    type=DAY,
    metavar="DATE",
    help="Last day (UTC) whose usage the recommended quotas are applied to.",
)
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
@job_options
def command(
    *,
    spark: SparkOptions,
    lake: str,
    first: date | None,
    last: date | None,
    cluster: str | None,
    by: str,
    config: str | None,
    follow_peaks: bool,
    least: tuple[str, ...],
    no_default: bool,
    capacity: tuple[str, ...],
    test_from: datetime | None,
    test_to: datetime | None,
    toml: str | None,
    commands: str | None,
    server: str,
    most: int,
    **numbers: Any,
) -> Result:
    """Recommend a quota for each entity and quota key, with the reason, from recorded usage.

    The table recommendations has all of them; --toml and --commands write them to files. Clients that retry without
    pause, or ignore their limits, are marked; their recommended quota is at most their present one. With
    --backtest-from, the quotas are applied to the usage of later days: the table backtest has the result. Use what-if
    for their effect on other usage.
    """
    if numbers["allow_throttled"] and not follow_peaks:
        raise click.UsageError("--allow-throttled is the limit of --follow-peaks; expected both, or neither")
    refuse_unread("server", where=commands is None, why="without --commands")
    refuse_unread("most", where=toml is None and commands is None, why="without --toml or --commands")
    last, test_days = _test_days(first, last, test_from, test_to)
    quotas, windows = ({}, DEFAULT_WINDOWS) if config is None else read_configuration(config)
    rules = Rules(
        by=By(by),
        windows=windows,
        follow_peaks=follow_peaks,
        least={**DEFAULT_LEAST, **_rates(least, "--least")},
        default=not no_default,
        capacity=_rates(capacity, "--capacity"),
        present={entity_of(entity): values for entity, values in quotas.items()},
        **numbers,
    )
    check_output("--toml", toml)
    check_output("--commands", commands)
    tables = open_lake("recommend", spark, lake)
    everything = tables.read("usage", schemas.USAGE)
    usage, what = of_one_cluster(of_days(everything, first, last), cluster)
    report_progress(*what.lines())
    if not what.records:
        report_progress("no quotas are recommended, and nothing was written")
        return {"cluster": what.cluster, "records": 0, "quotas": 0, "entities": 0}
    test, no_test = None, "--backtest-from is not given"
    if test_days is not None:
        test, tested = of_one_cluster(of_days(everything, *test_days), what.cluster)
        no_test = "" if tested.records else "there is no usage of these days"
    if tables.has("backtest"):  # before the recommendations: a run that is killed leaves no back-test of other quotas
        tables.replace_of_cluster("backtest", tables.spark.createDataFrame([], schemas.BACKTEST), what.cluster)
    found = _write_table(tables, usage, rules, what.cluster)
    try:
        counts = _report_result(found)
        result: Result = {"cluster": what.cluster, "records": what.records, **counts}
        if rules.capacity:
            _report_capacity(found, rules)
        if test is not None and not no_test:
            result["backtest"] = _backtest(tables, found, test, rules, what.cluster)
        elif tables.has("backtest"):
            report_progress(f"the table backtest has no rows of this cluster: {no_test}")
        if toml is not None or commands is not None:
            _write(found, counts["entities"], most, toml, commands, server)
    finally:
        found.unpersist()
    return result


def _test_days(
    first: date | None, last: date | None, test_from: datetime | None, test_to: datetime | None
) -> tuple[date | None, tuple[date, date | None] | None]:
    """Return the last of the days to recommend from, and the first and last day of the back-test, if there is one."""
    if test_from is None:
        if test_to is not None:
            raise click.UsageError("--backtest-to requires --backtest-from, the first day of the back-test")
        return last, None
    begin, end = test_from.date(), None if test_to is None else test_to.date()
    last = begin - timedelta(days=1) if last is None else last
    if begin <= last or (first is not None and first > last):
        raise click.UsageError(
            f"--backtest-from {begin} is not after the days to recommend from; expected a day after --from and --to"
        )
    if end is not None and begin > end:
        raise click.UsageError(f"--backtest-from {begin} is after --backtest-to {end}; expected a first and a last day")
    return last, (begin, end)


def _write_table(tables: Lake, usage: DataFrame, rules: Rules, cluster: str | None) -> DataFrame:
    """Write the table ``recommendations``; report who and what has no quota in it. Return its rows, persisted."""
    needs = needs_of(usage, rules).persist()
    try:
        found = recommendations(needs, rules).repartition(1).sortWithinPartitions("user", "client_id", "key").persist()
        tables.replace_of_cluster("recommendations", found, cluster)
        _report_few(needs, rules)
    finally:
        needs.unpersist()
    return found


def _report_few(needs: DataFrame, rules: Rules) -> None:
    """Report entities with too little usage for a quota, and keys with too few entities for a default quota."""
    keys = rules.by.keys if rules.default else ()
    is_key = {key: sf.col("key") == key.value for key in keys}
    behaves = sf.col("misbehaviour").isNull()
    brief = sf.when(sf.col("entity_seconds") < rules.least_seconds, sf.struct("user", "client_id"))
    (row,) = needs.agg(
        sf.count_distinct(brief).alias("brief"),
        *(sf.count_if(is_key[key]).alias(f"{key}_rows") for key in keys),
        *(sf.count_if(is_key[key] & behaves).alias(key.value) for key in keys),
    ).collect()
    if row.brief:
        report_progress(
            f"{row.brief:,} entities were active for less than {rules.least_seconds:,} s, and have no quota of their"
            " own"
        )
    for key in sorted(keys):
        if row[f"{key}_rows"] and row[key] < rules.least_entities:
            report_progress(
                f"no default quota of {key}: {row[key]:,} well-behaved entities have such usage, and"
                f" --least-entities is {rules.least_entities:,}"
            )


def _report_capacity(found: DataFrame, rules: Rules) -> None:
    """Report the sum of the recommended quotas beside each capacity."""
    is_default = sf.coalesce("user", "client_id") == str(DEFAULT)
    sums = found.groupBy("key").agg(
        sf.coalesce(sf.sum(sf.when(~is_default, sf.col("quota"))), sf.lit(0.0)).alias("total"),
        sf.count_if(~is_default).alias("quotas"),
    )
    by_key = {row.key: row for row in sums.collect()}
    for key, capacity in rules.capacity.items():
        row = by_key.get(key.value)
        total, quotas = (0.0, 0) if row is None else (row.total, row.quotas)
        line = f"{key}: {quotas:,} quotas of entities are {total:.10g} in all, {total / capacity:.1%} of the capacity"
        if total >= capacity:
            line += "; nothing is left for a default quota"
        report_progress(line)


def _backtest(tables: Lake, found: DataFrame, usage: DataFrame, rules: Rules, cluster: str | None) -> Result:
    """Write the table ``backtest``, and report it."""
    tested = backtest(usage, found.collect(), rules.windows).repartition(1)
    tables.replace_of_cluster("backtest", tested.sortWithinPartitions("key", "user", "client_id"), cluster)
    result = tables.read_of_cluster("backtest", schemas.BACKTEST, cluster)
    held = result.where("throttled_seconds > 0 or refused_seconds > 0")
    buckets, throttled = result.count(), held.count()
    report_progress(f"back-test: {throttled:,} of {buckets:,} buckets would have been throttled")
    for row in held.orderBy(sf.desc("throttled_seconds"), "key", "user", "client_id").limit(SHOWN).collect():
        report_result(
            f"{row.key} = {row.quota:.10g} of {_name(row)} (quota of {row.entity}): throttled in"
            f" {row.throttled_seconds:,} of {row.seconds:,} seconds, refused in {row.refused_seconds:,}, for at most"
            f" {row.longest_throttle_ms / 1000:,.1f} s"
        )
    return {"buckets": buckets, "throttled_buckets": throttled}


def _rates(given: tuple[str, ...], option: str) -> dict[QuotaKey, float]:
    """Parse KEY=VALUE; byte rates may be sizes such as 200MiB/s. Raises `click.BadParameter`."""
    rates = {}
    for name, value in settings_of(given, option).items():
        try:
            key = QuotaKey(name)
            rate = _rate(value, sizes=key in (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE))
            BUILTIN_SCHEMA.check(key, rate)
        except ValueError as error:
            known = ", ".join(QuotaKey)
            raise click.BadParameter(f"{option} {name}={value}: {error}; expected a rate of one of {known}") from error
        rates[key] = rate
    return rates


def _rate(value: str, *, sizes: bool) -> float:
    try:
        return float(value)
    except ValueError:
        if not sizes:
            raise
        return parse_size_bytes(value.removesuffix("/s"))


def _report_result(found: DataFrame) -> Result:
    (row,) = found.agg(
        sf.count("*").alias("quotas"),
        sf.count_distinct(sf.struct("user", "client_id")).alias("entities"),
        sf.count("misbehaviour").alias("misbehaving"),
    ).collect()
    quotas, entities, misbehaving = row
    report_progress(f"{quotas:,} quotas for {entities:,} entities")
    for row in found.orderBy("key", sf.desc("quota"), "user", "client_id").limit(SHOWN).collect():
        report_result(f"{row.key} = {row.quota:.10g} of {_name(row)}: {row.reason}")
    more = quotas - SHOWN
    if more > 0:
        report_progress(f"and {more:,} more in the table recommendations")
    if misbehaving:
        by_kind = found.where("misbehaviour is not null").groupBy("misbehaviour").count().orderBy("misbehaviour")
        for row in by_kind.collect():
            report_progress(
                f"{row['count']:,} quotas of entities that misbehave, which were not raised: {row.misbehaviour}"
            )
    return {"quotas": quotas, "entities": entities}


def _name(row: Any) -> str:
    return ", ".join(f"{kind}={name}" for kind, name in (("user", row.user), ("client-id", row.client_id)) if name)


def _write(found: DataFrame, entities: int, most: int, toml: str | None, commands: str | None, server: str) -> None:
    """Write the files: the default entity first, the others by the sum of their byte rates, descending.

    ``entities`` is the number of those in ``found``.
    """
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
    left_out = entities - len(quotas)
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
