"""Checks of a valid configuration that need no open port: whether plugins load, whether every quota is enforced, and
whether there is a plugin for each authentication by SASL.

Called by ``headrace check-config``, and by the server at start and at a reload.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from headrace.config.quota_names import faults_of_names
from headrace.config.schema import DataPlane
from headrace.config.tables.client_quotas import AlterRule, StoreKind
from headrace.config.tables.sasl import SaslMode
from headrace.config.tables.tls import ClientCertificates
from headrace.config.values import count_threads, shown_threads
from headrace.proxy.errors import PluginConfigurationError, StartupError
from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import Choice, implements, installed_plugins, load_plugins, new_plugin_manager
from headrace.proxy.network.overload import can_measure_memory
from headrace.proxy.quotas.store import StoreError
from headrace.proxy.server.configured import choice_of
from headrace.proxy.server.listeners import broker_logins, read_security
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA
from headrace.quota_callbacks.entities import ANONYMOUS, CONNECTION_CREATION_RATE, QuotaKey, is_bracketed
from headrace.quota_callbacks.hookspecs import PluginContext
from headrace.quota_callbacks.options import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.config.schema import Config
    from headrace.config.tables.listeners import Listen, ListenerTables
    from headrace.config.tables.sasl import ListenSasl
    from headrace.config.tables.tls import ServerTls
    from headrace.proxy.hooks.calls.sasl import SaslCalls
    from headrace.proxy.hooks.enforced_quotas import EnforcedQuotas
    from headrace.quota_callbacks.definitions import QuotaSchema
    from headrace.quota_callbacks.options import Table

log = structlog.get_logger("headrace.plugins")

_DETERMINES_USERS: Final = "authentication_started"
"""The hook by which a plugin determines the users of clients that authenticate to the brokers."""

_SENT_SECRETS: Final = {"PLAIN": "password", "OAUTHBEARER": "token"}
"""The secret that a client sends unencrypted, by mechanism."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRules:
    """Which quotas can be set, as the plugins define it."""

    schema: QuotaSchema
    enforced: EnforcedQuotas

    def faults_of(self, config: Config) -> list[Fault]:
        """Return the faults of all quotas of a configuration: names and values that no plugin defines, and quotas that
        no plugin enforces, so that none is silently ignored."""
        faults = {fault.path: fault for fault in self._unenforced(config)}
        faults.update((fault.path, fault) for fault in faults_of_names(config.tables_with_other_names, self.schema))
        return list(faults.values())

    def check_at_start(self, config: Config) -> None:
        """Check all quotas of a configuration. Raises `StartupError`, with all faults and their positions."""
        if faults := self.faults_of(config):
            raise StartupError(str(config.error_of(faults)))
        config.quotas_were_checked()

    def _unenforced(self, config: Config) -> Iterator[Fault]:
        for index, table in enumerate(config.quotas):
            keys = self.enforced.of(table.entity)
            for key in table.limits() if keys is not None else ():
                if keys is not None and key not in keys and key != CONNECTION_CREATION_RATE:
                    known = ", ".join(sorted(keys)) or "none"
                    reason = f"no loaded plugin enforces {key}; enforced are {known}"
                    rule = f"would not be enforced for {table.entity}: {reason}"
                    yield Fault(path=("quotas", index, key), rule=rule)


def problems_of(config: Config) -> list[str]:
    """Return all reasons why the proxy would not start: a plugin that is refused, quotas or logins that plugins refuse,
    a certificate or mapping rule that cannot be used, a missing package."""
    problems = []
    for check in (_check_plugins, read_security, _check_admin_tls, _check_store):
        try:
            check(config)
        except (StartupError, StoreError) as error:
            problems.append(str(error))
    return problems


def _check_plugins(config: Config) -> None:
    hooks = _dry_hooks(config)
    try:
        check_at_start(config, hooks)
    finally:
        hooks.close()


def _check_admin_tls(config: Config) -> None:
    if config.admin.listen is not None and config.admin.tls.certificate_file is not None:
        from headrace.proxy.admin.tls import admin_context

        admin_context(config.admin.tls)


