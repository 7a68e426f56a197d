"""Honest and cheating clients of a simulated proxy: the real callbacks, buckets and enforcement on a simulated clock.

Only sockets are missing: a `Link` calls `headrace.proxy.connection.enforcement` when a relay would, and does not read
while it is muted. What passes is noted in `World.passed`, by entity and quota key.
"""

from __future__ import annotations

import heapq
import itertools
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.proxy.connection.enforcement import (
    abandon,
    enforce_after_hold,
    enforce_on_arrival,
    enforce_on_batches,
    enforce_on_own_answer,
    enforce_on_reply,
    enforce_on_request,
)
from headrace.proxy.connection.state.connection_state import ConnectionState
from headrace.proxy.connection.state.in_flight import Exchange
from headrace.proxy.connection.state.reply_actions import reply_layout
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity, QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.policies import Quota, QuotaPolicy
from headrace.quota_callbacks.requests import Address, Connection, TopicMutation
from tests.proxy.playbook import open_book

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable

    from headrace.proxy.connection.state.shared_state import SharedState

PRODUCE, FETCH, HEARTBEAT = ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.HEARTBEAT
MUTATE: Final = ApiKey.CREATE_TOPICS
NEW_IDS: Final = ApiKey.INIT_PRODUCER_ID
"""Stands for a Produce of one byte, whose batches have new producer ids."""
KEY_OF: Final = {
    PRODUCE: QuotaKey.PRODUCER_BYTE_RATE,
    FETCH: QuotaKey.CONSUMER_BYTE_RATE,
    HEARTBEAT: QuotaKey.REQUEST_PERCENTAGE,
    MUTATE: QuotaKey.CONTROLLER_MUTATION_RATE,
    NEW_IDS: QuotaKey.PRODUCER_IDS_RATE,
}
CHARGED_AT_ONCE: Final = (PRODUCE, MUTATE, NEW_IDS)
"""Requests that are charged before they are forwarded; the others with their replies."""
LIMIT: Final = 1000.0
"""Bytes, mutations or new producer ids a second, and also percent of a thread: amounts of all kinds can have the same
size."""
LATENCY_MS: Final = 3
VERSION: Final = {PRODUCE: 7, FETCH: 11, HEARTBEAT: 3, MUTATE: 7}
_TENTHS: Final = (HEARTBEAT, NEW_IDS)
"""Amounts are a tenth of the size: less than a second at the limit, as any real request takes."""


def amount_of(api_key: ApiKey, size: int) -> int:
    """Return what a request of ``size`` is charged for."""
    return size // 10 if api_key in _TENTHS else size


class Costs:
    """A cost model: a Heartbeat of n bytes costs n percent of a second; other requests are free."""

    headrace_hooks = HOOK_VERSION

    @hookimpl
    def request_time_ms(self, request: Any) -> float:
        """Return the cost in milliseconds."""
        return request.request_bytes * 10.0 if request.api_key == HEARTBEAT else 0.0


@dataclass(frozen=True, slots=True)
class Passed:
    """An amount that reached the broker, or came from it, of a client id or user: the one that ``key`` limits."""

    at_ms: int
    entity: str
    key: QuotaKey
    amount: float


class World:
    """The clock, what is to happen, and what has passed. The keys in ``of_users`` limit users, others client ids."""

    def __init__(self, shared: SharedState, of_users: Collection[QuotaKey]) -> None:
        self.shared = shared
        self.of_users = of_users
        self.now_ms = 1000
        self.passed: list[Passed] = []
        self.uncharged: dict[tuple[str, QuotaKey], float] = {}
        """The amounts of requests that were forwarded and are not known, or not charged, yet."""
        self.most_uncharged: dict[tuple[str, QuotaKey], float] = {}
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        shared.clock = lambda: self.now_ms / 1000

    def at(self, at_ms: int, action: Callable[[], None]) -> None:
        """Call ``action`` at ``at_ms``."""
        heapq.heappush(self._agenda, (max(at_ms, self.now_ms), next(self._numbers), action))

    def run(self, until_ms: int) -> None:
        """Let everything happen until ``until_ms``."""
        while self._agenda and self._agenda[0][0] <= until_ms:
            self.now_ms, _, action = heapq.heappop(self._agenda)
            action()

    def note(self, entity: str, key: QuotaKey, amount: float) -> None:
        """Note what has passed."""
        self.passed.append(Passed(self.now_ms, entity, key, amount))

    def new_producer_id(self) -> int:
        """Return a producer id that nobody has used."""
        return next(self._numbers)

    def pend(self, entity: str, key: QuotaKey, amount: float) -> None:
        """Add to what was forwarded and is not charged yet."""
        name = (entity, key)
        self.uncharged[name] = self.uncharged.get(name, 0.0) + amount
        self.most_uncharged[name] = max(self.most_uncharged.get(name, 0.0), self.uncharged[name])


