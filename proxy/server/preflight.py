"""What a valid configuration file can still get wrong, found without opening a port: plugins and quotas that do not
fit.

Called by ``headrace check-config`` and by the server at start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.proxy.errors import StartupError
from headrace.proxy.hooks.calls import HookCalls
from headrace.proxy.hooks.loading import load_plugins, new_plugin_manager
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import ANONYMOUS, QuotaKey
from headrace.quota_callbacks.hookspecs import PluginContext

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.config.schema import Config
    from headrace.quota_callbacks.entities import QuotaEntity
    from headrace.quota_callbacks.policies import Quota

_NAMES_USERS: Final = "sasl_identity"
"""The plugin that finds out who a client is, unless ``plugins.load`` brings another."""


def problems_of(config: Config) -> list[str]:
    """Return why the proxy would not start: a plugin that is refused, or a quota that nobody enforces.

    Plugins are configured with ``dry`` set, so they start nothing, and closed again.
    """
    manager = new_plugin_manager()
    hooks = HookCalls(manager)
    try:
        load_plugins(manager, disabled=config.plugins.disabled, load=config.plugins.load)
        quotas = ClientQuotas(
            windows=dict.fromkeys(QuotaKey, Window()),
            metric_tags=hooks.quota_metric_tags,
            quota_limit=hooks.quota_limit,
        )
        hooks.configure(quotas, config.plugins.options, PluginContext(options={}, quotas=quotas, dry=True))
        hooks.flatten()
        check_enforced(config.entity_quotas(), hooks.enforced_quotas())
    except StartupError as error:
        return [str(error)]
    finally:
        hooks.close()
    return []


def check_enforced(limits: Mapping[QuotaEntity, Mapping[QuotaKey, Quota]], enforced: frozenset[QuotaKey]) -> None:
    """Raise `StartupError` for the first quota that no plugin enforces, so that none is silently ignored."""
    for entity, quotas in limits.items():
        for key in quotas:
            if key not in enforced:
                known = ", ".join(sorted(enforced)) or "none"
                raise StartupError(
                    f"quotas: {key} of {entity} would be enforced by nobody: no plugin that is loaded"
                    f" enforces {key}; enforced are {known}"
                )


def warnings_of(config: Config) -> Iterator[str]:
    """What is allowed and will not do what it seems to: users are named, and nobody finds out who is one."""
    if _NAMES_USERS not in config.plugins.disabled or config.plugins.load:
        return
    for entity in config.entity_quotas():
        if isinstance(entity.user, str) and entity.user != ANONYMOUS:
            yield (
                f"quotas: {entity} holds nobody: without the plugin {_NAMES_USERS} every connection is {ANONYMOUS};"
                " take it out of plugins.disabled, or use a client-id"
            )
    for user in config.enforcement.exempt_users:
        if user != ANONYMOUS:
            yield (
                f"enforcement.exempt_users: {user} exempts nobody: without the plugin {_NAMES_USERS} everybody is"
                f" {ANONYMOUS}; take it out of plugins.disabled, or use exempt_client_ids"
            )
