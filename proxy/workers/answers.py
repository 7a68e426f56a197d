"""The operations of a proxy with several workers: asks all workers, and merges their answers into one.

Called by the admin server in the supervisor's process. Each worker has a time limit to answer. A worker that is down,
or does not answer in time, is left out of the merged answer; for metrics its last known values are used: its gauges
while its process lives, its totals forever. ``headrace_worker_up`` shows which workers serve.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import trio
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from headrace.proxy.admin.merged_metrics import Family, WorkerMetrics, decode, merge_decisions
from headrace.proxy.admin.metrics_page import admin_metrics, expiry_metric, page_of, process_families
from headrace.proxy.workers.pipe import WorkerSilentError
from headrace.quota_callbacks.hookspecs import AcrossWorkers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headrace.proxy.counters import AdminCounters
    from headrace.proxy.workers.pipe import Message, WorkerPipe
    from headrace.proxy.workers.slots import Workers, WorkerSlot

LIVE_TIMEOUT_S: Final = 2.0
"""Shorter than the time-outs of orchestrators' probes, and much longer than any pause of a working event loop."""
METRICS_TIMEOUT_S: Final = 8.0
"""Shorter than Prometheus' default scrape time-out, 10 s."""
DECISIONS_TIMEOUT_S: Final = 5.0
"""Shorter than the time-out of ``headrace why``, 10 s."""
READY_TIMEOUT_S: Final = 60.0
"""A worker tries the bootstrap servers one after the other, each for at most ``upstream.connect_timeout``."""
_WORKER: Final = ("worker",)
_BY_WORKER: Final = (
    (
        GaugeMetricFamily,
        "headrace_worker_connections",
        "Number of open client connections, by worker.",
        "headrace_connections",
    ),
    (
        CounterMetricFamily,
        "headrace_worker_cpu_seconds",
        "User and system CPU time spent, in seconds, by worker.",
        "process_cpu_seconds_total",
    ),
    (
        GaugeMetricFamily,
        "headrace_worker_resident_memory_bytes",
        "Resident memory size in bytes, by worker; shared pages are included in the value of each worker.",
        "process_resident_memory_bytes",
    ),
)


