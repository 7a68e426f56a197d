"""The command ``headrace pipeline JOB``, and the options that the commands of the jobs share.

The modules in `headrace.pipeline.jobs` import this module. It imports them only when their command is used, so that
listing the jobs does not require Spark.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
from click.core import ParameterSource

from headrace.pipeline.errors import InputError, PipelineError
from headrace.pipeline.lake.spark_errors import reported_errors
from headrace.pipeline.lake.stores import is_missing
from headrace.pipeline.output import AS_JSON, print_json, prints_json
from headrace.quota_callbacks.escaping import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from headrace.pipeline.output import Result

JOBS: Final = {
    "run": "Run the jobs that a file lists, one after the other, in one Spark session.",
    "ingest": "Read usage records from Kafka or files into the lake, each once.",
    "instances": "List the records of each instance of the proxy, and those that are missing.",
    "rollup": "Sum usage by hour and day, user, client id and team; write bills.",
    "budgets": "Compare bills with budgets; write alerts to a table, a file of metrics and a webhook.",
    "recommend": "Recommend quotas for each entity from its usage.",
    "what-if": "Compute who would be throttled by given quotas, and how long.",
    "calibrate": "Fit the cost model of request_percentage to a broker.",
    "anomalies": "Find entities whose usage differs from their own earlier usage.",
    "report": "Write one HTML file with plots.",
    "focus": "Export bills as CSV in the columns of FOCUS, for FinOps tools.",
    "compact": "Merge the small files of the tables.",
    "retain": "Remove old days of the tables, and files that are not needed any more.",
    "migrate": "Convert a lake of a version before Delta Lake.",
    "zip": "Write the pipeline as a zip for spark-submit --py-files.",
}
"""The jobs, in the order in which they are usually run."""

RUN: Final = "headrace.pipeline.run"
"""Key in the metadata of click's context: that of ``headrace pipeline run``, which reports the errors of its jobs."""
MAINTENANCE: Final = ("compact", "retain", "migrate", "zip")
"""The jobs in `headrace.pipeline.jobs.maintenance`."""


