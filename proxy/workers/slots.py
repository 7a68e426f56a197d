"""The workers as the other modules of the supervisor see them: the state of each, and operations on all of them.

Below `answers` and `bucket_state`, which import it; implemented by `headrace.proxy.workers.supervisor`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.workers.fork_server import Ended
    from headrace.proxy.workers.pipe import WorkerPipe


@dataclass(slots=True, kw_only=True)
class WorkerSlot:
    """A worker's number, and the process that currently has it."""

    number: int
    pid: int | None = None
    pipe: WorkerPipe | None = None
    ready: bool = False
    ready_s: float = 0.0
    reached: bool = False
    """Whether a broker had answered the worker when it became ready."""
    restarts: int = 0
    hangs: int = 0
    """How often the worker did not answer and was killed."""
    problem: str | None = None
    """The error that prevented the worker's start, as it reported it."""
    ended: Ended | None = None
    reaped: trio.Event = field(default_factory=trio.Event)


class Workers(Protocol):
    """All workers of a proxy; `headrace.proxy.workers.supervisor.Supervisor` implements it."""

    slots: tuple[WorkerSlot, ...]
    enforcement: bool
    """Whether quotas are enforced: the state set last, which newly started workers also receive."""
    draining: trio.Event
    awaited: str
    """What workers may have to wait for before they serve, as a reason not to be ready; empty if nothing."""

    def on_worker_end(self, callback: Callable[[int], None]) -> None:
        """Call ``callback`` with the worker's number whenever a worker has exited."""

    async def enforce(self, enabled: bool, by: str) -> None:
        """Turn enforcement on or off in all workers."""
