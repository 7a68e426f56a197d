"""One of several processes that charge one bucket as fast as they can: ``FILE WORKER paced|kafka|strict TIMES``.

Writes four lines of JSON: at its start; after a line of input, the time at which it has charged `ALREADY`; after a
second line, the results of its charges; after a third line, which contains a time, what is left of the quota at that
time.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.quota_callbacks.buckets.kinds import MutationBucket, RateBucket
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.buckets.shared.buckets import SharedBuckets
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.policies import EnforcementMode, QuotaPolicy
from tests.quota_callbacks.our_quotas import OurQuotas

if TYPE_CHECKING:
    from types import TracebackType

LIMIT: Final = 1000
"""The limit a second: one a millisecond."""
ALREADY: Final = 5000
"""Charged by worker 0 first, so that the bucket does not become full while the processes wait for a core."""

LONG: Final = Window(samples=600, seconds=1)
"""The window of the rate. Its time runs `FASTER`, so that there are many samples."""
FASTER: Final = 20


class FileLock:
    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")

    def __enter__(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def paced(bucket: RateBucket, times: int) -> dict[str, Any]:
    """Reserve slots; return the times at which they begin."""
    places = []
    for _ in range(times):
        at_ms = now_ms()
        verdict = bucket.reserve(1, at_ms)
        places.append(at_ms + (0 if verdict is None else verdict.throttle_ms))
    return {"places": places}


def kafka(bucket: RateBucket, times: int) -> dict[str, Any]:
    for _ in range(times):
        bucket.charge(1, now_ms() * FASTER)
    return {}


def strict(bucket: MutationBucket, times: int) -> dict[str, Any]:
    """Charge mutations; return the times of those that were admitted."""
    admitted = []
    for _ in range(times):
        at_ms = now_ms()
        if bucket.admit(1, at_ms) is None:
            admitted.append(at_ms)
    return {"admitted": admitted}


def report(result: dict[str, Any]) -> None:
    print(json.dumps(result), flush=True)  # noqa: T201 -- the output of the process


def main() -> None:
    path, worker, kind, times = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    with path.open("r+b") as file:
        memory = memoryview(mmap.mmap(file.fileno(), 0))
    quotas = OurQuotas(LONG if kind == "kafka" else None, SharedBuckets(memory, worker=worker, lock=FileLock(path)))
    key = QuotaKey.CONTROLLER_MUTATION_RATE if kind == "strict" else QuotaKey.PRODUCER_BYTE_RATE
    mode = EnforcementMode.PACED if kind == "paced" else EnforcementMode.KAFKA
    quotas.set(key, "u", None, LIMIT, QuotaPolicy(mode=mode))
    bucket = quotas.quotas.bucket(key, "u", "c")
    report({})
    sys.stdin.readline()
    begin_ms = now_ms()
    if worker == 0:
        if isinstance(bucket, MutationBucket):
            bucket.charge(ALREADY, begin_ms)
        elif isinstance(bucket, RateBucket) and bucket.paced:
            bucket.reserve(ALREADY, begin_ms)
    report({"begin_ms": begin_ms})
    sys.stdin.readline()
    match bucket:
        case RateBucket() if bucket.paced:
            report(paced(bucket, times))
        case RateBucket():
            report(kafka(bucket, times))
        case MutationBucket():
            report(strict(bucket, times))
    end_ms = int(sys.stdin.readline())
    if isinstance(bucket, MutationBucket) or (bucket is not None and bucket.paced):
        report({"left": bucket.burst_left(LIMIT, end_ms) if bucket.paced else bucket.observed(end_ms)})
    elif bucket is not None:
        report({"left": sum(sample[2] for sample in bucket.state(end_ms * FASTER)["rate"])})


if __name__ == "__main__":
    main()