class Jobs(click.Group):
    """The command group: one command for each module of `headrace.pipeline.jobs`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's signature
        """Return the names of the jobs, in the order in which they are usually run."""
        return list(JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the job's module and return its command; ``None`` if there is no such job."""
        if cmd_name not in JOBS:
            return None
        return command_of(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of jobs from `JOBS`, without importing their modules."""
        with formatter.section("Jobs"):
            formatter.write_dl(list(JOBS.items()))


def command_of(job: str) -> click.Command:
    """Import the module of one of `JOBS`, and return its command."""
    folder = "jobs.maintenance" if job in MAINTENANCE else "jobs"
    try:
        module = importlib.import_module(f"headrace.pipeline.{folder}.{job.replace('-', '_')}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "headrace":
            raise
        _fail(f"the pipeline needs the package {error.name}: pip install 'headrace[pipeline]'")
    command: click.Command = module.command
    return command


@click.command(cls=Jobs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def pipeline() -> None:
    """Turn usage records into bills, recommended quotas, what-if answers and a report, on Spark.

    The lake (--lake) is a folder on a disk or in any store that Hadoop supports, such as s3a://bucket/headrace. Every
    job reads its tables from there and writes its results there. docs/pipeline.md describes all jobs.

    The exit status is 0 if the job is done, even if there was nothing to do; 1 if the job cannot be done, for the
    reason in its message; 2 for wrong options; and 75 if the job can be run again: another one changed the same tables
    at the same time, or a signal stopped ingest.
    """


def check_input(option: str, path: str | None) -> None:
    """Check, before Spark is started, that a file or folder exists. Raises `InputError`."""
    if path is not None and is_missing(path):
        raise InputError(f"{option} {path} does not exist")


LAKE = click.option("--lake", required=True, metavar="PATH", help="Folder of the tables: a path, s3a://…, hdfs://…")

CLUSTER = click.option(
    "--cluster", metavar="ID", help="Use only usage of this cluster; required if the lake has several."
)

DAY: Final = click.DateTime(["%Y-%m-%d"])


def day_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """Add ``--from`` and ``--to``, which are passed on as the dates ``first`` and ``last``, or ``None``."""

    @click.option("--from", "first", type=DAY, metavar="DATE", help="First day (UTC), such as 2026-11-01.")
    @click.option("--to", "last", type=DAY, metavar="DATE", help="Last day (UTC).")
    @functools.wraps(command)
    def run(*, first: datetime | None, last: datetime | None, **options: Any) -> Result:
        begin, end = (None if day is None else day.date() for day in (first, last))
        if begin is not None and end is not None and begin > end:
            raise click.UsageError(f"--from {begin} is after --to {end}; expected a first and a last day")
        return command(first=begin, last=end, **options)

    return run


def kafka_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """Add ``--bootstrap-servers`` and ``--kafka``, which are passed on as they are (`settings_of`)."""
    command = click.option(
        "--kafka",
        multiple=True,
        metavar="NAME=VALUE",
        help="A setting of Kafka's consumer, for example for TLS; may be repeated.",
    )(command)
    return click.option("--bootstrap-servers", metavar="HOST:PORT,…", help="Cluster that has the topic.")(command)


def number_option(
    name: str,
    values: click.ParamType[Any],
    default: float,
    help_text: str,
    *,
    metavar: str | None = None,
    to: str | None = None,
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Return an option for one of a job's numeric rules, passed on as the argument ``to`` if that is given."""
    names = (name,) if to is None else (name, to)
    return click.option(*names, type=values, default=default, show_default=True, metavar=metavar, help=help_text)


def job_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """Add ``--master``, ``--packages`` and ``--conf``, passed on as one argument ``spark``, and ``--json``.

    Errors are reported in a line. With ``--json``, the result that ``command`` returns is printed with its ``job`` and
    ``status``, "done" or "failed"; a failure has the ``error`` and the ``exit_status``.
    """

    @functools.wraps(command)
    def run(
        *, master: str | None, packages: str | None, conf: tuple[str, ...], as_json: bool, **options: Any
    ) -> Result:
        from headrace.pipeline.lake.session import SparkOptions

        context = click.get_current_context()
        if as_json:
            context.meta[AS_JSON] = True
        spark = SparkOptions(master=master, packages=packages, conf=settings_of(conf, "--conf"))
        try:
            with reported_errors():
                result = command(spark=spark, **options)
        except PipelineError as error:
            if context.parent is not None and context.parent is context.meta.get(RUN):
                raise
            _fail(str(error), error.exit_status, context.info_name)
        if as_json:
            print_json({"job": context.info_name, "status": "done", **result})
        return result

    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object."),
        click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; may be repeated."),
        click.option(
            "--packages",
            metavar="COORDINATES",
            help="Maven packages for Spark. They replace only those jars of Delta Lake, Kafka and S3 that they name.",
        ),
        click.option("--master", metavar="URL", help="Spark's master.  [default: local[*], or that of spark-submit]"),
    ):
        run = option(run)
    return run


def refuse_unread(*names: str, where: bool, why: str) -> None:
    """Raise `click.UsageError` if one of these parameters was given, and ``where`` is true, so that it has no effect.

    ``why`` is the end of the message, such as "without --demand".
    """
    context = click.get_current_context()
    for option in context.command.params if where else ():
        if option.name in names and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option.opts[0]} has no effect {why}")


def settings_of(given: tuple[str, ...], option: str) -> dict[str, str]:
    """Parse NAME=VALUE settings. Raises `click.BadParameter`."""
    settings: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{option} {each}: expected NAME=VALUE")
        if name in settings:  # a value may be a secret
            raise click.BadParameter(f"{option} {name}=…: it has one value, and is given several times")
        settings[name] = value
    return settings


def _fail(message: str, exit_status: int = PipelineError.exit_status, job: str | None = None) -> NoReturn:
    for line in message.splitlines():
        click.echo(f"headrace pipeline: {printable(line)}", err=True)
    if prints_json():
        print_json({"job": job, "status": "failed", "error": message, "exit_status": exit_status})
    sys.exit(exit_status)
