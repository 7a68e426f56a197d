"""Following a store: what any process or proxy changes there is put into force here.

The server runs one `StoreFollower` for each process. `client_quota_apis` calls it before it describes quotas, so that
a client finds what it has written, and to alter them.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import structlog
import trio

from headrace.proxy.quotas.store import StoreError, StoreTimeoutError
from headrace.proxy.repeated_lines import RepeatedLines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from headrace.proxy.quotas.definitions import QuotaDefinitions
    from headrace.proxy.quotas.store import Alteration, Author, Change, QuotaStore, Snapshot

log = structlog.get_logger("headrace.quotas")

INTERVAL_S: Final = 0.25
"""Seconds between two questions to the store. What another process has changed is in force after this time."""


class StoreFollower:
    """The connection between a store and the quotas in force. ``timeout_s`` bounds each call of the store."""

    def __init__(self, store: QuotaStore, definitions: QuotaDefinitions, timeout_s: float) -> None:
        self._store = store
        self._definitions = definitions
        self.timeout_s = timeout_s
        self._position = 0
        self._reading = trio.Lock()
        self._repeated = RepeatedLines()
        self.failing = False
        """Whether the last call of the store has failed."""

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever stored, as far as is known here."""
        return self._position == 0

    async def open(self) -> None:
        """Open the store and put its quotas into force. Raises `StoreError`.

        ``timeout_s`` does not apply: a store bounds its opening itself, or waits for a cluster that cannot be reached.
        """
        snapshot = await self._store.open()
        await self._replace(snapshot)
        log.info("quotas loaded", entities=len(snapshot.quotas), sequence=snapshot.sequence)

    async def run(self) -> None:
        """Put what changes into force, until cancelled. Failures are logged, and quotas stay as they are meanwhile."""
        while True:
            await trio.sleep(INTERVAL_S)
            try:
                await self.catch_up()
            except StoreError as error:
                if (left_out := self._repeated.due("store", str(error))) is not None:
                    reason = str(error)
                    log.warning("quotas cannot be read", reason=reason, left_out=left_out or None)

    async def catch_up(self) -> None:
        """Put into force what has changed in the store until now. Raises `StoreError`."""
        async with self._bounded(), self._reading:
            changes = await self._store.changes_since(self._position)
            if changes is None:
                await self._replace(await self._store.snapshot())
            elif changes:
                for _ in self._definitions.apply(changes):
                    await trio.lowlevel.checkpoint()
                self._position = changes[-1].sequence

    async def alter(self, alterations: Sequence[Alteration], author: Author) -> Sequence[Change]:
        """Store alterations; when this returns, they are durable and in force in this process. Raises `StoreError`.

        If the caller is cancelled, the alterations may or may not be stored.
        """
        async with self._bounded():
            changes = await self._store.alter(alterations, author)
        await self.catch_up()
        return changes

    async def audit(self, *, limit: int, before: int | None) -> Sequence[Change]:
        """Return the latest changes, the latest first. Raises `StoreError`."""
        async with self._bounded():
            return await self._store.audit(limit=limit, before=before)

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()

    async def _replace(self, snapshot: Snapshot) -> None:
        for _ in self._definitions.replace(snapshot):
            await trio.lowlevel.checkpoint()
        self._position = snapshot.sequence

    @asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        """Bound what is awaited in the context by the timeout, and note whether the store has failed."""
        try:
            with trio.fail_after(self.timeout_s):  # noqa: ASYNC100 -- the caller's block has checkpoints
                yield
        except trio.TooSlowError:
            self.failing = True
            raise StoreTimeoutError(
                f"the store of quotas did not answer within client_quotas.timeout = {self.timeout_s:g}s"
            ) from None
        except StoreError:
            self.failing = True
            raise
        self.failing = False
