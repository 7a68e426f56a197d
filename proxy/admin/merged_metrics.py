"""One page of metrics from those of all workers.

What counts is added up; what every worker sees alike, since they share it, is told once (`AcrossWorkers` says which).
Totals never go back: what a worker had counted when it was last asked stays counted after its end.

Workers tell their families as JSON (`encode`), one line for each piece of a family, so that neither side works on one
for long without a pause.
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
"""Samples of a line: about 0.2 ms to encode."""

_JOIN: Final[Mapping[AcrossWorkers, Callable[[float, float], float]]] = {
    AcrossWorkers.SUM: lambda one, other: one + other,
    AcrossWorkers.MAX: max,
    AcrossWorkers.MIN: min,
}

SampleName = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(slots=True, kw_only=True)
class Family:
    """A metric with its samples, and how those of several workers become one."""

    metric: Metric
    across: AcrossWorkers = AcrossWorkers.SUM


def encode(families: Iterable[Family]) -> bytes:
    """For another process. In a thread, since it may be a megabyte; it pauses after each line."""
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
    """What `encode` made."""
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
    """What the workers told last, and what those had counted that are gone."""

    def __init__(self) -> None:
        self._last: dict[int, list[Family]] = {}
        self._gone: dict[str, _Merged] = {}

    def told(self, worker: int, families: list[Family]) -> None:
        """A worker has answered."""
        self._last[worker] = families

    def ended(self, worker: int) -> None:
        """Keep the totals of a worker that is gone, and forget the rest."""
        totals = [family for family in self._last.pop(worker, []) if family.metric.type == "counter"]
        _merge(totals, self._gone)

    def of_each(self, sample: str) -> Iterator[tuple[int, float]]:
        """The workers' own values of a sample without labels."""
        for worker, families in self._last.items():
            for family in families:
                for each in family.metric.samples:
                    if each.name == sample:
                        yield worker, each.value

    def merged(self, besides: Iterable[Family]) -> list[Metric]:
        """All as one, with what is told ``besides`` by the caller itself."""
        merged = {
            name: _Merged(each.documentation, each.kind, each.across, dict(each.values))
            for name, each in self._gone.items()
        }
        for families in (*self._last.values(), besides):
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
    """What all workers decided, newest first, and who waits at any of them."""
    pages = list(pages)
    decisions = [decision for page in pages for decision in page["decisions"]]
    decisions.sort(key=lambda decision: float(decision["age_s"]))
    return {"waiting": [each for page in pages for each in page["waiting"]], "decisions": decisions[:newest]}
