"""What operators ask of a proxy with several workers: their answers as one.

Each question has a time limit for each worker. One that is down for a moment, or does not answer, is left out: of its
metrics the last that it told are shown, gauges as long as it lives and totals for good, and ``headrace_worker_up``
says so.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import trio
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from headrace.proxy.admin.merged_metrics import Family, WorkerMetrics, decode, merge_decisions
from headrace.proxy.admin.metrics_page import page_of, process_families
from headrace.proxy.workers.pipe import WorkerSilentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headrace.proxy.workers.pipe import AskedWorker, Message
    from headrace.proxy.workers.supervisor import Supervisor, WorkerSlot

LIVE_TIMEOUT_S: Final = 2.0
"""Below the time-outs of orchestrators' probes, and far above any pause of a loop that lives."""
METRICS_TIMEOUT_S: Final = 8.0
"""Below Prometheus' 10 s."""
DECISIONS_TIMEOUT_S: Final = 5.0
"""Below the 10 s of ``headrace why``."""
READY_TIMEOUT_S: Final = 60.0
"""A worker asks the bootstrap servers one after the other, up to ``upstream.connect_timeout`` each."""
_WORKER: Final = ("worker",)
_BY_WORKER: Final = (
    (GaugeMetricFamily, "headrace_worker_connections", "Client connections of each worker.", "headrace_connections"),
    (CounterMetricFamily, "headrace_worker_cpu_seconds", "CPU time of each worker.", "process_cpu_seconds_total"),
    (
        GaugeMetricFamily,
        "headrace_worker_resident_memory_bytes",
        "Resident memory of each worker; what they share counts for each.",
        "process_resident_memory_bytes",
    ),
)


class WorkersOperations:
    """The answers of all workers (`headrace.proxy.admin.operations.Operations`)."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._told = WorkerMetrics()
        self._one_at_a_time = trio.Lock()
        supervisor.on_lost(self._told.ended)

    @property
    def enforcement_enabled(self) -> bool:
        """What was set last; a worker that is started gets it, too."""
        return self._supervisor.enforcement

    async def enforce(self, enabled: bool, by: str) -> None:
        """Turn enforcement on or off in all workers."""
        await self._supervisor.enforce(enabled, by)

    async def not_live(self) -> list[str]:
        """Workers whose loop hangs. One that is down is being replaced."""
        silent: list[int] = []

        def heard(slot: WorkerSlot, answer: Message | None) -> None:
            if answer is None:
                silent.append(slot.number)

        await self._ask_all("live", {}, heard, timeout_s=LIVE_TIMEOUT_S)
        return [f"worker {number} does not answer" for number in sorted(silent)]

    async def not_ready(self) -> list[str]:
        """Draining, or no worker that serves; else what the first worker that answers says."""
        if self._supervisor.draining.is_set():
            return ["the proxy is draining"]
        for slot in self._supervisor.slots:
            if slot.ready and slot.asked is not None:
                with suppress(WorkerSilentError):
                    answer = await slot.asked.ask("not_ready", {}, timeout_s=READY_TIMEOUT_S)
                    reasons: list[str] = answer.head["reasons"]
                    return reasons
        return ["no worker serves"]

    async def decisions(self, user: str | None, client_id: str | None, newest: int) -> dict[str, Any]:
        """What all workers decided lately, and who waits at any of them."""
        pages: list[dict[str, Any]] = []

        def heard(_slot: WorkerSlot, answer: Message | None) -> None:
            if answer is not None:
                pages.append(json.loads(answer.body))

        asked = {"now_s": trio.current_time(), "user": user, "client_id": client_id, "newest": newest}
        await self._ask_all("decisions", asked, heard, timeout_s=DECISIONS_TIMEOUT_S)
        return merge_decisions(pages, newest)

    async def metrics(self) -> bytes:
        """One page of all workers and the supervisor (not of the fork server), and a few series of each worker."""

        def heard(slot: WorkerSlot, answer: Message | None) -> None:
            if answer is not None:
                self._told.told(slot.number, decode(answer.body))

        async with self._one_at_a_time:
            await self._ask_all("metrics", {}, heard, timeout_s=METRICS_TIMEOUT_S)
            merged = self._told.merged([*process_families(), *self._of_workers()])
            return await trio.to_thread.run_sync(page_of, merged)

    def _of_workers(self) -> Iterator[Family]:
        up = GaugeMetricFamily("headrace_worker_up", "1 while a worker serves.", labels=_WORKER)
        restarts = CounterMetricFamily(
            "headrace_worker_restarts", "How often a worker was replaced, because it had died.", labels=_WORKER
        )
        for slot in self._supervisor.slots:
            up.add_metric((str(slot.number),), int(slot.ready))
            restarts.add_metric((str(slot.number),), slot.restarts)
        yield Family(metric=up)
        yield Family(metric=restarts)
        for make, name, text, told_as in _BY_WORKER:
            metric = make(name, text, labels=_WORKER)
            for worker, value in self._told.of_each(told_as):
                metric.add_metric((str(worker),), value)
            yield Family(metric=metric)

    async def _ask_all(
        self,
        do: str,
        arguments: Mapping[str, object],
        heard: Callable[[WorkerSlot, Message | None], None],
        *,
        timeout_s: float,
    ) -> None:
        """Ask all workers that serve; ``heard`` is called with each answer while its worker lives, and with ``None``
        for one that gives none in time."""

        async def ask(slot: WorkerSlot, asked: AskedWorker) -> None:
            answer = None
            with suppress(WorkerSilentError):
                answer = await asked.ask(do, arguments, timeout_s=timeout_s)
            if slot.asked is asked:
                heard(slot, answer)

        async with trio.open_nursery() as nursery:
            for slot in self._supervisor.slots:
                if slot.ready and slot.asked is not None:
                    nursery.start_soon(ask, slot, slot.asked)
