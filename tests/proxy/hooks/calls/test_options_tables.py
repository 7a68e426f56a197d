"""The hook ``options_table``: the classes of the options of plugins, for the JSON Schema."""

from __future__ import annotations

from typing import Any

from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.options import Table


class Options(Table):
    """The options of a plugin."""


class Plugin:
    """Returns ``table``, or raises it."""

    headrace_hooks = HOOK_VERSION

    def __init__(self, table: Any) -> None:
        self._table = table

    @hookimpl
    def options_table(self) -> Any:
        if isinstance(self._table, Exception):
            raise self._table
        return self._table


def test_a_plugin_without_a_table_or_with_an_error_has_none() -> None:
    manager = new_plugin_manager()
    for name, table in (("one", Options), ("two", None), ("three", RuntimeError("no table")), ("four", dict)):
        manager.register(Plugin(table), name)
    hooks = HookCalls(manager)
    assert hooks.configuration.options_tables() == {"one": Options}
    assert hooks.errors == 2
