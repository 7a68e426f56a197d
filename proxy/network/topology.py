"""Which brokers there are, where they really listen, and where the proxy shows them. Pure: no sockets, no loop.

Learned from every Metadata, DescribeCluster and FindCoordinator reply and every leader hint that passes. Broker n is
shown at ``advertised_host`` and bootstrap port + 1 + n: the same on every proxy and after every restart, whatever was
learned.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from headrace.quota_callbacks.requests import Address, BrokerInfo, ClusterMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.proxy.wire.endpoints import Rewritten

log = structlog.get_logger("headrace.topology")


class Topology:
    """The cluster as the proxy knows it."""

    def __init__(self, *, advertised_host: str, advertised_port: int, node_ids: Iterable[int]) -> None:
        self._host = advertised_host
        self._first_port = advertised_port + 1
        self._node_ids = frozenset(node_ids)
        self._brokers: dict[int, BrokerInfo] = {}
        self._last_known: dict[int, Address] = {}
        self._cluster_id: str | None = None
        self._controller_id: int | None = None
        self._out_of_range: set[int] = set()
        self._listeners: list[Callable[[frozenset[int]], None]] = []

    def advertised(self, node_id: int) -> tuple[str, int] | None:
        """Where clients find the broker; ``None``, and one error in the log, when it is outside ``listen.node_ids``."""
        if node_id in self._node_ids:
            return self._host, self._first_port + node_id
        if node_id not in self._out_of_range:
            self._out_of_range.add(node_id)
            log.error(
                "a broker's id is outside listen.node_ids; clients do not see it until the setting includes it",
                node_id=node_id,
                node_ids=_ranges(self._node_ids),
            )
        return None

    def address_of(self, node_id: int) -> Address | None:
        """Where the broker listens, or last did before it left; ``None`` if that was never learned."""
        return self._last_known.get(node_id)

    @property
    def metadata(self) -> ClusterMetadata:
        """What was learned, for callbacks."""
        brokers = tuple(self._brokers[node_id] for node_id in sorted(self._brokers))
        return ClusterMetadata(cluster_id=self._cluster_id, controller_id=self._controller_id, brokers=brokers)

    @property
    def out_of_range(self) -> frozenset[int]:
        """Ids of brokers that cannot be shown to clients."""
        return frozenset(self._out_of_range)

    def on_change(self, listener: Callable[[frozenset[int]], None]) -> None:
        """Call ``listener`` with the ids of the brokers that came, left or moved, after each change."""
        self._listeners.append(listener)

    def learn(
        self,
        brokers: Iterable[BrokerInfo],
        *,
        complete: bool,
        cluster_id: str | None = None,
        controller_id: int | None = None,
    ) -> None:
        """Take what a reply said. ``complete``: it listed every living broker, so that others have left.

        An empty list is no cluster's list (a broker that is just starting sends one): nothing is concluded from it.
        """
        found = {broker.node_id: self._with_rack(broker) for broker in brokers}
        if not found:
            return
        self._cluster_id = cluster_id or self._cluster_id
        if controller_id is not None and controller_id >= 0:
            self._controller_id = controller_id
        self._last_known.update((node_id, broker.address) for node_id, broker in found.items())
        changed = {node_id for node_id, broker in found.items() if self._brokers.get(node_id) != broker}
        if complete:
            changed |= self._brokers.keys() - found.keys()
            if changed:
                self._brokers = found
        else:
            self._brokers.update(found)
        if changed:
            self._notify(frozenset(changed))

    def _with_rack(self, broker: BrokerInfo) -> BrokerInfo:
        """Many replies name no rack; the one that is known then stays."""
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
    """``0-2,1001``: the ids as the setting spells them."""
    spans: list[list[int]] = []
    for node_id in sorted(node_ids):
        if spans and node_id == spans[-1][1] + 1:
            spans[-1][1] = node_id
        else:
            spans.append([node_id, node_id])
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in spans)


def learn(topology: Topology, found: Rewritten, *, complete: bool) -> None:
    """Hand what a reply told about the cluster to the topology."""
    if not found.brokers:
        return
    topology.learn(
        [
            BrokerInfo(node_id=each.node_id, address=Address(host=each.host, port=each.port), rack=each.rack or None)
            for each in found.brokers
        ],
        complete=complete,
        cluster_id=found.cluster_id,
        controller_id=found.controller_id,
    )
