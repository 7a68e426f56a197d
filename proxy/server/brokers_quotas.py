"""The quotas that were set at the brokers, which enforce them beside the proxy's (``client_quotas.brokers``).

The cluster is asked regularly, over connections of the proxy's own, which have no credentials. Run by
`quotas_in_force`, which passes what is known to the client-quota APIs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
import trio

from headrace.proxy.kafka_client.admin import AdminClient
from headrace.proxy.kafka_client.errors import KafkaClientError
from headrace.proxy.kafka_client.settings import BrokerAddress, ClientSettings
from headrace.proxy.repeated_lines import RepeatedLines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headrace.proxy.quotas.definitions import QuotaDefinitions
    from headrace.quota_callbacks.entities import QuotaEntity
    from headrace.quota_callbacks.requests import Address

log = structlog.get_logger("headrace.quotas")

INTERVAL_S: Final = 60.0
"""Seconds between two requests to the cluster. The brokers' quotas are only shown, so they may be that old."""
RETRY_S: Final = 5.0
"""Seconds between two requests until the cluster has answered once."""
TIMEOUT_MS: Final = 10_000
SHOWN: Final = 5
"""Entities that a warning names; it counts the others."""


class BrokersQuotas:
    """What is known of the brokers' quotas. ``servers`` returns the bootstrap servers that are in force."""

    def __init__(self, servers: Callable[[], tuple[Address, ...]], definitions: QuotaDefinitions) -> None:
        self._servers = servers
        self._definitions = definitions
        self._repeated = RepeatedLines()
        self._warned = ""
        self.quotas: Mapping[QuotaEntity, Mapping[str, float]] = {}
        self.known = trio.Event()
        """Set once the cluster has answered."""

    async def run(self) -> None:
        """Ask the cluster at once and then regularly, until cancelled."""
        while True:
            await self._refresh()
            await trio.sleep(INTERVAL_S if self.known.is_set() else RETRY_S)

    async def _refresh(self) -> None:
        """Ask the cluster once. A failure is logged, and changes nothing."""
        servers = tuple(BrokerAddress(host=each.host, port=each.port) for each in self._servers())
        settings = ClientSettings(bootstrap_servers=servers, default_api_timeout_ms=TIMEOUT_MS)
        try:
            async with AdminClient(settings) as client:
                self.quotas = await client.describe_client_quotas()
        except KafkaClientError as error:
            if (left_out := self._repeated.due("unknown", str(error))) is not None:
                log.info("the brokers' quotas are not known", reason=str(error), left_out=left_out or None)
            return
        self.known.set()
        remark = self.remark()
        if remark and remark != self._warned:
            log.warning("brokers have the same quotas", reason=remark)
        self._warned = remark

    def remark(self) -> str:
        """Return a sentence about the quotas that both the brokers and the proxy have; empty if there are none."""
        both = [f"{key} of {entity}" for entity, key in self._of_both()]
        if not both:
            return ""
        more = f" and {len(both) - SHOWN} more" if len(both) > SHOWN else ""
        return f"both the brokers and the proxy throttle by these quotas: {'; '.join(both[:SHOWN])}{more}"

    def _of_both(self) -> Iterator[tuple[QuotaEntity, str]]:
        for entity, values in self.quotas.items():
            for key in self._definitions.values(entity).keys() & values.keys():
                yield entity, key