def _check_store(config: Config) -> None:
    if config.client_quotas.store is StoreKind.TOPIC:
        from headrace.proxy.quotas.topic.store import require_confluent_kafka

        require_confluent_kafka()


def check_at_start(config: Config, hooks: HookCalls) -> None:
    """Check what the plugins have to accept: quotas, and authentication by SASL. Raises `StartupError`."""
    problems = []
    try:
        rules_of(hooks).check_at_start(config)
    except StartupError as error:
        problems.append(str(error))
    problems += _problems_of_logins(config, hooks.sasl)
    if problems:
        raise StartupError("\n".join(problems))


def _problems_of_logins(config: Config, sasl: SaslCalls) -> Iterator[str]:
    """Yield each way of authentication that cannot succeed, with its table. Connects to nothing, reads no secret."""
    for tables in {each.upstream_setting: each for each in config.all_listeners()}.values():
        for table, login in broker_logins(tables):
            if reason := sasl.client_problem(login):
                yield f"{table}: {reason}"
    for tables in config.all_listeners():
        if tables.listen.sasl.mode is not SaslMode.TERMINATE:
            continue
        for mechanism in tables.listen.sasl.mechanisms:
            if reason := sasl.server_problem(mechanism):
                yield f"{tables.setting}.sasl.mechanisms: {reason}"


def loaded_rules(config: Config) -> QuotaRules:
    """Load the plugins of a configuration, and return which quotas can be set. Raises `StartupError`. Blocks.

    The plugins are closed afterwards.
    """
    hooks = _dry_hooks(config)
    hooks.close()
    return rules_of(hooks)


def options_tables(config: Config | None) -> tuple[QuotaSchema, dict[str, type[Table]]]:
    """Return the quota keys and entity types that exist with the plugins of a configuration, and the classes of the
    plugins' options by name; without a configuration, those of all installed plugins. Raises `StartupError`. Blocks.
    """
    if config is None:
        return BUILTIN_SCHEMA, _installed_hooks().configuration.options_tables()
    hooks = _dry_hooks(config)
    try:
        return hooks.schema, hooks.configuration.options_tables()
    finally:
        hooks.close()


def _installed_hooks() -> HookCalls:
    """Return the installed plugins that can be loaded, which are not configured."""
    manager = new_plugin_manager()
    for name in installed_plugins():
        try:
            load_plugins(manager, Choice(autoload=False, load=(name,)))
        except StartupError as error:
            log.warning("a plugin is not described", plugin=name, reason=str(error))
    return HookCalls(manager)


def _dry_hooks(config: Config) -> HookCalls:
    """Return the plugins of a configuration, configured with ``dry`` set, so that they start nothing.

    Raises `StartupError`; the plugins are closed then. Blocks.
    """
    manager = new_plugin_manager()
    hooks = HookCalls(manager)
    try:
        load_plugins(manager, choice_of(config))
        quotas = ClientQuotas(
            windows=dict.fromkeys(QuotaKey, Window()),
            metric_tags=hooks.quota_metric_tags,
            quota_limit=hooks.quota_limit,
        )
        hooks.configure(quotas, config.plugins.options, PluginContext(options={}, quotas=quotas, dry=True))
        hooks.flatten()
    except BaseException:
        hooks.close()
        raise
    return hooks


def plugin_faults(config: Config) -> Sequence[Fault]:
    """Return why plugins would not start: invalid options with their paths, and other errors with an empty path.

    As for `problems_of`, plugins start nothing.
    """
    try:
        loaded_rules(config)
    except PluginConfigurationError as error:
        return error.faults
    except StartupError as error:
        return (Fault(rule=str(error)),)
    return ()


def rules_of(hooks: HookCalls) -> QuotaRules:
    """Return the rules that follow from the registered plugins."""
    return QuotaRules(schema=hooks.schema, enforced=hooks.enforced)


