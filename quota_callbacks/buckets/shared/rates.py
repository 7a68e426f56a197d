"""A `SampledRate` that several workers record in.

Each worker keeps the complete rate, with its own records and the others' merged. Its cell has the total that it has
recorded and the time of its last record. Before it records or reads, it compares the others' totals with those that its
samples include, and records the differences at the times in the cells. The worker that starts a new sample writes a
checkpoint: all samples, and the total of each worker that they include. A worker that has missed a new sample adopts
the newest checkpoint and records what that does not include. So every record ends up in its sample, however rarely a
worker reads. Pure: time is an argument.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headrace.quota_callbacks.buckets.sampled_rate import SampledRate
from headrace.quota_callbacks.buckets.shared.layout import seal, sealed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.quota_callbacks.buckets.sampled_rate import Window
    from headrace.quota_callbacks.buckets.shared.layout import Column


class SharedRate(SampledRate):
    """One worker's view of a bucket's rate. A new one starts with what is in the shared memory."""

    __slots__ = (
        "_checkpoints_at",
        "_column",
        "_included",
        "_last_at",
        "_offset_ms",
        "_others",
        "_own_at",
        "_recorded",
        "_totals_at",
        "_words",
        "_workers",
    )

    def __init__(self, window: Window, column: Column, row_at: int) -> None:
        """``row_at`` is the offset of the row, in words."""
        super().__init__(window)
        self._column = column
        self._words = column.words
        self._workers = column.workers
        self._offset_ms = column.offset_ms
        self._totals_at = row_at
        self._own_at = row_at + column.worker
        self._last_at = self._own_at + column.workers
        self._checkpoints_at = row_at + 2 * column.workers
        self._recorded = self._words[self._own_at]
        """Total recorded by this worker and its predecessors with the same number."""
        self._included = [0.0] * column.workers
        """The part of each worker's total that the samples include."""
        self._others = tuple((worker, row_at + worker) for worker in column.others)
        """The other workers, and the offsets of their totals."""
        self._adopt(range(column.workers))
        self._record_missing()

    def record(self, value: float, now_ms: int) -> None:
        """Add ``value``, after merging the others' records."""
        words = self._words
        included = self._included
        for worker, at in self._others:
            if words[at] != included[worker]:
                self._merge()
                break
        samples = self._samples
        opens = not samples or now_ms - samples[-3] >= self._sample_ms
        if opens:
            super().record(value, now_ms)
        else:
            samples[-2] = now_ms
            samples[-1] += value
            self._total += value
        self._recorded += value
        words[self._last_at] = now_ms + self._offset_ms
        words[self._own_at] = self._recorded
        if opens:
            self._write_checkpoint()

    def take_back(self, value: float, recorded_ms: int) -> None:
        """Un-record ``value`` from the newest sample, since workers share totals and not single samples."""
        if self._samples and self._samples[-2] >= recorded_ms:
            self.record(-value, int(self._samples[-2]))

    def rate(self, now_ms: int) -> float:
        """Return the rate of all workers. (`throttle_ms` does not merge again, since it is called after `record`.)"""
        self._merge_if_behind()
        return super().rate(now_ms)

    def state(self, now_ms: int) -> list[list[float]] | None:
        """Return the state of all workers together."""
        self._merge_if_behind()
        return super().state(now_ms)

    def restore(self, state: list[list[float]] | None, now_ms: int) -> None:
        """Restore a `state`, unless another worker has done so: the shared samples are newer then."""
        if state and not self._samples:
            super().restore(state, now_ms)
            self._write_checkpoint()

    def private_copy(self) -> SampledRate:
        """Return the rate as one that is not shared."""
        plain = SampledRate(self._window)
        plain._samples, plain._total = self._samples, self._total  # noqa: SLF001 -- its own class
        return plain

    def _merge_if_behind(self) -> None:
        for worker, at in self._others:
            if self._words[at] != self._included[worker]:
                self._merge()
                return

    def _merge(self) -> None:
        words, included, samples = self._words, self._included, self._samples
        if samples:
            next_ms = samples[-3] + self._sample_ms + self._offset_ms
            for worker, at in self._others:
                total = words[at]
                if total != included[worker]:
                    at_ms = words[at + self._workers]
                    if at_ms >= next_ms:
                        break
                    difference = total - included[worker]
                    included[worker] = total
                    samples[-1] += difference
                    self._total += difference
                    samples[-2] = max(samples[-2], int(at_ms) - self._offset_ms)
            else:
                return
        included[self._column.worker] = self._recorded
        self._adopt(self._column.others)
        self._record_missing()

    def _adopt(self, workers: Iterable[int]) -> None:
        """Replace the samples by the newest checkpoint of ``workers``, if it is newer."""
        newest: tuple[float, ...] | None = None
        newest_ms = self._samples[-3] + self._offset_ms if self._samples else -math.inf
        column = self._column
        size = column.layout.checkpoint_words
        for worker in workers:
            found = sealed(column.checkpoint, column.memory, self._checkpoints_at + worker * size)
            if found is not None:
                start_ms = found[int(found[0]) * 3 - 2]
                if start_ms > newest_ms:
                    newest, newest_ms = found, start_ms
        if newest is None:
            return
        count = int(newest[0])
        samples = list(newest[1 : 1 + 3 * count])
        for at in range(0, len(samples), 3):
            samples[at] = int(samples[at]) - self._offset_ms
            samples[at + 1] = int(samples[at + 1]) - self._offset_ms
        self._samples = samples
        self._total = math.fsum(samples[2::3])
        self._included = list(newest[-column.workers :])

    def _record_missing(self) -> None:
        """Record the parts of the totals that the samples do not include, in the order of time."""
        column, words, totals_at = self._column, self._words, self._totals_at
        missing = []
        for worker, included in enumerate(self._included):
            total = self._recorded if worker == column.worker else words[totals_at + worker]
            if total != included:
                at_ms = int(words[totals_at + column.workers + worker]) - self._offset_ms
                missing.append((at_ms, total - included))
                self._included[worker] = total
        for at_ms, value in sorted(missing):
            super().record(value, max(at_ms, int(self._samples[-2])) if self._samples else at_ms)

    def _write_checkpoint(self) -> None:
        column, offset_ms = self._column, self._offset_ms
        room = column.layout.kept_samples
        samples = self._samples[-3 * room :]
        if offset_ms:
            samples = [each if at % 3 == 2 else each + offset_ms for at, each in enumerate(samples)]
        self._included[column.worker] = self._recorded
        padding = [0.0] * (3 * room - len(samples))
        words = (len(samples) // 3, *samples, *padding, *self._included)
        at = self._checkpoints_at + column.worker * column.layout.checkpoint_words
        seal(column.checkpoint, column.memory, at, words)
