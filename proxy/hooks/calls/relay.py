"""Calling the hooks that decide which requests are relayed natively, and on which terms.

A part of `hook_calls`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from headrace.quota_callbacks.relay_terms import RelayTerms

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.hooks.implementations import Implementations, Interests
    from headrace.quota_callbacks.requests import Request

_REQUEST_HOOKS: Final = {
    "request_received": ("request", "now_ms"),
    "request_arrived": ("request", "now_ms"),
    "batches_received": ("request", "now_ms"),
    "records_fetched": ("request", "now_ms"),
    "response_received": ("request", "now_ms"),
}
"""The hooks that are called for each request before it is completed, with their arguments."""

_NAMES: Final = tuple(field.name for field in fields(RelayTerms))


class RelayCalls:
    """The calls of the hooks that give the terms of requests for which no plugin is called."""

    def __init__(
        self,
        found: Implementations,
        failed: Callable[[str, str, BaseException], None],
        interests: Interests,
        completed: frozenset[int],
    ) -> None:
        """``failed`` is called with a hook, the plugin's name and what it raised; ``completed`` are the APIs of which
        each completed request has to be reported by itself."""
        self._failed = failed
        self._terms = found.calls("relay_terms", ("request", "now_ms"))
        self._costs = found.calls("request_costs", ("api_key",))
        offering = {name for name, _ in self._terms}
        called = set(completed)
        for hook, arguments in _REQUEST_HOOKS.items():
            for api_key, calls in found.by_api(hook, arguments, interests).items():
                if any(name not in offering for name, _ in calls):
                    called.add(api_key)
        self.called: frozenset[int] = frozenset(called)
        """The APIs for each of whose requests a plugin has to be called."""
        estimating = [name for name, _ in found.calls("request_time_ms", ("request",))]
        self.has_linear_costs = estimating == [name for name, _ in self._costs]
        """Whether `costs` has the estimates of ``request_time_ms``."""

    def costs(self, api_key: int) -> tuple[float, float]:
        """Return the estimated thread time of a request in milliseconds, and of each KiB; 0 if no plugin has any."""
        for name, call in self._costs:
            try:
                found: Any = call(api_key)
                if found is not None:
                    return float(found[0]), float(found[1])
            except BaseException as error:  # noqa: ASYNC103, BLE001 -- code of a plugin
                self._failed("request_costs", name, error)
        return 0.0, 0.0

    def terms(self, request: Request, now_ms: int) -> RelayTerms | None:
        """Return the terms of all plugins together; ``None`` if the connection must not be relayed natively.

        Also return ``None`` if two plugins charge the same quantity, such as the bytes produced, to different buckets,
        such as those of a user and its team.
        """
        answers: list[RelayTerms | None] = []
        for name, call in self._terms:
            try:
                answers.append(call(request, now_ms))
            except BaseException as error:  # noqa: ASYNC103, BLE001 -- code of a plugin
                self._failed("relay_terms", name, error)
                answers.append(None)
        together: dict[str, Any] = {}
        for terms in answers:
            if terms is None:
                return None
            for each in _NAMES:
                value = getattr(terms, each)
                if value is not None and value is not False:
                    if each in together:
                        return None
                    together[each] = value
        return RelayTerms(**together)