class WorkersOperations:
    """The operations of all workers (implements `headrace.proxy.admin.operations.Operations`)."""

    def __init__(self, supervisor: Workers) -> None:
        self._supervisor = supervisor
        self._metrics = WorkerMetrics()
        self._one_at_a_time = trio.Lock()
        supervisor.on_worker_end(self._metrics.remove)

    @property
    def enforcement_enabled(self) -> bool:
        """Whether quotas are enforced: the state set last, which newly started workers also receive."""
        return self._supervisor.enforcement

    async def enforce(self, enabled: bool, by: str) -> None:
        """Turn enforcement on or off in all workers."""
        await self._supervisor.enforce(enabled, by)

    async def not_live(self) -> list[str]:
        """Return a reason for each worker whose event loop hangs; a worker that is being replaced is not one."""
        silent: list[int] = []

        def on_answer(slot: WorkerSlot, answer: Message | None) -> None:
            if answer is None:
                silent.append(slot.number)

        await self._ask_all("live", {}, on_answer, timeout_s=LIVE_TIMEOUT_S)
        return [f"worker {number} does not answer" for number in sorted(silent)]

    async def not_ready(self) -> list[str]:
        """Return why the proxy should get no traffic: it is draining, a worker has not started yet or hangs, no worker
        serves, or what one of them answers.

        A worker that is being replaced has no ports, so that the others get all new connections.
        """
        if self._supervisor.draining.is_set():
            return ["the proxy is draining"]
        starting = [slot.number for slot in self._supervisor.slots if not slot.ready and not slot.restarts]
        reasons = [f"worker {number} has not started yet" for number in starting] + await self.not_live()
        if starting and self._supervisor.awaited:
            reasons.append(self._supervisor.awaited)
        if reasons:
            return reasons
        answer = await self._ask_one("not_ready", {}, timeout_s=READY_TIMEOUT_S)
        return ["no worker serves"] if answer is None else list(answer.head["reasons"])

    async def quota_changes(self, newest: int, before: int | None) -> dict[str, Any]:
        """Return the changes of quotas from the first worker that answers, since all share the store."""
        arguments = {"newest": newest, "before": before}
        answer = await self._ask_one("quota_changes", arguments, timeout_s=DECISIONS_TIMEOUT_S)
        if answer is None:
            return {"changes": [], "problem": "no worker serves"}
        page: dict[str, Any] = json.loads(answer.body)
        return page

    async def decisions(self, user: str | None, client_id: str | None, newest: int) -> dict[str, Any]:
        """Return the recent decisions of all workers and the muted connections, as the page ``/decisions`` has them."""
        pages: list[dict[str, Any]] = []

        def on_answer(_slot: WorkerSlot, answer: Message | None) -> None:
            if answer is not None:
                pages.append(json.loads(answer.body))

        arguments = {"now_s": trio.current_time(), "user": user, "client_id": client_id, "newest": newest}
        await self._ask_all("decisions", arguments, on_answer, timeout_s=DECISIONS_TIMEOUT_S)
        return merge_decisions(pages, newest)

    async def metrics(self, admin: AdminCounters) -> bytes:
        """Return one Prometheus page for all workers and the supervisor, with a few series for each worker.

        The fork server is not included.
        """

        def on_answer(slot: WorkerSlot, answer: Message | None) -> None:
            if answer is not None:
                self._metrics.update(slot.number, decode(answer.body))

        async with self._one_at_a_time:
            await self._ask_all("metrics", {}, on_answer, timeout_s=METRICS_TIMEOUT_S)
            merged = self._metrics.merged([*process_families(), *self._own_families(admin)])
            return await trio.to_thread.run_sync(page_of, merged)

    def _own_families(self, admin: AdminCounters) -> Iterator[Family]:
        for metric in admin_metrics(admin):
            yield Family(metric=metric)
        if admin.certificate_expires_s is not None:
            expiry = expiry_metric({"admin.tls": admin.certificate_expires_s})
            yield Family(metric=expiry, across=AcrossWorkers.MIN)
        up = GaugeMetricFamily("headrace_worker_up", "1 while the worker serves, 0 otherwise.", labels=_WORKER)
        restarts = CounterMetricFamily(
            "headrace_worker_restarts", "Number of times the worker died and was replaced.", labels=_WORKER
        )
        hangs = CounterMetricFamily(
            "headrace_worker_hangs", "Number of times the worker did not answer and was killed.", labels=_WORKER
        )
        for slot in self._supervisor.slots:
            up.add_metric((str(slot.number),), int(slot.ready))
            restarts.add_metric((str(slot.number),), slot.restarts)
            hangs.add_metric((str(slot.number),), slot.hangs)
        yield Family(metric=up)
        yield Family(metric=restarts)
        yield Family(metric=hangs)
        for make, name, text, sample in _BY_WORKER:
            metric = make(name, text, labels=_WORKER)
            for worker, value in self._metrics.by_worker(sample):
                metric.add_metric((str(worker),), value)
            yield Family(metric=metric)

    async def _ask_one(self, do: str, arguments: Mapping[str, object], *, timeout_s: float) -> Message | None:
        """Ask one worker after the other until one answers; return ``None`` if none does."""
        for slot in self._supervisor.slots:
            if slot.ready and slot.pipe is not None:
                with suppress(WorkerSilentError):
                    return await slot.pipe.ask(do, arguments, timeout_s=timeout_s)
        return None

    async def _ask_all(
        self,
        do: str,
        arguments: Mapping[str, object],
        on_answer: Callable[[WorkerSlot, Message | None], None],
        *,
        timeout_s: float,
    ) -> None:
        """Ask all workers that serve, and call ``on_answer`` for each one that has not been replaced meanwhile.

        ``on_answer`` is called with ``None`` for a worker that has not answered within ``timeout_s``.
        """

        async def ask(slot: WorkerSlot, pipe: WorkerPipe) -> None:
            answer = None
            with suppress(WorkerSilentError):
                answer = await pipe.ask(do, arguments, timeout_s=timeout_s)
            if slot.pipe is pipe:
                on_answer(slot, answer)

        async with trio.open_nursery() as nursery:
            for slot in self._supervisor.slots:
                if slot.ready and slot.pipe is not None:
                    nursery.start_soon(ask, slot, slot.pipe)
