"""Bucket state of a proxy with several workers: the supervisor owns the file, and exchanges states with the workers.

A bucket that several workers use has the same state in all of them, since it lies in shared memory
(`headrace.quota_callbacks.buckets.shared.buckets`), so any of them can report it. Every few seconds the supervisor asks
all workers for the states that have changed; a worker that ends reports them without being asked. A worker that starts
restores the states that the file contains; this does not change buckets that other workers already use.

In messages a bucket is one line: its name, the time at which it was saved (only in messages to a worker) and its state.
They are separated by tabs, which JSON escapes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
import trio

from headrace.proxy.server.bucket_state_file import (
    NOTHING_SAVED_MS,
    BucketStateFile,
    longest_kept_ms,
    restore,
    states_of,
    texts_of,
)
from headrace.proxy.workers.pipe import WorkerSilentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.config.schema import Config
    from headrace.proxy.server.bucket_state_file import Row, State, StateText
    from headrace.proxy.server.server import Server
    from headrace.proxy.workers.slots import WorkerSlot

log = structlog.get_logger("headrace.bucket_state")

ANSWER_TIMEOUT_S: Final = 30.0
"""Time limit for a worker to report all its buckets: 200,000 take about five seconds while it serves clients."""


class SupervisorBucketState:
    """The supervisor's side: owns the file, and collects the workers' states in it."""

    def __init__(self, file: BucketStateFile, config: Config) -> None:
        self._file = file
        self._interval_s = config.quota.state.interval_s
        self._keep_ms = longest_kept_ms(config.windows().__getitem__)
        self._keeping = trio.CancelScope()
        self._unsaved: dict[str, str] = {}
        """States that workers reported and that are not saved yet, by the bucket's name."""

    @classmethod
    async def open(cls, config: Config) -> SupervisorBucketState | None:
        """Open the file if one is configured. Raises `StartupError` when it cannot be opened."""
        if config.quota.state.file is None:
            return None
        file, rows = await BucketStateFile.read(config.quota.state.file)
        log.info("bucket state read", file=config.quota.state.file, buckets=len(rows))
        return cls(file, config)

    async def lines_for_new_worker(self) -> bytes:
        """Return the states that a starting worker has to restore, as lines."""
        rows = await self._file.rows()
        return await trio.to_thread.run_sync(_row_lines, rows)

    async def keep(self, slots: Iterable[WorkerSlot]) -> None:
        """Collect and save the states that have changed, periodically, until cancelled or closed."""
        with self._keeping:
            while True:
                await trio.sleep(self._interval_s)
                since_ms, now_ms = self._file.saved_up_to_ms, int(trio.current_time() * 1000)
                silent: list[WorkerSlot] = []
                async with trio.open_nursery() as nursery:
                    for slot in slots:
                        nursery.start_soon(self._ask, slot, since_ms, silent)
                await self._save(since_ms if silent else now_ms, last=False)

    async def _ask(self, slot: WorkerSlot, since_ms: int, silent: list[WorkerSlot]) -> None:
        if not slot.ready or slot.pipe is None:
            return
        try:
            answer = await slot.pipe.ask("bucket_state", {"since_ms": since_ms}, timeout_s=ANSWER_TIMEOUT_S)
        except WorkerSilentError as error:
            if slot.ready:
                log.warning("a worker did not report its bucket state", worker=slot.number, reason=str(error))
                silent.append(slot)
            return
        self.add(answer.body)

    def add(self, lines: bytes) -> None:
        """Add the states that a worker reported to those that the next save writes."""
        self._unsaved.update(_texts_in(lines))

    async def _save(self, now_ms: int, *, last: bool) -> None:
        saving, self._unsaved = self._unsaved, {}
        await self._file.save_texts(saving.items(), self._keep_ms, now_ms, last=last)
        if self._file.failing:
            self._unsaved = saving | self._unsaved

    async def close(self) -> None:
        """Save the states that the workers reported when they ended, and close the file."""
        self._keeping.cancel()
        await self._save(int(trio.current_time() * 1000), last=True)
        await self._file.close()


class WorkerBucketState:
    """A worker's side: restores states at start, and reports those of its own buckets."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._since_ms = NOTHING_SAVED_MS

    async def restore(self, lines: bytes) -> None:
        """Restore the states in ``lines``. Call it before clients are served."""
        quotas = self._server.shared.hooks.quotas
        if quotas is not None and lines:
            rows = await trio.to_thread.run_sync(_rows_in, lines)
            restored = await restore(rows, quotas, self._now_ms())
            log.info("bucket state restored", buckets=restored, of=len(rows))

    async def report(self, since_ms: int | None = None) -> bytes:
        """Return the states of the buckets used since ``since_ms``, as lines.

        Without ``since_ms``, the time that the supervisor asked for last is used.
        """
        if since_ms is not None:
            self._since_ms = since_ms
        quotas = self._server.shared.hooks.quotas
        if quotas is None:
            return b""
        states = await states_of(quotas, self._since_ms, self._now_ms())
        return await trio.to_thread.run_sync(_text_lines, states)

    def _now_ms(self) -> int:
        return int(trio.current_time() * 1000)


def _row_lines(rows: Iterable[Row]) -> bytes:
    return "\n".join(f"{name}\t{saved_ms}\t{state}" for name, saved_ms, state in rows).encode()


def _rows_in(lines: bytes) -> list[Row]:
    """Return the rows in a message. A row that is damaged stays one that `restore` skips."""
    rows: list[Row] = []
    for line in lines.decode().split("\n"):
        name, _, rest = line.partition("\t")
        saved_ms, _, state = rest.partition("\t")
        rows.append((name, saved_ms, state))
    return rows


def _text_lines(states: Iterable[State]) -> bytes:
    return "\n".join(map("\t".join, texts_of(states))).encode()


def _texts_in(lines: bytes) -> list[StateText]:
    found = (line.partition("\t") for line in lines.decode().split("\n") if line)
    return [(name, state) for name, _, state in found]
