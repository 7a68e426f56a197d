"""Creation of the listeners, each with its upstream, from their tables.

Called by `parts`, and by `preflight` to check certificates and rules without opening a port.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.config.tables.sasl import SaslMode
from headrace.config.tables.tls import ClientCertificates
from headrace.proxy.connection.opening.broker_login import log_in
from headrace.proxy.errors import StartupError
from headrace.proxy.network.broker_names import BrokerNames
from headrace.proxy.network.listener import BrokerIdentities, Listener, ListenerSasl, ListenerTls
from headrace.proxy.network.tls.contexts import client_context, server_context
from headrace.proxy.network.tls.files import TlsFileError
from headrace.proxy.network.tls.principals import PrincipalRules
from headrace.proxy.network.topology import Topology
from headrace.proxy.network.upstream import Upstream
from headrace.proxy.server.configured import addresses_of
from headrace.quota_callbacks.sasl import UpstreamSasl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config.schema import Config
    from headrace.config.tables.listeners import Listen, ListenerTables
    from headrace.config.tables.sasl import UpstreamIdentity
    from headrace.proxy.hooks.calls.hook_calls import HookCalls
    from headrace.proxy.network.poller import Poller
    from headrace.proxy.network.tls.contexts import TlsContext


def create_listeners(config: Config, hooks: HookCalls, poller: Poller) -> tuple[tuple[Listener, ...], Upstream]:
    """Return all listeners, that of ``[listen]`` first, and the upstream of the first one with its own type.

    Each listener has an upstream of its own, since each shows the cluster at its own addresses. Raises `StartupError`.
    """
    contexts = _ClientContexts()
    created = [_create(tables, hooks, poller, contexts) for tables in config.all_listeners()]
    return tuple(listener for listener, _ in created), created[0][1]


def read_security(config: Config) -> None:
    """Read certificates, keys, passwords and rules of all listeners.

    Raises `StartupError` with the setting that is wrong.
    """
    contexts = _ClientContexts()
    for tables in config.all_listeners():
        _security(tables, contexts)


def upstream_sasl(tables: ListenerTables) -> UpstreamSasl | None:
    """Return the proxy's own login at the brokers of a listener; ``None`` if it has none."""
    sasl = tables.upstream.sasl
    if sasl.mechanism is None:
        return None
    return UpstreamSasl(mechanism=sasl.mechanism, user=sasl.user, password=sasl.password, options=sasl.options)


def broker_logins(tables: ListenerTables) -> Iterator[tuple[str, UpstreamSasl]]:
    """Yield the proxy's logins at the brokers of a listener: its own and those of users, each with its table.

    A login of its own that has only the mechanism of the identities is left out.
    """
    setting, sasl, own = f"{tables.upstream_setting}.sasl", tables.upstream.sasl, upstream_sasl(tables)
    if own is not None and (own.user or own.password or not sasl.identities):
        yield setting, own
    for index, each in enumerate(sasl.identities):
        yield f"{setting}.identities[{index}]", _identity(tables, each)


class _ClientContexts:
    """TLS with brokers: one context for each table, since several listeners may lead to ``[upstream]``."""

    def __init__(self) -> None:
        self._by_setting: dict[str, TlsContext] = {}

    def of(self, tables: ListenerTables) -> TlsContext | None:
        """Return the context for the brokers of a listener; ``None`` for plaintext. Raises `TlsFileError`."""
        tls, setting = tables.upstream.tls, tables.upstream_setting
        if not tls.enabled:
            return None
        if setting not in self._by_setting:
            self._by_setting[setting] = client_context(tls, f"{setting}.tls")
        return self._by_setting[setting]


