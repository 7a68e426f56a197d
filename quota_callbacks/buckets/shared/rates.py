"""A rate that several workers measure together: `SampledRate`, with what the others have recorded.

Each worker has the whole rate, its own samples and the others' merged. In its cell stand what it has recorded in all
and when it did last. Before it records or reads, it compares the others' totals with what it has of them, and books a
difference at the time that stands beside it. Who opens a new sample writes a checkpoint: all samples as it has them,
and what these include of each worker. Who has missed that takes the newest checkpoint and adds what is not in it. So
everything is in the sample that it belongs to, however long a worker has not looked. Pure: the caller brings the time.
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
    """One bucket's rate in one worker. Made over memory that others have used, it goes on from there."""

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
        """``row_at``: the row's first word."""
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
        """By this worker, and those before it that had its number, in all."""
        self._included = [0.0] * column.workers
        """What the samples have of each worker's total."""
        self._others = tuple((worker, row_at + worker) for worker in column.others)
        """The other workers, and where their totals stand."""
        self._adopt(range(column.workers))
        self._book_missing()

    def record(self, value: float, now_ms: int) -> None:
        """As `SampledRate.record`, after what the others recorded before."""
        words = self._words
        included = self._included
        for worker, at in self._others:
            if words[at] != included[worker]:
                self._take_up()
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
        """As `SampledRate.take_back`, but from the newest sample: workers share totals, not single samples."""
        if self._samples and self._samples[-2] >= recorded_ms:
            self.record(-value, int(self._samples[-2]))

    def rate(self, now_ms: int) -> float:
        """Units a second at ``now_ms``, of all workers. (`throttle_ms` does not look again: it follows a record.)"""
        self._look()
        return super().rate(now_ms)

    def state(self, now_ms: int) -> list[list[float]] | None:
        """All workers' samples."""
        self._look()
        return super().state(now_ms)

    def restore(self, state: list[list[float]] | None, now_ms: int) -> None:
        """Go on where `state` was taken, unless another worker has done so before: then what is shared is newer."""
        if state and not self._samples:
            super().restore(state, now_ms)
            self._write_checkpoint()

    def alone(self) -> SampledRate:
        """The same, no longer shared."""
        plain = SampledRate(self._window)
        plain._samples, plain._total = self._samples, self._total  # noqa: SLF001 -- its own class
        return plain

    def _look(self) -> None:
        for worker, at in self._others:
            if self._words[at] != self._included[worker]:
                self._take_up()
                return

    def _take_up(self) -> None:
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
        self._book_missing()

    def _adopt(self, workers: Iterable[int]) -> None:
        """Take the newest checkpoint of ``workers``, if one is newer than what is here."""
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

    def _book_missing(self) -> None:
        """Record what the samples do not have of the totals, in the order of time."""
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