def warnings_of(config: Config) -> Iterator[str]:
    """Yield a warning for each setting that is valid but has no effect, or has another name now."""
    yield from _warnings_of_threads(config)
    yield from _warnings_of_exempt_names(config)
    if config.limits.max_memory and not can_measure_memory():
        yield "limits.max_memory has no effect, since this system does not report how much memory a process uses"
    for setting, upstream in {each.upstream_setting: each.upstream for each in config.all_listeners()}.items():
        if not upstream.tls.enabled and (upstream.tls.ca_file or upstream.tls.certificate_file):
            yield f"{setting}.tls has no effect, since {setting}.tls.enabled is false"
    for tables in {each.upstream_setting: each for each in config.all_listeners()}.values():
        if not tables.upstream.tls.enabled:
            yield from _warnings_of_sent_secrets(tables)
    for tables in config.all_listeners():
        yield from _warnings_of_logins(tables)
    if all(_learns_users_by_observing(each.listen) for each in config.all_listeners()):
        yield from _warnings_of_users(config)
    yield from _warnings_of_alterations(config)
    yield from _warnings_of_certificates(config.admin.tls, "admin")


def _warnings_of_exempt_names(config: Config) -> Iterator[str]:
    lists = {
        "enforcement.exempt_users": config.enforcement.exempt_users,
        "enforcement.exempt_client_ids": config.enforcement.exempt_client_ids,
        "limits.per_user_exempt": config.limits.per_user_exempt,
    }
    for setting, names in lists.items():
        for name in filter(is_bracketed, names):
            yield f"{setting}: {name} exempts only what has exactly this name; it does not stand for the default entity"


def _warnings_of_threads(config: Config) -> Iterator[str]:
    if config.workers is not None:
        yield f"workers is deprecated; set data_plane_threads = {shown_threads(config.workers)} instead"
    if count_threads(config.data_plane_threads) == 1:
        return
    from headrace.proxy.data_plane.native import is_native

    if not is_native(config.data_plane):
        python = config.data_plane is DataPlane.PYTHON
        reason = f'data_plane is "{config.data_plane}"' if python else "no native data plane is installed"
        threads = shown_threads(config.data_plane_threads)
        yield f"data_plane_threads = {threads} has no effect: one thread relays, since {reason}"


def _warnings_of_sent_secrets(tables: ListenerTables) -> Iterator[str]:
    """Yield a warning for each login of the proxy at brokers without TLS that sends a secret as it is."""
    setting, lookup = tables.upstream_setting, tables.upstream.owner_lookup.mechanism
    used = {("sasl", login.mechanism) for _, login in broker_logins(tables)}
    if lookup is not None:
        used.add(("owner_lookup", lookup.value))
    for table, mechanism in sorted(used):
        if mechanism in _SENT_SECRETS:
            yield (
                f"{setting}.{table}: {mechanism} without TLS sends the {_SENT_SECRETS[mechanism]} over a connection"
                f" that others may read; set {setting}.tls.enabled = true, or another mechanism"
            )


def _warnings_of_logins(tables: ListenerTables) -> Iterator[str]:
    listen, setting = tables.listen, tables.setting
    if listen.sasl.mode is SaslMode.TERMINATE and listen.tls.certificate_file is None:
        yield (
            f"{setting}.sasl: clients without TLS authenticate over a connection that others may read; set"
            f" {setting}.tls.certificate_file"
        )
    shown, sasl = listen.tls.client_certificates, tables.upstream.sasl
    yield from _warnings_of_certificates(listen.tls, setting)
    yield from _warnings_of_unread_keys(listen.sasl, setting)
    if tables.upstream.owner_lookup.mechanism is not None and (
        sasl.mechanism is not None or listen.sasl.mode is SaslMode.TERMINATE
    ):
        yield (
            f"{tables.upstream_setting}.owner_lookup has no effect for the clients of {setting}, since they do not"
            " authenticate to the brokers and so have no delegation tokens"
        )
    if tables.upstream.tls.certificate_file is not None and not _proves_users(listen):
        yield (
            f"{tables.upstream_setting}.tls.certificate_file: if brokers take the proxy's certificate for a login,"
            f" clients that do not authenticate act as its user; set {setting}.sasl.mode to terminate, or"
            f" {setting}.tls.client_certificates to required"
        )
    if sasl.mechanism is None or listen.sasl.mode is not SaslMode.OBSERVE:
        return
    if sasl.identities and shown is ClientCertificates.NONE:
        yield (
            f"{tables.upstream_setting}.sasl.identities: all clients are refused, since the proxy does not authenticate"
            f" them; set {setting}.sasl.mode to terminate, or {setting}.tls.client_certificates to required"
        )
    elif not sasl.identities and shown is not ClientCertificates.REQUIRED:
        yield (
            f"{tables.upstream_setting}.sasl: clients that do not authenticate act at the brokers as its user; set"
            f" {setting}.sasl.mode to terminate, or {setting}.tls.client_certificates to required"
        )


