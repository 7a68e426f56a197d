"""The hook implementations: add up sums of completed requests on the event loop, and start and stop the writer thread.

Adding the sums of a connection and API, or a single request, takes one look-up and some additions
(measured in docs/usage-records.md). While usage records are disabled, this plugin receives nothing and no thread runs.
"""

from __future__ import annotations

from operator import attrgetter
from time import time_ns
from typing import TYPE_CHECKING, Final

import structlog

from headrace.plugins.extras import CONFLUENT_KAFKA, PYARROW, require
from headrace.plugins.usage_records.encoding import Encoder
from headrace.plugins.usage_records.options import FileFormat, UsageOptions
from headrace.plugins.usage_records.rows import Seconds
from headrace.plugins.usage_records.writer_thread import WriterThread
from headrace.quota_callbacks.api_keys import EVERY_API, ApiKey
from headrace.quota_callbacks.files import reason_of
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, Metric, PluginContext, hookimpl
from headrace.quota_callbacks.options import Fault, OptionsError, read_options
from headrace.quota_callbacks.requests import Interest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.plugins.usage_records.writer_thread import Sink
    from headrace.quota_callbacks.options import Table
    from headrace.quota_callbacks.request_sums import RequestSums
    from headrace.quota_callbacks.requests import ClusterMetadata, Connection, Request

log = structlog.get_logger("headrace.usage_records")

PRODUCE: Final = ApiKey.PRODUCE.value
_MUTATIONS: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS.value,
        ApiKey.DELETE_TOPICS.value,
        ApiKey.CREATE_PARTITIONS.value,
        ApiKey.METADATA.value,  # it may create topics
    }
)


class UsageRecords:
    """The plugin that records the usage per user, client id and API for each second, in files or a topic."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self._seconds: Seconds | None = None
        self._encoder: Encoder | None = None
        self._thread: WriterThread | None = None
        self._topics = False

    @hookimpl
    def options_table(self) -> type[Table]:
        """Return the class of the options."""
        return UsageOptions

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Read the options; if they set a destination, start the writer thread, except in a dry run."""
        options = read_options(UsageOptions, context.options, "usage_records")
        if options.topic is not None:
            require("plugins.options.usage_records.topic", "usage", CONFLUENT_KAFKA)
        if options.format is FileFormat.PARQUET:
            require('plugins.options.usage_records.format = "parquet"', "usage-parquet", PYARROW)
        if context.dry or not options.enabled:
            return
        instance = f"{options.name}-{time_ns() // 1_000_000}"  # of this run alone
        sink = open_sink(options, instance)
        self._encoder = Encoder(instance)
        self._seconds = Seconds(options.max_rows, context.request_time_ms)
        self._topics = options.topics
        self._thread = WriterThread(
            self._seconds,
            sink,
            self._encoder,
            present_second=present_second,
            deliver_completed=context.deliver_completed,
            run_on_loop=context.run_on_loop,
        )
        self._thread.start()
        log.info("usage is recorded", to=options.folder or f"topic {options.topic}", instance=instance)

    @hookimpl
    def request_interest(self) -> tuple[Interest, ...]:
        """Return an interest in sums of all APIs, in each completed request that has mutations, and in received and
        completed Produce requests if topics are recorded; none while disabled."""
        if self._thread is None:
            return ()
        produced = {PRODUCE} if self._topics else set()
        return tuple(
            Interest(api_key=key, end_only=key not in produced, each_completed=key in produced | _MUTATIONS)
            for key in EVERY_API
        )

    @hookimpl
    def connection_opened(self, connection: Connection) -> None:
        """Request the measurement of the proxy's own thread time, which is part of a request's usage."""
        if self._thread is not None:
            connection.measure_thread_time = True

    @hookimpl
    def request_received(self, request: Request) -> None:
        """Request that the record batches of a Produce request are read."""
        request.read_batches = True

    @hookimpl
    def request_completed(self, request: Request) -> None:
        """Add ``request``, which was completed just now, to the sums of this second."""
        seconds = self._seconds
        if seconds is None:
            return
        seconds.add(request, present_second())
        if self._topics and request.batches:
            seconds.add_topics(request.connection.user, request.client_id, request.api_key, request.batches)

    @hookimpl
    def requests_completed(self, batch: Sequence[RequestSums]) -> None:
        """Add the sums to those of their seconds."""
        if self._seconds is not None:
            for sums in sorted(batch, key=attrgetter("second")):
                self._seconds.add_sums(sums)

    @hookimpl
    def update_cluster_metadata(self, cluster: ClusterMetadata) -> bool:
        """Keep the cluster id for the records."""
        if self._encoder is not None:
            self._encoder.cluster = cluster.cluster_id
        return False

    @hookimpl
    def collect_metrics(self) -> Iterable[Metric]:
        """Return the numbers of written and lost records, removed files and unattributed requests."""
        thread, seconds = self._thread, self._seconds
        if thread is None or seconds is None:
            return
        text = "Usage records by outcome: written or lost."
        for outcome, count in {"written": thread.written, "lost": thread.lost}.items():
            yield Metric(name="usage_records", help=text, value=count, total=True, labels={"outcome": outcome})
        text = "Completed usage files that were removed because of keep_bytes."
        yield Metric(name="usage_files_removed", help=text, value=thread.removed_files, total=True)
        text = "Requests recorded without user and client id, since one second had more than max_rows rows."
        yield Metric(name="usage_unattributed_requests", help=text, value=seconds.unattributed, total=True)

    @hookimpl
    def close(self) -> None:
        """Write the remaining records, within a few seconds."""
        if self._thread is not None:
            self._thread.close()


def present_second() -> int:
    """Return the wall clock's second."""
    return time_ns() // 1_000_000_000


def open_sink(options: UsageOptions, instance: str) -> Sink:
    """Return the sink for the destination in ``options``. Raises ValueError if it cannot be opened."""
    if options.topic is not None and options.bootstrap_servers is not None:
        from headrace.plugins.usage_records.kafka_topic import KafkaSink

        client = {name: value.get_secret_value() for name, value in options.client.items()}
        return KafkaSink(options.topic, options.bootstrap_servers, instance, client)
    from headrace.plugins.usage_records.files import FileSink

    group_id = options.group_id()
    parquet = None
    if options.format is FileFormat.PARQUET:
        from headrace.plugins.usage_records.parquet_thread import ParquetThread

        parquet = ParquetThread(group_id)
    try:
        return FileSink(
            options.folder or ".",
            instance,
            rotate_s=options.rotate_s,
            rotate_bytes=options.rotate_bytes,
            keep_bytes=options.keep_bytes,
            group_id=group_id,
            parquet=parquet,
        )
    except OSError as error:
        expected = "a writable folder" if options.group is None else f"a folder to write files of group {options.group}"
        path = ("plugins", "options", "usage_records", "folder")
        reason = reason_of(error)
        raise OptionsError([Fault(path=path, found=options.folder, rule=f"{reason}; expected {expected}")]) from error
