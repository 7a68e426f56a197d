"""The command ``headrace pipeline JOB``, and what the commands of the jobs share: options, messages, output files.

The modules in `headrace.pipeline.jobs` import this module. It imports them only when their command is used, so that
listing the jobs does not require Spark.
"""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.pipeline.errors import InputError, OutputError, PipelineError
from headrace.pipeline.lake.spark_errors import reported_errors
from headrace.pipeline.lake.stores import is_missing, write_text
from headrace.quota_callbacks.files import open_without_following

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from pyspark.sql import Row, SparkSession

JOBS: Final = {
    "ingest": "Read usage records from Kafka or files into the lake, each once.",
    "instances": "List the records of each instance of the proxy, and those that are missing.",
    "rollup": "Sum usage by hour and day, user, client id and team; write bills.",
    "recommend": "Recommend quotas for each entity from its usage.",
    "what-if": "Compute who would be throttled by given quotas, and how long.",
    "calibrate": "Fit the cost model of request_percentage to a broker.",
    "anomalies": "Find usage that is unlike each entity's own past.",
    "report": "Write one HTML file with plots.",
    "compact": "Merge the small files of the tables.",
    "retain": "Remove old days of the tables, and files that are not needed any more.",
    "migrate": "Convert a lake of a version before Delta Lake.",
    "zip": "Write the pipeline as a zip for spark-submit --py-files.",
}


class Jobs(click.Group):
    """The command group: one command for each module of `headrace.pipeline.jobs`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's signature
        """Return the names of the jobs, in the order in which they are usually run."""
        return list(JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the job's module and return its command; ``None`` if there is no such job."""
        if cmd_name not in JOBS:
            return None
        try:
            module = importlib.import_module(f"headrace.pipeline.jobs.{cmd_name.replace('-', '_')}")
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] == "headrace":
                raise
            _fail(f"the pipeline needs the package {error.name}: pip install 'headrace[pipeline]'")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of jobs from `JOBS`, without importing their modules."""
        with formatter.section("Jobs"):
            formatter.write_dl(list(JOBS.items()))


@click.command(cls=Jobs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def pipeline() -> None:
    """Turn usage records into bills, recommended quotas, what-if answers and a report, on Spark.

    The lake (--lake) is a folder on a disk or in any store that Hadoop supports, such as s3a://bucket/headrace. Every
    job reads its tables from there and writes its results there. docs/pipeline.md describes all jobs.
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


def day_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--from`` and ``--to``, which are passed on as the dates ``first`` and ``last``, or ``None``."""

    @click.option("--from", "first", type=DAY, metavar="DATE", help="First day (UTC), such as 2026-11-01.")
    @click.option("--to", "last", type=DAY, metavar="DATE", help="Last day (UTC).")
    @functools.wraps(command)
    def run(*, first: datetime | None, last: datetime | None, **options: Any) -> None:
        begin, end = (None if day is None else day.date() for day in (first, last))
        if begin is not None and end is not None and begin > end:
            raise click.UsageError(f"--from {begin} is after --to {end}; expected a first and a last day")
        command(first=begin, last=end, **options)

    return run


def number_option(
    name: str,
    values: click.ParamType[Any],
    default: float,
    help_text: str,
    *,
    metavar: str | None = None,
    to: str | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return an option for one of a job's numeric rules, passed on as the argument ``to`` if that is given."""
    names = (name,) if to is None else (name, to)
    return click.option(*names, type=values, default=default, show_default=True, metavar=metavar, help=help_text)


def spark_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--master``, ``--packages`` and ``--conf``, passed on as one argument ``spark``; report errors in a line."""

    @functools.wraps(command)
    def run(*, master: str | None, packages: str | None, conf: tuple[str, ...], **options: Any) -> None:
        from headrace.pipeline.lake.session import SparkOptions

        spark = SparkOptions(master=master, packages=packages, conf=settings_of(conf, "--conf"))
        try:
            with reported_errors():
                command(spark=spark, **options)
        except PipelineError as error:
            _fail(str(error))

    for option in (
        click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; may be repeated."),
        click.option(
            "--packages",
            metavar="COORDINATES",
            help="Maven packages for Spark, in place of the jars of its Kafka connector.",
        ),
        click.option("--master", metavar="URL", help="Spark's master.  [default: local[*], or that of spark-submit]"),
    ):
        run = option(run)
    return run


def settings_of(given: tuple[str, ...], option: str) -> dict[str, str]:
    """Parse NAME=VALUE settings. Raises `click.BadParameter`."""
    settings = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{option} {each}: expected NAME=VALUE")
        settings[name] = value
    return settings


def report_progress(line: str) -> None:
    """Write a line about a job's progress or result to standard error; results go to standard output."""
    click.echo(line, err=True)


def report_usage(found: Row) -> None:
    """Report the usage that a job reads, as returned by `headrace.pipeline.analysis.usage.of_one_cluster`."""
    if not found.records:
        report_progress("the lake has no usage of these days and this cluster")
        return
    report_progress(f"{found.records:,} records from {found.since} to {found.until} UTC")
    if found.unattributed:
        report_progress(f"{found.unattributed:,} bytes have no recorded sender, and are left out")


def check_output(option: str, path: str | None) -> None:
    """Check, before Spark is started, that `write_file` will have a folder to write to.

    Paths in other stores (``s3a://…``) are not checked. Raises `OutputError`.
    """
    if path is None or "://" in path:
        return
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise OutputError(f"{option} {path}: the folder {folder} does not exist; create it, or give another file")
    if Path(path).is_dir():
        raise OutputError(f"{option} {path} is a folder; give a file")


def write_file(spark: SparkSession, path: str, lines: Iterable[str]) -> None:
    """Write a text file, locally or to any store (``s3a://…``), atomically: readers see all of it or none.

    Raises `OutputError`.
    """
    if "://" in path:
        write_text(spark, path, "".join(lines))
        return
    draft = Path(f"{path}.draft")
    try:
        with open(draft, "w", encoding="utf-8", newline="", opener=open_without_following) as file:
            file.writelines(lines)
        draft.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error


def _fail(message: str) -> Any:
    for line in message.splitlines():
        click.echo(f"headrace pipeline: {line}", err=True)
    sys.exit(1)


__all__ = [
    "CLUSTER",
    "DAY",
    "LAKE",
    "check_input",
    "check_output",
    "day_options",
    "number_option",
    "pipeline",
    "report_progress",
    "report_usage",
    "settings_of",
    "spark_options",
    "write_file",
]  # fmt: skip