def _warnings_of_certificates(tls: ServerTls, setting: str) -> Iterator[str]:
    """Yield a warning for each key about the certificates of clients if clients are not asked for any."""
    if tls.client_certificates is ClientCertificates.NONE:
        for key in ("client_ca_file", "principal_mapping_rules"):
            if key in tls.model_fields_set:
                yield (
                    f"{setting}.tls.{key} has no effect: clients are not asked for certificates; set"
                    f" {setting}.tls.client_certificates to required or requested"
                )


def _warnings_of_unread_keys(sasl: ListenSasl, setting: str) -> Iterator[str]:
    """Yield a warning for each key about logins at the proxy if clients authenticate at the brokers."""
    if sasl.mode is SaslMode.OBSERVE:
        for field, key in {"mechanisms": "mechanisms", "session_lifetime_s": "session_lifetime"}.items():
            if field in sasl.model_fields_set:
                yield (
                    f"{setting}.sasl.{key} has no effect: the proxy does not authenticate clients; set"
                    f" {setting}.sasl.mode to terminate"
                )


def _proves_users(listen: Listen) -> bool:
    """Return whether each client of a listener has to prove to the proxy who it is."""
    return listen.sasl.mode is SaslMode.TERMINATE or listen.tls.client_certificates is ClientCertificates.REQUIRED


def _warnings_of_alterations(config: Config) -> Iterator[str]:
    """Yield a warning if clients without a user may change the quotas of users whose identity is proved."""
    tables = config.all_listeners()
    proving = [each.setting for each in tables if _proves_users(each.listen)]
    others = [each.setting for each in tables if not _proves_users(each.listen)]
    stored = config.client_quotas.file is not None or config.client_quotas.store is StoreKind.TOPIC
    if stored and proving and others and config.client_quotas.alter is AlterRule.ANONYMOUS:
        yield (
            f"client_quotas.alter = anonymous: clients of {others[0]} that do not authenticate may change the quotas of"
            f" the users of {proving[0]}; set client_quotas.alter to administrators"
        )


def _learns_users_by_observing(listen: Listen) -> bool:
    return listen.sasl.mode is SaslMode.OBSERVE and listen.tls.client_certificates is ClientCertificates.NONE


def _warnings_of_users(config: Config) -> Iterator[str]:
    """Yield a warning for each setting that names a user while no plugin determines the users of clients."""
    entities = [each for each in config.entity_quotas() if isinstance(each.user, str) and each.user != ANONYMOUS]
    exempt = [user for user in config.enforcement.exempt_users if user != ANONYMOUS]
    if not (entities or exempt) or _users_are_determined(config):
        return
    plugins = config.plugins
    if plugins.autoload:
        advice = f"remove one that does from plugins.disabled ({', '.join(plugins.disabled)})"
    else:
        others = ", ".join(sorted(set(installed_plugins()).difference(plugins.load)))
        advice = f"add one that does to plugins.load (installed: {others})"
    reason = f"no loaded plugin determines users, so every connection is {ANONYMOUS}; {advice}"
    for entity in entities:
        yield f"quotas: {entity} applies to no client: {reason}, or use a client-id"
    for user in exempt:
        yield f"enforcement.exempt_users: {user} exempts no client: {reason}, or use exempt_client_ids"


def _users_are_determined(config: Config) -> bool:
    try:
        return implements(choice_of(config), _DETERMINES_USERS)
    except StartupError:  # which is reported by itself
        return True
