"""Which connections are served: the limits on their number and on their rate, in total, by address and by user.

Called by the server with each connection that the system has accepted. A connection over
``limits.max_connection_rate_per_ip`` is closed after a delay, as Kafka does, so that a client that reconnects at once
is slowed down; one over a limit on the number of connections is closed at once. When ``limits.max_connection_rate`` is
exceeded, the next connections wait in the backlogs of the listening sockets. What the limits per address refuse is not
counted for those of the whole proxy, or one address could use them up.

A connection counts for its user from the moment at which the user is proved (`Admission.admit_user`). If it exceeds a
limit per user, it is closed in the same way as one that exceeds a limit per address.
"""

from __future__ import annotations

import heapq
import ipaddress
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import structlog
import trio

from headrace.proxy.network.connection_counts import ConnectionCounts
from headrace.proxy.network.connection_rates import ConnectionRates
from headrace.proxy.network.overload import Overload
from headrace.proxy.repeated_lines import RepeatedLines
from headrace.quota_callbacks.client_addresses import counted_address
from headrace.quota_callbacks.definitions import canonical_ip
from headrace.quota_callbacks.entities import DEFAULT

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from headrace.proxy.counters import Counters
    from headrace.quota_callbacks.buckets.sampled_rate import Window
    from headrace.quota_callbacks.requests import Address

