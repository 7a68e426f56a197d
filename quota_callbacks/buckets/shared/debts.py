"""A `TokenBucket` and a `Timeline` that several workers charge.

The result of charges depends on their order, since a token bucket has an upper bound and a debt a lower one. So each
worker publishes, besides the total that it has charged, its state after the last charge and the part of each worker's
total that this state includes. Before a worker charges, it compares the others' totals with those that its own state
includes. If one differs, it adopts the newest state and charges the amounts that this does not include. Unless two
workers decide at the same moment, the newest state includes everything, and the result is that of a single process.
Pure: time is an argument.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headrace.quota_callbacks.buckets.shared.layout import WORD, seal, sealed
from headrace.quota_callbacks.buckets.timeline import Timeline
from headrace.quota_callbacks.buckets.token_bucket import TokenBucket

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.shared.layout import Column

State = tuple[float, int, float]
"""The tokens or the debt, their time (this worker's ms), and the limit at that time."""


class SharedCells:
    """One worker's view of the totals and states of all workers, in one row."""

    __slots__ = (
        "_column",
        "_included",
        "_memory",
        "_offset_ms",
        "_others",
        "_own",
        "_own_at",
        "_own_state_at",
        "_state",
        "_states_at",
        "_totals",
        "_totals_at",
        "_words",
    )

    def __init__(self, column: Column, at: int) -> None:
        """``at`` is the offset of the cells, in words."""
        workers = column.workers
        self._column = column
        self._memory = column.memory
        self._words = column.words
        self._totals_at = at
        self._totals = column.totals.unpack_from
        self._states_at = tuple(at + workers + worker * column.layout.state_words for worker in range(workers))
        self._included = [0.0] * workers
        """The part of each worker's total that this worker's state includes."""
        self._included[column.worker] = self._words[at + column.worker]
        self._own = column.worker
        self._own_at = at + column.worker
        self._own_state_at = self._states_at[column.worker]
        self._state = column.state
        self._offset_ms = column.offset_ms
        self._others = tuple((worker, at + worker) for worker in column.others)

    def has_changed(self) -> bool:
        """Return whether another worker has charged an amount that is not included."""
        words, included = self._words, self._included
        for worker, at in self._others:  # noqa: SIM110 -- any() costs a generator
            if words[at] != included[worker]:
                return True
        return False

    def first(self) -> tuple[State | None, float]:
        """Return the newest state of all workers, including predecessors with this worker's number, as `newest`."""
        return self._newest(range(self._column.workers), None)

    def newest(self, at_ms: int | None) -> tuple[State | None, float]:
        """Return the newest state of the other workers, and the amount that it does not include.

        The state is ``None`` if none is newer than this worker's own, which is of ``at_ms`` (``None`` without one); the
        amount is then what that does not include.
        """
        totals = self._totals(self._memory, self._totals_at * WORD)
        for worker in self._column.others:
            if totals[worker] != self._included[worker]:
                words = self._state.unpack_from(self._memory, self._states_at[worker] * WORD)
                if words[3:-1] == totals and hash(words[:-1]) == words[-1]:  # it includes all totals, the usual case
                    self._included = list(totals)
                    return self._here(words), 0.0
        return self._newest(self._column.others, at_ms)

    def publish(self, amount: float, value: float, at_ms: int, limit: float) -> None:
        """Publish that this worker has charged ``amount``, and its state after that."""
        included, own = self._included, self._own
        included[own] = self._words[self._own_at] = included[own] + amount
        seal(self._state, self._memory, self._own_state_at, (value, at_ms + self._offset_ms, limit, *included))

    def _newest(self, workers: tuple[int, ...] | range, at_ms: int | None) -> tuple[State | None, float]:
        """Return the newest state of ``workers`` by time, and the amount that it does not include."""
        newest: tuple[float, ...] | None = None
        newest_ms = -math.inf if at_ms is None else at_ms + self._offset_ms
        for worker in workers:
            found = sealed(self._state, self._memory, self._states_at[worker])
            if found is not None and found[1] > newest_ms:
                newest, newest_ms = found, found[1]
        if newest is None and at_ms is None:
            return None, 0.0  # the first state is being written; the next call will find it
        included = self._included if newest is None else newest[3:]
        self._included = list(self._totals(self._memory, self._totals_at * WORD))
        missing = math.fsum(total - has for total, has in zip(self._included, included, strict=True))
        return (None if newest is None else self._here(newest)), missing

    def _here(self, words: tuple[float, ...]) -> State:
        """Convert a state to this worker's time."""
        return words[0], int(words[1]) - self._offset_ms, words[2]


class SharedTokens(TokenBucket):
    """A token bucket that other workers charge too."""

    __slots__ = ("_rate", "_shared")

    def __init__(self, burst_s: float, column: Column, at: int) -> None:
        """``at`` is the offset of its cells, in words."""
        super().__init__(burst_s)
        self._rate = 0.0
        """The rate at the last use."""
        self._shared = SharedCells(column, at)
        self._adopt(*self._shared.first())

    def tokens(self, rate: float, now_ms: int) -> float:
        """Refill, after the others' charges; return the number of tokens."""
        self._refresh()
        self._rate = rate
        return super().tokens(rate, now_ms if self._tokens is None else max(now_ms, self._last_ms))

    def take(self, amount: float, rate: float, now_ms: int) -> float:
        """Refill and take ``amount`` tokens, and publish it; return the rest."""
        tokens = super().take(amount, rate, now_ms)
        self._shared.publish(amount, tokens, self._last_ms, rate)
        return tokens

    def state(self, now_ms: int) -> list[float] | None:
        """Return the state of all workers together."""
        self._refresh()
        return super().state(now_ms)

    def restore(self, state: list[float] | None, now_ms: int) -> None:
        """Restore a `state`, unless another worker has done so: the shared state is newer then."""
        if state is not None and self._tokens is None:
            super().restore(state, now_ms)
            self._shared.publish(0.0, state[0], self._last_ms, 0.0)

    def private_copy(self) -> TokenBucket:
        """Return the token bucket as one that is not shared."""
        plain = TokenBucket(self.burst_s)
        plain._tokens, plain._last_ms = self._tokens, self._last_ms  # noqa: SLF001 -- its own class
        return plain

    def _refresh(self) -> None:
        if self._shared.has_changed():
            self._adopt(*self._shared.newest(None if self._tokens is None else self._last_ms))

    def _adopt(self, state: State | None, missing: float) -> None:
        if state is not None:
            self._tokens, self._last_ms, self._rate = state
        if missing and self._tokens is not None:
            self._tokens -= missing
            if self._rate:
                self._tokens = min(self.burst_s * self._rate, self._tokens)


class SharedTimeline(Timeline):
    """A timeline that other workers reserve slots in too."""

    __slots__ = ("_settled_at", "_shared", "_words", "_worker")

    def __init__(self, column: Column, at: int, settled_at: int) -> None:
        """``at`` and ``settled_at`` are the offsets of its cells and of the settled amounts, in words."""
        super().__init__()
        self._shared = SharedCells(column, at)
        self._words = column.words
        self._worker = column.worker
        self._settled_at = range(settled_at, settled_at + column.workers)
        self._adopt(*self._shared.first())

    def debt(self, limit: float, now_ms: int) -> float:
        """Return the debt, including the others' reservations."""
        if self._shared.has_changed():
            self._adopt_newest()
        if now_ms < self._at_ms and self._limit:
            now_ms = self._at_ms  # another worker's clock may be a little ahead
        return Timeline.debt(self, limit, now_ms)

    def reserve(self, amount: float, limit: float, burst: float, now_ms: int) -> int:
        """Reserve a slot for ``amount`` and publish it; return the milliseconds until it begins."""
        wait_ms = Timeline.reserve(self, amount, limit, burst, now_ms)
        self._shared.publish(amount, self._debt, self._at_ms, limit)
        return wait_ms + self._at_ms - now_ms if wait_ms else 0

    def correct(self, difference: float, limit: float, now_ms: int) -> None:
        """Add ``difference`` to the debt, and publish it."""
        super().correct(difference, limit, now_ms)
        self._shared.publish(difference, self._debt, self._at_ms, limit)

    def settle(self, difference: float, limit: float, now_ms: int) -> None:
        """Add ``difference`` to the debt and to the settled amount, and publish both."""
        self.correct(difference, limit, now_ms)
        self._words[self._settled_at[self._worker]] += difference

    def settled(self) -> float:
        """Return the sum of what requests of all workers cost beyond their reservations."""
        words = self._words
        return math.fsum(words[at] for at in self._settled_at)

    def state(self, now_ms: int) -> list[float]:
        """Return the state of all workers together."""
        if self._shared.has_changed():
            self._adopt_newest()
        return super().state(now_ms)

    def restore(self, state: list[float], now_ms: int) -> None:
        """Restore a `state`, unless another worker has done so: the shared state is newer then."""
        if state[2] and not self._limit:
            super().restore(state, now_ms)
            self._shared.publish(0.0, self._debt, self._at_ms, self._limit)

    def private_copy(self) -> Timeline:
        """Return the timeline as one that is not shared."""
        plain = Timeline()
        plain._debt, plain._at_ms, plain._limit = self._debt, self._at_ms, self._limit  # noqa: SLF001 -- its own class
        return plain

    def _adopt_newest(self) -> None:
        self._adopt(*self._shared.newest(self._at_ms if self._limit else None))

    def _adopt(self, state: State | None, missing: float) -> None:
        if state is not None:
            self._debt, self._at_ms, self._limit = state
        if missing and self._limit:
            self._debt = max(0.0, self._debt + missing)
