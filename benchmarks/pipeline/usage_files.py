"""Measures files of usage records: ``python -m benchmarks.pipeline.usage_files``.

A minute of records is written as the proxy writes it, converted to Parquet, and compressed by gzip and zstd for
comparison: bytes and CPU time for each record, and the memory of the process.
"""

from __future__ import annotations

import gzip
import random
import resource
from pathlib import Path
from tempfile import TemporaryDirectory
from time import thread_time
from typing import TYPE_CHECKING, Final, TypeVar

import click
import pyarrow as pa

from headrace.plugins.usage_records.encoding import Encoder
from headrace.plugins.usage_records.parquet import convert
from headrace.plugins.usage_records.rows import Row
from headrace.quota_callbacks.entities import QuotaKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.plugins.usage_records.rows import RowName

T = TypeVar("T")
SECONDS: Final = 60
APIS: Final = (0, 1, 3, 9, 10, 12, 22)
KIB_PER_MIB: Final = 1024


def rows_of(clients: int, choose: random.Random) -> Iterator[tuple[RowName, Row]]:
    """Two rows for each client: it produces and fetches, or sometimes does something else."""
    for client in range(clients):
        for api_key in choose.sample(APIS, 2) if choose.random() < 0.1 else APIS[:2]:
            row = Row()
            row.requests = 1 + int(choose.expovariate(1 / 20))
            row.request_bytes = row.requests * choose.randrange(80, 66_000)
            row.response_bytes = row.requests * choose.randrange(40, 900)
            row.thread_ns = int(row.requests * choose.uniform(60e3, 400e3))
            row.broker_s = row.requests * choose.uniform(5e-4, 9e-3)
            if choose.random() < 0.03:
                quota = choose.choice(list(QuotaKey)).value
                row.throttle_ms, row.throttled = {quota: choose.randrange(1, 900)}, {quota: 1}
            yield (f"user-{client % 499}", f"client-{client * 7919 % 1_000_003}", api_key, None), row


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Return the CPU time of this thread in seconds, and the result."""
    began = thread_time()
    result = work()
    return thread_time() - began, result


def peak_mib() -> int:
    """Return the largest memory of this process until now."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // KIB_PER_MIB


@click.command()
@click.option("--clients", default=1000, show_default=True, help="Each has two records in every second.")
def command(*, clients: int) -> None:
    """Measure the formats of usage records."""
    choose, encoder = random.Random(1), Encoder("proxy-a-1790000000123")  # noqa: S311 -- the same in each run
    encoder.cluster = "5L6g3nShT-eMCtK--X86sw"
    with TemporaryDirectory() as name:
        lines, parquet = Path(name, "lines"), Path(name, "parquet")
        written_s = 0.0
        with lines.open("wb") as file:
            for second in range(1_790_000_000, 1_790_000_000 + SECONDS):
                rows = dict(rows_of(clients, choose))
                began_s = thread_time()
                file.writelines(line + b"\n" for line in encoder.lines(second, rows))
                written_s += thread_time() - began_s
        count, before = encoder.sequence, peak_mib()

        def report(what: str, cpu_s: float, size: int) -> None:
            print(f"{what}: {size / count:.1f} bytes and {cpu_s / count * 1e6:.2f} µs of CPU time a record")

        report("JSON lines", written_s, lines.stat().st_size)
        with lines.open("rb") as source, parquet.open("wb") as target:
            took_s, _ = timed(lambda: convert(source.fileno(), target.fileno(), is_stopping=lambda: False))
        report("converted to Parquet", took_s, parquet.stat().st_size)
        print(f"peak memory: {before} MiB before, {peak_mib()} MiB with the conversion")
        data, codec = lines.read_bytes(), pa.Codec("zstd", compression_level=3)
        for what, compress in (("gzip", lambda: gzip.compress(data, 6)), ("zstd", lambda: codec.compress(data))):
            took_s, compressed = timed(compress)
            report(f"compressed by {what}", took_s, len(compressed))


if __name__ == "__main__":
    command()
