"""Combining the quota keys and entity types of all plugins with the built-in ones.

Called by `headrace.proxy.hooks.calls` once, after the plugins were configured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.proxy.errors import StartupError
from headrace.proxy.hooks.plugin_errors import description
from headrace.quota_callbacks.definitions import (
    BUILTIN_SCHEMA,
    EntityTypeDefinition,
    QuotaKeyDefinition,
    QuotaSchema,
)
from headrace.quota_callbacks.entities import quota_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Definition = QuotaKeyDefinition | EntityTypeDefinition


def combined_schema(calls: Iterable[tuple[str, Callable[[], Iterable[Definition] | None]]]) -> QuotaSchema:
    """Return the built-in schema with the definitions of all plugins, given their names and hooks.

    Raises `StartupError` for a plugin that raises, for an invalid definition, and for a name that is defined twice. The
    error names the plugin, or both plugins.
    """
    by_plugin = {name: _definitions(name, call) for name, call in calls}
    owners: dict[tuple[type[Any], str], str] = {}
    for plugin, definitions in by_plugin.items():
        for each in definitions:
            _check_owner(plugin, each, owners.setdefault((type(each), each.name), plugin))
    all_of_them = [each for definitions in by_plugin.values() for each in definitions]
    try:
        return BUILTIN_SCHEMA.extended(all_of_them)
    except ValueError as error:
        raise StartupError(_invalid(by_plugin, str(error))) from error


def enforced_by(plugin: str, call: Callable[[], Iterable[str]], schema: QuotaSchema) -> frozenset[str]:
    """Return the quota keys that a plugin enforces. Raises `StartupError` for a key that does not exist, too."""
    try:
        keys = frozenset(quota_key(key) for key in call())
        if unknown := keys - schema.keys.keys():
            raise ValueError(f"there is no quota key {min(unknown)!r}")  # noqa: TRY301
    except BaseException as error:
        raise StartupError(f"plugin {plugin!r}: enforced_quotas: {type(error).__name__}: {error}") from error  # noqa: ASYNC104
    return keys


def _definitions(plugin: str, call: Callable[[], Iterable[Definition] | None]) -> tuple[Definition, ...]:
    try:
        found = tuple(call() or ())
        for each in found:
            if not isinstance(each, QuotaKeyDefinition | EntityTypeDefinition):
                raise TypeError(f"{each!r} is neither a QuotaKeyDefinition nor an EntityTypeDefinition")  # noqa: TRY301
    except BaseException as error:
        raise StartupError(f"plugin {plugin!r}: quota_definitions: {description(error)}") from error  # noqa: ASYNC104
    return found


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
