"""Runs one job on one lake in a separate process: ``python -m benchmarks.pipeline.stage JOB --lake PATH --cores 0,1``.

Called by `run`, which samples its memory. The measured time is that of the job from its first table to its last row,
after a warm-up with the lake's first hour, so that the start of Java is not included. The resulting rows are computed
and discarded: they are few, and writing them is not part of the measurement. Beside the time, the seconds are counted
that Java and all Python workers have used of the processors, which do not depend on what else the machine does.
"""

from __future__ import annotations

import json
import os
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final

import click
import psutil
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.rollup import by_hour
from headrace.pipeline.analysis.what_if.answers import what_if
from headrace.pipeline.analysis.what_if.quotas import fixed_quotas
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.session import SparkOptions, start_session
from headrace.pipeline.lake.tables import Lake
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity, QuotaKey
from headrace.quota_callbacks.records.replay import Change

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

QUOTAS: Final[Mapping[QuotaKey, float]] = {
    QuotaKey.PRODUCER_BYTE_RATE: 50_000,
    QuotaKey.CONSUMER_BYTE_RATE: 50_000,
    QuotaKey.REQUEST_PERCENTAGE: 1,
    QuotaKey.CONTROLLER_MUTATION_RATE: 1,
}
"""The quotas of every user and client id, so low that the busiest are throttled, which is measured, too."""
WINDOW: Final = Window(samples=11, seconds=1)
"""A broker's default window."""


ENOUGH: Final = 1000
"""Multiple of `QUOTAS` with which no sender is throttled."""


def _what_if(usage: DataFrame, multiple: float = 1) -> DataFrame:
    values = {key: value * multiple for key, value in QUOTAS.items()}
    everybody = Change(t_ms=0, entity=QuotaEntity(user=DEFAULT, client_id=DEFAULT), values=values, removed=())
    return what_if(usage, fixed_quotas([everybody], dict.fromkeys(QuotaKey, WINDOW)))


def _rollup(usage: DataFrame) -> DataFrame:
    return by_hour(usage, usage.sparkSession.createDataFrame([], schemas.TEAMS))


JOBS: Final[Mapping[str, Callable[[DataFrame], DataFrame]]] = {
    "rollup": _rollup,
    "what-if": _what_if,
    "what-if-enough": partial(_what_if, multiple=ENOUGH),
}


def _first_hour(usage: DataFrame) -> DataFrame:
    """Return the first hour's records, enough for Java's compilers to warm up and for Python's workers to start."""
    first = usage.select("date", "hour").distinct().orderBy("date", "hour").collect()[0]
    return usage.where((sf.col("date") == first.date) & (sf.col("hour") == first.hour))


def _run(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def cpu_seconds() -> float:
    """Return the processor time of this process and its descendants until now, those that have ended included."""
    times = [each.cpu_times() for each in (psutil.Process(), *psutil.Process().children(recursive=True))]
    return sum(each.user + each.system + each.children_user + each.children_system for each in times)


def session_on(cores: str, memory: str) -> tuple[SparkSession, int]:
    """Return a session pinned to ``cores`` (such as 0,1), with ``memory`` as heap size, and the number of cores."""
    numbers = {int(each) for each in cores.split(",")}
    os.sched_setaffinity(0, numbers)  # before threads and children are started, which inherit it
    options = SparkOptions(master=f"local[{len(numbers)}]", conf={"spark.driver.memory": memory})
    return start_session("bench", options), len(numbers)


@click.command()
@click.argument("job", type=click.Choice(list(JOBS)))
@click.option("--lake", required=True)
@click.option("--cores", required=True, help="CPUs to run on, such as 0,1.")
@click.option("--memory", default="2g", show_default=True, help="Of the JVM's heap.")
def command(*, job: str, lake: str, cores: str, memory: str) -> None:
    """Run the job, and print its result as one line of JSON, with the seconds."""
    session, count = session_on(cores, memory)
    usage = Lake(session, lake).read("usage", schemas.USAGE)
    records = usage.count()
    _run(JOBS[job](_first_hour(usage)))
    began, used = perf_counter(), cpu_seconds()
    _run(JOBS[job](usage))
    seconds, used = perf_counter() - began, cpu_seconds() - used
    print(json.dumps({"job": job, "cores": count, "records": records, "seconds": seconds, "cpu_seconds": used}))


if __name__ == "__main__":
    command()
