"""Calling the hooks for authorization; part of `hook_calls`.

A plugin that raises, or that does not return decisions, denies all actions that it was asked about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.proxy.errors import StartupError
from headrace.proxy.hooks.plugin_errors import description

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.proxy.hooks.implementations import Calls, Implementations
    from headrace.quota_callbacks.authorization import Action
    from headrace.quota_callbacks.requests import Connection

_AUTHORIZE = "authorize_requests"
_EXPLAIN = "explain_denial"

NO_RULE = "no plugin has allowed it"


class AuthorizationCalls:
    """The implementations of the three hooks. ``failed`` logs and counts an exception by hook and plugin name."""

    __slots__ = ("_authorize", "_explain", "_failed", "_found", "active")

    def __init__(self, found: Implementations, failed: Callable[[str, str, BaseException], None]) -> None:
        self._found = found
        self._failed = failed
        self._authorize: Calls = ()
        self._explain: Calls = ()
        self.active = False
        """Whether a plugin decides about requests. While it is false, requests are not read for it."""

    def flatten(self) -> None:
        """Build the flat lists. Call it after the plugins were configured.

        Raises `StartupError` for a plugin that raises in ``authorizes_requests``.
        """
        idle = {name for name, call in self._found.calls("authorizes_requests", ()) if not _asked(name, call)}
        calls = self._found.calls(_AUTHORIZE, ("connection", "actions"))
        self._authorize = tuple(each for each in calls if each[0] not in idle)
        self._explain = self._found.calls(_EXPLAIN, ("connection", "action"))
        self.active = bool(self._authorize)

    def authorize(self, connection: Connection, actions: Sequence[Action]) -> Sequence[bool]:
        """Return for each action whether it is allowed: by at least one plugin, and denied by none."""
        combined: Sequence[bool] | None = None
        for name, call in self._authorize:
            try:
                decided: object = call(connection, actions)
                if decided is None:
                    continue
                allowed = _checked(decided, len(actions))
            except BaseException as error:  # noqa: ASYNC103, BLE001 -- code of a plugin
                self._failed(_AUTHORIZE, name, error)
                return [False] * len(actions)  # noqa: ASYNC104
            combined = allowed if combined is None else [a and b for a, b in zip(combined, allowed, strict=True)]
        return [False] * len(actions) if combined is None else combined

    def explain(self, connection: Connection, action: Action) -> str:
        """Return the first plugin's explanation of a denial."""
        for name, call in self._explain:
            try:
                found = call(connection, action)
            except BaseException as error:  # noqa: ASYNC103, BLE001 -- code of a plugin
                self._failed(_EXPLAIN, name, error)
                continue  # noqa: ASYNC104
            if found is not None:
                return str(found)
        return NO_RULE


def _asked(name: str, call: Callable[[], bool]) -> bool:
    try:
        return bool(call())
    except BaseException as error:
        raise StartupError(f"plugin {name!r}: authorizes_requests: {description(error)}") from error  # noqa: ASYNC104


def _checked(decided: object, count: int) -> Sequence[bool]:
    if not isinstance(decided, list | tuple):
        raise TypeError(f"authorize_requests returned {decided!r}; expected a sequence of booleans, or None")
    if len(decided) != count:
        raise ValueError(f"authorize_requests returned {len(decided)} decisions for {count} actions")
    if any(each is not True and each is not False for each in decided):
        raise TypeError(f"authorize_requests returned {decided!r:.200}; expected booleans")
    return decided
