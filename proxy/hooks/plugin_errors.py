"""Which exceptions of plugins are caught, which propagate, and how they are described.

Called by `headrace.proxy.hooks.calls`, `headrace.proxy.hooks.loading` and `headrace.proxy.connection`. The code of a
plugin may raise anything: ``SystemExit`` and ``KeyboardInterrupt`` are errors of the plugin, too, and end neither the
proxy nor a connection. Only trio's cancellation, which belongs to the proxy, passes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import trio

from headrace.quota_callbacks.hookspecs import Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace.quota_callbacks.options import Fault, Table


OPTIONS: Final = ("plugins", "options")
"""The path of the table that has a table of options for each plugin."""


def raise_cancellation(error: BaseException) -> None:
    """Raise trio's cancellation if ``error`` is one or contains one; else return."""
    if isinstance(error, trio.Cancelled):
        raise error
    if isinstance(error, BaseExceptionGroup) and (cancelled := error.subgroup(trio.Cancelled)) is not None:
        raise cancelled


def description(error: BaseException) -> str:
    """Return the message of an exception; the name of its class where the message alone would not suffice."""
    return str(error) if isinstance(error, Exception) and str(error) else f"{type(error).__name__}: {error}"


def configuration_problem(name: str, error: BaseException, options: Mapping[str, Any]) -> str:
    """Return the message for a plugin whose ``configure`` raised; it contains no secret of the plugin's ``options``.

    A plugin's message may repeat a value: pydantic's own messages do.
    """
    from headrace.quota_callbacks.options import OptionsError  # here, since pydantic costs memory and time
    from headrace.quota_callbacks.value_texts import without_secrets

    if isinstance(error, OptionsError):
        error = OptionsError(_in_table_of(name, each) for each in error.faults)
    return f"plugin {name!r}: {without_secrets(description(error), options)}"


def configuration_faults(name: str, error: BaseException, options: Mapping[str, Any]) -> list[Fault]:
    """Return the errors of a plugin whose ``configure`` raised, without secrets: a fault for each invalid option, with
    its path, or else one fault without a path."""
    from headrace.quota_callbacks.options import Fault, OptionsError
    from headrace.quota_callbacks.value_texts import without_secrets

    if not isinstance(error, OptionsError):
        return [Fault(rule=configuration_problem(name, error, options))]
    faults = []
    for each in error.faults:
        fault = _in_table_of(name, each)
        found = without_secrets(fault.found, options) if isinstance(fault.found, str) else fault.found
        faults.append(replace(fault, rule=without_secrets(fault.rule, options), found=found))
    return faults


def _in_table_of(name: str, fault: Fault) -> Fault:
    """Return a fault with the path that the plugin ``name`` has in the configuration: the author of a plugin does not
    know whether it is loaded by its entry point or as ``module:Class``."""
    from headrace.quota_callbacks.value_texts import dotted

    given, actual = fault.path[: len(OPTIONS) + 1], (*OPTIONS, name)
    if given[:-1] != OPTIONS or given == actual:
        return fault
    first = fault.first
    if first is not None and first[: len(given)] == given:
        first = (*actual, *first[len(given) :])
    rule = fault.rule.replace(dotted(given), dotted(actual))
    return replace(fault, path=(*actual, *fault.path[len(given) :]), first=first, rule=rule)


def checked_table(found: object) -> type[Table] | None:
    """Return what a plugin's ``options_table`` has returned. Raises `TypeError` if it is not a class of options."""
    from headrace.quota_callbacks.options import Table  # here, since pydantic costs memory and time

    if found is None or (isinstance(found, type) and issubclass(found, Table)):
        return found
    raise TypeError(f"options_table returned {found!r}; expected a subclass of Table")


def collected(call: Callable[[], Iterable[Metric] | None]) -> tuple[Metric, ...]:
    """Return the metrics of one plugin. Runs a generator of the plugin here, where its exceptions are caught."""
    found = tuple(call() or ())
    for each in found:
        if not isinstance(each, Metric):
            raise TypeError(f"collect_metrics returned {each!r}; expected objects of the class Metric")
    return found
