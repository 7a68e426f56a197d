"""What operators ask of a proxy, and what one process answers.

`Operations` is what the admin server needs of whoever stands behind it: the server of the only process
(`ServerOperations`, which also answers for one worker of several), or the supervisor, which asks all workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import trio

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace.proxy.admin.metrics_page import MetricsPage
    from headrace.proxy.connection.shared_state import SharedState
    from headrace.proxy.connection.state import ConnectionState


class Operations(Protocol):
    """What the pages of the admin server are made of."""

    @property
    def enforcement_enabled(self) -> bool:
        """Whether quotas are enforced."""

    async def not_live(self) -> list[str]:
        """Why the proxy should be started anew; empty when it need not."""

    async def not_ready(self) -> list[str]:
        """Why the proxy should get no traffic; empty when it should."""

    async def metrics(self) -> bytes:
        """The Prometheus page."""

    async def enforce(self, enabled: bool, by: str) -> None:
        """Turn enforcement on or off."""

    async def decisions(self, user: str | None, client_id: str | None, newest: int) -> dict[str, Any]:
        """What quotas decided lately (of a user and a client id, ``None`` is any), newest first, and who waits now."""


class ServerOperations:
    """The answers of one process. ``serving`` and ``draining`` are set by its server."""

    def __init__(self, shared: SharedState, connections: Collection[ConnectionState]) -> None:
        self.shared = shared
        self.serving = False
        self.draining = False
        self._connections = connections
        self._page: MetricsPage | None = None
        self._making = trio.Lock()

    @property
    def enforcement_enabled(self) -> bool:
        """Whether quotas are enforced."""
        return self.shared.enforcement.enabled

    async def not_live(self) -> list[str]:
        """Whoever can be asked lives."""
        return []

    async def not_ready(self) -> list[str]:
        """Draining, not open yet, or without a broker."""
        if self.draining:
            return ["the proxy is draining"]
        if not self.serving:
            return ["the listeners are not open"]
        if not await self.shared.upstream.answers():
            return ["no bootstrap server answers"]
        return []

    async def metrics(self) -> bytes:
        """The page of this process."""
        return await (await self._metrics_page()).render()

    async def worker_metrics(self) -> bytes:
        """The same for the supervisor."""
        return await (await self._metrics_page()).encoded()

    async def _metrics_page(self) -> MetricsPage:
        """Made when it is first asked for, in a thread, since that imports Prometheus' library: nobody pays for it who
        is not scraped."""
        async with self._making:
            if self._page is None:
                self._page = await trio.to_thread.run_sync(self._make_page)
            return self._page

    def _make_page(self) -> MetricsPage:
        from headrace.proxy.admin.metrics_page import MetricsPage

        return MetricsPage(self.shared, self._connections)

    async def enforce(self, enabled: bool, by: str) -> None:
        """As `switch_enforcement`."""
        self.switch_enforcement(enabled, by)

    def switch_enforcement(self, enabled: bool, by: str) -> None:
        """Turn enforcement on or off; off also ends the mutes that have begun."""
        self.shared.enforcement.switch(enabled=enabled, by=by)
        if not enabled:
            for connection in self._connections:
                connection.release()

    async def decisions(self, user: str | None, client_id: str | None, newest: int) -> dict[str, Any]:
        """What was decided here, and who waits here."""
        return self.decisions_at(self.shared.clock(), user, client_id, newest)

    def decisions_at(self, now_s: float, user: str | None, client_id: str | None, newest: int) -> dict[str, Any]:
        """The same, with ages as they are at ``now_s`` by the loop's clock, which workers have in common."""
        waiting = [connection.waiting(now_s) for connection in self._connections if connection.mute.until_s > now_s]
        return {
            "waiting": [
                each for each in waiting if user in (None, each["user"]) and client_id in (None, each["client_id"])
            ],
            "decisions": self.shared.decisions.page(now_s, user=user, client_id=client_id, newest=newest),
        }
