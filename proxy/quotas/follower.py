"""Following a store: what any proxy changes there is put into force here.

The server runs one `StoreFollower`. `client_quota_apis` calls it before it describes quotas, so that a client finds
what it has written, and to alter them.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import structlog
import trio

from headrace.proxy.quotas.store import StoreError, StoreTimeoutError
from headrace.proxy.repeated_lines import RepeatedLines
from headrace.quota_callbacks.entities import bounded_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.proxy.quotas.definitions import QuotaDefinitions
    from headrace.proxy.quotas.store import Alteration, Author, Change, ImportState, QuotaStore, Snapshot

log = structlog.get_logger("headrace.quotas")

INTERVAL_S: Final = 0.25
"""Seconds between two questions to the store. What another proxy has changed is in force after this time."""
LOADING_TIMEOUT_S: Final = 60.0
"""Time limit for reading all quotas: far above what 1,000,000 take."""
LONGEST_AUDIT_S: Final = LOADING_TIMEOUT_S + 1.0
"""Time limit of an audit if the store has none of its own, or does not keep to it."""


class StoreFollower:
    """The connection between a store and the quotas in force.

    ``timeout_s`` bounds the answer to a client. The store should have a shorter time-out, since its error names the
    cause. Times are those of trio's clock.
    """

    def __init__(self, store: QuotaStore, definitions: QuotaDefinitions, timeout_s: float) -> None:
        self._store = store
        self._definitions = definitions
        self._timeout_s = timeout_s
        self._position: int | None = None
        """Position up to which the store is in force; ``None`` if a snapshot has to be put into force first."""
        self._reading = trio.Lock()
        self._repeated = RepeatedLines()

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

    def deadline(self) -> float:
        """Return when an answer that is begun now has to be given."""
        return trio.current_time() + self._timeout_s

    async def catch_up(self, deadline: float | None = None) -> None:
        """Put into force what has changed in the store until now. Raises `StoreError`.

        The store has to answer until the deadline, `deadline` by default. Putting a long answer into force has no
        bound: it has pauses.
        """
        deadline = self.deadline() if deadline is None else deadline
        with self._bounded(deadline):
            await self._reading.acquire()
        try:
            changes = None
            if self._position is not None:
                with self._bounded(deadline):
                    changes = await self._store.changes_since(self._position)
            if changes is None:
                self._position = None  # until a snapshot is in force, whatever is cancelled meanwhile
                with self._bounded(trio.current_time() + LOADING_TIMEOUT_S):
                    snapshot = await self._store.snapshot()
                await self._replace(snapshot)
            elif changes:
                for _ in self._definitions.apply(changes):
                    await trio.lowlevel.checkpoint()
                self._position = changes[-1].sequence
        finally:
            self._reading.release()

    async def alter(
        self, alterations: Sequence[Alteration], author: Author, deadline: float | None = None
    ) -> Sequence[Change]:
        """Store alterations; when this returns, they are durable. Raises `StoreError`. Call `catch_up` afterwards.

        What has changed is logged. It is not cancelled, so that every stored change is known to the caller, but ends at
        the deadline.
        """
        deadline = self.deadline() if deadline is None else deadline
        with trio.CancelScope(shield=True, deadline=deadline):
            changes = await self._store.alter(alterations, author)
            self._log(changes)
            return changes
        raise self._timeout()

    async def audit(self, *, limit: int, before: int | None) -> Sequence[Change]:
        """Return the latest changes, the latest first. Raises `StoreError`.

        Each store bounds it as long as reading the changes may take.
        """
        with self._bounded(trio.current_time() + LONGEST_AUDIT_S):
            return await self._store.audit(limit=limit, before=before)

    async def import_state(self) -> ImportState:
        """Return how far the import of the brokers' quotas is. Raises `StoreError`."""
        with self._bounded(self.deadline()):
            return await self._store.import_state()

    async def set_import_state(self, state: ImportState) -> None:
        """Store how far the import is. Raises `StoreError`."""
        with self._bounded(self.deadline()):
            await self._store.set_import_state(state)

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()

    def _log(self, changes: Sequence[Change]) -> None:
        """Log who has changed which quota, up to ``log.lines_per_minute``. The audit records have all changes."""
        for change in changes:
            if (left_out := self._repeated.due("quota changed", change.sequence)) is not None:
                log.info(
                    "quota changed",
                    principal=change.author.principal,
                    address=change.author.address,
                    entity=bounded_name(str(change.entity)),
                    key=change.key,
                    old=change.old,
                    new=change.new,
                    left_out=left_out or None,
                )

    async def _replace(self, snapshot: Snapshot) -> None:
        for _ in self._definitions.replace(snapshot):
            await trio.lowlevel.checkpoint()
        self._position = snapshot.sequence

    @contextmanager
    def _bounded(self, deadline: float) -> Iterator[None]:
        """Bound what is awaited in the context."""
        try:
            with trio.fail_at(deadline):  # noqa: ASYNC100 -- the caller's block has checkpoints
                yield
        except trio.TooSlowError:
            raise self._timeout() from None

    def _timeout(self) -> StoreTimeoutError:
        return StoreTimeoutError(
            f"the store of quotas did not answer within {self._timeout_s:g} s; see client_quotas.timeout"
        )
