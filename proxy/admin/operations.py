"""The operations that operators can perform on the proxy. Called by the admin server, and at a reload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from headrace.proxy.counters import AdminCounters
from headrace.quota_callbacks.entities import bounded_name

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace.proxy.admin.metrics_page import MetricsPage
    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.connection.state.shared_state import SharedState
    from headrace.proxy.network.listener import Dialler

MOST_CHANGES: Final = 10_000
"""Maximum number of changes of quotas in one page."""


class Operations:
    """The operations on the proxy. The server sets ``serving`` and ``draining``.

    ``awaited`` is what may have to be waited for before the proxy serves; empty if nothing.
    """

    def __init__(self, shared: SharedState, connections: Collection[ConnectionState], awaited: str = "") -> None:
        self.shared = shared
        self._awaited = awaited
        self.serving = False
        self.draining = False
        self._connections = connections
        self.admin_counters = AdminCounters()
        self._page: MetricsPage | None = None

    @property
    def enforcement_enabled(self) -> bool:
        """Whether quotas are enforced."""
        return self.shared.enforcement.enabled

    @property
    def hanging(self) -> str:
        """Which thread of the native data plane does not answer, and since when; empty if all do."""
        return "" if self.shared.data_plane is None else self.shared.data_plane.watch.problem

    async def not_ready(self) -> list[str]:
        """Return the reasons why the proxy should get no traffic, none when it is ready: it is draining, its listeners
        are not open, a thread of the data plane hangs, a plugin has a reason, or the brokers would serve no client
        (`Dialler.problem`).
        """
        if self.draining:
            return ["the proxy is draining"]
        if not self.serving:
            return [self._awaited or "the listeners are not open"]
        problems: list[str] = []

        async def ask(upstream: Dialler) -> None:
            if problem := await upstream.problem():
                problems.append(problem)

        async with trio.open_nursery() as nursery:  # at once: each may take as long as the attempts to connect
            for upstream in {each.upstream.setting: each.upstream for each in self.shared.listeners}.values():
                nursery.start_soon(ask, upstream)
        hanging = [self.hanging] if self.hanging else []
        return hanging + self.shared.hooks.not_ready() + sorted(problems)

    async def metrics(self) -> bytes:
        """Return the Prometheus page. Calls must not overlap.

        The module that makes it is imported at the first call, in a thread, so that a proxy that is never scraped does
        not import prometheus_client.
        """
        if self._page is None:
            self._page = await trio.to_thread.run_sync(self._make_page)
        return await self._page.render()

    def _make_page(self) -> MetricsPage:
        from headrace.proxy.admin.metrics_page import MetricsPage

        return MetricsPage(self.shared, self._connections, self.admin_counters)

    def enforce(self, enabled: bool, by: str) -> None:
        """Turn enforcement on or off; turning it off also unmutes the connections that are muted.

        ``by`` names the operator's address or another cause, for the log.
        """
        self.shared.enforcement.switch(enabled=enabled, by=by)
        if not enabled:
            for connection in self._connections:
                connection.release()
            if self.shared.hooks.quotas is not None:
                self.shared.hooks.quotas.end_waits()

    async def quota_changes(self, newest: int, before: int | None) -> dict[str, Any]:
        """Return the page ``/quotas/audit``: the ``newest`` changes of quotas before the position ``before``."""
        if self.shared.client_quotas is None:
            return {"changes": [], "problem": "the brokers answer requests for quotas, not this proxy"}
        return await self.shared.client_quotas.audit(newest=newest, before=before)

    def decisions(self, user: str | None, client_id: str | None, newest: int) -> dict[str, Any]:
        """Return the page ``/decisions``.

        ``decisions`` are the ``newest`` decisions of quotas, newest first, with the ``unit`` of each key that has one;
        ``waiting`` are the connections muted now. Both are limited to ``user`` and ``client_id``; ``None`` stands for
        any.
        """
        now_s = self.shared.clock()
        user, client_id = (None if each is None else bounded_name(each) for each in (user, client_id))
        waiting = [
            muted_client(connection, now_s) for connection in self._connections if connection.mute.until_s > now_s
        ]
        decisions = self.shared.decisions.page(now_s, user=user, client_id=client_id, newest=newest)
        keys = self.shared.hooks.schema.keys
        for row in decisions:
            definition = keys.get(str(row["quota"]))
            row["unit"] = "" if definition is None else definition.unit
        return {
            "waiting": [
                each for each in waiting if user in (None, each["user"]) and client_id in (None, each["client_id"])
            ],
            "decisions": decisions,
        }


def muted_client(connection: ConnectionState, now_s: float) -> dict[str, object]:
    """Describe a muted client and its remaining time, for ``/decisions``."""
    mute, current = connection.mute, connection.current
    return {
        "peer": str(connection.info.peer),
        "user": connection.info.user,
        "client_id": current.client_id if current is not None else "",
        "quota": mute.quota or "the broker's own",
        "entity": mute.entity,
        "remaining_ms": mute.remaining_ms(now_s),
    }
