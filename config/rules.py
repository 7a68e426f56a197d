"""Constraints between keys, such as ports that must be free, and an upstream that must not be the proxy itself.

Called by `loading`. A rule is called with the values of its keys, and skipped if one of them is invalid. A fault has
the path of the key that is most likely to be changed; its message contains the other keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.config.tables.admin import UnixPath, is_local
from headrace.config.tables.client_quotas import StoreKind
from headrace.config.tables.tls import ClientCertificates
from headrace.config.values import AUTO, PORT_MAX, is_loopback_host, is_wildcard_host, reachable_host, shown_threads
from headrace.quota_callbacks.options import Fault
from headrace.quota_callbacks.value_texts import dotted

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from headrace.config.keys import Section
    from headrace.config.schema import Config
    from headrace.config.tables.admin import AdminAddress
    from headrace.config.tables.listeners import Listen, ListenerTables
    from headrace.config.tables.sasl import OwnerLookup, UpstreamSasl
    from headrace.config.values import NodeIds
    from headrace.quota_callbacks.requests import Address
    from headrace.quota_callbacks.secret_sources import SecretSource
    from headrace.quota_callbacks.value_texts import Path

RuleCheck: TypeAlias = Callable[..., Iterable[Fault]]
Rule: TypeAlias = tuple[tuple[str, ...], RuleCheck]
"""The keys, and the check to call with their values."""


# --- rules of a listener, whose table is at the path ``at`` -----------------------------------------------------------


def ports_exist(at: Path, address: Address, node_ids: NodeIds, broker_host: str | None) -> Iterator[Fault]:
    """Check that the port of the highest broker id is valid."""
    if broker_host is None and (port := address.port + 1 + node_ids.highest) > PORT_MAX:
        yield Fault(path=(*at, "address"), found=str(address), rule=_too_high(at, node_ids, port))


def advertised_ports_exist(
    at: Path, advertised_port: int | None, node_ids: NodeIds, broker_host: str | None
) -> Iterator[Fault]:
    """Check that the advertised port of the highest broker id is valid."""
    if broker_host is not None or advertised_port is None:
        return
    if (port := advertised_port + 1 + node_ids.highest) > PORT_MAX:
        yield Fault(path=(*at, "advertised_port"), found=advertised_port, rule=_too_high(at, node_ids, port))


def advertised_host_is_known(at: Path, address: Address, advertised: str | None) -> Iterator[Fault]:
    """Check that there is an advertised host if the listen address is a wildcard."""
    if advertised is None and is_wildcard_host(address.host):
        name = f"{dotted(at)}.address"
        rule = f'required, since {name} ("{address}") is a wildcard; expected {reachable_host().expected}'
        yield Fault(path=(*at, "advertised_host"), rule=rule)


def _too_high(at: Path, node_ids: NodeIds, port: int) -> str:
    return (
        f"broker {node_ids.highest} would be at port {port} (this port + 1 + id), above {PORT_MAX}; "
        f'lower the port or narrow {dotted(at)}.node_ids ("{node_ids}")'
    )


def certificates_can_be_verified(at: Path, shown: ClientCertificates, authorities: str | None) -> Iterator[Fault]:
    """Check that there are authorities if clients show certificates."""
    if shown is not ClientCertificates.NONE and authorities is None:
        rule = f'required, since {dotted(at)}.tls.client_certificates is "{shown}"; expected the path of a file'
        yield Fault(path=(*at, "tls", "client_ca_file"), rule=rule)


def server_has_tls(at: Path, certificate: str | None, key: str | None, shown: ClientCertificates) -> Iterator[Fault]:
    """Check that no setting of TLS is without effect because there is no certificate."""
    if certificate is None and (key is not None or shown is not ClientCertificates.NONE):
        rule = f"required, since other keys of {dotted(at)}.tls are set"
        yield Fault(path=(*at, "tls", "certificate_file"), rule=rule)


def broker_names_need_tls(at: Path, broker_host: str | None, certificate: str | None) -> Iterator[Fault]:
    """Check that brokers can be chosen by the host names of TLS clients."""
    if broker_host is not None and certificate is None:
        rule = f"without effect, since clients send host names with TLS only; set {dotted(at)}.tls.certificate_file"
        yield Fault(path=(*at, "broker_host"), found=broker_host, rule=rule)


SERVER_TLS_RULES: Final[tuple[Rule, ...]] = (
    (("tls.client_certificates", "tls.client_ca_file"), certificates_can_be_verified),
    (("tls.certificate_file", "tls.key_file", "tls.client_certificates"), server_has_tls),
)
"""The rules of TLS of each listener, and of the admin server."""

LISTENER_RULES: Final[tuple[Rule, ...]] = (
    (("address", "node_ids", "broker_host"), ports_exist),
    (("advertised_port", "node_ids", "broker_host"), advertised_ports_exist),
    (("address", "advertised_host"), advertised_host_is_known),
    *SERVER_TLS_RULES,
    (("broker_host", "tls.certificate_file"), broker_names_need_tls),
)
"""The rules of each listener, each with the keys of the listener's table whose values it is called with."""


