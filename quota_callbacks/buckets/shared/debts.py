"""Tokens and places that several workers take of together: `TokenBucket` and `Timeline`, each the newest of all.

What is left depends on the order in which it was taken (a bucket is never fuller than full, a debt never below 0), so
workers do not only tell how much they have taken, but also what was left then and what that includes of each of them.
Before a worker takes, it compares the others' totals with what its own state includes. If one is another, it goes on
from the newest state, and takes from that whatever is not in it. When no two decide at the same moment, the newest
state includes everything, and the arithmetic is that of one process. Pure: the caller brings the time.
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
"""What is left or owed, when that was (this worker's ms), and at which limit."""


class Taken:
    """Who has taken how much, and the states that they left: the cells of one row, seen by one worker."""

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
        """``at``: the first word."""
        workers = column.workers
        self._column = column
        self._memory = column.memory
        self._words = column.words
        self._totals_at = at
        self._totals = column.totals.unpack_from
        self._states_at = tuple(at + workers + worker * column.layout.state_words for worker in range(workers))
        self._included = [0.0] * workers
        """What this worker's state has of each total."""
        self._included[column.worker] = self._words[at + column.worker]
        self._own = column.worker
        self._own_at = at + column.worker
        self._own_state_at = self._states_at[column.worker]
        self._state = column.state
        self._offset_ms = column.offset_ms
        self._others = tuple((worker, at + worker) for worker in column.others)

    def news(self) -> bool:
        """Whether another worker has taken something that is not included yet."""
        words, included = self._words, self._included
        for worker, at in self._others:  # noqa: SIM110 -- any() costs a generator
            if words[at] != included[worker]:
                return True
        return False

    def first(self) -> tuple[State | None, float]:
        """The newest state that anybody has left, who had this worker's number before included."""
        return self._newest(range(self._column.workers), None)

    def newest(self, at_ms: int | None) -> tuple[State | None, float]:
        """The state to go on from, and what it lacks.

        ``None`` is the worker's own (of ``at_ms``; it may have none), when no other is newer.
        """
        totals = self._totals(self._memory, self._totals_at * WORD)
        for worker in self._column.others:
            if totals[worker] != self._included[worker]:
                words = self._state.unpack_from(self._memory, self._states_at[worker] * WORD)
                if words[3:-1] == totals and hash(words[:-1]) == words[-1]:  # it knows everything, as nearly always
                    self._included = list(totals)
                    return self._here(words), 0.0
        return self._newest(self._column.others, at_ms)

    def tell(self, amount: float, value: float, at_ms: int, limit: float) -> None:
        """This worker has taken ``amount``, and ``value`` is what that left."""
        included, own = self._included, self._own
        included[own] = self._words[self._own_at] = included[own] + amount
        seal(self._state, self._memory, self._own_state_at, (value, at_ms + self._offset_ms, limit, *included))

    def _newest(self, workers: tuple[int, ...] | range, at_ms: int | None) -> tuple[State | None, float]:
        """By time. What it lacks was taken by others who did not know of it either."""
        newest: tuple[float, ...] | None = None
        newest_ms = -math.inf if at_ms is None else at_ms + self._offset_ms
        for worker in workers:
            found = sealed(self._state, self._memory, self._states_at[worker])
            if found is not None and found[1] > newest_ms:
                newest, newest_ms = found, found[1]
        if newest is None and at_ms is None:
            return None, 0.0  # a first state is being written just now: the next look will find it
        included = self._included if newest is None else newest[3:]
        self._included = list(self._totals(self._memory, self._totals_at * WORD))
        missing = math.fsum(total - has for total, has in zip(self._included, included, strict=True))
        return (None if newest is None else self._here(newest)), missing

    def _here(self, words: tuple[float, ...]) -> State:
        """A state, in this worker's time."""
        return words[0], int(words[1]) - self._offset_ms, words[2]


class SharedTokens(TokenBucket):
    """A token bucket that others take from, too."""

    __slots__ = ("_rate", "_taken")

    def __init__(self, burst_s: float, column: Column, at: int) -> None:
        """``at``: the first word of its cells."""
        super().__init__(burst_s)
        self._rate = 0.0
        """Of the last use."""
        self._taken = Taken(column, at)
        self._go_on(*self._taken.first())

    def tokens(self, rate: float, now_ms: int) -> float:
        """As `TokenBucket.tokens`, after what the others took before."""
        self._look()
        self._rate = rate
        return super().tokens(rate, now_ms if self._tokens is None else max(now_ms, self._last_ms))

    def take(self, amount: float, rate: float, now_ms: int) -> float:
        """As `TokenBucket.take`, and the others are told."""
        tokens = super().take(amount, rate, now_ms)
        self._taken.tell(amount, tokens, self._last_ms, rate)
        return tokens

    def state(self, now_ms: int) -> list[float] | None:
        """What all workers have left."""
        self._look()
        return super().state(now_ms)

    def restore(self, state: list[float] | None, now_ms: int) -> None:
        """Go on where `state` was taken, unless another worker has done so before: then what is shared is newer."""
        if state is not None and self._tokens is None:
            super().restore(state, now_ms)
            self._taken.tell(0.0, state[0], self._last_ms, 0.0)

    def alone(self) -> TokenBucket:
        """The same, no longer shared."""
        plain = TokenBucket(self.burst_s)
        plain._tokens, plain._last_ms = self._tokens, self._last_ms  # noqa: SLF001 -- its own class
        return plain

    def _look(self) -> None:
        if self._taken.news():
            self._go_on(*self._taken.newest(None if self._tokens is None else self._last_ms))

    def _go_on(self, state: State | None, missing: float) -> None:
        if state is not None:
            self._tokens, self._last_ms, self._rate = state
        if missing and self._tokens is not None:
            self._tokens -= missing
            if self._rate:
                self._tokens = min(self.burst_s * self._rate, self._tokens)


class SharedTimeline(Timeline):
    """A timeline that others reserve places in, too."""

    __slots__ = ("_taken",)

    def __init__(self, column: Column, at: int) -> None:
        """``at``: the first word of its cells."""
        super().__init__()
        self._taken = Taken(column, at)
        self._go_on(*self._taken.first())

    def debt(self, limit: float, now_ms: int) -> float:
        """As `Timeline.debt`, with what the others have reserved."""
        if self._taken.news():
            self._take_up()
        if now_ms < self._at_ms and self._limit:
            now_ms = self._at_ms  # another worker's clock may be a little ahead
        return Timeline.debt(self, limit, now_ms)

    def reserve(self, amount: float, limit: float, burst: float, now_ms: int) -> int:
        """As `Timeline.reserve`, and the others are told."""
        wait_ms = Timeline.reserve(self, amount, limit, burst, now_ms)
        self._taken.tell(amount, self._debt, self._at_ms, limit)
        return wait_ms + self._at_ms - now_ms if wait_ms else 0

    def correct(self, difference: float, limit: float, now_ms: int) -> None:
        """As `Timeline.correct`, and the others are told."""
        super().correct(difference, limit, now_ms)
        self._taken.tell(difference, self._debt, self._at_ms, limit)

    def state(self, now_ms: int) -> list[float]:
        """What all workers owe."""
        if self._taken.news():
            self._take_up()
        return super().state(now_ms)

    def restore(self, state: list[float], now_ms: int) -> None:
        """Go on where `state` was taken, unless another worker has done so before: then what is shared is newer."""
        if state[2] and not self._limit:
            super().restore(state, now_ms)
            self._taken.tell(0.0, self._debt, self._at_ms, self._limit)

    def alone(self) -> Timeline:
        """The same, no longer shared."""
        plain = Timeline()
        plain._debt, plain._at_ms, plain._limit = self._debt, self._at_ms, self._limit  # noqa: SLF001 -- its own class
        return plain

    def _take_up(self) -> None:
        self._go_on(*self._taken.newest(self._at_ms if self._limit else None))

    def _go_on(self, state: State | None, missing: float) -> None:
        if state is not None:
            self._debt, self._at_ms, self._limit = state
        if missing and self._limit:
            self._debt = max(0.0, self._debt + missing)
