"""The SQLite store of quotas: opening it with many entities, altering, following and auditing it.

    .venv/bin/python -m benchmarks.quota_store [--entities 100000] [--folder /var/lib/headrace]

The folder should be on the disk that the proxy would use, since an alter waits for it. Each figure is in wall-clock
time; of what the processor does, there is also the CPU time, which depends less on other programs. *Loop delay* is the
time by which a task was late that sleeps for a millisecond at a time; the first line has it for an idle process.
`quota_topic` measures the same of a topic.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import tracemalloc
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import trio

from headrace.proxy.quotas.sqlite.store import SqliteStore
from headrace.proxy.quotas.store import Alteration, Author
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from typing import TypeAlias

    from headrace.proxy.quotas.store import QuotaStore

    Place: TypeAlias = Callable[[], QuotaStore]

AUTHOR = Author(principal="admin", address="benchmark")
KEYS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
IMPORTED_AT_ONCE = 1_000
TICK_S = 0.001


def entity(number: int) -> QuotaEntity:
    return QuotaEntity(user=f"user-{number:06}", client_id=DEFAULT)


def alteration(number: int, value: float) -> Alteration:
    return Alteration(entity=entity(number), values=dict.fromkeys(KEYS, value))


@asynccontextmanager
async def loop_delays() -> AsyncIterator[list[float]]:
    """Collect the delays of the event loop within the block, in ms."""
    delays_ms: list[float] = []

    async def tick() -> None:
        while True:
            due = time.perf_counter() + TICK_S
            await trio.sleep(TICK_S)
            delays_ms.append((time.perf_counter() - due) * 1000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        await trio.sleep(10 * TICK_S)
        yield delays_ms
        nursery.cancel_scope.cancel()


async def timed(name: str, work: Callable[[], Awaitable[object]]) -> None:
    """Run ``work``, and print how long it took and how late the event loop was."""
    async with loop_delays() as delays_ms:
        begin, begin_cpu = time.perf_counter(), time.process_time()
        await work()
        taken, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    p50, p99 = statistics.median(delays_ms), statistics.quantiles(delays_ms, n=100)[98]
    print(
        f"{name:40} {taken * 1000:10.0f} ms {cpu * 1000:10.0f} ms of CPU"
        f"  loop delay {p50:5.2f} ms median {p99:6.2f} ms p99 {max(delays_ms):7.2f} ms at most"
    )


async def import_all(store: QuotaStore, entities: int) -> None:
    for first in range(0, entities, IMPORTED_AT_ONCE):
        some = range(first, min(first + IMPORTED_AT_ONCE, entities))
        await store.alter([alteration(number, number + 1.0) for number in some], AUTHOR)


async def measure_alters(store: QuotaStore, entities: int, alters: int, callers: int) -> None:
    """Print the time of an alter of one entity with three keys, with so many calls at the same time."""
    taken_ms: list[float] = []

    async def call(caller: int) -> None:
        for turn in range(alters // callers):
            number = (caller * alters + turn * 7919) % entities
            begin = time.perf_counter()
            await store.alter([alteration(number, time.perf_counter())], AUTHOR)
            taken_ms.append((time.perf_counter() - begin) * 1000)

    begin = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for caller in range(callers):
            nursery.start_soon(call, caller)
    rate = len(taken_ms) / (time.perf_counter() - begin)
    p50, p99 = statistics.median(taken_ms), statistics.quantiles(taken_ms, n=100)[98]
    print(f"{f'alter, {callers} at a time':40} {p50:10.2f} ms median {p99:8.2f} ms p99 {rate:10.0f} per second")


async def measure_following(store: QuotaStore, polls: int) -> None:
    """Print the cost of `changes_since` when nothing has changed, beside that of a thread that does nothing."""
    sequence = (await store.snapshot()).sequence
    for name, work in (
        ("changes_since, nothing changed", partial(store.changes_since, sequence)),
        ("a thread that does nothing", partial(trio.to_thread.run_sync, int)),
    ):
        begin, begin_cpu = time.perf_counter(), time.process_time()
        for _ in range(polls):
            await work()
        taken, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
        print(f"{name:40} {taken / polls * 1e6:10.0f} µs {cpu / polls * 1e6:10.0f} µs of CPU")


async def measure_memory(place: Place) -> None:
    """Print the memory of Python's objects; that of the clients of a topic is not known."""
    tracemalloc.start()
    store = place()
    snapshot = await store.open()
    now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(
        f"{'memory of all quotas':40} {now / 1e6:10.1f} MB {peak / 1e6:10.1f} MB at most, for {len(snapshot.quotas):,}"
    )
    await store.close()


async def measure(place: Place, entities: int, alters: int, polls: int) -> None:
    """Print all figures of a store. ``place`` returns another object on the same quotas at each call."""
    await timed("nothing, for comparison", partial(trio.sleep, 1))
    store = place()
    await store.open()
    await timed(f"alter, {IMPORTED_AT_ONCE:,} entities at a time", partial(import_all, store, entities))
    await store.close()
    for _ in range(3):
        store = place()
        await timed("open", store.open)
        await timed("snapshot", store.snapshot)
        await store.close()
    store = place()
    await store.open()
    for callers in (1, 16):
        await measure_alters(store, entities, alters, callers)
    await measure_following(store, polls)
    for newest in (100, 10_000):
        await timed(f"audit, the newest {newest:,} changes", partial(store.audit, limit=newest))
    await store.close()
    await measure_memory(place)


@click.command()
@click.option("--entities", default=100_000, show_default=True, help="How many entities, with three keys each.")
@click.option("--alters", default=1_000, show_default=True, help="How many alters are measured.")
@click.option("--polls", default=2_000, show_default=True, help="How many polls for changes are measured.")
@click.option("--folder", type=click.Path(exists=True, file_okay=False), help="Where the file is made for a while.")
def main(entities: int, alters: int, polls: int, folder: str | None) -> None:
    """Measure the SQLite store of quotas."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        print(f"{entities:,} entities with {len(KEYS)} keys each")
        path = Path(name) / "quotas.sqlite"
        trio.run(measure, partial(SqliteStore, str(path)), entities, alters, polls)
        print(f"{'size of the file':40} {path.stat().st_size / 1e6:10.1f} MB")


if __name__ == "__main__":
    main()
