"""Rules between keys: ports that must exist, not clash, and not lead back to the proxy itself.

Called by `loading`, with the values of the keys that a rule names; a rule is skipped while one of them is bad.
A fault names the key to change first; its sentence names the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.config.values import PORT_MAX, HostPort, is_loopback_host, reachable_host
from headrace.quota_callbacks.options import Fault

if TYPE_CHECKING:
    from headrace.config.values import NodeIds

RuleCheck: TypeAlias = Callable[..., Iterable[Fault]]


def ports_exist(address: HostPort, node_ids: NodeIds) -> Iterator[Fault]:
    """The highest broker's port must be a port."""
    if (port := address.port + 1 + node_ids.highest) > PORT_MAX:
        yield Fault(path=("listen", "address"), found=str(address), rule=_too_high(node_ids, port))


def advertised_ports_exist(advertised_port: int | None, node_ids: NodeIds) -> Iterator[Fault]:
    """So must the highest that is advertised."""
    if advertised_port is not None and (port := advertised_port + 1 + node_ids.highest) > PORT_MAX:
        yield Fault(path=("listen", "advertised_port"), found=advertised_port, rule=_too_high(node_ids, port))


def clients_can_reach_it(address: HostPort, advertised: str | None) -> Iterator[Fault]:
    """A wildcard address does not say what to advertise."""
    if advertised is None and address.is_wildcard:
        rule = f'required, since listen.address ("{address}") is a wildcard; expected {reachable_host().expected}'
        yield Fault(path=("listen", "advertised_host"), rule=rule)


def _too_high(node_ids: NodeIds, port: int) -> str:
    return (
        f"broker {node_ids.highest} would be at port {port} (this port + 1 + id), above {PORT_MAX}; "
        f'lower the port or narrow listen.node_ids ("{node_ids}")'
    )


def admin_stands_apart(address: HostPort, node_ids: NodeIds, admin: HostPort | None) -> Iterator[Fault]:
    """The admin server must not want a port that clients connect to."""
    if admin is None or not _same_interface(address, admin):
        return
    if taken_by := _listener_at(admin.port, address, node_ids):
        rule = f'the port is taken by {taken_by} of listen.address ("{address}"); choose another'
        yield Fault(path=("admin", "listen"), found=str(admin), rule=rule)


def upstream_is_elsewhere(address: HostPort, node_ids: NodeIds, servers: tuple[HostPort, ...]) -> Iterator[Fault]:
    """The proxy must not connect to itself. Only what is plain from the addresses: no name is resolved."""
    for index, server in enumerate(servers):
        if not _same_interface(address, server):
            continue
        if taken_by := _listener_at(server.port, address, node_ids):
            rule = f'the proxy would connect to itself: this is {taken_by} of listen.address ("{address}")'
            yield Fault(path=("upstream", "bootstrap_servers", index), found=str(server), rule=rule)


def _listener_at(port: int, address: HostPort, node_ids: NodeIds) -> str:
    if port == address.port:
        return "the bootstrap port"
    node_id = port - address.port - 1
    return f"the port of broker {node_id}" if node_id in node_ids else ""


def _same_interface(listener: HostPort, other: HostPort) -> bool:
    """Whether both are plainly the same machine's same interface; unsure is no."""
    if listener.is_wildcard or other.is_wildcard:
        return other.is_wildcard or is_loopback_host(other.host) or listener.host == other.host
    both_loopback = is_loopback_host(listener.host) and is_loopback_host(other.host)
    named = "localhost" in (listener.host, other.host)
    return listener.host == other.host or (both_loopback and named)


RULES: Final[tuple[tuple[tuple[str, ...], RuleCheck], ...]] = (
    (("listen.address", "listen.node_ids"), ports_exist),
    (("listen.advertised_port", "listen.node_ids"), advertised_ports_exist),
    (("listen.address", "listen.advertised_host"), clients_can_reach_it),
    (("listen.address", "listen.node_ids", "admin.listen"), admin_stands_apart),
    (("listen.address", "listen.node_ids", "upstream.bootstrap_servers"), upstream_is_elsewhere),
)
"""The rules, each with the keys whose values it takes."""
