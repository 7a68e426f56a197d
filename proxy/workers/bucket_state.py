"""The usage file of a proxy with several workers: one file, which the supervisor has.

A bucket that several workers use is the same in all of them (`headrace.quota_callbacks.buckets.shared.buckets`), so
whoever of them tells its state tells the whole. Every few seconds all are asked for what has changed; a worker that
ends tells it unasked. A worker that begins takes up what the file has, and to buckets that others use already that
changes nothing.

On the way, a bucket is a line: its name, when it was saved, its state, with tabs between them, which JSON has none of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
import trio

from headrace.proxy.server.bucket_state_file import (
    NOTHING_SAVED_MS,
    UsageFile,
    longest_kept_ms,
    states_of,
    take_up,
    texts_of,
)
from headrace.proxy.workers.pipe import WorkerSilentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.config.schema import Config
    from headrace.proxy.server.bucket_state_file import Row, State, StateText
    from headrace.proxy.server.server import Server
    from headrace.proxy.workers.supervisor import WorkerSlot

log = structlog.get_logger("headrace.usage")

ANSWER_TIMEOUT_S: Final = 30.0
"""For a worker to tell the states of all its buckets: 200,000 take some five seconds, beside its work."""


class WorkersUsage:
    """The supervisor's side."""

    def __init__(self, file: UsageFile, config: Config) -> None:
        self._file = file
        self._interval_s = config.quota.state.interval_s
        self._keep_ms = longest_kept_ms(config.windows().__getitem__)
        self._keeping = trio.CancelScope()
        self._last: dict[str, str] = {}
        """What workers told, and is not saved yet."""

    @classmethod
    async def open(cls, config: Config) -> WorkersUsage | None:
        """Open the file, if there is to be one. Raises `StartupError` when it cannot be had."""
        if config.quota.state.file is None:
            return None
        file, rows = await UsageFile.read(config.quota.state.file)
        log.info("usage read", file=config.quota.state.file, buckets=len(rows))
        return cls(file, config)

    async def told_to_new(self) -> bytes:
        """What a worker that begins is to take up."""
        rows = await self._file.rows()
        return await trio.to_thread.run_sync(_row_lines, rows)

    async def keep(self, slots: Iterable[WorkerSlot]) -> None:
        """Save what has changed, until cancelled or closed."""
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
        if not slot.ready or slot.asked is None:
            return
        try:
            answer = await slot.asked.ask("usage", {"since_ms": since_ms}, timeout_s=ANSWER_TIMEOUT_S)
        except WorkerSilentError as error:
            if slot.ready:
                log.warning("a worker did not tell its usage", worker=slot.number, reason=str(error))
                silent.append(slot)
            return
        self.take(answer.body)

    def take(self, lines: bytes) -> None:
        """What a worker has told of its buckets."""
        self._last.update(_texts_in(lines))

    async def _save(self, now_ms: int, *, last: bool) -> None:
        told, self._last = self._last, {}
        await self._file.save_texts(told.items(), self._keep_ms, now_ms, last=last)
        if self._file.failing:
            self._last = told | self._last

    async def close(self) -> None:
        """Save what the workers told at their end, and close the file."""
        self._keeping.cancel()
        await self._save(int(trio.current_time() * 1000), last=True)
        await self._file.close()


class WorkerUsage:
    """One worker's side."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._since_ms = NOTHING_SAVED_MS

    async def take_up(self, lines: bytes) -> None:
        """Before anybody is served: what was used before this worker began."""
        quotas = self._server.shared.hooks.quotas
        if quotas is not None and lines:
            rows = await trio.to_thread.run_sync(_rows_in, lines)
            taken = await take_up(rows, quotas, self._now_ms())
            log.info("usage taken up", buckets=taken, of=len(rows))

    async def told(self, since_ms: int | None = None) -> bytes:
        """The buckets that were used since then, or since the supervisor was last told."""
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
    fields = (line.split("\t") for line in lines.decode().split("\n"))
    return [(name, int(saved_ms), state) for name, saved_ms, state in fields]


def _text_lines(states: Iterable[State]) -> bytes:
    return "\n".join(map("\t".join, texts_of(states))).encode()


def _texts_in(lines: bytes) -> list[StateText]:
    found = (line.partition("\t") for line in lines.decode().split("\n") if line)
    return [(name, state) for name, _, state in found]
