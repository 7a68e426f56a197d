"""Measures what the daily jobs cost with a growing past: ``python -m benchmarks.pipeline.daily_cost --days 31``.

Records of `generate` are added to an empty lake one day after the other, and rollup and anomalies run after each, as
they do every night. For each day, the seconds are printed that Java and all Python workers have used of the processors:
they do not depend on what else the machine does. The first days include the warming up of Java.
"""

from __future__ import annotations

from tempfile import TemporaryDirectory

import click
from pyspark.sql import functions as sf

from benchmarks.pipeline.generate import RECORDS_A_TASK, Shape, made_usage
from benchmarks.pipeline.stage import cpu_seconds, session_on
from headrace.pipeline.cli import pipeline
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import Lake


@click.command()
@click.option("--records", type=click.IntRange(min=1), default=200_000, show_default=True, help="Records of a day.")
@click.option("--users", type=click.IntRange(min=1), default=5000, show_default=True)
@click.option("--days", type=click.IntRange(min=1), default=31, show_default=True)
@click.option("--cores", default="0,1", show_default=True, help="CPUs to run on, such as 0,1.")
@click.option("--memory", default="2g", show_default=True, help="Of the JVM's heap.")
def command(*, records: int, users: int, days: int, cores: str, memory: str) -> None:
    """Print the processor time of both jobs for each day."""
    session, count = session_on(cores, memory)
    with TemporaryDirectory() as name:
        every, lake = Lake(session, f"{name}/every"), Lake(session, f"{name}/lake")
        shape = Shape(records=records * days, users=users, days=days)
        every.append("usage", made_usage(session, shape, count * (1 + shape.records // RECORDS_A_TASK)), "date", "hour")
        usage = every.read("usage", schemas.USAGE)
        dates = sorted(row.date for row in usage.select("date").distinct().collect())
        for past, date in enumerate(dates):
            lake.append("usage", usage.where(sf.col("date") == date).repartition("hour"), "date", "hour")
            used = {
                "rollup": _measure("rollup", lake.root),
                "anomalies": _measure("anomalies", lake.root, "--past", "30"),
            }
            print(f"{past} days of past:", ", ".join(f"{job} {seconds:.1f} CPU s" for job, seconds in used.items()))


def _measure(job: str, lake: str, *more: str) -> float:
    before = cpu_seconds()
    pipeline.main([job, "--lake", lake, *more], standalone_mode=False)
    return cpu_seconds() - before


if __name__ == "__main__":
    command()
