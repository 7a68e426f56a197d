"""What a server knows of the workers beside it: its number, and the memory that it shares with them.

`headrace.proxy.workers.shared_memory` creates the memory and gives each worker its `WorkerPlace`. A server without one
is alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from headrace.proxy.network.connection_counts import WorkerConnections
    from headrace.quota_callbacks.buckets.shared.buckets import SharedBuckets

log = structlog.get_logger("headrace.server")


@dataclass(slots=True, kw_only=True)
class WorkerPlace:
    """One worker's view of the shared memory: its number, the number of workers, and its parts."""

    number: int
    workers: int
    connections: WorkerConnections
    bucket_state: SharedBuckets
    _left_out: int = 0

    def sweep(self) -> None:
        """Read the producer ids that other workers have added, and log buckets that found no room.

        Call it every few seconds: a worker whose own clients send no producer ids must read those of the others before
        they are overwritten, which supports up to 800 new ones per second and worker.
        """
        self.bucket_state.receive_ids()
        if self.bucket_state.left_out > self._left_out:
            self._left_out = self.bucket_state.left_out
            log.warning("no room in shared memory: these buckets count for one worker alone", buckets=self._left_out)
