"""The time for which an entity has to wait, and for which the first requests of its new connections are held.

Kafka mutes a connection, so a client that opens another one is not muted any more. Here a bucket remembers until when
its entity has to wait (`Wait`). A request of a connection that did not use the bucket before is held until then.
Requests that wait are admitted one after the other, each after the throttle that its predecessor has caused. The turns
go round the owners of the connections (the user, or without one the address), so that one who has many requests wait
delays each of the others by one turn only. Used by `headrace.quota_callbacks.buckets.quota_bucket`. Pure: time is an
argument, in whole milliseconds.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.client_addresses import counted_owner

if TYPE_CHECKING:
    from headrace.quota_callbacks.requests import Request

NEVER: Final = -(2**63)
ALWAYS: Final = 2**63 - 1

ROUNDING_MS: Final = 1
"""A mute ends at a time in seconds, as a float, which can be a millisecond before the time in milliseconds."""

SPACING_MS: Final = 5
"""Interval between the times at which the requests in the queue ask again, so that they do not all ask at once."""

MOST_SPACING_MS: Final = 1000

CHARGED_WITHIN_MS: Final = 1000
"""How long a request waits for the charge of the request that was admitted before it, which may come with the reply.
It also waits this long for the one before it in the queue if that one does not ask again, because its connection
waits for something else."""


class Wait:
    """The time for which an entity has to wait, and the requests that wait for its end, by the owners of their
    connections and oldest first."""

    __slots__ = ("_admitted_ms", "_due_ms", "_first", "_next_ticket", "_owners", "_tickets", "since_ms", "until_ms")

    def __init__(self) -> None:
        self.since_ms = NEVER
        """Time at which the first of the throttles was imposed that have followed each other without a gap."""
        self.until_ms = NEVER
        self._tickets: dict[Request, tuple[int, str]] = {}
        """The requests that wait, with numbers in the order in which they came, and the owners of their connections."""
        self._owners: OrderedDict[str, dict[Request, None]] = OrderedDict()
        """The requests that wait by owner; the first owner has the next turn."""
        self._next_ticket = 0
        self._first: Request | None = None
        self._due_ms = 0
        """Time at which `_first` may be admitted."""
        self._admitted_ms = NEVER
        """Time at which the last request was admitted."""

    @property
    def gate_ms(self) -> int:
        """The time until which `QuotaBucket.wait` has to be called before a charge: the end of the wait, or always
        while requests are in the queue."""
        return ALWAYS if self._tickets else self.until_ms

    def extend(self, since_ms: int, until_ms: int, now_ms: int) -> None:
        """Wait at least until ``until_ms``, for a throttle that was imposed at ``since_ms``."""
        if until_ms > self.until_ms:
            self.since_ms = since_ms if self.until_ms <= now_ms else min(since_ms, self.since_ms)
            self.until_ms = until_ms

    def shorten(self, until_ms: int) -> None:
        """Wait at most until ``until_ms``: a part of what the wait is for was given back. Requests keep their turns."""
        self.until_ms = min(self.until_ms, until_ms)
        self._due_ms = min(self._due_ms, until_ms)

    def end(self) -> None:
        """End the wait. Requests that wait already are admitted when they ask again, or wait anew if they have to."""
        self.since_ms = self.until_ms = NEVER
        self._tickets.clear()
        self._owners.clear()
        self._first = None

    def is_over(self, now_ms: int) -> bool:
        """Return whether the entity does not have to wait, and no request waits."""
        return not self._tickets and self.until_ms - now_ms <= ROUNDING_MS

    def hold_ms(self, request: Request, last_charged_ms: int, now_ms: int) -> int:
        """Return how long to hold ``request`` before it asks again; 0 admits it.

        ``last_charged_ms`` is the time of the bucket's last charge.
        """
        tickets = self._tickets
        if request not in tickets:
            owner = counted_owner(request.connection.user, request.connection.peer.host)
            tickets[request] = (self._next_ticket, owner)
            self._next_ticket += 1
            self._owners.setdefault(owner, {})[request] = None
        first = self._next()
        if first is self._first and first is not request and now_ms > self._due_ms + CHARGED_WITHIN_MS:
            self._end_turn(first)
            first = self._next()
        charged = last_charged_ms >= self._admitted_ms or now_ms >= self._admitted_ms + CHARGED_WITHIN_MS
        if charged and first is not self._first:
            self._first = first
            self._due_ms = max(self.until_ms, now_ms)
        if first is not request:
            spacing_ms = max(tickets[request][0] - tickets[first][0], 1) * SPACING_MS
            return max(self.until_ms - now_ms, 0) + min(spacing_ms, MOST_SPACING_MS)
        if not charged:
            return SPACING_MS
        if self._due_ms > now_ms:
            return self._due_ms - now_ms
        self._end_turn(request)
        self._admitted_ms = now_ms
        return 0

    def _next(self) -> Request:
        return next(iter(next(iter(self._owners.values()))))

    def _end_turn(self, request: Request) -> None:
        """Remove ``request``, whose turn it was; the next turn is that of another owner, if there is one."""
        _, owner = self._tickets[request]
        self._owners.move_to_end(owner)
        self.leave(request)

    def waits(self, request: Request) -> bool:
        """Return whether ``request`` is in the queue."""
        return request in self._tickets

    def leave(self, request: Request) -> None:
        """Remove ``request`` from the queue, if it is there."""
        ticket = self._tickets.pop(request, None)
        if ticket is not None:
            _, owner = ticket
            requests = self._owners[owner]
            del requests[request]
            if not requests:
                del self._owners[owner]
        if self._first is request:
            self._first = None
