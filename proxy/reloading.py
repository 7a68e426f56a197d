"""Quotas from the configuration, and the reload: what changed takes effect, or nothing does and the log says why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import structlog
import trio

from config.problems import ConfigError
from config.reload import diff
from config.schema import OnError
from proxy.errors import StartupError
from proxy.logs import configure_logs
from proxy.preflight import check_enforced, warnings_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from config.reload import ConfigDiff
    from config.schema import Config
    from proxy.house import House

log = structlog.get_logger("headrace.reload")


class Reloadable(Protocol):
    """What a reload acts on."""

    house: House

    def switch_enforcement(self, enabled: bool, by: str) -> None: ...  # noqa: D102


class Reloader:
    """Holds the configuration in force."""

    def __init__(self, config: Config, server: Reloadable, load: Callable[[], Config] | None) -> None:
        self.config = config
        self._server = server
        self._load = load

    def set_quotas(self) -> None:
        """Put the configured quotas into force; `StartupError` for one that no callback enforces."""
        hooks = self._server.house.hooks
        limits = self.config.entity_quotas()
        check_enforced(limits, hooks.enforced_quotas())
        for warning in warnings_of(self.config):
            log.warning("configuration", warning=warning)
        for entity, quotas in limits.items():
            for key, value in quotas.items():
                hooks.update_quota(key, entity, value)
        if hooks.quotas is not None:
            hooks.quotas.quotas_changed()

    async def reload(self) -> bool:
        """Load the configuration anew and apply it; ``False`` when it is invalid and the old one stays in force."""
        if self._load is None:
            log.warning("nothing to reload: headrace runs without a configuration file")
            return False
        try:
            new = await trio.to_thread.run_sync(self._load)
            check_enforced(new.entity_quotas(), self._server.house.hooks.enforced_quotas())
        except ConfigError as error:
            for problem in error.problems:
                log.error("the configuration is invalid; the old one stays in force", problem=str(problem))  # noqa: TRY400
            return False
        except StartupError as error:
            log.error("the configuration is invalid; the old one stays in force", problem=str(error))  # noqa: TRY400
            return False
        self._apply(diff(self.config, new))
        return True

    def _apply(self, changes: ConfigDiff) -> None:
        old, new = self.config, changes.effective
        self.config = new
        house = self._server.house
        for change in changes.quotas:
            if change.new is None:
                house.hooks.remove_quota(change.key, change.entity)
            else:
                house.hooks.update_quota(change.key, change.entity, change.new)
        if changes.quotas and house.hooks.quotas is not None:
            house.hooks.quotas.quotas_changed()
        self._apply_settings(old, new)
        for warning in warnings_of(new):
            log.warning("configuration", warning=warning)
        for applied in changes.at_once:
            log.info("configuration changed", change=str(applied))
        for waiting in changes.needs_restart:
            log.warning("configuration change waits for a restart", change=str(waiting))
        if not changes:
            log.info("configuration reloaded; nothing changed")

    def _apply_settings(self, old: Config, new: Config) -> None:
        from proxy.server import addresses_of, limits_of

        house = self._server.house
        house.limits = limits_of(new)
        house.upstream.bootstrap_servers = addresses_of(new.upstream.bootstrap_servers)
        house.upstream.connect_timeout_s = new.upstream.connect_timeout_s
        house.hooks.fail_closed = new.plugins.on_error is OnError.CLOSED
        house.enforcement.exempt_users = frozenset(new.enforcement.exempt_users)
        house.enforcement.exempt_client_ids = frozenset(new.enforcement.exempt_client_ids)
        if new.enforcement.enabled != old.enforcement.enabled:  # otherwise the operator's switch stays as it is
            self._server.switch_enforcement(new.enforcement.enabled, "reload")
        if new.log.level is not old.log.level:
            configure_logs(level=new.log.level.value, json_lines=new.log.format.value == "json")
