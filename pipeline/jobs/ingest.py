"""The command ``headrace pipeline ingest``."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from typing import TYPE_CHECKING

import click

from headrace.pipeline.cli import LAKE, check_input, job_options, kafka_options, refuse_unread, settings_of
from headrace.pipeline.errors import StoppedError
from headrace.pipeline.ingestion.ingest import Ingest
from headrace.pipeline.ingestion.sources import FileSource, KafkaSource
from headrace.pipeline.lake.session import start_session
from headrace.pipeline.lake.tables import Lake
from headrace.pipeline.output import report_progress
from headrace.quota_callbacks.commands import Command
from headrace.quota_callbacks.records.usage_records import DEFAULT_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from headrace.pipeline.ingestion.sources import Source
    from headrace.pipeline.lake.session import SparkOptions
    from headrace.pipeline.output import Result

DAY_S = 86_400


@click.command(cls=Command)
@LAKE
@click.option("--from-files", "folder", metavar="PATH", help="Folder that proxies write to, or a copy of it.")
@kafka_options
@click.option("--topic", default=DEFAULT_TOPIC, show_default=True, metavar="NAME", help="Topic that proxies write to.")
@click.option(
    "--accept-data-loss", is_flag=True, help="Continue if the topic's retention has removed records that were not read."
)
@click.option("--quarantined", is_flag=True, help="Ingest quarantined lines that are valid by now.")
@click.option(
    "--follow",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="Keep running, and look for new records in this interval.",
)
@click.option(
    "--watermark",
    type=click.IntRange(min=0),
    default=DAY_S,
    show_default=True,
    metavar="SECONDS",
    help="An hour is final once the newest record is this much later; further records of a final hour are quarantined.",
)
@click.option("--accept-late", is_flag=True, help="Accept records of any hour: no hour is final.")
@job_options
def command(
    *,
    spark: SparkOptions,
    lake: str,
    folder: str | None,
    bootstrap_servers: str | None,
    topic: str,
    kafka: tuple[str, ...],
    accept_data_loss: bool,
    quarantined: bool,
    follow: float | None,
    watermark: int,
    accept_late: bool,
) -> Result:
    """Read usage records from files or from Kafka into the lake, each record once.

    Without --follow, the command reads the records that exist now and exits; the next run continues from there. After a
    run was killed, the next one repeats its last batch, without duplicates. Lines that are not usage records are
    written to the table quarantine with the reason; duplicates are skipped. Several
    ingests may write to a lake at the same time.
    """
    source = _source(
        folder, bootstrap_servers, topic, kafka, quarantined=quarantined, accept_data_loss=accept_data_loss
    )
    if source is None:
        check_input("--lake", lake)
    check_input("--from-files", folder)
    kafka_is_read = bootstrap_servers is not None
    reads = None if follow is not None or kafka_is_read else folder or lake
    session = start_session("ingest", spark, lake, kafka=kafka_is_read, reads=reads)
    ingest = Ingest(Lake(session, lake), None if accept_late else watermark, report_progress)
    if source is None:
        outcome = ingest.retry_quarantined()
    else:
        with _stopping_on_signals(ingest):
            outcome = ingest.run(source, follow_s=follow)
    report_progress(outcome.summary())
    for reason, count in sorted(outcome.quarantined.items(), key=lambda each: -each[1]):
        report_progress(f"  quarantined: {count:,} x {reason}")
    if follow is None and ingest.was_stopped:
        raise StoppedError("a signal stopped ingest before it had read everything; the next run continues")
    return dataclasses.asdict(outcome)


def _source(
    folder: str | None,
    bootstrap_servers: str | None,
    topic: str,
    kafka: tuple[str, ...],
    *,
    quarantined: bool,
    accept_data_loss: bool,
) -> Source | None:
    """Return the source that the options name; ``None`` for --quarantined. Raises `click.UsageError`."""
    given = [name for name, value in (("--from-files", folder), ("--bootstrap-servers", bootstrap_servers)) if value]
    given += ["--quarantined"] if quarantined else []
    of_topic = ("topic", "kafka", "accept_data_loss")
    refuse_unread(*of_topic, where=bootstrap_servers is None, why="without --bootstrap-servers")
    refuse_unread("follow", where=quarantined, why="with --quarantined")
    if len(given) != 1:
        raise click.UsageError(
            f"expected one of --from-files, --bootstrap-servers and --quarantined; got {', '.join(given) or 'none'}"
        )
    if folder is not None:
        return FileSource(folder=folder)
    if bootstrap_servers is not None:
        return KafkaSource(
            topic=topic,
            bootstrap_servers=bootstrap_servers,
            client=settings_of(kafka, "--kafka"),
            accept_data_loss=accept_data_loss,
        )
    return None


@contextlib.contextmanager
def _stopping_on_signals(ingest: Ingest) -> Iterator[None]:
    """Stop ingest on SIGTERM and SIGINT; the next run repeats its unfinished batch."""

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 -- a signal handler's signature
        ingest.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
