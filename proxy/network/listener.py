"""A configured listener: where its connections lead, and how a client's connection begins on it.

Created by the server from ``[listen]`` and ``[upstream]``, and from each ``[listeners.NAME]``. A connection has the
listener that has accepted it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.quota_callbacks.entities import bounded_name

if TYPE_CHECKING:
    import ipaddress
    from collections.abc import Mapping

    from headrace.proxy.network.broker_names import BrokerNames
    from headrace.proxy.network.sockets import Socket
    from headrace.proxy.network.tls.contexts import TlsContext
    from headrace.proxy.network.tls.subjects.principals import PrincipalRules
    from headrace.proxy.network.topology import Topology
    from headrace.quota_callbacks.requests import Address
    from headrace.quota_callbacks.sasl import UpstreamSasl


class Dialler(Protocol):
    """What connects to brokers; implemented by `headrace.proxy.network.upstream.Upstream`."""

    setting: str
    tls: TlsContext | None
    sasl: UpstreamSasl | None
    bootstrap_servers: tuple[Address, ...]
    connect_timeout_s: float
    reply_timeout_s: float
    serves_anonymous: bool
    reached: bool | None

    async def dial(
        self, node_id: int | None, client: Address | None = None, *, waits: bool = False
    ) -> tuple[Socket, Address]:
        """See `headrace.proxy.network.upstream.Upstream.dial`."""

    async def refresh(self) -> None:
        """See `headrace.proxy.network.upstream.Upstream.refresh`."""

    async def wait_for_refresh(self) -> None:
        """See `headrace.proxy.network.upstream.Upstream.wait_for_refresh`."""

    async def wait_until_asked(self) -> None:
        """See `headrace.proxy.network.upstream.Upstream.wait_until_asked`."""

    async def answers(self) -> bool:
        """See `headrace.proxy.network.upstream.Upstream.answers`."""

    async def problem(self) -> str:
        """See `headrace.proxy.network.upstream.Upstream.problem`."""


@dataclass(slots=True, kw_only=True)
class ListenerTls:
    """TLS of a listener."""

    context: TlsContext
    principals: PrincipalRules | None
    """How the subject of a certificate becomes a user; ``None`` if clients show no certificate."""


@dataclass(slots=True, kw_only=True)
class ListenerSasl:
    """SASL of a listener whose clients the proxy authenticates itself."""

    mechanisms: tuple[str, ...]
    max_lifetime_s: float | None
    """The longest session of a client; ``None`` for no limit."""


class BrokerIdentities:
    """The identities with which the proxy authenticates to the brokers, by the user of the client."""

    __slots__ = ("_by_name", "_by_prefix")

    def __init__(self, by_name: Mapping[str, UpstreamSasl], by_prefix: Mapping[str, UpstreamSasl]) -> None:
        """``by_name`` has the identities of single users, and ``by_prefix`` those of all users whose names begin so."""
        self._by_name = {bounded_name(name): identity for name, identity in by_name.items()}
        self._by_prefix = sorted(by_prefix.items(), key=lambda each: len(each[0]), reverse=True)

    def of(self, user: str) -> UpstreamSasl | None:
        """Return the identity for ``user``: its own, or else that of the longest prefix; ``None`` if there is none."""
        found = self._by_name.get(user)
        if found is not None:
            return found
        return next((identity for prefix, identity in self._by_prefix if user.startswith(prefix)), None)


@dataclass(slots=True, kw_only=True)
class Listener:
    """One listener, and the listener of the brokers that its connections lead to."""

    setting: str
    """The table that describes it: ``listen`` or ``listeners.NAME``."""
    topology: Topology
    upstream: Dialler
    tls: ListenerTls | None = None
    """``None`` for plaintext."""
    sasl: ListenerSasl | None = None
    """``None`` if the brokers authenticate clients, or clients do not authenticate."""
    identities: BrokerIdentities | None = None
    """The identities of users at the brokers; ``None`` if all connections have that of ``upstream.sasl``."""
    broker_names: BrokerNames | None = None
    """The host names that lead to a broker on the one port; ``None`` if each broker has a port of its own."""
    proxy_protocol_from: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    """Addresses whose connections begin with a header of the PROXY protocol."""

    @property
    def sasl_protocol(self) -> str:
        """The ``security.protocol`` of a client that authenticates by SASL at this listener."""
        return "SASL_PLAINTEXT" if self.tls is None else "SASL_SSL"
