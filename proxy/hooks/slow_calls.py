"""Measuring how long plugins hold the event loop, since a plugin that blocks it stalls all clients.

Measuring takes two readings of the clock, and a request has up to six calls of built-in callbacks, whose work is
bounded by ``limits.max_request_rows``. So built-in callbacks are measured only in hooks that are not called for each
request; ``headrace_event_loop_lag_seconds`` contains the time of the others. Called by `headrace.proxy.hooks.calls`.
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

REQUEST_HOOKS: Final = frozenset(
    {
        *("request_received", "request_arrived", "batches_received", "response_received", "request_abandoned"),
        *("mutation_budget", "request_time_ms", "request_completed", "quota_metric_tags", "quota_limit"),
    }
)
"""Hooks that are called for requests or for the buckets that they are charged to."""

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
        if hook in NOT_MEASURED or (hook in REQUEST_HOOKS and module.startswith(_BUILT_IN)):
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
