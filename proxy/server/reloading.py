"""Quotas from the configuration, and the reload: what changed takes effect, or nothing does and the log says why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
import trio

from headrace.config.problems import ConfigError
from headrace.config.reload import diff
from headrace.config.schema import OnError
from headrace.proxy.errors import StartupError
from headrace.proxy.logs import set_log_level
from headrace.proxy.server.configured import addresses_of, limits_of
from headrace.proxy.server.preflight import check_enforced, warnings_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.config.reload import ConfigDiff
    from headrace.config.schema import Config
    from headrace.proxy.admin.operations import ServerOperations
    from headrace.quota_callbacks.entities import QuotaKey

log = structlog.get_logger("headrace.reload")


class Reloader:
    """Holds the configuration in force in one process."""

    def __init__(self, config: Config, operations: ServerOperations, load: Callable[[], Config] | None) -> None:
        self.config = config
        self._operations = operations
        self._load = load

    @property
    def enforced(self) -> frozenset[QuotaKey]:
        """The quota keys that some callback enforces."""
        return self._operations.shared.hooks.enforced_quotas()

    def set_quotas(self) -> None:
        """Put the configured quotas into force; `StartupError` for one that no callback enforces."""
        hooks = self._operations.shared.hooks
        limits = self.config.entity_quotas()
        check_enforced(limits, self.enforced)
        for entity, quotas in limits.items():
            for key, value in quotas.items():
                hooks.update_quota(key, entity, value)
        if hooks.quotas is not None:
            hooks.quotas.quotas_changed()

    async def reload(self) -> bool:
        """Load the configuration anew and apply it; ``False`` when it is invalid and the old one stays in force."""
        new = await load_again(self._load, self.enforced)
        if new is None:
            return False
        tell(self.apply(new))
        return True

    def apply(self, new: Config) -> ConfigDiff:
        """Put into force what can change while the proxy runs, of a configuration that was checked."""
        changes = diff(self.config, new)
        old, self.config = self.config, changes.effective
        hooks = self._operations.shared.hooks
        for change in changes.quotas:
            if change.new is None:
                hooks.remove_quota(change.key, change.entity)
            else:
                hooks.update_quota(change.key, change.entity, change.new)
        if changes.quotas and hooks.quotas is not None:
            hooks.quotas.quotas_changed()
        self._apply_settings(old, changes.effective)
        return changes

    def _apply_settings(self, old: Config, new: Config) -> None:
        shared = self._operations.shared
        shared.limits = limits_of(new)
        shared.upstream.bootstrap_servers = addresses_of(new.upstream.bootstrap_servers)
        shared.upstream.connect_timeout_s = new.upstream.connect_timeout_s
        shared.hooks.fail_closed = new.plugins.on_error is OnError.CLOSED
        shared.enforcement.exempt_users = frozenset(new.enforcement.exempt_users)
        shared.enforcement.exempt_client_ids = frozenset(new.enforcement.exempt_client_ids)
        if new.enforcement.enabled != old.enforcement.enabled:  # otherwise the operator's switch stays as it is
            self._operations.switch_enforcement(new.enforcement.enabled, "reload")
        if new.log.level is not old.log.level:
            set_log_level(new.log.level.value)


async def load_again(load: Callable[[], Config] | None, enforced: frozenset[QuotaKey]) -> Config | None:
    """Read the file anew; ``None`` when there is none, or it is invalid, which the log then tells."""
    if load is None:
        log.warning("nothing to reload: headrace runs without a configuration file")
        return None
    try:
        new = await trio.to_thread.run_sync(load)
        check_enforced(new.entity_quotas(), enforced)
    except ConfigError as error:
        for problem in error.problems:
            log.error("the configuration is invalid; the old one stays in force", problem=str(problem))  # noqa: TRY400
        return None
    except StartupError as error:
        log.error("the configuration is invalid; the old one stays in force", problem=str(error))  # noqa: TRY400
        return None
    return new


def tell(changes: ConfigDiff) -> None:
    """Log what changed, and what waits for a restart."""
    warn_of(changes.effective)
    for applied in changes.at_once:
        log.info("configuration changed", change=str(applied))
    for waiting in changes.needs_restart:
        log.warning("configuration change waits for a restart", change=str(waiting))
    if not changes:
        log.info("configuration reloaded; nothing changed")


def warn_of(config: Config) -> None:
    """Log what is allowed and will not do what it seems to."""
    for warning in warnings_of(config):
        log.warning("configuration", warning=warning)
