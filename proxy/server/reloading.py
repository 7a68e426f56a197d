"""Reloading the configuration.

An invalid configuration changes nothing, and the log gives the reasons. Called by the server.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog
import trio

from headrace.config.problems import ConfigError
from headrace.config.reload import diff
from headrace.config.tables.plugins import OnError
from headrace.proxy.errors import PluginConfigurationError, StartupError
from headrace.proxy.logs import apply_log_settings
from headrace.proxy.network.held_bytes import held
from headrace.proxy.server.configured import admission_limits_of, limits_of, max_memory_bytes
from headrace.proxy.server.preflight import rules_of, warnings_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.config.reload import ConfigDiff
    from headrace.config.schema import Config
    from headrace.proxy.admin.operations import Operations
    from headrace.proxy.hooks.calls.hook_calls import HookCalls
    from headrace.proxy.network.admission import Admission
    from headrace.proxy.server.quotas.quotas_in_force import QuotasInForce

    ChangedOptions: TypeAlias = dict[str, Callable[[], bool]]
    """The functions that put changed options of plugins into force, by plugin name. They return whether they have
    done so."""

log = structlog.get_logger("headrace.reload")

READ_TIMEOUT_S: Final = 30.0
"""Time limit for reading the configuration again, and for the plugins that check their options. A network file system
can hang; signals are handled afterwards."""

MOST_LOGGED_CHANGES: Final = 100
"""Changes that a reload logs one by one; thousands of lines at once would not fit into the log's queue."""


class Reloader:
    """The owner of the configuration that is in force, which applies changes of it."""

    def __init__(
        self,
        config: Config,
        operations: Operations,
        admission: Admission,
        quotas: QuotasInForce,
        load: Callable[[], Config] | None,
    ) -> None:
        self.config = config
        self._quotas = quotas
        self._operations = operations
        self._admission = admission
        self._load = load

    async def reload(self) -> bool:
        """Load the configuration again and apply it.

        Returns ``False`` when it is invalid, or there is no file; the old one then stays in force.
        """
        hooks = self._operations.shared.hooks
        new = await load_again(self._load, self.config, hooks)
        if new is None:
            return False
        _log_changes(self._apply(*new))
        return True

    def _apply(self, new: Config, options: ChangedOptions) -> ConfigDiff:
        """Apply those settings of a checked configuration that can change while the proxy runs.

        Returns the changes, including those that need a restart.
        """
        changes = diff(self.config, new, _put_into_force(options))
        old, self.config = self.config, changes.effective
        self._quotas.configure(self.config)
        self._apply_settings(old, changes.effective)
        return changes

    def _apply_settings(self, old: Config, new: Config) -> None:
        shared = self._operations.shared
        shared.limits = limits_of(new)
        held.limit = new.limits.max_held_bytes
        shared.handshakes.most = new.limits.max_tls_handshakes
        shared.handshakes.timeout_s = new.limits.tls_handshake_timeout_s
        overload = self._admission.overload
        self._admission.limits = admission_limits_of(new, overload.most_connections)
        overload.max_memory_bytes = max_memory_bytes(new)
        for listener, tables in zip(shared.listeners, new.all_listeners(), strict=True):  # their number needs a restart
            listener.upstream.bootstrap_servers = tables.upstream.bootstrap_servers
            listener.upstream.connect_timeout_s = tables.upstream.connect_timeout_s
            listener.upstream.reply_timeout_s = tables.upstream.reply_timeout_s
        shared.hooks.fail_closed = new.plugins.on_error is OnError.CLOSED
        shared.hooks.slow_calls.limit_s = new.plugins.slow_call_s
        shared.enforcement.exempt(new.enforcement.exempt_users, new.enforcement.exempt_client_ids)
        if new.enforcement.enabled != old.enforcement.enabled:  # otherwise keep what an operator has set
            self._operations.enforce(new.enforcement.enabled, "reload")
        apply_log_settings(new.log)


async def _changed_options(hooks: HookCalls, old: Config, new: Config) -> ChangedOptions:
    """Let plugins check their options if they have changed.

    Raises `PluginConfigurationError`, also if they take longer than `READ_TIMEOUT_S`. The thread is then abandoned, as
    it is when this is cancelled.
    """
    if old.plugins.options == new.plugins.options:
        return {}
    change = partial(hooks.configuration.changed_options, old.plugins.options, new.plugins.options)
    with trio.move_on_after(READ_TIMEOUT_S):
        return await trio.to_thread.run_sync(change, abandon_on_cancel=True)
    raise PluginConfigurationError(f"plugins.options: plugins did not check them within {READ_TIMEOUT_S:g} s", ())


def _put_into_force(options: ChangedOptions) -> set[str]:
    """Put changed options of plugins into force, and return the names of the plugins that have not raised.

    The others keep their old options, as far as the configuration in force shows; the next reload tries again.
    """
    return {name for name, change in options.items() if change()}


async def load_again(
    load: Callable[[], Config] | None, old: Config, hooks: HookCalls
) -> tuple[Config, ChangedOptions] | None:
    """Read and check the configuration file again. Returns ``None``, and logs why, when there is none or it is invalid.

    ``hooks`` are those of the plugins that are loaded.
    """
    if load is None:
        log.warning("nothing to reload: headrace runs without a configuration file")
        return None
    try:
        with trio.fail_after(READ_TIMEOUT_S):
            new = await trio.to_thread.run_sync(load, abandon_on_cancel=True)
        if faults := rules_of(hooks).faults_of(new):
            raise await trio.to_thread.run_sync(new.error_of, faults)
        new.quotas_were_checked()
        options = await _changed_options(hooks, old, new)
    except ConfigError as error:
        for problem in error.problems:
            log.error("the configuration is invalid; the old one stays in force", problem=str(problem))  # noqa: TRY400
        return None
    except trio.TooSlowError:
        log.error(  # noqa: TRY400
            "the configuration could not be read in time; the old one stays in force", timeout_s=READ_TIMEOUT_S
        )
        return None
    except StartupError as error:
        log.error("the configuration is invalid; the old one stays in force", problem=str(error))  # noqa: TRY400
        return None
    return new, options


def _log_changes(changes: ConfigDiff) -> None:
    """Log the settings that changed, and those that take effect only after a restart.

    Of the changes that take effect at once, settings come first, and at most `MOST_LOGGED_CHANGES` are logged.
    """
    log_warnings(changes.effective)
    for applied in changes.at_once[:MOST_LOGGED_CHANGES]:
        log.info("configuration changed", change=str(applied))
    if left_out := len(changes.at_once[MOST_LOGGED_CHANGES:]):
        log.info("further configuration changes", count=left_out)
    for waiting in changes.needs_restart:
        log.warning("configuration change waits for a restart", change=str(waiting))
    if not changes:
        log.info("configuration reloaded; nothing changed")


def log_warnings(config: Config) -> None:
    """Log the settings that are valid but have no effect, or have another name now."""
    for warning in warnings_of(config):
        log.warning("a setting needs attention", warning=warning)