def _create(
    tables: ListenerTables, hooks: HookCalls, poller: Poller, contexts: _ClientContexts
) -> tuple[Listener, Upstream]:
    listen, sasl = tables.listen, upstream_sasl(tables)
    names, tls, upstream_tls = _security(tables, contexts)
    topology = Topology(
        advertised_host=listen.advertised.host,
        advertised_port=listen.advertised.port,
        node_ids=listen.node_ids,
        names=names,
        setting=tables.setting,
    )
    upstream = Upstream(
        bootstrap_servers=addresses_of(tables.upstream.bootstrap_servers),
        topology=topology,
        connect_timeout_s=tables.upstream.connect_timeout_s,
        reply_timeout_s=tables.upstream.reply_timeout_s,
        poller=poller,
        tls=upstream_tls,
        sasl=sasl,
        proxy_protocol=tables.upstream.proxy_protocol,
        log_in=None if sasl is None else lambda ask: log_in(ask, hooks, None, sasl, tables.upstream_setting),
        setting=tables.upstream_setting,
    )
    listener = Listener(
        setting=tables.setting,
        topology=topology,
        upstream=upstream,
        tls=tls,
        sasl=_listener_sasl(listen, sasl),
        identities=broker_identities(tables),
        broker_names=names,
        proxy_protocol_from=listen.proxy_protocol_from,
    )
    return listener, upstream


def _security(
    tables: ListenerTables, contexts: _ClientContexts
) -> tuple[BrokerNames | None, ListenerTls | None, TlsContext | None]:
    """Return the host names of brokers, TLS with clients and TLS with brokers, each ``None`` if it is not used."""
    try:
        names = _broker_names(tables)
        upstream_tls = contexts.of(tables)
        return names, _listener_tls(tables, names), upstream_tls
    except TlsFileError as error:
        raise StartupError(str(error)) from error


def _broker_names(tables: ListenerTables) -> BrokerNames | None:
    if tables.listen.broker_host is None:
        return None
    try:
        return BrokerNames(tables.listen.broker_host)
    except ValueError as error:
        raise StartupError(f"{tables.setting}.broker_host: {error}") from error


def _listener_sasl(listen: Listen, login: UpstreamSasl | None) -> ListenerSasl | None:
    """Return SASL of a listener, or ``None`` if clients authenticate to the brokers.

    Where the proxy itself authenticates to the brokers (``login``), clients cannot.
    """
    sasl = listen.sasl
    if sasl.mode is SaslMode.OBSERVE:
        return None if login is None else ListenerSasl(mechanisms=(), max_lifetime_s=None)
    return ListenerSasl(mechanisms=sasl.mechanisms, max_lifetime_s=sasl.session_lifetime_s)


def broker_identities(tables: ListenerTables) -> BrokerIdentities | None:
    """Return the identities of users at the brokers; ``None`` if all connections have that of ``upstream.sasl``."""
    by_name: dict[str, UpstreamSasl] = {}
    by_prefix: dict[str, UpstreamSasl] = {}
    sasl = tables.upstream.sasl
    for each in sasl.identities:
        identity = _identity(tables, each)
        if each.client.endswith("*"):
            by_prefix[each.client[:-1]] = identity
        else:
            by_name[each.client] = identity
    return BrokerIdentities(by_name, by_prefix) if sasl.identities else None


def _identity(tables: ListenerTables, each: UpstreamIdentity) -> UpstreamSasl:
    mechanism = each.mechanism or tables.upstream.sasl.mechanism
    if mechanism is None:  # which a rule of the configuration excludes
        setting = f"{tables.upstream_setting}.sasl"
        raise StartupError(f"{setting}.mechanism: required, since {setting}.identities is set")
    return UpstreamSasl(mechanism=mechanism, user=each.user, password=each.password, options=each.options)


def _listener_tls(tables: ListenerTables, names: BrokerNames | None) -> ListenerTls | None:
    """Return TLS of a listener, ``None`` for plaintext. Raises `StartupError`, `TlsFileError`."""
    listen, tls = tables.listen, tables.listen.tls
    if tls.certificate_file is None:
        return None
    principals = None
    if tls.client_certificates is not ClientCertificates.NONE:
        try:
            principals = PrincipalRules(tls.principal_mapping_rules)
        except ValueError as error:
            raise StartupError(f"{tables.setting}.tls.principal_mapping_rules: {error}") from error

    def has_broker(server_name: str) -> bool:
        node_id = None if names is None else names.node_id_of(server_name)
        return node_id is None or node_id in listen.node_ids

    return ListenerTls(context=server_context(tls, f"{tables.setting}.tls", has_broker), principals=principals)
