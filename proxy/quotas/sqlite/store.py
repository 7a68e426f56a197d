"""The store of quotas in an SQLite file, which several proxies of a host may open.

The event loop's side of it: `file` does the blocking work in a thread, one call at a time.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from headrace.proxy.quotas.sqlite.file import SqliteFile, prepared
from headrace.proxy.quotas.sqlite.opening import sentence
from headrace.proxy.quotas.store import StoreError, StoreTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.proxy.quotas.sqlite.file import PreparedAlter
    from headrace.proxy.quotas.store import Alteration, Author, Change, ImportState, Snapshot

AUDIT_ROWS: Final = 100_000
"""Default number of changes that are kept: 20 MB, at about 200 bytes each."""
TIMEOUT_S: Final = 10.0
"""Default time-out: a third of ``request.timeout.ms`` of Kafka's Java clients, so that they get an answer."""
LOADING_TIMEOUT_S: Final = 60.0
"""Time-out of `SqliteStore.open` and `SqliteStore.snapshot`: about fifty times what 100,000 entities take."""
ALTERS_PER_COMMIT: Final = 256
"""The longest queue that one commit stores, so that a commit takes some tens of milliseconds at most."""
VALUES_PER_COMMIT: Final = 5_000
"""Values after which a commit takes no further call from the queue, for the same reason."""
_FAILED: Final = "a change of the same transaction failed. Nothing was changed"

T = TypeVar("T")


class _WaitingAlter:
    """A call of `SqliteStore.alter` and, once a thread has handled it, its outcome."""

    __slots__ = ("alterations", "author", "outcome")

    def __init__(self, alterations: Sequence[Alteration], author: Author) -> None:
        self.alterations = alterations
        self.author = author
        self.outcome: Sequence[Change] | StoreError | ValueError | None = None


