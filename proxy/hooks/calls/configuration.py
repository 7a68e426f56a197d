"""Calling the hooks for the options of plugins, at the start and at a reload; part of `hook_calls`.

Whatever a plugin raises becomes a `PluginConfigurationError`, except in `options_table` and in a function that puts
changed options into force, whose exceptions are logged and counted.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.proxy.errors import PluginConfigurationError
from headrace.proxy.hooks.plugin_errors import checked_table, configuration_faults, configuration_problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from headrace.proxy.hooks.implementations import Implementations
    from headrace.proxy.hooks.slow_calls import SlowCalls
    from headrace.quota_callbacks.hookspecs import PluginContext
    from headrace.quota_callbacks.options import Fault, Table

    Options = Mapping[str, Mapping[str, Any]]
    """The options of plugins, by plugin name."""
    RunOnLoop = Callable[[Callable[[], Awaitable[None]]], None]

_CHANGED: Final = "changed_options"


class ConfigurationCalls:
    """The implementations of `configure`, `options_table` and `changed_options`.

    ``failed`` logs and counts an exception by hook and plugin name.
    """

    def __init__(
        self, found: Implementations, failed: Callable[[str, str, BaseException], None], slow_calls: SlowCalls
    ) -> None:
        self._found = found
        self._failed = failed
        self._slow_calls = slow_calls

    def configure(self, options: Options, context: PluginContext) -> None:
        """Call ``configure`` of every plugin with its options.

        ``context`` has everything that all plugins share. Raises `PluginConfigurationError` with the plugin's name and
        its error: for the first plugin that raises, or for all of them, one below the other, if ``context.dry`` is
        true.
        """
        problems: list[str] = []
        faults: list[Fault] = []
        for name, call in self._found.calls("configure", ("context",)):
            try:
                run_on_loop = partial(self._run_measured, name, context.run_on_loop)
                call(replace(context, options=options.get(name, {}), run_on_loop=run_on_loop))
            except BaseException as error:  # noqa: ASYNC103 -- see plugin_errors
                problems.append(configuration_problem(name, error, options.get(name, {})))
                faults += configuration_faults(name, error, options.get(name, {}))
                if not context.dry:
                    raise PluginConfigurationError(problems[0], faults) from error  # noqa: ASYNC104
        if problems:
            raise PluginConfigurationError("\n".join(problems), faults)

    def options_tables(self) -> dict[str, type[Table]]:
        """Return the classes of the options of plugins, by plugin name."""
        found: dict[str, type[Table]] = {}
        for name, call in self._found.calls("options_table", ()):
            try:
                table = checked_table(call())
            except BaseException as error:  # noqa: ASYNC103, BLE001 -- code of a plugin
                self._failed("options_table", name, error)
                continue  # noqa: ASYNC104
            if table is not None:
                found[name] = table
        return found

    def changed_options(self, before: Options, after: Options) -> dict[str, Callable[[], bool]]:
        """Call ``changed_options`` of every plugin whose options differ. Blocks; call it in a thread.

        Returns the functions that put them into force, by plugin name; the options of other plugins need a restart. A
        function returns whether the plugin's own one succeeded; its exception is logged and counted.
        Raises `PluginConfigurationError` with the errors of all plugins.
        """
        found: dict[str, Callable[[], bool]] = {}
        problems: list[str] = []
        faults: list[Fault] = []
        for name, call in self._found.calls(_CHANGED, ("options",)):
            options = after.get(name, {})
            if options == before.get(name, {}):
                continue
            try:
                function = call(options)
                if function is not None:
                    found[name] = partial(
                        self._put_into_force, name, self._slow_calls.measured(name, _CHANGED, function)
                    )
            except BaseException as error:  # noqa: ASYNC103, BLE001 -- see plugin_errors
                problems.append(configuration_problem(name, error, options))
                faults += configuration_faults(name, error, options)
        if problems:
            raise PluginConfigurationError("\n".join(problems), faults)
        return found

    def _put_into_force(self, name: str, function: Callable[[], None]) -> bool:
        try:
            function()
        except BaseException as error:  # noqa: ASYNC103, BLE001 -- code of a plugin
            self._failed(_CHANGED, name, error)
            return False  # noqa: ASYNC104
        return True

    def _run_measured(self, name: str, run: RunOnLoop, function: Callable[[], Awaitable[None]]) -> None:
        run(lambda: self._slow_calls.measured_steps(name, "run_on_loop", function()))
