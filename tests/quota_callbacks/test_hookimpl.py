"""`hookimpl` for classes compiled by mypyc, whose methods are method descriptors like those of built-in classes."""

from __future__ import annotations

import inspect
from typing import Any

import pluggy

from headrace.quota_callbacks.hookspecs import PROJECT, compiled_method, hookimpl

_implementations = pluggy.HookimplMarker(PROJECT)


def options(function: Any) -> dict[str, Any]:
    found: dict[str, Any] = getattr(function, f"{PROJECT}_impl")
    return found


def test_a_functions_options_are_pluggys() -> None:
    @hookimpl(tryfirst=True)
    def ours() -> None: ...

    @_implementations(tryfirst=True)
    def theirs() -> None: ...

    assert options(ours) == options(theirs)
    assert compiled_method(ours) is ours


def test_a_compiled_method_gets_a_function_with_its_arguments() -> None:
    function = hookimpl(str.removeprefix, trylast=True)
    assert function("headrace", "head") == "race"
    assert options(function)["trylast"]
    assert list(inspect.signature(function).parameters) == ["self", "prefix"]


class Plugin(str):
    """A plugin with a compiled method that is marked."""

    __slots__ = ()
    removeprefix = hookimpl(str.removeprefix)  # type: ignore[assignment]


def test_the_compiled_method_is_called_itself() -> None:
    plugin = Plugin("headrace")
    manager = pluggy.PluginManager(PROJECT)
    assert manager.parse_hookimpl_opts(plugin, "removeprefix") is not None
    direct = compiled_method(plugin.removeprefix)
    assert type(direct).__name__ == "builtin_function_or_method"
    assert direct("head") == "race"