log = structlog.get_logger("headrace.server")

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_DELAYED: Final = 512
"""Refused connections that wait to be closed; beyond these they are closed at once. Fewer if there are few descriptors
(`headrace.proxy.network.overload.most_delayed`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """The limits. Replaced as a whole on reload. 0 is unlimited, except for ``max_connections``."""

    max_connections: int
    max_connections_per_ip: int
    max_connection_rate: int
    """Connections a second."""
    max_connection_rate_per_ip: int
    per_ip_exempt: tuple[Network, ...]
    """Networks to which the limits per address do not apply."""
    max_connections_per_user: int = 0
    max_connection_rate_per_user: int = 0
    per_user_exempt: frozenset[str] = frozenset()
    """Users to whom the limits per user do not apply."""

    def exempts(self, host: str) -> bool:
        """Return whether the limits per address do not apply to ``host``."""
        return is_in(host, self.per_ip_exempt)


def is_in(host: str, networks: tuple[Network, ...]) -> bool:
    """Return whether the address ``host`` is in one of ``networks``; one that is mapped to IPv6 counts as IPv4."""
    if not networks:
        return False
    address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)


class _Rate(NamedTuple):
    """A limit on the rate of connections, in connections a second, and the name that it counts and logs by."""

    counted: str
    """The address, or IPv6 network, by which connections are counted."""
    limit: float
    name: str
    setting: str


_UNLIMITED: Final = _Rate("", 0.0, "", "")

MAX_DELAYED_OF_A_USER: Final = 16
"""Refused connections of a user that may wait to be closed; further ones are closed at once. While they wait, they
count for ``limits.max_connections``. A client opens one or two connections at a time for each broker."""


class UserRefusal(NamedTuple):
    """Why a connection of a user is not served, and when it is to be closed."""

    limit: str
    """The name of the limit."""
    reason: str
    delay_s: float
    """Seconds after which to close it; `Admission.end_delay` is to be called then, unless it is 0."""


class Admission:
    """The decision about each new connection: those that are served are counted, and the others closed.

    At most ``max_delayed`` refused connections wait to be closed.
    """

    def __init__(
        self,
        limits: AdmissionLimits,
        counters: Counters,
        window: Window,
        *,
        overload: Overload | None = None,
        max_delayed: int = MAX_DELAYED,
    ) -> None:
        self.limits = limits
        self.overload = overload or Overload(counters)
        """Whether the process has room for further connections."""
        self._ip_rates: dict[str, float] = {}
        self._default_ip_rate: float | None = None
        self.on_full: Callable[[str], None] = lambda _: None
        """Called with the reason when ``max_connections`` is reached, to make room for the next connection."""
        self.turn = trio.Lock()
        """Held by the accept loop that accepts connections now, and while accepting is delayed."""
        self._counters = counters
        self._counts = ConnectionCounts()
        self._rates = ConnectionRates(window)
        self._user_rates = ConnectionRates(window)
        self._delayed_by_user: Counter[str] = Counter()
        self._repeated = RepeatedLines()
        self._max_delayed = min(MAX_DELAYED, max_delayed)
        self._delayed: list[tuple[float, int, socket.socket]] = []
        self._serial = 0
        self._delaying = trio.Event()

    def admit(
        self, sock: socket.socket, peer: Address, now_s: float, *, from_proxy: bool = False
    ) -> tuple[bool, float]:
        """Return whether to serve a new connection, and the seconds to wait before the next one is accepted.

        A connection that is not to be served is closed here; call `leave` after a served one has ended. ``from_proxy``:
        the address is that of a load balancer, whose client's address follows; see `admit_client`.
        """
        limits = self.limits
        now_ms = int(now_s * 1000)
        address = counted_address(peer.host)
        exempt = from_proxy or limits.exempts(peer.host)
        rate = self._rate_of(peer.host, address, exempt=exempt)
        if delay_s := self._rates.add_from(rate.counted, rate.limit, now_ms):
            self._refuse(peer, rate.name, f"{rate.setting} = {rate.limit:g} is exceeded")
            self._close_at(now_s + delay_s, sock)
            return False, 0.0
        most_from_host = 0 if exempt else limits.max_connections_per_ip
        reached = self._counts.limit_reached(address, most=limits.max_connections, most_from_host=most_from_host)
        if reached is not None:
            reason = f"limits.{reached} = {getattr(limits, reached)} is reached"
            self._refuse(peer, reached, reason)
            sock.close()
            if reached == "max_connections_per_ip":
                return False, 0.0
            self.on_full(reason)
        else:
            self._counts.add(address)
        pause_s = self._rates.add(limits.max_connection_rate, now_ms)
        if pause_s:
            self._counters.accept_delayed_s += pause_s
            if (left_out := self._repeated.due("accepting is delayed")) is not None:
                reason = f"limits.max_connection_rate = {limits.max_connection_rate} is exceeded"
                log.warning("accepting is delayed", reason=reason, left_out=left_out or None)
        return reached is None, pause_s

    def admit_client(self, sender: Address, client: Address, now_s: float) -> str | None:
        """Count a connection of a load balancer as one of its client's, and return ``None``.

        If it exceeds a limit per address, nothing is changed, and the reason is returned.
        """
        limits = self.limits
        address = counted_address(client.host)
        exempt = limits.exempts(client.host)
        rate = self._rate_of(client.host, address, exempt=exempt)
        if self._rates.add_from(rate.counted, rate.limit, int(now_s * 1000)):
            self._count_refused(rate.name)
            return f"{rate.setting} = {rate.limit:g} is exceeded"
        most = 0 if exempt else limits.max_connections_per_ip
        if self._counts.limit_reached(address, most=sys.maxsize, most_from_host=most) is not None:
            self._count_refused("max_connections_per_ip")
            return f"limits.max_connections_per_ip = {most} is reached"
        self._counts.remove(counted_address(sender.host))
        self._counts.add(address)
        return None

    def admit_user(self, user: str, now_s: float) -> UserRefusal | None:
        """Count a connection as one of ``user``, who was proved, and return ``None``.

        If it exceeds a limit per user, it is not counted. Call `leave_user` after one that was counted has ended.
        """
        limits = self.limits
        exempt = user in limits.per_user_exempt
        rate = 0 if exempt else limits.max_connection_rate_per_user
        most = 0 if exempt else limits.max_connections_per_user
        if delay_s := self._user_rates.add_from(user, rate, int(now_s * 1000)):
            name, value, state = "max_connection_rate_per_user", rate, "exceeded"
        elif most and self._counts.of_user(user) >= most:
            name, value, state = "max_connections_per_user", most, "reached"
        else:
            self._counts.add_user(user)
            return None
        self._count_refused(name)
        if delay_s and self._delayed_by_user[user] >= MAX_DELAYED_OF_A_USER:
            delay_s = 0.0
        elif delay_s:
            self._delayed_by_user[user] += 1
        return UserRefusal(name, f"user {user}: limits.{name} = {value} is {state}", delay_s)

    def end_delay(self, user: str) -> None:
        """Note that a connection of ``user`` is closed after its delay."""
        self._delayed_by_user[user] -= 1
        if not self._delayed_by_user[user]:
            del self._delayed_by_user[user]

    def leave_user(self, user: str) -> None:
        """Count one connection less of ``user``."""
        self._counts.remove_user(user)

    def set_rate(self, host: str | None, rate: float | None) -> None:
        """Set or remove the quota ``connection_creation_rate`` of an address, or with ``None`` the default (KIP-612).

        The default takes the place of ``limits.max_connection_rate_per_ip``. Neither applies to exempt networks, but
        the quota of an address does. ``host`` may have any form of the address.
        """
        if host is None:
            self._default_ip_rate = rate
        elif rate is None:
            self._ip_rates.pop(canonical_ip(host), None)
        else:
            self._ip_rates[canonical_ip(host)] = rate

    def leave(self, host: str) -> None:
        """Count one connection less from ``host``."""
        self._counts.remove(counted_address(host))

    async def close_delayed(self) -> None:
        """Close refused connections when their delay has passed, and all of them when cancelled."""
        try:
            while True:
                while self._delayed:
                    await trio.sleep_until(self._delayed[0][0])
                    heapq.heappop(self._delayed)[2].close()
                self._delaying = trio.Event()
                await self._delaying.wait()
        finally:
            for _, _, sock in self._delayed:
                sock.close()
            self._delayed.clear()

    def _close_at(self, closes_s: float, sock: socket.socket) -> None:
        if len(self._delayed) >= self._max_delayed:
            sock.close()
            return
        self._serial += 1
        heapq.heappush(self._delayed, (closes_s, self._serial, sock))
        self._delaying.set()

    def _rate_of(self, host: str, address: str, *, exempt: bool) -> _Rate:
        """Return the rate that applies to connections from ``host``, which is otherwise counted as ``address``."""
        if self._ip_rates:
            host = canonical_ip(host.partition("%")[0])  # without the zone of a link-local address
            if (of_host := self._ip_rates.get(host)) is not None:
                return _Rate(host, of_host, "connection_creation_rate", f"connection_creation_rate of ip={host}")
        if exempt:
            return _UNLIMITED
        if self._default_ip_rate is not None:
            name = "connection_creation_rate"
            return _Rate(address, self._default_ip_rate, name, f"{name} of ip={DEFAULT}")
        name = "max_connection_rate_per_ip"
        return _Rate(address, self.limits.max_connection_rate_per_ip, name, f"limits.{name}")

    def _count_refused(self, limit: str) -> None:
        refused = self._counters.connections_refused
        refused[limit] = refused.get(limit, 0) + 1

    def _refuse(self, peer: Address, limit: str, reason: str) -> None:
        self._count_refused(limit)
        if (left_out := self._repeated.due("connection refused", limit)) is not None:
            log.warning("connection refused", peer=str(peer), reason=reason, left_out=left_out or None)
