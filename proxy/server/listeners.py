"""Creation of the listeners, each with its upstream, from their tables.

Called by `parts`, and by `preflight` to check certificates and rules without opening a port.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

from headrace.config.tables.sasl import SaslMode
from headrace.config.tables.tls import ClientCertificates
from headrace.proxy.connection.opening.broker_login import log_in
from headrace.proxy.errors import StartupError
from headrace.proxy.network.broker_names import BrokerNames
from headrace.proxy.network.listener import BrokerIdentities, Listener, ListenerSasl, ListenerTls
from headrace.proxy.network.tls.contexts import client_context, server_context
from headrace.proxy.network.tls.files import TlsFileError
from headrace.proxy.network.tls.kernel.support import has_kernel_tls
from headrace.proxy.network.tls.subjects.principals import PrincipalRules
from headrace.proxy.network.topology import Topology
from headrace.proxy.network.upstream import Upstream
from headrace.quota_callbacks.sasl import UpstreamSasl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.config.schema import Config
    from headrace.config.tables.listeners import Listen, ListenerTables
    from headrace.config.tables.sasl import UpstreamIdentity
    from headrace.proxy.hooks.calls.hook_calls import HookCalls
    from headrace.proxy.network.poller import Poller
    from headrace.proxy.network.tls.contexts import TlsContext
    from headrace.proxy.network.tls.handshake_turns import TurnsByAddress

    Security: TypeAlias = tuple[BrokerNames | None, ListenerTls | None, TlsContext | None]
    """The host names of brokers, TLS with clients and TLS with brokers, each ``None`` if it is not used."""

T = TypeVar("T")


def create_listeners(
    config: Config, hooks: HookCalls, poller: Poller, turns: TurnsByAddress
) -> tuple[tuple[Listener, ...], Upstream]:
    """Return all listeners, that of ``[listen]`` first, and the upstream of the first one with its own type.

    Each listener has an upstream of its own, since each shows the cluster at its own addresses. ``turns`` are those of
    TLS handshakes. Raises as `read_security`.
    """
    read = zip(config.all_listeners(), read_security(config), strict=True)
    created = [_create(tables, hooks, poller, turns, security) for tables, security in read]
    return tuple(listener for listener, _ in created), created[0][1]


def read_security(config: Config) -> list[Security]:
    """Return the certificates, keys, passwords and rules of all listeners, in their order. Blocks.

    Raises `StartupError` with all settings that are wrong, a line for each.
    """
    contexts = _ClientContexts()
    problems: dict[str, Exception] = {}  # by text, since several listeners may lead to one table of brokers
    found = [_security(tables, contexts, problems) for tables in config.all_listeners()]
    if problems:
        raise StartupError("\n".join(problems)) from next(iter(problems.values()))
    return found


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
    tables: ListenerTables, hooks: HookCalls, poller: Poller, turns: TurnsByAddress, security: Security
) -> tuple[Listener, Upstream]:
    listen, sasl = tables.listen, upstream_sasl(tables)
    names, tls, upstream_tls = security
    topology = Topology(
        advertised_host=listen.advertised.host,
        advertised_port=listen.advertised.port,
        node_ids=listen.node_ids,
        names=names,
        setting=tables.setting,
    )
    upstream = Upstream(
        bootstrap_servers=tables.upstream.bootstrap_servers,
        topology=topology,
        connect_timeout_s=tables.upstream.connect_timeout_s,
        reply_timeout_s=tables.upstream.reply_timeout_s,
        poller=poller,
        tls=upstream_tls,
        kernel_tls=has_kernel_tls(tables.upstream.tls),
        turns=turns,
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


def _security(tables: ListenerTables, contexts: _ClientContexts, problems: dict[str, Exception]) -> Security:
    """Return the security of one listener. Add what is wrong to ``problems``."""

    def read(what: Callable[[], T]) -> T | None:
        try:
            return what()
        except (StartupError, TlsFileError) as error:
            problems[str(error)] = error
            return None

    pattern = tables.listen.broker_host
    names = None if pattern is None else BrokerNames(pattern)
    principals = read(lambda: _principal_rules(tables))
    tls = read(lambda: _listener_tls(tables, names, principals))
    return names, tls, read(lambda: contexts.of(tables))


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


def _principal_rules(tables: ListenerTables) -> PrincipalRules | None:
    """Return the rules for the principals of clients' certificates, ``None`` without them. Raises `StartupError`."""
    tls = tables.listen.tls
    if tls.certificate_file is None or tls.client_certificates is ClientCertificates.NONE:
        return None
    try:
        return PrincipalRules(tls.principal_mapping_rules)
    except ValueError as error:
        raise StartupError(f"{tables.setting}.tls.principal_mapping_rules: {error}") from error


def _listener_tls(
    tables: ListenerTables, names: BrokerNames | None, principals: PrincipalRules | None
) -> ListenerTls | None:
    """Return TLS of a listener, ``None`` for plaintext. Raises `TlsFileError`."""
    listen, tls = tables.listen, tables.listen.tls
    if tls.certificate_file is None:
        return None

    def has_broker(server_name: str) -> bool:
        node_id = None if names is None else names.node_id_of(server_name)
        return node_id is None or node_id in listen.node_ids

    return ListenerTls(context=server_context(tls, f"{tables.setting}.tls", has_broker), principals=principals)
