"""The brokers of the cluster, their addresses, and the addresses that the proxy advertises. No sockets, no event loop.

Learned from each Metadata and FindCoordinator reply and each leader hint that is forwarded. Broker n is advertised at
``advertised_host`` and bootstrap port + 1 + n, or by a host name of its own at the bootstrap port. Both are the same on
every proxy and after every restart.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from headrace.quota_callbacks.requests import Address, BrokerInfo, ClusterMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.proxy.network.broker_names import BrokerNames
    from headrace.proxy.wire.endpoints import Rewritten

log = structlog.get_logger("headrace.topology")

MOST_OUT_OF_RANGE: Final = 100
"""Most ids outside the range of the listener that are remembered and logged."""


class Topology:
    """The brokers of the cluster, as far as the proxy has learned them."""

    def __init__(
        self,
        *,
        advertised_host: str,
        advertised_port: int,
        node_ids: Iterable[int],
        names: BrokerNames | None = None,
        setting: str = "listen",
    ) -> None:
        """``names`` are the host names of brokers that are all advertised at ``advertised_port``. ``setting`` is the
        table of the configuration that describes the listener."""
        self._setting = setting
        self._host = advertised_host
        self._port = advertised_port
        self._names = names
        self._node_ids = frozenset(node_ids)
        self._brokers: dict[int, BrokerInfo] = {}
        self._last_known: dict[int, Address] = {}
        self._cluster_id: str | None = None
        self._controller_id: int | None = None
        self._out_of_range: set[int] = set()
        self._listeners: list[Callable[[frozenset[int]], None]] = []

    def advertised(self, node_id: int) -> tuple[str, int] | None:
        """Return the advertised host and port of a broker, or ``None`` if the listener does not have its id.

        The first such call for an id logs an error, for `MOST_OUT_OF_RANGE` ids.
        """
        if node_id in self._node_ids:
            if self._names is not None:
                return self._names.host_of(node_id), self._port
            return self._host, self._port + 1 + node_id
        if node_id not in self._out_of_range and len(self._out_of_range) < MOST_OUT_OF_RANGE:
            self._out_of_range.add(node_id)
            log.error(
                "a broker's id is outside the range of a listener; clients do not see it until the range includes it",
                setting=f"{self._setting}.node_ids",
                node_id=node_id,
                node_ids=_ranges(self._node_ids),
            )
        return None

    def may_exist(self, node_id: int) -> bool:
        """Return whether the id is one of the listener's ``node_ids``."""
        return node_id in self._node_ids

    def address_of(self, node_id: int) -> Address | None:
        """Return the broker's last known address, even after it left the cluster, or ``None``."""
        return self._last_known.get(node_id)

    @property
    def metadata(self) -> ClusterMetadata:
        """The cluster as it is known now, for callbacks."""
        brokers = tuple(self._brokers[node_id] for node_id in sorted(self._brokers))
        return ClusterMetadata(cluster_id=self._cluster_id, controller_id=self._controller_id, brokers=brokers)

    @property
    def out_of_range(self) -> frozenset[int]:
        """Ids of brokers that are hidden from clients, because they are outside the listener's ``node_ids``."""
        return frozenset(self._out_of_range)

    def on_change(self, listener: Callable[[frozenset[int]], None]) -> None:
        """Call ``listener`` after each change, with the ids of the brokers that joined, left or changed address."""
        self._listeners.append(listener)

    def learn(
        self,
        brokers: Iterable[BrokerInfo],
        *,
        complete: bool,
        cluster_id: str | None = None,
        controller_id: int | None = None,
    ) -> None:
        """Update the cluster from a reply. ``complete``: it lists all brokers, so that others have left.

        An empty list is ignored: a broker sends one while it starts. From a reply that is not complete, only ids that
        are known or in the listener's range are learned, so that no broker can invent any number of them.
        """
        found = {broker.node_id: self._with_rack(broker) for broker in brokers}
        if not complete:
            found = {
                number: each for number, each in found.items() if number in self._brokers or self.may_exist(number)
            }
        if not found:
            return
        self._cluster_id = cluster_id or self._cluster_id
        if controller_id is not None and controller_id >= 0:
            self._controller_id = controller_id
        changed = {node_id for node_id, broker in found.items() if self._brokers.get(node_id) != broker}
        if changed:
            self._last_known.update((number, found[number].address) for number in changed & self._node_ids)
        if complete:
            changed |= self._brokers.keys() - found.keys()
            if changed:
                self._brokers = found
        else:
            self._brokers.update(found)
        if changed:
            self._notify(frozenset(changed))

    def _with_rack(self, broker: BrokerInfo) -> BrokerInfo:
        """Return ``broker`` with the rack that is known, if the reply has none, as many replies do."""
        known = self._brokers.get(broker.node_id)
        if broker.rack is not None or known is None:
            return broker
        return replace(broker, rack=known.rack)

    def _notify(self, changed: frozenset[int]) -> None:
        brokers = {str(node_id): str(broker.address) for node_id, broker in sorted(self._brokers.items())}
        log.info("brokers changed", changed=sorted(changed), brokers=brokers)
        for listener in self._listeners:
            listener(changed)


def _ranges(node_ids: frozenset[int]) -> str:
    """Return the ids in the format of the setting: ``0-2,1001``."""
    spans: list[list[int]] = []
    for node_id in sorted(node_ids):
        if spans and node_id == spans[-1][1] + 1:
            spans[-1][1] = node_id
        else:
            spans.append([node_id, node_id])
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in spans)


def learn(topology: Topology, found: Rewritten, *, complete: bool) -> None:
    """Update ``topology`` from the brokers in a rewritten reply, which may name each of them thousands of times; see
    `Topology.learn`."""
    if not found.brokers:
        return
    brokers = {each.node_id: each for each in found.brokers}
    topology.learn(
        [
            BrokerInfo(node_id=each.node_id, address=Address(host=each.host, port=each.port), rack=each.rack or None)
            for each in brokers.values()
        ],
        complete=complete,
        cluster_id=found.cluster_id,
        controller_id=found.controller_id,
    )
