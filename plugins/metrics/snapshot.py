"""Reads the buckets: the most recently used ones individually, up to ``max_series``, and the sum of the rest.

Runs on the event loop, since reading a bucket purges its old samples, and in small steps
(`headrace.proxy.long_work.in_slices`). An entity keeps its own series until it is idle, so that graphs do not alternate
between an entity and ``other``; free series go to the most recently used entities.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.plugins.metrics.names import (
    ENTITIES,
    EXEMPT_REQUEST_TIME,
    LIMIT,
    MEASURES,
    OTHER,
    QUEUE_SIZE,
    THROTTLE_TIME,
    TOKENS,
    Labels,
    labels_of,
    others,
    series_of,
)
from headrace.quota_callbacks.entities import QuotaKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping

    from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
    from headrace.quota_callbacks.buckets.kinds import QuotaBucket

OWN, IDLE = "own", "idle"
STATES: Final = (OWN, OTHER, IDLE)
"""The states of an entity."""

STEP: Final = 32
"""Buckets between two points where other tasks may run: about 0.1 ms."""

MOST_QUEUES: Final = 100
"""Quota names reported for `QUEUE_SIZE`, those with the most muted connections: a plugin may choose any names."""

_TOGETHER: Final = {measure.kafka: measure.together for measure in MEASURES}

Point = tuple[Labels, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The values of all buckets at one time. Points share their label dictionaries, which must not be changed."""

    points: Mapping[str, Collection[Point]]
    """Points by `Measure.kafka`; finite values only."""
    admitted: int
    """Number of entities that have been given their own series since the start; one that returns is counted again."""


class BucketReader:
    """A reader of the buckets, which remembers the ones that have their own series.

    Only one `steps` may run at a time; other code may use the buckets between its steps.
    """

    def __init__(
        self,
        quotas: ClientQuotas,
        *,
        now_ms: Callable[[], int],
        muted: Callable[[], Mapping[str, int]],
        max_series: int,
        idle_ms: int,
    ) -> None:
        self._quotas = quotas
        self._now_ms = now_ms
        self._muted = muted
        self._max_series = max_series
        self._idle_ms = idle_ms
        self._own: dict[QuotaBucket, Labels] = {}
        self._admitted = 0

    def steps(self) -> Generator[None, None, Snapshot]:
        """Read all buckets and return the snapshot; yield where other tasks may run."""
        counts: Counter[tuple[str, str]] = Counter()
        rest = yield from self._choose(counts)
        points: dict[str, list[Point]] = {measure.kafka: [] for measure in MEASURES}
        yield from self._read_own(points)
        yield from self._read_others(rest, points)
        for key in {key for key, _ in counts}:
            points[ENTITIES] += [({"quota": str(key), "state": state}, counts[key, state]) for state in STATES]
        points[QUEUE_SIZE] += self._queues()
        exempt = self._quotas.exempt_request_time.rate(self._now_ms())
        points[EXEMPT_REQUEST_TIME].append(({"quota": QuotaKey.REQUEST_PERCENTAGE.value}, exempt))
        return Snapshot(points=points, admitted=self._admitted)

    def _choose(self, counts: Counter[tuple[str, str]]) -> Generator[None, None, list[QuotaBucket]]:
        """Decide which buckets have their own series, count all by state, and return the others in use."""
        kept: dict[QuotaBucket, Labels] = {}
        by_age: dict[int, list[QuotaBucket]] = {}
        now_ms = self._now_ms()
        for at, bucket in enumerate(self._quotas):
            if at % STEP == 0:
                yield
            age_ms = now_ms - bucket.last_used_ms
            labels = self._own.get(bucket)
            if age_ms > self._idle_ms and (labels is None or not _throttled(bucket, now_ms)):
                counts[bucket.key, IDLE] += 1
            elif labels is not None:
                kept[bucket] = labels
            else:
                by_age.setdefault(age_ms // 1000, []).append(bucket)
        self._own = kept
        rest = yield from self._admit(bucket for age in sorted(by_age) for bucket in by_age[age])
        counts.update((bucket.key, OWN) for bucket in self._own)
        for at, bucket in enumerate(rest):
            if at % STEP == 0:
                yield
            counts[bucket.key, OTHER] += 1
        return rest

    def _admit(self, buckets: Iterable[QuotaBucket]) -> Generator[None, None, list[QuotaBucket]]:
        """Give ``buckets`` their own series, in order, up to the limit; return those that get none."""
        room = self._max_series - sum(len(series_of(bucket.key)) for bucket in self._own)
        rest = []
        for at, bucket in enumerate(buckets):
            if at % STEP == 0:
                yield
            if room < (series := len(series_of(bucket.key))):
                rest.append(bucket)
                continue
            labels = labels_of(bucket)
            if labels == others(bucket.key, tuple(bucket.tags)):  # the entity's real names are the reserved ones
                rest.append(bucket)
                continue
            room -= series
            self._own[bucket] = labels
            self._admitted += 1
        return rest

    def _read_own(self, points: dict[str, list[Point]]) -> Generator[None, None, None]:
        now_ms = self._now_ms()
        for at, (bucket, labels) in enumerate(self._own.items()):
            if at % STEP == 0:
                yield
                now_ms = self._now_ms()
            for name, value in _measures(bucket, now_ms):
                points[name].append((labels, value))
            if bucket.limit is not None:
                points[LIMIT].append((labels, bucket.limit))

    def _read_others(self, rest: list[QuotaBucket], points: dict[str, list[Point]]) -> Generator[None, None, None]:
        together: dict[tuple[tuple[str, str], ...], tuple[Labels, dict[str, float]]] = {}
        now_ms = self._now_ms()
        for at, bucket in enumerate(rest):
            if at % STEP == 0:
                yield
                now_ms = self._now_ms()
            labels = others(bucket.key, tuple(bucket.tags))
            _, values = together.setdefault(tuple(labels.items()), (labels, {}))
            for name, value in _measures(bucket, now_ms):
                join = _TOGETHER[name]
                values[name] = join(values[name], value) if join is not None and name in values else value
        for labels, values in together.values():
            for name, value in values.items():
                points[name].append((labels, value))

    def _queues(self) -> list[Point]:
        muted = Counter(dict.fromkeys(map(str, QuotaKey), 0))
        muted.update(dict(Counter(self._muted()).most_common(MOST_QUEUES)))
        return [({"quota": quota}, count) for quota, count in muted.items()]


def _measures(bucket: QuotaBucket, now_ms: int) -> Iterator[tuple[str, float]]:
    """Yield the finite measures of ``bucket``, without the tokens of a bucket that has no limit."""
    for name, value in bucket.measures(now_ms):
        if math.isfinite(value) and (name != TOKENS or bucket.limit is not None):
            yield name, value


def _throttled(bucket: QuotaBucket, now_ms: int) -> bool:
    """Return whether the bucket has recently throttled: a refused request does not use the bucket, but its entity is
    not idle."""
    return any(name == THROTTLE_TIME and math.isfinite(value) for name, value in bucket.measures(now_ms))
