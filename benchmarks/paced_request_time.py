"""A plugin that adds up the request time charged to one client id, which a client cannot measure.

Loaded into the proxy by `benchmarks.paced` (``plugins.load``); exports ``headrace_measured_request_time_total``, in
percent of a thread times seconds. It is called before the built-in callback resets the connection's own thread time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.hookspecs import HOOK_VERSION, Metric, PluginContext, hookimpl
from headrace.quota_callbacks.requests import PERCENT_PER_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.quota_callbacks.requests import Request

CLIENT_ID: Final = "paced-time"
METRIC: Final = "measured_request_time"


class RequestTimeMeter:
    """A callback that adds up request time, and never throttles."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self._estimate_ms: Callable[[Request], float | None]
        self._charged = 0.0

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Keep the active cost model."""
        self._estimate_ms = context.request_time_ms

    @hookimpl(tryfirst=True)
    def response_received(self, request: Request) -> None:
        """Add the handler's time and the proxy's own thread time."""
        if request.client_id == CLIENT_ID:
            handler_ms = self._estimate_ms(request) or 0.0
            self._charged += (handler_ms * 1e6 + request.connection.thread_ns) * PERCENT_PER_NS

    @hookimpl
    def collect_metrics(self) -> Iterator[Metric]:
        """Return the sum."""
        yield Metric(name=METRIC, help="Request time charged, in percent x seconds.", value=self._charged, total=True)


PLUGIN = RequestTimeMeter()
