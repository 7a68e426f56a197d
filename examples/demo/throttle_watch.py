"""A plugin of the proxy that adds up throttling per client id: an example of the observing hooks.

Loaded by `[plugins] load` (see `scenario.proxy_config`). It observes Produce and Fetch, so it counts connections that
carry data; its metrics are on the proxy's metrics page as `headrace_demo_...`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, Metric, hookimpl
from headrace.quota_callbacks.requests import Interest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.quota_callbacks.requests import Connection, Request

MAX_CLIENTS: Final = 64
"""Client ids that are counted separately; clients choose their ids, and the number of series must be bounded."""


@dataclass(slots=True)
class _Client:
    throttled: int = 0
    longest_throttle_ms: int = 0
    muted_s: float = 0.0
    """Muted seconds of all connections, up to `muted_until`, which is in the future while one is muted."""
    lost: int = 0
    muted_until: dict[int, float] = field(default_factory=dict)
    """The end of the latest mute of each open connection, by connection id."""


class ThrottleWatch:
    """The counts of throttled requests, muted time and lost connections of each client id."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}
        self._owner: dict[int, _Client] = {}
        """Clients by connection id."""

    @hookimpl
    def request_interest(self) -> tuple[Interest, ...]:
        """Return an interest in the headers of Produce and Fetch."""
        return Interest(api_key=ApiKey.PRODUCE), Interest(api_key=ApiKey.FETCH)

    @hookimpl
    def request_completed(self, request: Request) -> None:
        """Add the request's mute to the muted time of its connection, without the overlap with earlier mutes."""
        client = self._client(request)
        if client is None or request.throttled_s is None:
            return
        client.throttled += 1
        client.longest_throttle_ms = max(client.longest_throttle_ms, request.throttle_ms)
        decided_s = request.throttled_s
        until_s = decided_s + request.throttle_ms / 1000
        counted_s = client.muted_until[request.connection.connection_id]
        if until_s > counted_s:
            client.muted_s += until_s - max(counted_s, decided_s)
            client.muted_until[request.connection.connection_id] = until_s

    @hookimpl
    def connection_closed(self, connection: Connection) -> None:
        """Remove the connection, and subtract the rest of its mute."""
        client = self._owner.pop(connection.connection_id, None)
        if client is not None:
            client.lost += 1
            until_s = client.muted_until.pop(connection.connection_id)
            client.muted_s -= max(0.0, until_s - trio.current_time())

    @hookimpl
    def collect_metrics(self) -> Iterator[Metric]:
        """Return six series for each client id."""
        now_s = trio.current_time()
        for client_id, client in self._clients.items():
            ahead = [until_s - now_s for until_s in client.muted_until.values() if until_s > now_s]
            totals = {
                "throttled_requests": client.throttled,
                "muted_seconds": client.muted_s - sum(ahead),
                "lost_connections": client.lost,
            }
            gauges = {
                "longest_throttle_seconds": client.longest_throttle_ms / 1000,
                "data_connections": len(client.muted_until),
                "muted_data_connections": len(ahead),
            }
            labels = {"client_id": client_id}
            for name, value in [*totals.items(), *gauges.items()]:
                yield Metric(name=f"demo_{name}", help=_HELP[name], value=value, total=name in totals, labels=labels)

    def _client(self, request: Request) -> _Client | None:
        connection_id = request.connection.connection_id
        client = self._owner.get(connection_id)
        if client is None:
            client = self._clients.get(request.client_id)
            if client is None:
                if len(self._clients) >= MAX_CLIENTS:
                    return None
                client = self._clients[request.client_id] = _Client()
            self._owner[connection_id] = client
            client.muted_until[connection_id] = -math.inf
        return client


_HELP: Final = {
    "throttled_requests": "Produce and Fetch requests that a quota throttled.",
    "muted_seconds": "Time that connections were not read because of a quota, added up over connections.",
    "lost_connections": "Closed connections that had sent Produce or Fetch.",
    "longest_throttle_seconds": "The longest throttle time so far.",
    "data_connections": "Open connections with Produce or Fetch.",
    "muted_data_connections": "Open connections with Produce or Fetch that are muted.",
}
