"""The command ``headrace pipeline run``."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.config.loading import parse_toml, read_text
from headrace.config.problems import ConfigError
from headrace.pipeline.cli import JOBS, RUN, command_of, job_options, settings_of
from headrace.pipeline.errors import InputError, PipelineError
from headrace.pipeline.output import report_progress
from headrace.quota_callbacks.commands import Command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.pipeline.lake.session import SparkOptions
    from headrace.pipeline.output import Result

LEFT_OUT: Final = ("run", "migrate", "zip")
"""Jobs that are not repeated."""
RUNNABLE: Final = tuple(job for job in JOBS if job not in LEFT_OUT)
SPARK: Final = ("master", "packages", "conf")
"""The keys of the table ``[spark]``, which are options of every job."""


@click.command(cls=Command)
@click.argument("plan", metavar="FILE", type=click.Path(dir_okay=False))
@job_options
@click.pass_context
def command(context: click.Context, *, spark: SparkOptions, plan: str) -> Result:
    """Run the jobs that FILE names one after the other, in one Spark session, which saves the time of its start.

    FILE is TOML: the lake, and a table for each job with its options, as on the command line. The jobs run in the order
    of headrace pipeline --help, and the first that fails ends the run.

    The table [spark] may have master, packages and conf for all jobs; options of this command take precedence.

    \b
    lake = "s3a://bucket/headrace"
    [ingest]
    from-files = "/var/lib/headrace/usage"
    [rollup]
    teams = "teams.csv"
    prices = "prices.toml"
    [report]
    output = "report.html"
    """
    given = {"master": spark.master, "packages": spark.packages, "conf": spark.conf}
    of_all = {name: value for name, value in given.items() if value}
    jobs = list(_contexts(read_plan(plan), of_all, plan, context))
    context.meta[RUN] = context
    results = []
    _start_with_connector(jobs)
    for number, job in enumerate(jobs, 1):
        name = str(job.info_name)
        report_progress(f"{name} ({number} of {len(jobs)})")
        try:
            with job:
                results.append({"job": name, **job.command.invoke(job)})
        except PipelineError as error:
            raise type(error)(f"{name}: {error}") from error
        except click.UsageError as error:
            raise InputError(f"{plan}: [{name}]: {error.format_message()}") from error
    return {"jobs": results}


def _start_with_connector(jobs: Sequence[click.Context]) -> None:
    """Start Spark with its Kafka connector if any job needs it, since the first job starts the session for all jobs."""
    from headrace.pipeline.lake.session import SparkOptions, start_session

    for job in jobs:
        if job.params.get("bootstrap_servers"):
            conf = settings_of(job.params["conf"], "--conf")
            options = SparkOptions(master=job.params["master"], packages=job.params["packages"], conf=conf)
            start_session("run", options, job.params["lake"], kafka=True)
            return


def read_plan(path: str) -> dict[str, dict[str, Any]]:
    """Read a plan from a local file; return the options of each job, with those for Spark. Raises `InputError`."""
    try:
        plan = parse_toml(read_text(path, what="plan"), path)
    except ConfigError as error:
        raise InputError(str(error)) from error
    lake = plan.pop("lake", None)
    if not isinstance(lake, str):
        raise InputError(f'{path}: lake = {lake!r}; expected the folder of the tables, such as lake = "s3a://bucket/x"')
    spark = plan.pop("spark", {})
    if not isinstance(spark, dict) or spark.keys() - set(SPARK):
        # Its settings may contain secrets, so only names are shown.
        found = ", ".join(spark) if isinstance(spark, dict) else "no table"
        raise InputError(f"{path}: spark has {found}; expected a table with some of {', '.join(SPARK)}")
    for name, options in plan.items():
        if name not in RUNNABLE or not isinstance(options, dict):
            raise InputError(f"{path}: {name}: expected lake, spark, and tables for jobs: {', '.join(RUNNABLE)}")
        if "follow" in options:
            raise InputError(f"{path}: [{name}]: follow: the jobs after it would never run")
        if "json" in options:
            raise InputError(f"{path}: [{name}]: json: expected headrace pipeline run {path} --json")
    if not plan:
        raise InputError(f"{path}: no jobs; expected tables for some of {', '.join(RUNNABLE)}")
    return {job: {"lake": lake, **spark, **plan[job]} for job in RUNNABLE if job in plan}


def _contexts(
    plan: Mapping[str, Mapping[str, Any]], of_all: Mapping[str, Any], path: str, parent: click.Context
) -> Iterator[click.Context]:
    """Yield a context for each job, with its options and those in ``of_all``, after checking them.

    Raises `InputError`.
    """
    for name, options in plan.items():
        try:
            yield command_of(name).make_context(name, list(_arguments({**options, **of_all})), parent=parent)
        except click.UsageError as error:
            raise InputError(f"{path}: [{name}]: {error.format_message()}") from error


def _arguments(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options as on a command line."""
    for name, value in options.items():
        yield from _of_one(f"--{name}", value)


def _of_one(option: str, value: object) -> Sequence[str]:
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    if isinstance(value, list):
        return [f"{option}={each}" for each in value]
    if isinstance(value, dict):
        return [f"{option}={name}={_text(each)}" for name, each in value.items()]
    return [f"{option}={_text(value)}"]


def _text(value: object) -> str:
    """Return a value of TOML as on a command line."""
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date) else str(value)
