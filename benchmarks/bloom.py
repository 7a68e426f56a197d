"""The cost of an active producer id: the Bloom filters that store it, and the parser that finds it in a request.

    .venv/bin/python -m benchmarks.bloom [--ids 1000000] [--rate 0.01]

Prints the rate of false positives and its theoretical value, and CPU microseconds and bytes per id, for a filter of
fixed size, one that has grown, and a user's pair of filters, and for rbloom (Rust) if it is installed; and the
microseconds to parse a Produce request. Times of different machines are not comparable; on a busy machine only the
false positives are meaningful.
"""

from __future__ import annotations

import functools
import importlib
import math
import random
import struct
import time
from typing import TYPE_CHECKING, Any, Protocol

import click
from mmh3 import mmh3_x64_128_sintdigest

from headrace.proxy.wire.messages.codec import encode
from headrace.proxy.wire.walks.produce import ProduceWalk
from headrace.quota_callbacks.buckets.bloom_filters import BloomFilter, GrowingBloomFilter
from headrace.quota_callbacks.buckets.timed_bloom_filters import TimedBloomFilters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WINDOW_MS = 3_600_000
NOISE = 0.005
"""Relative standard deviation of the measured false positive rate: a twentieth of the 10 % that is tolerated."""
CHUNK = 1_000_000
WALKED_REQUESTS = 20_000
BATCH_BYTES = 16 * 1024
ID_BYTES = struct.Struct(">q")


class Filter(Protocol):
    """The interface of all filters here."""

    def add(self, producer_id: int, /) -> object: ...
    def __contains__(self, producer_id: int, /) -> bool: ...


def cpu_us(work: Callable[[], object], count: int) -> float:
    """Run ``work``, and return this process's CPU microseconds divided by ``count``."""
    begin = time.process_time_ns()
    work()
    return (time.process_time_ns() - begin) / count / 1000


def added(bloom: Filter, ids: Sequence[int]) -> float:
    """Add ``ids``, and return the microseconds per id."""

    def work() -> None:
        add = bloom.add
        for each in ids:
            add(each)

    return cpu_us(work, len(ids))


def looked_up(bloom: Filter, ids: Sequence[int]) -> float:
    """Look up ``ids``, and return the microseconds per id."""

    def work() -> None:
        for each in ids:
            each in bloom  # noqa: B015 -- the lookup is measured

    return cpu_us(work, len(ids))


Costs = tuple[float, float, float]
"""Microseconds to add a new id, and to look up a known and an unknown one."""


def show(
    name: str, bloom: Filter, ids: Sequence[int], unknown: Sequence[int], memory_bytes: Callable[[], int]
) -> Costs:
    """Measure the three operations on an empty filter, and print the result."""
    new_us, known_us, unknown_us = added(bloom, ids), looked_up(bloom, ids), looked_up(bloom, unknown)
    print(
        f"{name:42} {new_us:5.2f} us per new id  {known_us:5.2f} known  {unknown_us:5.2f} unknown"
        f"  {memory_bytes() / len(ids):6.2f} bytes per id"
    )
    return new_us, known_us, unknown_us


def false_positives(bloom: Filter, rate: float, first: int) -> tuple[float, int]:
    """Return the rate of false positives among unknown ids from ``first`` on, and how many were tried to reach
    `NOISE`."""
    tries = math.ceil((1 - rate) / rate / NOISE**2)
    return sum(each in bloom for each in range(first, first + tries)) / tries, tries


def measure_fixed(ids: Sequence[int], unknown: Sequence[int], rate: float) -> Costs:
    bloom = BloomFilter(len(ids), rate)
    costs = show(f"fixed size, {len(bloom.steps)} probes", bloom, ids, unknown, lambda: len(bloom.bits))
    probes = len(bloom.steps)
    theory = (1 - math.exp(-probes * len(ids) / bloom.size)) ** probes
    share, tries = false_positives(bloom, rate, 1 << 60)
    print(
        f"{'':42} false positives {share:.6f} of {tries:,}, theory {theory:.6f}:"
        f" {100 * (share / theory - 1):+.2f} % (noise {100 * NOISE} %)"
    )
    return costs


def measure_grown(ids: Sequence[int], unknown: Sequence[int], rate: float) -> None:
    bloom = GrowingBloomFilter(64, rate)
    show("grown from 64", bloom, ids, unknown, lambda: bloom.memory_bytes)
    share, _ = false_positives(bloom, rate, 1 << 60)
    print(f"{'':42} {len(bloom.slices)} slices, false positives {share:.6f}, configured {rate}")


class At:
    """A user's filters at one time, as a filter whose ``add`` both looks up and adds."""

    def __init__(self, user: TimedBloomFilters, now_ms: int) -> None:
        self._user = user
        self._now_ms = now_ms

    def add(self, producer_id: int, /) -> object:
        return self._user.seen_or_add(producer_id, self._now_ms)

    def __contains__(self, producer_id: int, /) -> bool:
        return self._user.seen_or_add(producer_id, self._now_ms)