class SqliteStore:
    """Quotas in an SQLite file. Implements `headrace.proxy.quotas.store.QuotaStore`.

    ``audit_rows`` is the number of latest changes that are kept. A follower that is further behind gets ``None`` from
    `changes_since`. The objects on one file should have the same number, since each removes what is older.

    A change is durable when `alter` returns: SQLite's write-ahead log is written to the disk first (``synchronous =
    FULL``). A proxy that is killed, at any instant, leaves either all or nothing of an `alter`.

    *Time-outs:* a call that takes longer than ``timeout_s`` (`open` and `snapshot`: `LOADING_TIMEOUT_S`, if that is
    longer) raises `StoreTimeoutError`. Half of ``timeout_s`` is the longest wait for the lock of another process, after
    which nothing was changed. Otherwise the disk does not answer, and the thread goes on until it does: later calls
    wait for it, within their own time-outs, so that no more than one thread is ever blocked.

    *Cancellation:* a call that waits for its turn is withdrawn. Once its thread runs, the thread is abandoned, and
    completes the call: a change may be stored after `alter` was cancelled, and `changes_since` returns it.

    *Errors:* the file stays open after an error, and the next call tries again. So the store works again as soon as the
    cause is gone, such as a full disk. After `open` has failed, it may be called again.
    """

    def __init__(self, path: str, *, audit_rows: int = AUDIT_ROWS, timeout_s: float = TIMEOUT_S) -> None:
        if audit_rows < 1:
            raise ValueError(f"audit_rows = {audit_rows}: at least the latest change is kept")
        self._path = path
        self._timeout_s = timeout_s
        self._file = SqliteFile(path, audit_rows=audit_rows, wait_s=timeout_s / 2)
        self._waiting: deque[_WaitingAlter] = deque()
        """At most one for each connection of a client, which sends nothing more while it waits."""
        self._one_thread = trio.CapacityLimiter(1)
        """An abandoned thread keeps its token until it ends."""
        self._commit_end: trio.Event | None = None
        """Set at the end of the commit that runs or will run."""
        self._closed = False

    async def open(self) -> Snapshot:
        """Open or create the file, and return all its quotas."""
        return await self._in_thread(self._file.open, max(self._timeout_s, LOADING_TIMEOUT_S))

    async def alter(self, alterations: Sequence[Alteration], author: Author) -> Sequence[Change]:
        """Store the alterations in one transaction, and return what changed once it is durable.

        Calls that wait at the same time share a transaction, and succeed or fail together. Raises `ValueError` for
        NaN, and for what SQLite cannot represent.
        """
        self._check_open()
        waiting = _WaitingAlter(alterations, author)
        self._waiting.append(waiting)
        try:
            with trio.move_on_after(self._timeout_s):
                while waiting.outcome is None:
                    if self._commit_end is None:
                        await self._commit()
                    else:
                        await self._commit_end.wait()
        finally:
            with suppress(ValueError):  # a thread has taken it from the queue
                self._waiting.remove(waiting)
        match waiting.outcome:
            case None:
                raise self._no_answer(self._timeout_s)
            case StoreError() as error:
                raise type(error)(str(error)) from error
            case ValueError() as error:
                raise error
            case changes:
                return changes

    async def changes_since(self, sequence: int) -> Sequence[Change] | None:
        """Return the changes after ``sequence``, in their order; ``None`` if they are no longer kept."""
        return await self._in_thread(lambda: self._file.changes_since(sequence), self._timeout_s)

    async def snapshot(self) -> Snapshot:
        """Return all quotas. They are read in a thread that pauses often, so that the event loop is not blocked."""
        return await self._in_thread(self._file.snapshot, max(self._timeout_s, LOADING_TIMEOUT_S))

    async def audit(self, *, limit: int, before: int | None = None) -> Sequence[Change]:
        """Return the latest ``limit`` changes that are kept, before the position ``before``, the latest first."""
        if limit < 0:
            raise ValueError(f"limit = {limit}: must not be below 0")
        return await self._in_thread(lambda: self._file.audit(limit, before), self._timeout_s)

    async def import_state(self) -> ImportState:
        """Return how far the import of the brokers' quotas is."""
        return await self._in_thread(self._file.import_state, self._timeout_s)

    async def set_import_state(self, state: ImportState) -> None:
        """Store how far the import is."""
        await self._in_thread(lambda: self._file.set_import_state(state), self._timeout_s)

    async def close(self) -> None:
        """Close the file. May be called several times."""
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        try:
            await self._in_thread(self._file.close, self._timeout_s)
        finally:
            self._closed = True

    async def _in_thread(self, work: Callable[[], T], timeout_s: float) -> T:
        self._check_open()
        with trio.move_on_after(timeout_s):
            return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._one_thread)
        raise self._no_answer(timeout_s)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(sentence(self._path, "the store is closed"))

    def _no_answer(self, timeout_s: float) -> StoreTimeoutError:
        cause = f"no answer within {timeout_s:g} s: check the disk. A change may or may not have been made"
        return StoreTimeoutError(sentence(self._path, cause))

    async def _commit(self) -> None:
        """Store what waits, in a thread. Until the thread has ended, all other calls of `alter` wait for it."""
        end = self._commit_end = trio.Event()
        token = trio.lowlevel.current_trio_token()
        started = False

        def ended() -> None:
            end.set()
            if self._commit_end is end:
                self._commit_end = None

        def work() -> None:
            nonlocal started
            started = True
            try:
                self._commit_waiting()
            finally:
                with suppress(trio.RunFinishedError):  # the call was cancelled, and the proxy has ended
                    token.run_sync_soon(ended)

        try:
            await trio.lowlevel.checkpoint()  # the others that the last commit has woken come into the queue
            await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._one_thread)
        except BaseException:
            if not started:
                ended()
            raise

    def _commit_waiting(self) -> None:
        """Store what waits. Called in a thread; what came first is stored first."""
        batch: dict[_WaitingAlter, PreparedAlter] = {}
        values = 0
        with suppress(IndexError):
            while len(batch) < ALTERS_PER_COMMIT and values < VALUES_PER_COMMIT:
                waiting = self._waiting.popleft()
                values += sum(len(each.values) for each in waiting.alterations)
                try:
                    batch[waiting] = prepared(waiting.alterations, waiting.author)
                except ValueError as error:  # the others are stored
                    waiting.outcome = error
        if not batch:
            return
        outcomes: Sequence[Sequence[Change] | StoreError] = [StoreError(sentence(self._path, _FAILED))] * len(batch)
        try:
            outcomes = self._file.write([*batch.values()])
        except StoreError as error:
            outcomes = [error] * len(batch)
        finally:  # after any exception, so that no call waits for ever
            for waiting, outcome in zip(batch, outcomes, strict=True):
                waiting.outcome = outcome
