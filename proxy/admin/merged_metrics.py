"""Metrics and decisions of all workers, merged into one page.

`AcrossWorkers` states for each metric whether the workers' values are added up, or are the same in all workers, since
they share what is measured. Counters never decrease: the last known totals of a worker are kept after its end.

Workers encode their families as JSON (`encode`). Each line contains a part of a family, so that neither side encodes
or decodes for long without a pause. Called by workers and by the supervisor.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.metrics_core import Metric

from headrace.proxy.long_work import PAUSE_S
from headrace.quota_callbacks.hookspecs import AcrossWorkers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client.samples import Sample

PIECE: Final = 64
"""Number of samples in a line; encoding them takes about 0.2 ms."""

_JOIN: Final[Mapping[AcrossWorkers, Callable[[float, float], float]]] = {
    AcrossWorkers.SUM: lambda one, other: one + other,
    AcrossWorkers.MAX: max,
    AcrossWorkers.MIN: min,
}

SampleName = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name and its labels, sorted."""


@dataclass(slots=True, kw_only=True)
class Family:
    """A metric with its samples, and how to merge the samples of several workers."""

    metric: Metric
    across: AcrossWorkers = AcrossWorkers.SUM


def encode(families: Iterable[Family]) -> bytes:
    """Encode families for another process. Call it in a thread: the result may be a megabyte, with a pause per line."""
    return b"\n".join(_lines(families))


def _lines(families: Iterable[Family]) -> Iterator[bytes]:
    for family in families:
        metric = family.metric
        samples = [(sample.name, sample.labels, sample.value) for sample in metric.samples]
        for begin in range(0, max(1, len(samples)), PIECE):
            piece = samples[begin : begin + PIECE]
            yield json.dumps([metric.name, metric.documentation, metric.type, family.across.value, piece]).encode()
            time.sleep(PAUSE_S)


def decode(data: bytes) -> list[Family]:
    """Decode families that `encode` encoded."""
    families: dict[str, Family] = {}
    for line in data.splitlines():
        name, documentation, kind, across, samples = json.loads(line)
        family = families.get(name)
        if family is None:
            family = Family(metric=Metric(name, documentation, kind), across=AcrossWorkers(across))
            families[name] = family
        for sample, labels, value in samples:
            family.metric.add_sample(sample, labels, value)
    return list(families.values())


@dataclass(slots=True)
class _Merged:
    documentation: str
    kind: str
    across: AcrossWorkers
    values: dict[SampleName, float] = field(default_factory=dict)

    def add(self, name: SampleName, value: float) -> None:
        known = self.values.get(name)
        self.values[name] = value if known is None else _JOIN[self.across](known, value)


class WorkerMetrics:
    """The last metrics of each worker, and the totals of workers that have ended."""

    def __init__(self) -> None:
        self._last: dict[int, list[Family]] = {}
        self._ended: dict[str, _Merged] = {}

    def update(self, worker: int, families: list[Family]) -> None:
        """Replace the metrics of a worker."""
        self._last[worker] = families

    def remove(self, worker: int) -> None:
        """Keep the totals of a worker that has ended, and drop its gauges."""
        totals = [family for family in self._last.pop(worker, []) if family.metric.type in {"counter", "histogram"}]
        _merge(totals, self._ended)

    def by_worker(self, sample: str) -> Iterator[tuple[int, float]]:
        """Yield the number of each worker with its value of a sample without labels."""
        for worker, families in self._last.items():
            for family in families:
                for each in family.metric.samples:
                    if each.name == sample:
                        yield worker, each.value

    def merged(self, own: Iterable[Family]) -> list[Metric]:
        """Return the metrics of all workers, merged with the caller's ``own`` families."""
        merged = {
            name: _Merged(each.documentation, each.kind, each.across, dict(each.values))
            for name, each in self._ended.items()
        }
        for families in (*self._last.values(), own):
            _merge(families, merged)
        return [_metric(name, each) for name, each in merged.items()]


def _merge(families: Iterable[Family], into: dict[str, _Merged]) -> None:
    for family in families:
        metric = family.metric
        merged = into.get(metric.name)
        if merged is None:
            merged = into[metric.name] = _Merged(metric.documentation, metric.type, family.across)
        for sample in metric.samples:
            merged.add(_name(sample), sample.value)


def _name(sample: Sample) -> SampleName:
    return sample.name, tuple(sorted(sample.labels.items()))


def _metric(name: str, merged: _Merged) -> Metric:
    metric = Metric(name, merged.documentation, merged.kind)
    for (sample, labels), value in merged.values.items():
        metric.add_sample(sample, dict(labels), value)
    return metric


def merge_decisions(pages: Iterable[Mapping[str, Any]], newest: int) -> dict[str, Any]:
    """Merge the workers' pages ``/decisions``: the ``newest`` decisions, newest first, and all muted connections."""
    pages = list(pages)
    decisions = [decision for page in pages for decision in page["decisions"]]
    decisions.sort(key=lambda decision: float(decision["age_s"]))
    return {"waiting": [each for page in pages for each in page["waiting"]], "decisions": decisions[:newest]}
