"""The store of quotas in a compacted topic of the cluster, which all proxies of a fleet follow.

The event loop's side of it. `replica` does the blocking work in a thread, one call at a time; `log` reads
and appends with librdkafka; `state` computes what follows from the records, and `records` has their form.

**Why one record for each key of an entity.** Several proxies write at the same time, and the order of the log decides
between them. After compaction only the last record of each record key is certain to exist, so the last record alone
must determine its quota. These forms were rejected:

- One record for each entity with all its values: a writer that has not read the latest record of the entity undoes
  it. If a record names the one that it follows, and readers ignore those that follow another, then an ignored record
  can be the last of its key: compaction removes the valid one before it, and late readers find no quota.
- One record for each entity with the changed keys only: compaction removes the values of the other keys.
- Transactions: a writer that is killed inside one stops all readers until the transaction's time-out, 10 s or more.

With one record for each entity and quota key, whose effect depends on nothing before it, the quotas are a function of
the last records of all keys. Early and late readers have the same quotas at the same end of the log, whatever was
compacted. Changes of different keys of an entity never undo each other, and of two changes of one key the later record
stays. All records of one `Alteration` are in one record batch, which a broker stores completely or not at all, and
readers stop only between batches (`log`); so an alteration of an entity has all of its effect or none.

**Removals** are tombstones, which compaction removes after ``delete.retention.ms``. A proxy that read the log before
a tombstone and continues after it was removed would keep the quota. So a proxy that could not read for half of that
time reads the log from its beginning.

**A topic that is deleted and created again** is another log, although its offsets may continue where the former one was
read, as after a restored backup. So the topic's id is compared about once a second (`creation`), and after each append,
before a change is acknowledged. Positions that were given out before are never valid for the new log (`replica`), so
every follower takes a snapshot, whichever call has noticed the new log.

**What an alter returns** follows from its own records as they were read back, in the order of the log. A quota that is
set already is not written again: the log is read to its end first, so an earlier change of another proxy cannot be
missed.

**Audit.** Each record has its author, the time of the broker, and the old value that the writer knew. The topic keeps
every record for ``min.compaction.lag.ms`` (``client_quotas.topic_history``), and `audit` reads the log. Of what is
older, only the latest change of each quota that still exists is certain to be found.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
import trio

from headrace.proxy.quotas.store import Snapshot, StoreError, StoreTimeoutError
from headrace.proxy.quotas.topic.plan import prepared
from headrace.proxy.quotas.topic.replica import TopicReplica
from headrace.proxy.quotas.topic.state import accept_all
from headrace.proxy.repeated_lines import RepeatedLines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.proxy.quotas.store import Alteration, Author, Change, ImportState
    from headrace.proxy.quotas.topic.plan import PreparedAlter
    from headrace.proxy.quotas.topic.replica import QuotaLog
    from headrace.proxy.quotas.topic.state import Check

log = structlog.get_logger("headrace.quotas")

TIMEOUT_S: Final = 9.0
"""Default time-out: below ``client_quotas.timeout``, so that its error, which names the cause, is the one reported."""
LOADING_TIMEOUT_S: Final = 60.0
"""Time-out of an attempt to read the whole log: about twenty times what 100,000 records take."""
GRACE_S: Final = 0.5
"""How long a call waits for its thread beyond the time-out that the thread has itself."""
OPENING_TIMEOUT_S: Final = 5.0
"""Time-out of an attempt to read the log at start, after which its cause is logged, and the next attempt reads on. A
proxy that is stopped meanwhile ends after this time at the latest."""
RETRY_S: Final = 1.0
"""Pause between two attempts to reach the cluster at start."""
ALTERS_PER_APPEND: Final = 256
"""The longest queue that is appended at once. Together they take some tens of milliseconds."""
NEVER_READ: Final = -1
"""The position of a proxy that has not read the topic yet."""

T = TypeVar("T")


class _WaitingAlter:
    """A call of `TopicStore.alter` and, once a thread has handled it, its outcome."""

    __slots__ = ("alter", "outcome")

    def __init__(self, alter: PreparedAlter) -> None:
        self.alter = alter
        self.outcome: Sequence[Change] | StoreError | None = None


class TopicStore:
    """Quotas in a compacted topic. Implements `headrace.proxy.quotas.store.QuotaStore`.

    ``source`` is the log. With ``waits``, `open` returns only when the cluster was reached; otherwise it gives up after
    ``timeout_s`` and returns no quotas, and the first call of `changes_since` that succeeds returns ``None``.
    ``check`` raises `ValueError` for a value that must not be in force, see `TopicState`.

    A change is durable when `alter` returns: all replicas in sync have its records (``acks=all``), which are at least
    ``min.insync.replicas`` of the topic.

    *Time-outs:* a call that takes longer than ``timeout_s`` raises `StoreTimeoutError`. Calls wait for each other.

    *Cancellation:* a call that waits for its turn is withdrawn. Once its thread runs, the thread is abandoned, and goes
    on until its time-out: a change may be stored after `alter` was cancelled, and `changes_since` returns it.

    *Errors:* after an error the next call tries again, so the store works again as soon as the cluster does.
    """

    def __init__(
        self, source: QuotaLog, *, waits: bool = True, timeout_s: float = TIMEOUT_S, check: Check = accept_all
    ) -> None:
        self._replica = TopicReplica(source, check=check)
        self._waits = waits
        self._timeout_s = timeout_s
        self._waiting: deque[_WaitingAlter] = deque()
        """At most one for each connection of a client, which sends nothing more while it waits."""
        self._one_thread = trio.CapacityLimiter(1)
        """An abandoned thread keeps its token until it ends."""
        self._audit_thread = trio.CapacityLimiter(1)
        self._repeated = RepeatedLines()
        self._closed = False

    def replace_log(self, source: QuotaLog) -> None:
        """Read ``source``, from its beginning, and append to it from the next call on."""
        self._replica.replace_log(source)

    async def open(self) -> Snapshot:
        """Create the topic unless it exists, check its settings, and return all quotas."""
        timeout_s = OPENING_TIMEOUT_S if self._waits else self._timeout_s
        while True:
            try:
                return await self._in_thread(self._replica.snapshot, timeout_s)
            except StoreTimeoutError as error:
                if not self._waits:
                    log.warning("the quotas of the file are served until the topic can be read", reason=str(error))
                    return Snapshot(sequence=NEVER_READ, quotas={})
                if (left_out := self._repeated.due("open")) is not None:
                    log.warning(
                        "waiting for the topic of quotas",
                        reason=str(error),
                        hint='no client is served until it can be read, as client_quotas.unreachable = "wait" says; '
                        "see client_quotas.topic and client_quotas.topic_properties",
                        left_out=left_out or None,
                    )
            await trio.sleep(RETRY_S)

    async def alter(self, alterations: Sequence[Alteration], author: Author) -> Sequence[Change]:
        """Append the alterations, and return what changed once they are durable and were read back.

        Calls that wait at the same time are appended together. Raises `ValueError` for NaN.
        """
        waiting = _WaitingAlter(prepared(alterations, author))
        self._waiting.append(waiting)
        try:
            await self._in_thread(self._append_waiting, self._timeout_s)
        except StoreTimeoutError:
            if waiting.outcome is None:
                raise
        finally:
            with suppress(ValueError):  # a thread has taken it from the queue
                self._waiting.remove(waiting)
        match waiting.outcome:
            case None:
                raise StoreTimeoutError("the topic of quotas: a change may or may not have been made")
            case StoreError() as error:
                raise type(error)(str(error)) from error
            case changes:
                return changes

    async def changes_since(self, sequence: int) -> Sequence[Change] | None:
        """Return the changes after ``sequence`` until now; ``None`` if they are not kept. Asks the topic's leader."""
        return await self._in_thread(lambda end_s: self._replica.changes_since(sequence, end_s), self._timeout_s)

    async def snapshot(self) -> Snapshot:
        """Return all quotas."""
        return await self._in_thread(self._replica.snapshot, max(self._timeout_s, LOADING_TIMEOUT_S))

    async def audit(self, *, limit: int, before: int | None = None) -> Sequence[Change]:
        """Return the latest ``limit`` changes that are kept, before the position ``before``, the latest first.

        Their sequences are those of the log, which are the same for all proxies. Reads as much of the log as is
        needed, in a thread of its own, for `LOADING_TIMEOUT_S` at most.
        """
        if limit < 0:
            raise ValueError(f"limit = {limit}: must not be below 0")
        return await self._in_thread(
            lambda end_s: self._replica.audit(limit, before, end_s), LOADING_TIMEOUT_S, self._audit_thread
        )

    async def import_state(self) -> ImportState:
        """Return how far the import of the brokers' quotas is."""
        return await self._in_thread(self._replica.import_state, self._timeout_s)

    async def set_import_state(self, state: ImportState) -> None:
        """Store how far the import is."""
        await self._in_thread(lambda end_s: self._replica.set_import_state(state, end_s), self._timeout_s)

    async def close(self) -> None:
        """Close the clients. May be called several times. Waits for a thread until its time-out, and not longer."""
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        try:
            await self._in_thread(lambda _: self._replica.close(), self._timeout_s)
        finally:
            self._closed = True

    async def _in_thread(
        self, work: Callable[[float], T], timeout_s: float, limiter: trio.CapacityLimiter | None = None
    ) -> T:
        if self._closed:
            await trio.lowlevel.checkpoint()
            raise StoreError("the store of quotas in a topic is closed")
        end_s = time.monotonic() + timeout_s
        with trio.move_on_after(timeout_s + GRACE_S):
            return await trio.to_thread.run_sync(
                work, end_s, abandon_on_cancel=True, limiter=self._one_thread if limiter is None else limiter
            )
        raise StoreTimeoutError(
            f"the topic of quotas: no answer within {timeout_s:g} s. A change may or may not have been made"
        )

    def _append_waiting(self, end_s: float) -> None:
        """Append what waits. Called in a thread; what came first is appended first."""
        batch: list[_WaitingAlter] = []
        with suppress(IndexError):
            while len(batch) < ALTERS_PER_APPEND:
                batch.append(self._waiting.popleft())
        if not batch:
            return  # another call has appended it
        try:
            outcomes = self._replica.write([each.alter for each in batch], end_s)
        except StoreError as error:
            outcomes = [error] * len(batch)
        for each, outcome in zip(batch, outcomes, strict=True):
            each.outcome = outcome


def require_confluent_kafka() -> None:
    """Raise `StoreError` if the package that connects to the cluster is not installed."""
    if find_spec("confluent_kafka") is None:
        raise StoreError(
            "client_quotas.store = \"topic\" needs the package confluent-kafka: pip install 'headrace[quota-topic]'"
        )
