"""Measuring how long plugins hold the event loop, since a plugin that blocks it stalls all clients.

Only hooks of plugins that do not ship as built-in callbacks are measured: two readings of the clock a call. Called by
`headrace.proxy.hooks.calls`.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import structlog

from headrace.proxy.repeated_lines import RepeatedLines

if TYPE_CHECKING:
    from collections.abc import Callable

log = structlog.get_logger("headrace.plugins")

NOT_MEASURED: Final = frozenset({"configure", "close", "prepare_metrics", "request_interest", "enforced_quotas"})
"""Hooks that are called before clients are served, in a thread, or asynchronously."""

_BUILT_IN: Final = "headrace.quota_callbacks.builtin."


class SlowCalls:
    """Counts the calls that take longer than ``plugins.slow_call``, and logs them once a minute by plugin and hook."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        """``plugins.slow_call`` in seconds."""
        self.counts: dict[str, int] = {}
        """Number of slow calls, by plugin name."""
        self._repeated = RepeatedLines()

    def measured(self, plugin: str, hook: str, call: Callable[..., Any], module: str) -> Callable[..., Any]:
        """Return ``call``, which ``module`` implements, with its time measured if that is of interest."""
        if hook in NOT_MEASURED or module.startswith(_BUILT_IN):
            return call

        def measure(*arguments: object) -> Any:
            began_s = monotonic()
            try:
                return call(*arguments)
            finally:
                took_s = monotonic() - began_s
                if took_s > self.limit_s:
                    self._note(plugin, hook, took_s)

        return measure

    def _note(self, plugin: str, hook: str, took_s: float) -> None:
        self.counts[plugin] = self.counts.get(plugin, 0) + 1
        left_out = self._repeated.due("slow call", plugin, hook)
        if left_out is not None:
            log.warning(
                "a plugin held the event loop",
                plugin=plugin,
                hook=hook,
                took_ms=round(took_s * 1000),
                limit=f"plugins.slow_call = {self.limit_s * 1000:g} ms",
                left_out=left_out or None,
            )
