"""Several workers in one process, each with its own table of buckets, that share the buckets' memory."""

from __future__ import annotations

import mmap
from contextlib import nullcontext
from typing import TYPE_CHECKING

from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.buckets.shared.buckets import SharedBuckets
from headrace.quota_callbacks.policies import KAFKA_POLICY, QuotaPolicy
from tests.quota_callbacks.our_quotas import OurQuotas

if TYPE_CHECKING:
    from headrace.quota_callbacks.entities import EntityName, QuotaKey


def shared_memory(workers: int, rows: int = 16, samples: int = Window().samples) -> memoryview:
    memory = memoryview(mmap.mmap(-1, SharedBuckets.size_of(workers, rows, samples)))
    SharedBuckets.create(memory, workers=workers, rows=rows, samples=samples)
    return memory


class Workers:
    """The workers. ``offsets_ms`` are the differences between the shared time and each worker's clock."""

    def __init__(
        self, count: int, window: Window | None = None, *, rows: int = 16, offsets_ms: tuple[int, ...] = ()
    ) -> None:
        self.window = window or Window()
        self.memory = shared_memory(count, rows, self.window.samples)
        self.offsets_ms = offsets_ms or (0,) * count
        self.usages: list[SharedBuckets] = []
        self.quotas: list[OurQuotas] = []
        self._set: list[tuple[QuotaKey, EntityName | None, EntityName | None, float | None, QuotaPolicy]] = []
        for worker in range(count):
            usage, quotas = self._start(worker)
            self.usages.append(usage)
            self.quotas.append(quotas)

    def set(
        self,
        key: QuotaKey,
        user: EntityName | None,
        client_id: EntityName | None,
        value: float | None,
        policy: QuotaPolicy = KAFKA_POLICY,
    ) -> None:
        self._set.append((key, user, client_id, value, policy))
        for quotas in self.quotas:
            quotas.set(key, user, client_id, value, policy)

    def replace(self, worker: int) -> None:
        """Replace a worker that has died by another one with the same number."""
        SharedBuckets.worker_lost(self.memory, worker)
        self.usages[worker], self.quotas[worker] = self._start(worker)

    def _start(self, worker: int) -> tuple[SharedBuckets, OurQuotas]:
        usage = SharedBuckets(self.memory, worker=worker, lock=nullcontext(), offset_ms=self.offsets_ms[worker])
        quotas = OurQuotas(self.window, usage)
        for each in self._set:
            quotas.set(*each)
        return usage, quotas
