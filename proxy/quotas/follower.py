"""Following a store: what any process or proxy changes there is put into force here.

The server runs one `StoreFollower` for each process. `client_quota_apis` calls it before it describes quotas, so that
a client finds what it has written, and to alter them.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import structlog
import trio

from headrace.proxy.quotas.store import StoreError, StoreTimeoutError
from headrace.proxy.repeated_lines import RepeatedLines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.proxy.quotas.definitions import QuotaDefinitions
    from headrace.proxy.quotas.store import Alteration, Author, Change, QuotaStore, Snapshot

log = structlog.get_logger("headrace.quotas")

INTERVAL_S: Final = 0.25
"""Seconds between two questions to the store. What another process has changed is in force after this time."""
SLICE: Final = 250
"""Changes that are put into force between two pauses, which takes some milliseconds."""

LOADING_TIMEOUT_S: Final = 60.0
"""Time limit for reading all quotas: far above what 1,000,000 take."""


class StoreFollower:
    """The connection between a store and the quotas in force. ``timeout_s`` bounds each call of the store."""

    def __init__(self, store: QuotaStore, definitions: QuotaDefinitions, timeout_s: float) -> None:
        self._store = store
        self._definitions = definitions
        self.timeout_s = timeout_s
        self._position = 0
        self._reading = trio.Lock()
        self._repeated = RepeatedLines()

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
        """Put into force what has changed in the store until now. Raises `StoreError`.

        Each question to the store is bounded by the timeout. Putting a long answer into force is not: it has pauses.
        """
        with self._bounded():
            await self._reading.acquire()
        try:
            with self._bounded():
                changes = await self._store.changes_since(self._position)
            if changes is None:
                with self._bounded(LOADING_TIMEOUT_S):
                    snapshot = await self._store.snapshot()
                await self._replace(snapshot)
            elif changes:
                for _ in self._definitions.apply(changes):
                    await trio.lowlevel.checkpoint()
                self._position = changes[-1].sequence
        finally:
            self._reading.release()

    async def alter(self, alterations: Sequence[Alteration], author: Author) -> Sequence[Change]:
        """Store alterations; when this returns, they are durable. Raises `StoreError`. Call `catch_up` afterwards.

        It is not cancelled, so that every stored change is known to the caller, but bounded by the timeout.
        """
        with self._bounded(), trio.CancelScope(shield=True, deadline=trio.current_time() + self.timeout_s):
            return await self._store.alter(alterations, author)
        raise self._timeout(self.timeout_s)

    async def audit(self, *, limit: int, before: int | None) -> Sequence[Change]:
        """Return the latest changes, the latest first. Raises `StoreError`."""
        with self._bounded():
            return await self._store.audit(limit=limit, before=before)

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()

    async def _replace(self, snapshot: Snapshot) -> None:
        for _ in self._definitions.replace(snapshot):
            await trio.lowlevel.checkpoint()
        self._position = snapshot.sequence

    @contextmanager
    def _bounded(self, timeout_s: float | None = None) -> Iterator[None]:
        """Bound what is awaited in the context by the timeout."""
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            with trio.fail_after(timeout_s):  # noqa: ASYNC100 -- the caller's block has checkpoints
                yield
        except trio.TooSlowError:
            raise self._timeout(timeout_s) from None

    @staticmethod
    def _timeout(timeout_s: float) -> StoreTimeoutError:
        return StoreTimeoutError(
            f"the store of quotas did not answer within {timeout_s:g} s; see client_quotas.timeout"
        )
