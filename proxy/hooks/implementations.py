"""The hook implementations of all registered plugins, in the order in which they are called.

Used by `calls.hook_calls`, which builds flat lists of them once after registration.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headrace.proxy.errors import StartupError
from headrace.proxy.hooks.plugin_errors import description
from headrace.quota_callbacks.api_keys import EVERY_API

if TYPE_CHECKING:
    from collections.abc import Callable

    import pluggy

    from headrace.proxy.hooks.slow_calls import SlowCalls
    from headrace.quota_callbacks.requests import Detail, Interest

Call: TypeAlias = "tuple[str, Callable[..., Any]]"
"""A plugin's name and its implementation of a hook."""
Calls: TypeAlias = "tuple[Call, ...]"
Interests: TypeAlias = "dict[str, dict[int, Interest]]"
"""The requests that plugins ask for, by plugin name and API key."""

SCOPED_HOOKS: Final = frozenset(
    {
        *("request_interest", "mutation_budget", "request_received", "request_arrived", "batches_received"),
        *("records_fetched", "response_received", "request_abandoned", "request_denied", "relay_terms"),
    }
)
"""The hooks of scoped callbacks that are called."""
_AT_THE_END: Final = frozenset({"request_completed", "requests_completed"})
_NAMED: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Implementations:
    """The implementations of the plugins of ``manager``. Their calls are measured by ``slow_calls``."""

    def __init__(self, manager: pluggy.PluginManager, slow_calls: SlowCalls) -> None:
        self._manager = manager
        self._slow_calls = slow_calls
        self._scoped: list[tuple[str, object]] = []

    def add_scoped(self, name: str, callback: object) -> None:
        """Add a callback for the buckets of an entity type of a plugin (the hook `scoped_callback`).

        Raises `ValueError` if it implements none of `SCOPED_HOOKS`, or one with an argument that the hook does not
        have.
        """
        implemented = [hook for hook in sorted(SCOPED_HOOKS) if self._implements(callback, hook)]
        if not implemented:
            raise ValueError(f"{callback!r} has no hook of requests that is marked with hookimpl")
        for hook in implemented:
            known = getattr(self._manager.hook, hook).spec.argnames
            for each in _arguments(getattr(callback, hook)):
                if each not in known:
                    raise ValueError(f"{hook} of {callback!r} has the argument {each!r}; known are {', '.join(known)}")
        self._scoped.append((name, callback))

    def calls(self, hook: str, names: tuple[str, ...]) -> Calls:
        """Return the implementations in pluggy's order, and then those of scoped callbacks.

        Pluggy's order is the last registered first, with ``tryfirst`` and ``trylast`` applied. The implementations are
        called with the arguments ``names``.
        """
        caller = getattr(self._manager.hook, hook)
        found = [(each.plugin_name, each.function) for each in reversed(caller.get_hookimpls())]
        if hook in SCOPED_HOOKS:
            found += [(name, getattr(each, hook)) for name, each in self._scoped if self._implements(each, hook)]
        calls = []
        for name, function in found:
            call = _with_arguments(function, names)
            calls.append((name, self._slow_calls.measured(name, hook, call)))
        return tuple(calls)

    def _implements(self, callback: object, hook: str) -> bool:
        return hasattr(callback, hook) and self._manager.parse_hookimpl_opts(callback, hook) is not None

    def interests(self) -> Interests:
        """Return the interests of plugins that implement ``request_interest``; others subscribe to all APIs.

        Raises `StartupError` for a plugin that raises.
        """
        declared: Interests = {}
        for name, call in self.calls("request_interest", ()):
            try:
                declared[name] = {interest.api_key: interest for interest in call()}
            except BaseException as error:
                raise StartupError(f"plugin {name!r}: request_interest: {description(error)}") from error  # noqa: ASYNC104
        return declared

    def by_api(self, hook: str, names: tuple[str, ...], interests: Interests) -> dict[int, Calls]:
        """Return the implementations by the API keys that their plugins have declared an interest in."""
        by_api: dict[int, list[Call]] = {}
        for name, call in self.calls(hook, names):
            declared = interests.get(name)
            for api_key in EVERY_API:
                if declared is None or _subscribes(declared.get(api_key), hook):
                    by_api.setdefault(api_key, []).append((name, call))
        return {api_key: tuple(calls) for api_key, calls in by_api.items()}


def api_keys_with_detail(detail: Detail, interests: Interests) -> frozenset[int]:
    """Return the API keys for which at least one plugin requires ``detail``."""
    return frozenset(key for declared in interests.values() for key, each in declared.items() if each.detail is detail)


def _subscribes(interest: Interest | None, hook: str) -> bool:
    return interest is not None and (hook in _AT_THE_END or not interest.end_only)


def _arguments(function: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that ``function`` requires."""
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.default is each.empty and each.kind in _NAMED]


def _with_arguments(function: Callable[..., Any], passed: tuple[str, ...]) -> Callable[..., Any]:
    """Return a function that takes all of ``passed`` in order and passes on those that ``function`` declares."""
    if tuple(inspect.signature(function).parameters) == passed:
        return function
    names = _arguments(function)
    picks = [passed.index(name) for name in names]
    return lambda *arguments: function(**{name: arguments[pick] for name, pick in zip(names, picks, strict=True)})
