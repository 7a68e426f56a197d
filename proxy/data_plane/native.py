"""The threads of the native data plane, the connections that they relay, and those that return.

The extension module ``headrace._engine`` (``engine/``, in Rust) relays a connection from a moment at which nothing is
in flight until something has to be decided; then the connection returns, with what was read and not processed. Created
by the server. `headrace.proxy.connection.native.relay` gives connections to it, and continues those that return.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol

import structlog
import trio

from headrace.config.schema import DataPlane
from headrace.proxy.data_plane.api_rows import api_rows
from headrace.proxy.data_plane.meters import MeterTable
from headrace.proxy.data_plane.thread_watch import ThreadWatch
from headrace.proxy.network.held_bytes import held
from headrace.quota_callbacks.request_sums import LATENCY_BOUNDS_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._engine import Collected, Engine, Progress, Rest, SeenIds
    from headrace.proxy.counters import Counters
    from headrace.proxy.hooks.calls.hook_calls import HookCalls
    from headrace.proxy.hooks.enforcement_switch import Enforcement
    from headrace.quota_callbacks.buckets.kinds import ProducerIdBucket

log = structlog.get_logger("headrace.data_plane")

EXTENSION: Final = "headrace._engine"

COLLECT_S: Final = 0.05
"""Seconds between two collections of charges and counters."""

HELD_STEP_BYTES: Final = 2**20
"""If the connections hold this many bytes more or less than at the last count, those of each are counted again."""

REVIEWED_AT_ONCE: Final = 100
"""Number of connections that are reviewed in one turn after a change of quotas, some milliseconds."""

WATCH_S: Final = 1.0
"""Seconds between two checks whether the threads still run, while there are connections."""


class Relayed(Protocol):
    """A connection that the data plane relays."""

    def resume(self, rest: Rest) -> None:
        """Continue the connection in the control plane."""

    def note_completed(self, completed: Collected) -> None:
        """Report requests that were completed natively."""

    def note_held(self) -> int:
        """Update the number of bytes that it holds natively; return by how many it has changed, which may be
        negative."""

    def review(self) -> None:
        """Let the connection return if its terms have changed. Its meters refuse all charges until then."""


def is_installed() -> bool:
    """Return whether the extension module can be imported."""
    try:
        import_module(EXTENSION)
    except ImportError:
        return False
    return True


def is_native(data_plane: DataPlane) -> bool:
    """Return whether a proxy with these settings has a native data plane, or must not start without one."""
    if data_plane is DataPlane.AUTO:
        return is_installed()
    return data_plane is DataPlane.NATIVE


class NativeDataPlane:
    """The threads, the connections that they relay, and the meters of what they charge."""

    def __init__(
        self,
        hooks: HookCalls,
        enforcement: Enforcement,
        counters: Counters,
        *,
        limits: Callable[[], object],
        threads: int,
        now_ms: Callable[[], int],
    ) -> None:
        """Start the threads. ``limits`` returns the limits in force, which may be replaced.

        Raises ``ImportError`` if there is no extension module, and ``OSError`` if no descriptors are left.
        """
        extension = import_module(EXTENSION)
        self._seen_ids: type[SeenIds] = extension.SeenIds
        read = hooks.relay.called | hooks.collects
        self._completed = hooks.completed
        self.engine: Engine = extension.Engine(
            threads,
            list(api_rows(read, hooks.relay.costs)),
            latency_bounds_ns=[round(each * 1e9) for each in LATENCY_BOUNDS_S] if hooks.completed.has_sums else None,
            sample_ratio=hooks.completed.sample_ratio,
        )
        self.meters = MeterTable(self.engine, now_ms)
        self.watch = ThreadWatch(threads)
        self._enforcement = enforcement
        self._limits = limits
        self._counters = counters
        self._counted = self.engine.requests()
        self._connections: dict[int, Relayed] = {}
        self._held = 0
        """The bytes that the connections held when all of them were counted."""
        self._unreviewed: list[Relayed] = []
        """The connections whose terms may be others since the last change of quotas."""
        self._pause = trio.CancelScope()
        """The scope in which `run` waits."""
        self._rules = self._current_rules()
        if hooks.quotas is not None:
            hooks.quotas.on_change = self._quotas_changed
        self._wakes = trio.Event()
        self._waiting = trio.lowlevel.ParkingLot()
        """The tasks in `collect_completed`."""
        self.returns: dict[str, int] = {}
        """Number of connections that have returned, by reason."""

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, connection: Relayed, progress: Progress) -> None:
        """Note that ``connection`` is relayed from now on."""
        if not self._connections:  # otherwise a change of the rules is noticed within `COLLECT_S`
            self._rules = self._current_rules()
        self._connections[progress.id] = connection
        self._wakes.set()

    def seen_ids(self, bucket: ProducerIdBucket) -> SeenIds:
        """Return the producer ids that were already charged to ``bucket``; the threads relay requests with these
        ids."""
        seen = bucket.seen
        if isinstance(seen, self._seen_ids):
            return seen
        seen = bucket.seen = self._seen_ids()
        for producer_id, until_ms in bucket.seen_until_ms.items():
            seen.add(producer_id, until_ms)
        return seen

    def take_back(self, progress: Progress) -> Rest | None:
        """Return what is left of a connection at once, in the middle of frames; ``None`` if it has returned."""
        if self._connections.pop(progress.id, None) is None:
            return None
        if not self._connections:
            self._waiting.unpark_all()
        return self.engine.take_back(progress.id)

    def recall_all(self) -> None:
        """Let all connections return between two of their frames."""
        for number in list(self._connections):
            self.engine.recall(number)

    async def collect_completed(self) -> None:
        """Report all requests that were completed natively until now, while `run` runs."""
        expected = self.engine.collect()
        while self._connections and self.engine.collections() < expected:
            await self._waiting.park()
        self._note_completed()

    async def run(self) -> None:
        """Continue connections that return, collect charges and completed requests, and watch the threads, until
        cancelled."""
        collected_s = watched_s = -WATCH_S
        try:
            while True:
                if not self._connections:
                    self.watch.end()
                    self._wakes = trio.Event()
                    await self._wakes.wait()
                with trio.move_on_after(0 if self._unreviewed else COLLECT_S) as self._pause:
                    await trio.lowlevel.wait_readable(self.engine.fileno())
                self._collect()
                self._review()
                now_s = trio.current_time()
                if now_s - collected_s >= COLLECT_S:
                    collected_s = now_s
                    self.engine.collect()  # threads that have something wake this task
                if now_s - watched_s >= WATCH_S:
                    watched_s = now_s
                    self.watch.check(self.engine.beats(), now_s)
        finally:
            self.close()

    def close(self) -> None:
        """End the threads. Connections that have not returned must be closed by then."""
        self.engine.stop()

    def _collect(self) -> None:
        self.meters.collect()
        self._note_completed()
        for rest in self.engine.returned():
            connection = self._connections.pop(rest.id, None)
            if connection is not None:
                self.returns[rest.reason] = self.returns.get(rest.reason, 0) + 1
                connection.resume(rest)
        self.meters.grant()
        self._count_held()
        self._completed.deliver()
        self._waiting.unpark_all()
        self._count_requests()
        rules = self._current_rules()
        if rules != self._rules:
            self._rules = rules
            self._end_terms()

    def _note_completed(self) -> None:
        for number, completed in self.engine.completed():
            connection = self._connections.get(number)
            if connection is not None:
                connection.note_completed(completed)

    def _count_held(self) -> None:
        """Count what connections hold if it has changed: a pass over all of them every few seconds comes too late."""
        holds = self.engine.held()
        if abs(holds - self._held) > HELD_STEP_BYTES:
            self._held = holds
            held.add(sum(connection.note_held() for connection in self._connections.values()))  # may end connections

    def _quotas_changed(self) -> None:
        """Let the connections return whose terms are others now; nothing is charged until all are reviewed."""
        self.meters.suspend()
        self._unreviewed = list(self._connections.values())
        self._review()
        if self._unreviewed:
            self._pause.deadline = -math.inf  # the others follow in the next turns

    def _review(self) -> None:
        """Review some connections; charge again after the last one."""
        for _ in range(min(REVIEWED_AT_ONCE, len(self._unreviewed))):
            self._unreviewed.pop().review()
        if not self._unreviewed:
            self.meters.resume()

    def _end_terms(self) -> None:
        """Let all connections return, since what their terms depend on has changed; nothing is charged until then."""
        self.meters.end()
        self.recall_all()

    def _count_requests(self) -> None:
        counted, requests = self.engine.requests(), self._counters.requests
        if counted != self._counted:
            for api_key, (now, before) in enumerate(zip(counted, self._counted, strict=True)):
                if now != before:
                    requests[api_key] += now - before
            self._counted = counted

    def _current_rules(self) -> tuple[object, ...]:
        """Return what the terms of connections depend on, besides quotas."""
        enforcement = self._enforcement
        exempt = enforcement.exempt_users, enforcement.exempt_client_ids
        return enforcement.enabled, exempt, self._limits()
