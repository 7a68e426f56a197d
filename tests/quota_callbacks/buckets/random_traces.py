"""Seeded random traces of quota changes and charges, for comparing two implementations.

Traces contain edge cases: records in the same millisecond, and just before, at and after the end of a sample, of the
window and of a throttle; bursts of several windows; idle gaps; and changes of quotas on all eight levels.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA
from headrace.quota_callbacks.entities import DEFAULT, EntityName, QuotaKey
from tests.quota_callbacks.our_quotas import KEY_OF, Op, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

WINDOWS: Final = tuple(
    Window(samples=samples, seconds=seconds)
    for samples, seconds in ((11, 1), (1, 1), (10, 1), (2, 1), (3, 30), (100, 1), (5, 2), (11, 1))
)
USERS: Final = ("alice", "bob b", "*", "ANONYMOUS")
CLIENTS: Final = ("c1", "c2", "a:b/%2A", "<default>", "")
OPS: Final = (Op.PRODUCE, Op.FETCH, Op.REQUEST, Op.NETWORK, Op.STRICT, Op.STRICT, Op.PERMISSIVE)
LIMITS: Final = {
    QuotaKey.PRODUCER_BYTE_RATE: (1e3, 1e5),
    QuotaKey.CONSUMER_BYTE_RATE: (1e3, 1e5),
    QuotaKey.REQUEST_PERCENTAGE: (0.1, 200.0),
    QuotaKey.CONTROLLER_MUTATION_RATE: (0.3, 30.0),
}
"""Lowest and highest limit. Amounts are in proportion, so that no throttle overflows an INT32 in 4.3.1."""


@dataclass(frozen=True, slots=True)
class Alter:
    t_ms: int
    key: QuotaKey
    user: EntityName | None
    client_id: EntityName | None
    value: float | None


@dataclass(frozen=True, slots=True)
class Use:
    t_ms: int
    op: Op
    user: str
    client_id: str
    amount: float

    @property
    def key(self) -> QuotaKey:
        return KEY_OF[self.op]


@dataclass(frozen=True, slots=True)
class Sweep:
    """Removal of idle buckets."""

    t_ms: int


Event: TypeAlias = Alter | Use | Sweep


class Quotas(Protocol):
    def set(
        self, key: QuotaKey, user: EntityName | None, client_id: EntityName | None, value: float | None
    ) -> None: ...
    def use(self, op: Op, user: str, client_id: str, amount: float, now_ms: int) -> Outcome: ...
    def expire(self, now_ms: int) -> None: ...


def apply(event: Event, quotas: Quotas) -> Outcome | None:
    """Apply ``event``; return the outcome of a charge."""
    if isinstance(event, Use):
        return quotas.use(event.op, event.user, event.client_id, event.amount, event.t_ms)
    if isinstance(event, Alter):
        quotas.set(event.key, event.user, event.client_id, event.value)
    else:
        quotas.expire(event.t_ms)
    return None


class RandomTrace:
    """An endless sequence of events. Set ``last_throttle_ms`` so that clients wait for about this time."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a test's
        self.window = WINDOWS[seed % len(WINDOWS)]
        self.last_throttle_ms = 0
        self._now_ms = 0
        self._set: dict[tuple[QuotaKey, EntityName | None, EntityName | None], float] = {}

    def __iter__(self) -> Iterator[Event]:
        for key in LIMITS:
            for _ in range(self._random.randint(1, 4)):
                yield self._alter(key)
        while True:
            self._now_ms += self._gap_ms()
            kind = self._random.random()
            if kind < 0.04:
                yield self._alter(self._random.choice(tuple(LIMITS)))
            elif kind < 0.042:
                self._now_ms += self._random.randint(1_000_000, 5_000_000)
                yield Sweep(self._now_ms)
            else:
                yield self._use()

    def _gap_ms(self) -> int:
        choose, sample_ms = self._random, self.window.seconds * 1000
        window_ms = self.window.samples * sample_ms
        edge = choose.choice((-1, 0, 0, 1))
        kind = choose.random()
        if kind < 0.35:
            return 0
        if kind < 0.65:
            return choose.randint(1, sample_ms // 4)
        if kind < 0.75:
            return sample_ms + edge
        if kind < 0.85:
            return max(0, min(self.last_throttle_ms, 10 * window_ms) + edge)
        if kind < 0.93:
            return choose.randint(0, 3 * sample_ms)
        if kind < 0.97:
            return window_ms + edge
        return choose.randint(window_ms, 5 * window_ms)

    def _alter(self, key: QuotaKey) -> Alter:
        choose = self._random
        if self._set and choose.random() < 0.4:
            mine = [each for each in self._set if each[0] is key]
            if mine:
                entity = choose.choice(mine)
                if choose.random() < 0.5:
                    del self._set[entity]
                    return Alter(self._now_ms, *entity, None)
                return Alter(self._now_ms, *entity, self._limit(key))
        user: EntityName | None = choose.choice((None, DEFAULT, *USERS))
        clients: tuple[EntityName | None, ...] = (DEFAULT, *(each for each in CLIENTS if each))
        client_id = choose.choice(clients if user is None else (None, *clients))
        value = self._limit(key)
        self._set[key, user, client_id] = value
        return Alter(self._now_ms, key, user, client_id, value)

    def _limit(self, key: QuotaKey) -> float:
        low, high = LIMITS[key]
        limit = low * (high / low) ** self._random.random()
        if BUILTIN_SCHEMA.keys[key].integral:
            return float(round(limit))
        return self._random.choice((limit, float(max(1, round(limit)))))

    def _use(self) -> Use:
        choose = self._random
        op = choose.choice(OPS)
        low, high = LIMITS[KEY_OF[op]]
        per_second = low * (high / low) ** choose.random()
        if KEY_OF[op] is QuotaKey.REQUEST_PERCENTAGE:
            per_second *= 1e7  # ns of a second in which one percent is spent
        per_window = per_second * self.window.samples * self.window.seconds
        kind = choose.random()
        if kind < 0.05:
            amount = 0.0
        elif kind < 0.6:
            amount = per_second * choose.random()
        elif kind < 0.85:
            amount = per_window * choose.random()
        else:
            amount = per_window * choose.uniform(0.9, 4)
        return Use(self._now_ms, op, choose.choice(USERS), choose.choice(CLIENTS), float(round(amount)))