# --- other rules ------------------------------------------------------------------------------------------------------


def login_has_mechanism(at: Path, sasl: UpstreamSasl) -> Iterator[Fault]:
    """Check that no other key of the proxy's own login is set without the mechanism, by which it would have no effect.

    Which of them a mechanism requires is checked by its plugin. ``at`` is the path of the table of the brokers.
    """
    others = (sasl.user, sasl.password, sasl.options or None, sasl.identities or None)
    if sasl.mechanism is None and any(other is not None for other in others):
        rule = f"required, since other keys of {dotted(at)}.sasl are set"
        yield Fault(path=(*at, "sasl", "mechanism"), rule=rule)


def lookup_has_login(at: Path, lookup: OwnerLookup) -> Iterator[Fault]:
    """Check that the login of the lookup is complete; ``at`` is the path of the table of the brokers."""
    keys = {"mechanism": lookup.mechanism, "user": lookup.user, "password": lookup.password}
    table = (*at, "owner_lookup")
    if any(value is not None for value in keys.values()):
        for key in [key for key, value in keys.items() if value is None]:
            yield Fault(path=(*table, key), rule=f"required, since other keys of {dotted(table)} are set")


def admin_port_is_free(listeners: Sequence[ListenerTables], admin: AdminAddress | None) -> Iterator[Fault]:
    """Check that the admin server does not use a port of a listener."""
    if admin is None or isinstance(admin, UnixPath):
        return
    for each in listeners:
        address = each.listen.address
        if _same_interface(address, admin) and (port := _port_at(admin.port, each.listen)):
            rule = f'the port is taken by {port} of {each.setting}.address ("{address}"); choose another'
            yield Fault(path=("admin", "listen"), found=str(admin), rule=rule)
            return


def upstream_is_not_the_proxy(listeners: Sequence[ListenerTables]) -> Iterator[Fault]:
    """Check that the proxy does not connect to itself. Only addresses are compared; no names are resolved."""
    for setting, servers in {each.upstream_setting: each.upstream.bootstrap_servers for each in listeners}.items():
        for index, server in enumerate(servers):
            for each in listeners:
                address = each.listen.address
                if _same_interface(address, server) and (port := _port_at(server.port, each.listen)):
                    rule = f'the proxy would connect to itself: this is {port} of {each.setting}.address ("{address}")'
                    path: Path = (*setting.split("."), "bootstrap_servers", index)
                    yield Fault(path=path, found=str(server), rule=rule)
                    break


def listeners_have_own_ports(listeners: Sequence[ListenerTables]) -> Iterator[Fault]:
    """Check that no two listeners have a port in common."""
    for number, later in enumerate(listeners):
        address = later.listen.address
        for earlier in listeners[:number]:
            if not _same_interface(address, earlier.listen.address):
                continue
            if port := next((each for each in _ports(later.listen) if _port_at(each, earlier.listen)), None):
                rule = (
                    f"{_port_at(port, later.listen)} would be at port {port}, which is {_port_at(port, earlier.listen)}"
                    f' of {earlier.setting}.address ("{earlier.listen.address}"); choose another port'
                )
                yield Fault(path=(*later.setting.split("."), "address"), found=str(address), rule=rule)
                break


def admin_has_tokens(
    admin: AdminAddress | None,
    token_file: str | None,
    token: SecretSource | None,
    shown: ClientCertificates,
    authorizes: bool,
) -> Iterator[Fault]:
    """Check that the admin server has tokens, or client certificates in their place, if other machines can reach it."""
    if admin is None or token_file is not None or token is not None or is_local(admin):
        return
    if shown is ClientCertificates.NONE or not authorizes:
        rule = (
            f'required, since admin.listen ("{admin}") is neither a loopback address nor a Unix socket, and clients do '
            "not authenticate by certificates (admin.tls.client_certificates); expected the path of a file with a "
            "token"
        )
        yield Fault(path=("admin", "token_file"), rule=rule)


def admin_tls_has_port(admin: AdminAddress | None, certificate: str | None) -> Iterator[Fault]:
    """Check that the admin server's TLS is not for a Unix socket."""
    if isinstance(admin, UnixPath) and certificate is not None:
        rule = (
            f'a Unix socket has no TLS: admin.listen is "{admin}", to which only the proxy\'s user can connect; remove '
            "the table admin.tls, or let admin.listen be host:port"
        )
        yield Fault(path=("admin", "tls", "certificate_file"), found=certificate, rule=rule)


