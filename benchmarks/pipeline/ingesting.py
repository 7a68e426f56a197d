"""Measures the throughput of ingest: ``python -m benchmarks.pipeline.ingesting --lake PATH``.

Records of a lake of `generate` are written like the proxy's, as lines of JSON or as Parquet in completed files, and
ingested into a new lake: first while it is empty, then again, when all of them are duplicates. Pinned to cores like
`stage`.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING

import click
from pyspark.sql import functions as sf

from benchmarks.pipeline.generate import FIRST_SECOND
from benchmarks.pipeline.stage import cpu_seconds, session_on
from headrace.pipeline.ingestion.ingest import Ingest
from headrace.pipeline.ingestion.sources import FileSource
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import Lake
from headrace.quota_callbacks.records.usage_records import SCHEMA_VERSION, Kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILES = 40


def write_files(usage: DataFrame, folder: Path, suffix: str) -> None:
    """Write files with the names of `headrace.plugins.usage_records.folder`."""
    names = [name for name in schemas.RECORD.names if name in usage.columns]
    records = usage.repartition(FILES).select(
        sf.lit(SCHEMA_VERSION).alias("schema"), sf.lit(Kind.USAGE.value).alias("kind"), *names
    )
    if suffix == "parquet":
        records.write.parquet(str(folder))
    else:
        records.select(sf.to_json(sf.struct("*"))).write.text(str(folder))
    for number, part in enumerate(sorted(folder.glob("part-*"))):
        part.rename(folder / f"usage-{number}.{suffix}")


@click.command()
@click.option("--lake", required=True, metavar="PATH", help="Made by benchmarks.pipeline.generate.")
@click.option("--records", type=click.IntRange(min=1), default=4_000_000, show_default=True)
@click.option(
    "--hours",
    type=click.IntRange(min=1),
    help="Move the records into so many hours. 10,000 clients send a million in 100 seconds.",
)
@click.option("--format", "suffix", type=click.Choice(["jsonl", "parquet"]), default="jsonl", show_default=True)
@click.option("--cores", default="0,1", show_default=True, help="CPUs to run on, such as 0,1.")
@click.option("--memory", default="2g", show_default=True, help="Of the JVM's heap.")
def command(*, lake: str, records: int, hours: int | None, suffix: str, cores: str, memory: str) -> None:
    """Measure ingest from files, in records per second, and per second of processor time of Java and Python."""
    session, count = session_on(cores, memory)
    with TemporaryDirectory() as name:
        lines = Path(name, "lines")
        usage = Lake(session, lake).read("usage", schemas.USAGE).limit(records)
        if hours is not None:
            offset = sf.pmod(sf.col("second") - FIRST_SECOND, sf.lit(hours * 3600))
            usage = usage.withColumn("second", FIRST_SECOND + offset)
        write_files(usage, lines, suffix)
        for what in ("new", "duplicates"):
            began, before_s = perf_counter(), cpu_seconds()
            # a different spelling of the path has its own checkpoint, so all files are read again
            folder = lines if what == "new" else lines.rename(Path(name, "again"))
            outcome = Ingest(Lake(session, f"{name}/lake"), None, lambda _: None).run(FileSource(folder=str(folder)))
            seconds = perf_counter() - began
            print(
                f"{what}: {outcome.summary()}; {outcome.lines / seconds:,.0f} records a second on {count} core(s),"
                f" {outcome.lines / (cpu_seconds() - before_s):,.0f} a second of processor time"
            )


if __name__ == "__main__":
    command()
