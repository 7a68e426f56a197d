"""Constraints between keys: ports must be valid and free, and the upstream must not be the proxy itself.

Called by `loading` with the values of the keys that `RULES` lists; a rule is skipped if one of them is invalid. A fault
has the path of the key that is most likely to be changed; its message contains the other keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.config.tables.admin import UnixPath, is_local
from headrace.config.values import PORT_MAX, HostPort, is_loopback_host, reachable_host
from headrace.quota_callbacks.options import Fault

if TYPE_CHECKING:
    from headrace.config.tables.admin import AdminAddress
    from headrace.config.values import NodeIds

RuleCheck: TypeAlias = Callable[..., Iterable[Fault]]


def ports_exist(address: HostPort, node_ids: NodeIds) -> Iterator[Fault]:
    """Check that the port of the highest broker id is valid."""
    if (port := address.port + 1 + node_ids.highest) > PORT_MAX:
        yield Fault(path=("listen", "address"), found=str(address), rule=_too_high(node_ids, port))


def advertised_ports_exist(advertised_port: int | None, node_ids: NodeIds) -> Iterator[Fault]:
    """Check that the advertised port of the highest broker id is valid."""
    if advertised_port is not None and (port := advertised_port + 1 + node_ids.highest) > PORT_MAX:
        yield Fault(path=("listen", "advertised_port"), found=advertised_port, rule=_too_high(node_ids, port))


def advertised_host_is_known(address: HostPort, advertised: str | None) -> Iterator[Fault]:
    """Check that there is an advertised host if the listen address is a wildcard."""
    if advertised is None and address.is_wildcard:
        rule = f'required, since listen.address ("{address}") is a wildcard; expected {reachable_host().expected}'
        yield Fault(path=("listen", "advertised_host"), rule=rule)


def _too_high(node_ids: NodeIds, port: int) -> str:
    return (
        f"broker {node_ids.highest} would be at port {port} (this port + 1 + id), above {PORT_MAX}; "
        f'lower the port or narrow listen.node_ids ("{node_ids}")'
    )


def admin_port_is_free(address: HostPort, node_ids: NodeIds, admin: AdminAddress | None) -> Iterator[Fault]:
    """Check that the admin server does not use a port of a listener."""
    if admin is None or isinstance(admin, UnixPath) or not _same_interface(address, admin):
        return
    if listener := _listener_at(admin.port, address, node_ids):
        rule = f'the port is taken by {listener} of listen.address ("{address}"); choose another'
        yield Fault(path=("admin", "listen"), found=str(admin), rule=rule)


def admin_has_tokens(admin: AdminAddress | None, token_file: str | None) -> Iterator[Fault]:
    """Check that the admin server has tokens if other machines can reach it."""
    if admin is not None and token_file is None and not is_local(admin):
        rule = (
            f'required, since admin.listen ("{admin}") is neither a loopback address nor a Unix socket; expected the '
            "path of a file with a token"
        )
        yield Fault(path=("admin", "token_file"), rule=rule)


def upstream_is_not_the_proxy(address: HostPort, node_ids: NodeIds, servers: tuple[HostPort, ...]) -> Iterator[Fault]:
    """Check that the proxy does not connect to itself. Only addresses are compared; no names are resolved."""
    for index, server in enumerate(servers):
        if not _same_interface(address, server):
            continue
        if listener := _listener_at(server.port, address, node_ids):
            rule = f'the proxy would connect to itself: this is {listener} of listen.address ("{address}")'
            yield Fault(path=("upstream", "bootstrap_servers", index), found=str(server), rule=rule)


def _listener_at(port: int, address: HostPort, node_ids: NodeIds) -> str:
    if port == address.port:
        return "the bootstrap port"
    node_id = port - address.port - 1
    return f"the port of broker {node_id}" if node_id in node_ids else ""


def _same_interface(listener: HostPort, other: HostPort) -> bool:
    """Return whether both addresses are certainly on the same interface of this machine."""
    if listener.is_wildcard or other.is_wildcard:
        return other.is_wildcard or is_loopback_host(other.host) or listener.host == other.host
    both_loopback = is_loopback_host(listener.host) and is_loopback_host(other.host)
    named = "localhost" in (listener.host, other.host)
    return listener.host == other.host or (both_loopback and named)


RULES: Final[tuple[tuple[tuple[str, ...], RuleCheck], ...]] = (
    (("listen.address", "listen.node_ids"), ports_exist),
    (("listen.advertised_port", "listen.node_ids"), advertised_ports_exist),
    (("listen.address", "listen.advertised_host"), advertised_host_is_known),
    (("listen.address", "listen.node_ids", "admin.listen"), admin_port_is_free),
    (("admin.listen", "admin.token_file"), admin_has_tokens),
    (("listen.address", "listen.node_ids", "upstream.bootstrap_servers"), upstream_is_not_the_proxy),
)
"""The rules, each with the keys whose values it is called with."""