def file_of_quotas_is_used(store: StoreKind, file: str | None) -> Iterator[Fault]:
    """Check that no file of quotas is named if they are kept in a topic."""
    if store is StoreKind.TOPIC and file is not None:
        rule = 'without effect with client_quotas.store = "topic"; remove it, or choose "sqlite"'
        yield Fault(path=("client_quotas", "file"), found=file, rule=rule)


def workers_are_threads(workers: int | None, threads: int) -> Iterator[Fault]:
    """Check that ``workers``, the deprecated name of ``data_plane_threads``, has no value of its own."""
    if workers is not None and workers != threads:
        rule = f"deprecated, and data_plane_threads = {shown_threads(threads)} is set; remove workers"
        yield Fault(path=("workers",), found="auto" if workers == AUTO else workers, rule=rule)


def _ports(listen: Listen) -> Iterator[int]:
    yield listen.address.port
    if listen.broker_host is None:
        yield from (listen.address.port + 1 + node_id for node_id in listen.node_ids)


def _port_at(port: int, listen: Listen) -> str:
    """Return for what a listener uses a port; an empty string if it does not use it."""
    if port == listen.address.port:
        return "the bootstrap port"
    node_id = port - listen.address.port - 1
    return f"the port of broker {node_id}" if listen.broker_host is None and node_id in listen.node_ids else ""


def _same_interface(listener: Address, other: Address) -> bool:
    """Return whether both addresses are certainly on the same interface of this machine."""
    if is_wildcard_host(listener.host) or is_wildcard_host(other.host):
        return is_wildcard_host(other.host) or is_loopback_host(other.host) or listener.host == other.host
    both_loopback = is_loopback_host(listener.host) and is_loopback_host(other.host)
    named = "localhost" in (listener.host, other.host)
    return listener.host == other.host or (both_loopback and named)


RULES: Final[tuple[Rule, ...]] = (
    (
        (
            "admin.listen",
            "admin.token_file",
            "admin.token",
            "admin.tls.client_certificates",
            "admin.tls.certificate_authorizes",
        ),
        admin_has_tokens,
    ),
    (("admin.listen", "admin.tls.certificate_file"), admin_tls_has_port),
    (("client_quotas.store", "client_quotas.file"), file_of_quotas_is_used),
    (("workers", "data_plane_threads"), workers_are_threads),
)
"""The rules between keys that occur once, each with the keys whose values it is called with."""


def faults_between_keys(config: Config, bad: Collection[Path]) -> Iterator[Fault]:
    """Yield violations of the rules. ``bad`` has the paths of invalid and missing keys, whose rules are skipped."""
    known = _Known(bad)
    listeners = config.all_listeners()
    for each in listeners:
        yield from _faults_of_table(tuple(each.setting.split(".")), each.listen, LISTENER_RULES, known)
    yield from _faults_of_table(("admin",), config.admin, SERVER_TLS_RULES, known)
    for setting, upstream in {each.upstream_setting: each.upstream for each in listeners}.items():
        at = tuple(setting.split("."))
        if known.are_good(("sasl",), at):
            yield from login_has_mechanism(at, upstream.sasl)
        if known.are_good(("owner_lookup",), at):
            yield from lookup_has_login(at, upstream.owner_lookup)
    if known.are_good(("listen.address", "listen.node_ids", "listen.broker_host", "listeners")):
        yield from listeners_have_own_ports(listeners)
        if known.are_good(("admin.listen",)):
            yield from admin_port_is_free(listeners, config.admin.listen)
        if known.are_good(("upstream.bootstrap_servers",)):
            yield from upstream_is_not_the_proxy(listeners)
    for names, check in RULES:
        if known.are_good(names):
            yield from check(*(attrgetter(name)(config) for name in names))


def _faults_of_table(at: Path, table: Section, rules: Iterable[Rule], known: _Known) -> Iterator[Fault]:
    for names, check in rules:
        if known.are_good(names, at):
            yield from check(at, *(attrgetter(name)(table) for name in names))


class _Known:
    """Which keys are valid."""

    def __init__(self, bad: Collection[Path]) -> None:
        self._bad = bad

    def are_good(self, names: Iterable[str], at: Path = ()) -> bool:
        """Return whether all of these keys of the table at a path are valid."""
        paths = [(*at, *name.split(".")) for name in names]
        return not any(_overlap(path, each) for path in paths for each in self._bad)


def _overlap(one: Path, other: Path) -> bool:
    return all(ours == theirs for ours, theirs in zip(one, other, strict=False))