def measure_user(ids: Sequence[int], unknown: Sequence[int], rate: float) -> None:
    """Measure a user with all ids in the first half of a window, and as many other ids in the second and third half."""
    user = TimedBloomFilters(WINDOW_MS, rate)

    def memory_bytes() -> int:
        return sum(each.memory_bytes for each in user.filters)

    third = [each + (1 << 50) for each in ids]
    for name, now_ms, each in (
        ("a user, 1st half window (filter grows)", 0, ids),
        ("a user, 2nd half (grown + right size)", WINDOW_MS // 2, unknown),
        ("a user, 3rd half (right size, both)", WINDOW_MS, third),
    ):
        at = At(user, now_ms)
        new_us, known_us = added(at, each), looked_up(at, each)
        print(
            f"{name:42} {new_us:5.2f} us per new id  {known_us:5.2f} known {'':14}"
            f"  {memory_bytes() / len(ids):6.2f} bytes per id"
        )
    share = sum(any(each in part for part in user.filters) for each in range(1 << 60, (1 << 60) + CHUNK)) / CHUNK
    print(f"{'':42} false positives of both together {share:.6f}, configured {rate}")


def mmh3_of(producer_id: object) -> int:
    """Return the hash that Headrace's filters use."""
    assert isinstance(producer_id, int)
    return mmh3_x64_128_sintdigest(ID_BYTES.pack(producer_id))


def measure_rbloom(ids: Sequence[int], unknown: Sequence[int], rate: float, ours: Costs) -> None:
    """Measure rbloom; ``ours`` is the cost of Headrace's filter of fixed size."""
    try:
        rbloom = importlib.import_module("rbloom")
    except ImportError:
        print("rbloom is not installed")
        return
    for name, hashed in (("mmh3", mmh3_of), ("Python's hash", hash)):
        bloom = rbloom.Bloom(len(ids), rate, hashed)
        theirs = show(f"rbloom over {name}", bloom, ids, unknown, functools.partial(bits_bytes, bloom))
        share, _ = false_positives(bloom, rate, 1 << 60)
        ratios = " / ".join(f"{our / their:.1f}" for our, their in zip(ours, theirs, strict=True))
        print(f"{'':42} false positives {share:.6f}, configured {rate}; the fixed filter costs {ratios} times as much")


def bits_bytes(bloom: Any) -> int:
    return int(bloom.size_in_bits) // 8


def batch(producer_id: int) -> bytes:
    """Return a record batch with a valid header, as far as it is parsed; the records are zeros."""
    header = struct.pack(">qiibIhiqqqhii", 0, BATCH_BYTES - 12, 0, 2, 0, 0, 0, 0, 0, producer_id, 0, 0, 1)
    return header.ljust(BATCH_BYTES, b"\x00")


def measure_walk(version: int, partitions: int) -> None:
    rows = [{"index": index, "records": batch(4711)} for index in range(partitions)]
    topic = {"topic_id": bytes(range(16))} if version >= 13 else {"name": "orders-by-customer"}
    request = {"acks": -1, "timeout_ms": 30_000, "topic_data": [{**topic, "partition_data": rows}]}
    body = bytearray(encode("ProduceRequest", version, request))
    repeats = max(WALKED_REQUESTS // partitions, 1)

    def in_one() -> None:
        for _ in range(repeats):
            ProduceWalk(version, len(body)).walk(body, 0, len(body))

    def spliced() -> None:
        """Parse the request with buffers that end after each batch's header; the records are skipped."""
        for _ in range(repeats):
            walk, at = ProduceWalk(version, len(body)), 0
            while not walk.done:
                at = walk.walk(body, at, min(at + 100, len(body)))
                if walk.skip_left:
                    at += walk.skip_left
                    walk.passed_outside(walk.skip_left)

    whole_us, spliced_us = (min(cpu_us(work, repeats) for _ in range(5)) for work in (in_one, spliced))
    print(
        f"a Produce request v{version}, {partitions:3} partitions {whole_us:10.2f} us in one window"
        f"  {spliced_us:7.2f} us with the records spliced"
    )


@click.command()
@click.option("--ids", "count", default=1_000_000, show_default=True, help="How many producer ids.")
@click.option("--rate", default=0.01, show_default=True, help="The configured false positive rate.")
def main(count: int, rate: float) -> None:
    """Measure the parts of the producer id quota that process every Produce request."""
    dice = random.Random(936)  # noqa: S311 -- the same ids in every run
    ids = dice.sample(range(1 << 40), count)
    unknown = [each + (1 << 45) for each in ids]
    print(f"{count:,} producer ids at a false positive rate of {rate}")
    costs = measure_fixed(ids, unknown, rate)
    measure_rbloom(ids, unknown, rate, costs)
    measure_grown(ids, unknown, rate)
    measure_user(ids, unknown, rate)
    for version in (8, 9, 13):
        for partitions in (1, 3, 10, 100):
            measure_walk(version, partitions)


if __name__ == "__main__":
    main()
