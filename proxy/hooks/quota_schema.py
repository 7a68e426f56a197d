"""Combining the quota keys and entity types of all plugins with the built-in ones.

Called by `headrace.proxy.hooks.calls` once, after the plugins were configured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from headrace.proxy.errors import StartupError
from headrace.proxy.hooks.plugin_errors import description
from headrace.quota_callbacks.definitions import (
    BUILTIN_SCHEMA,
    EntityTypeDefinition,
    QuotaKeyDefinition,
    QuotaSchema,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.proxy.hooks.slow_calls import SlowCalls

    Definition = QuotaKeyDefinition | EntityTypeDefinition
    Failed = Callable[[str, str, BaseException], None]

CHECK: Final = "quota_definitions"
METRIC_TAGS: Final = "metric_tags"
"""The names under which exceptions and slow calls of a definition's functions are logged, in place of a hook's name."""


def combined_schema(
    calls: Iterable[tuple[str, Callable[[], Iterable[Definition] | None]]], failed: Failed, slow_calls: SlowCalls
) -> QuotaSchema:
    """Return the built-in schema with the definitions of all plugins, given their names and hooks.

    A definition's ``check`` that raises anything but `ValueError` refuses the name or value, and no quota of an entity
    type applies whose ``metric_tags`` raises or returns invalid tags. ``failed`` is then called with the name of a hook
    (`CHECK`, `METRIC_TAGS`), that of the plugin, and the exception; for a check possibly in a thread.

    Raises `StartupError` for a plugin that raises, for an invalid definition, and for a name that is defined twice. The
    error names the plugin, or both plugins.
    """
    by_plugin = {name: _definitions(name, call) for name, call in calls}
    owners: dict[tuple[type[Any], str], str] = {}
    for plugin, definitions in by_plugin.items():
        for each in definitions:
            _check_owner(plugin, each, owners.setdefault((type(each), each.name), plugin))
    all_of_them = [
        _with_guarded_tags(_with_guarded_check(each, plugin, failed, slow_calls), plugin, failed, slow_calls)
        for plugin, definitions in by_plugin.items()
        for each in definitions
    ]
    try:
        return BUILTIN_SCHEMA.extended(all_of_them)
    except ValueError as error:
        raise StartupError(_invalid(by_plugin, str(error))) from error


def _definitions(plugin: str, call: Callable[[], Iterable[Definition] | None]) -> tuple[Definition, ...]:
    try:
        found = tuple(call() or ())
        for each in found:
            if not isinstance(each, QuotaKeyDefinition | EntityTypeDefinition):
                raise TypeError(f"{each!r} is neither a QuotaKeyDefinition nor an EntityTypeDefinition")  # noqa: TRY301
    except BaseException as error:
        raise StartupError(f"plugin {plugin!r}: quota_definitions: {description(error)}") from error  # noqa: ASYNC104
    return found


def _with_guarded_check(definition: Definition, plugin: str, failed: Failed, slow_calls: SlowCalls) -> Definition:
    """Return the definition with a check that is measured, and raises nothing but `ValueError`."""
    if definition.check is None:
        return definition
    check = slow_calls.measured(plugin, CHECK, definition.check)

    def guarded(*arguments: object) -> None:
        try:
            check(*arguments)
        except ValueError:
            raise
        except BaseException as error:  # noqa: ASYNC103 -- code of a plugin
            failed(CHECK, plugin, error)
            raise ValueError(f"{definition.name} could not be checked, since its plugin has failed") from error  # noqa: ASYNC104

    changed: dict[str, Any] = {"check": guarded}  # its type depends on the class
    return replace(definition, **changed)


def _with_guarded_tags(definition: Definition, plugin: str, failed: Failed, slow_calls: SlowCalls) -> Definition:
    """Return the definition with a ``metric_tags`` that is measured, raises nothing, and returns valid tags only.

    Tags without the name of the type could be those of a user, who would then be charged twice.
    """
    if not isinstance(definition, EntityTypeDefinition) or definition.metric_tags is None:
        return definition
    name, metric_tags = definition.name, slow_calls.measured(plugin, METRIC_TAGS, definition.metric_tags)

    def guarded(key: str, user: str, client_id: str) -> Mapping[str, str] | None:
        try:
            tags: Mapping[str, str] | None = metric_tags(key, user, client_id)
            if tags is None or _are_valid(tags, name):
                return tags
            raise ValueError(f"metric_tags returned {tags!r:.200}; expected names by entity type, one of {name}")  # noqa: TRY301
        except BaseException as error:  # noqa: ASYNC103, BLE001 -- code of a plugin
            failed(METRIC_TAGS, plugin, error)
            return None  # noqa: ASYNC104

    return replace(definition, metric_tags=guarded)


def _are_valid(tags: object, entity_type: str) -> bool:
    return (
        isinstance(tags, Mapping)
        and entity_type in tags
        and all(isinstance(each, str) for pair in tags.items() for each in pair)
    )


def _check_owner(plugin: str, definition: Definition, owner: str) -> None:
    what = "quota key" if isinstance(definition, QuotaKeyDefinition) else "entity type"
    known = BUILTIN_SCHEMA.keys if isinstance(definition, QuotaKeyDefinition) else BUILTIN_SCHEMA.entity_types
    if definition.name in known:
        raise StartupError(f"plugin {plugin!r} defines the {what} {definition.name}, which is built in")
    if owner != plugin:
        raise StartupError(
            f"the plugins {owner!r} and {plugin!r} both define the {what} {definition.name}; disable one of them"
        )


def _invalid(by_plugin: dict[str, tuple[Definition, ...]], problem: str) -> str:
    """Return the message for an invalid definition, with the plugin that has it."""
    for plugin, definitions in by_plugin.items():
        if any(f" {each.name} " in f" {problem} " or repr(each.name) in problem for each in definitions):
            return f"plugin {plugin!r}: quota_definitions: {problem}"
    return f"quota_definitions: {problem}"