class Link:
    """A connection that sends one request at a time, and does not wait for itself when it is throttled. The user has
    the same name as the client id unless it is given."""

    def __init__(self, world: World, client_id: str, *, user: str | None = None, accepted: bool = True) -> None:
        self.world = world
        self.client_id = client_id
        number = next(world._numbers)
        shared = world.shared
        info = Connection(connection_id=number, peer=Address(host="127.0.0.1", port=1), user=user or client_id)
        self.state = ConnectionState(shared, shared.listeners[0], info, None, None)  # type: ignore[arg-type]
        self.state.accepted = accepted
        self.exchange: Exchange | None = None
        self.closed = False
        self._held = False
        self._kind = PRODUCE
        self._sent = 0
        self._size = 0
        self.received_ms = 0
        """Time at which the last request was read."""

    def send(
        self,
        api_key: ApiKey,
        size: int,
        *,
        acks: int = 1,
        sends: int | None = None,
        takes_ms: int = 0,
        on_reply: Callable[[int], None] | None = None,
    ) -> None:
        """Send a request of ``size`` bytes, which takes ``takes_ms``, or only the first ``sends`` bytes of it."""
        self._kind = api_key
        self._size = amount_of(api_key, size)
        self._try(api_key, acks, self._size if sends is None else sends, takes_ms, on_reply)

    def _try(
        self, api_key: ApiKey, acks: int, sends: int, takes_ms: int, on_reply: Callable[[int], None] | None
    ) -> None:
        world, state = self.world, self.state
        if self.closed:
            return

        def again() -> None:
            self._try(api_key, acks, sends, takes_ms, on_reply)

        now_s = world.now_ms / 1000
        if state.mute.until_s > now_s:
            world.at(world.now_ms + max(1, state.mute.remaining_ms(now_s)), again)
            return
        if self._held and self.exchange is not None:
            self._held, refusal = enforce_after_hold(state, self.exchange, now_s)
        else:
            self.exchange = exchange = self._exchange(now_s)
            exchange.acks = acks if api_key == PRODUCE else None
            exchange.arrived = sends == self._size and not takes_ms
            self.received_ms = world.now_ms
            refusal = enforce_on_request(state, exchange, now_s)  # which charges nothing before acceptance
            self._held = exchange.hold_ms > 0
        if refusal is not None:
            assert api_key == MUTATE
            enforce_on_own_answer(state, exchange, now_s)
            self.exchange = None
            if on_reply is not None:
                world.at(world.now_ms + LATENCY_MS, lambda: on_reply(refusal.throttle_ms))
            return
        if self._held:
            again()
            return
        self._forward(sends, takes_ms, on_reply)

    def _exchange(self, now_s: float) -> Exchange:
        """Return the request that was read, of the kind and size of the last call of `send`."""
        api_key = PRODUCE if self._kind == NEW_IDS else self._kind
        size = self._size if api_key != FETCH else 50
        if self._kind == NEW_IDS:
            size = 1
        layout = reply_layout(api_key, VERSION[api_key])
        exchange = Exchange(self.state.info, api_key, VERSION[api_key], 1, self.client_id, size, now_s, layout)
        if api_key == MUTATE:
            exchange.mutations = (TopicMutation(topic="topic", partitions=self._size),)
        return exchange

    def _forward(self, sends: int, takes_ms: int, on_reply: Callable[[int], None] | None) -> None:
        world, exchange = self.world, self.exchange
        assert exchange is not None
        exchange.forwarded_s = world.now_ms / 1000
        key = KEY_OF[self._kind]
        self._sent = sends
        if not self.state.accepted:
            return
        if exchange.arrived:
            if self._kind == NEW_IDS:
                exchange.batches = [("topic", 0, 1, world.new_producer_id()) for _ in range(self._size)]
                enforce_on_batches(self.state, exchange, world.now_ms / 1000)
            if self._kind in CHARGED_AT_ONCE:
                world.note(*self._limited(key), self._size)
            else:
                world.pend(*self._limited(key), self._size)
            self._answer(on_reply)
            return
        world.pend(*self._limited(key), sends)
        if sends == self._size:
            world.at(world.now_ms + takes_ms, lambda: self._arrive(on_reply))

    def _limited(self, key: QuotaKey) -> tuple[str, QuotaKey]:
        """Return the entity that a quota limits, and the quota."""
        return (self.state.info.user if key in self.world.of_users else self.client_id), key

    def _arrive(self, on_reply: Callable[[int], None] | None) -> None:
        world, exchange = self.world, self.exchange
        if self.closed or exchange is None:
            return
        enforce_on_arrival(self.state, exchange, world.now_ms / 1000)
        world.pend(*self._limited(QuotaKey.PRODUCER_BYTE_RATE), -self._size)
        world.note(*self._limited(QuotaKey.PRODUCER_BYTE_RATE), self._size)
        self._answer(on_reply)

    def _answer(self, on_reply: Callable[[int], None] | None) -> None:
        exchange = self.exchange
        assert exchange is not None
        if exchange.acks == 0:
            self.exchange = None
            if on_reply is not None:
                self.world.at(self.world.now_ms + 1, lambda: on_reply(0))
            return
        self.world.at(self.world.now_ms + LATENCY_MS, lambda: self._reply(exchange, on_reply))

    def _reply(self, exchange: Exchange, on_reply: Callable[[int], None] | None) -> None:
        world, now_s = self.world, self.world.now_ms / 1000
        key = KEY_OF[self._kind]
        if self._kind not in CHARGED_AT_ONCE:
            world.pend(*self._limited(key), -self._size)
        if self.closed:
            return
        exchange.reply_s = now_s
        exchange.response_bytes, exchange.response_header_bytes = (
            (self._size, 4) if exchange.api_key == FETCH else (10, 4)
        )
        enforce_on_reply(self.state, exchange, now_s)
        if self._kind not in CHARGED_AT_ONCE:
            world.note(*self._limited(key), self._size)
        self.exchange = None
        if on_reply is not None:
            on_reply(self.state.mute.remaining_ms(now_s))

    def close(self) -> None:
        """Close the connection, whatever it waits for."""
        if self.closed:
            return
        self.closed = True
        exchange = self.exchange
        if exchange is None or not self.state.accepted:
            return
        if not exchange.arrived and exchange.forwarded_s is not None:
            exchange.missing_bytes = exchange.request_bytes - self._sent
            self.world.pend(*self._limited(QuotaKey.PRODUCER_BYTE_RATE), -self._sent)
            self.world.note(*self._limited(QuotaKey.PRODUCER_BYTE_RATE), self._sent)
        abandon(self.state, exchange)


def excess(passed: Iterable[Passed], limit: float) -> float:
    """Return the most that has passed in any window beyond ``limit`` times its length."""
    worst, most = 0.0, 0.0
    last_ms = None
    for each in passed:
        if last_ms is not None:
            worst = max(0.0, worst - limit * (each.at_ms - last_ms) / 1000)
        last_ms = each.at_ms
        worst += each.amount
        most = max(most, worst)
    return most


@asynccontextmanager
async def open_world(
    policy: QuotaPolicy, limit: float = LIMIT, of_users: Collection[QuotaKey] = (QuotaKey.PRODUCER_IDS_RATE,)
) -> AsyncIterator[World]:
    """Open a proxy with a quota of ``limit`` for each key and client id, or user."""
    quotas = [
        (
            key,
            QuotaEntity(user=DEFAULT) if key in of_users else QuotaEntity(client_id=DEFAULT),
            Quota(value=limit, policy=policy),
        )
        for key in KEY_OF.values()
    ]
    async with open_book(plugins={"costs": Costs()}, quotas=quotas) as book:
        yield World(book.shared, of_users)
