"""Which quotas the loaded plugins enforce, and the callbacks for entity types of plugins.

Called by `headrace.proxy.hooks.calls` once, after `headrace.proxy.hooks.quota_schema` has combined the definitions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.proxy.errors import StartupError
from headrace.proxy.hooks.plugin_errors import description
from headrace.quota_callbacks.buckets.quota_scope import QuotaScope
from headrace.quota_callbacks.entities import quota_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace.proxy.hooks.implementations import Implementations
    from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
    from headrace.quota_callbacks.definitions import QuotaSchema
    from headrace.quota_callbacks.entities import QuotaEntity


@dataclass(frozen=True, slots=True, kw_only=True)
class EnforcedQuotas:
    """Which quotas the loaded plugins enforce."""

    keys: frozenset[str] = frozenset()
    """The quota keys that at least one callback enforces for users, client ids and pairs."""
    of_types: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The keys that callbacks enforce for each entity type of a plugin that leaves it to them (``metric_tags``)."""

    def of(self, entity: QuotaEntity) -> frozenset[str] | None:
        """Return the keys that are enforced for an entity; ``None`` if a plugin enforces all keys of its entity
        type."""
        if not entity.other:
            return self.keys
        (first, _), *others = entity.parts()
        return None if others else self.of_types.get(first)


def enforced_quotas(schema: QuotaSchema, quotas: ClientQuotas | None, found: Implementations) -> EnforcedQuotas:
    """Return which quotas the plugins enforce. Add the callbacks of entity types with ``metric_tags`` to ``found``.

    ``quotas`` are the buckets; without them no callback is added. Raises `StartupError` for a plugin that raises, for a
    key that does not exist, and for a callback without valid hooks.
    """
    by_plugin = {name: _enforced_by(name, call, schema) for name, call in found.calls("enforced_quotas", ())}
    all_keys: frozenset[str] = frozenset().union(*by_plugin.values())
    of_types: dict[str, frozenset[str]] = {}
    for entity_type in schema.entity_types.values():
        if quotas is None or entity_type.metric_tags is None:
            continue
        kind = frozenset({entity_type.name})
        scope = QuotaScope(entity_type.name, frozenset(schema.keys_of(kind)), quotas, entity_type.metric_tags)
        enforced = {key for key in scope.keys & all_keys if kind in schema.keys[key].entity_types}  # they name the type
        for name, call in found.calls("scoped_callback", ("scope",)):
            if _add_scoped(name, call, scope, found):
                enforced |= by_plugin.get(name, frozenset()) & scope.keys
        of_types[entity_type.name] = frozenset(enforced)
    return EnforcedQuotas(keys=all_keys, of_types=of_types)


def _enforced_by(plugin: str, call: Callable[[], Iterable[str]], schema: QuotaSchema) -> frozenset[str]:
    try:
        keys = frozenset(quota_key(key) for key in call())
        if unknown := keys - schema.keys.keys():
            raise ValueError(f"there is no quota key {min(unknown)!r}")  # noqa: TRY301
    except BaseException as error:
        raise StartupError(f"plugin {plugin!r}: enforced_quotas: {type(error).__name__}: {error}") from error  # noqa: ASYNC104
    return keys


def _add_scoped(plugin: str, call: Callable[[QuotaScope], object], scope: QuotaScope, found: Implementations) -> bool:
    """Add the callback of a plugin for ``scope``; return false if it has none."""
    try:
        callback = call(scope)
        if callback is None:
            return False
        found.add_scoped(f"{plugin} for {scope.entity_type}", callback)
    except BaseException as error:
        raise StartupError(f"plugin {plugin!r}: scoped_callback: {description(error)}") from error  # noqa: ASYNC104
    return True
