"""The estimate of a broker's request handler time that ``request_percentage`` charges.

The proxy cannot measure the broker's threads. The estimate is linear for each API: a base per request and a cost per
KiB of request and reply, and at most the time between forwarding and reply. Called once per reply by
`headrace.quota_callbacks.builtin.request_percentage`, which adds the proxy's own thread time and decides which requests
are exempt. Pure.

The defaults are medians of the handler time that Kafka's own request quota charges (localTimeMs of
``kafka.request.logger`` on a broker with a request quota, ``RequestChannel.Request.requestThreadTimeNanos``), measured
on a warm JVM with Kafka 4.3.1, broker and controller in one process. ``python -m benchmarks.request_costs`` measures
them again and prints this table. docs/request-costs.md describes the method, its accuracy and its limits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCost:
    """The cost of an API's requests: milliseconds of one handler thread per request, and per KiB of request and reply.

    Raises `ValueError` for a value that is negative or not finite.
    """

    base_ms: float
    per_kib_ms: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("base_ms", self.base_ms), ("per_kib_ms", self.per_kib_ms)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}; it must be a finite number of milliseconds, 0 or more")


DEFAULT_COSTS: Final[Mapping[int, RequestCost]] = {
    ApiKey.PRODUCE: RequestCost(base_ms=0.068, per_kib_ms=0.0015),
    ApiKey.FETCH: RequestCost(base_ms=0.044),
    ApiKey.LIST_OFFSETS: RequestCost(base_ms=0.039, per_kib_ms=0.024),
    ApiKey.METADATA: RequestCost(base_ms=0.052, per_kib_ms=0.024),
    ApiKey.OFFSET_COMMIT: RequestCost(base_ms=0.082, per_kib_ms=0.027),
    ApiKey.OFFSET_FETCH: RequestCost(base_ms=0.056),
    ApiKey.FIND_COORDINATOR: RequestCost(base_ms=0.024, per_kib_ms=0.032),
    ApiKey.JOIN_GROUP: RequestCost(base_ms=0.023),
    ApiKey.HEARTBEAT: RequestCost(base_ms=0.012),
    ApiKey.LEAVE_GROUP: RequestCost(base_ms=0.022),
    ApiKey.SYNC_GROUP: RequestCost(base_ms=0.028),
    ApiKey.DESCRIBE_GROUPS: RequestCost(base_ms=0.048),
    ApiKey.LIST_GROUPS: RequestCost(base_ms=0.053),
    ApiKey.API_VERSIONS: RequestCost(base_ms=0.002),
    ApiKey.CREATE_TOPICS: RequestCost(base_ms=0.21),
    ApiKey.DELETE_TOPICS: RequestCost(base_ms=0.23),
    ApiKey.DELETE_RECORDS: RequestCost(base_ms=0.056, per_kib_ms=0.074),
    ApiKey.INIT_PRODUCER_ID: RequestCost(base_ms=0.14),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: RequestCost(base_ms=0.02, per_kib_ms=0.04),
    ApiKey.ADD_PARTITIONS_TO_TXN: RequestCost(base_ms=0.11, per_kib_ms=0.081),
    ApiKey.ADD_OFFSETS_TO_TXN: RequestCost(base_ms=0.044),
    ApiKey.END_TXN: RequestCost(base_ms=0.082),
    ApiKey.TXN_OFFSET_COMMIT: RequestCost(base_ms=0.13, per_kib_ms=0.028),
    ApiKey.DESCRIBE_ACLS: RequestCost(base_ms=0.029),
    ApiKey.CREATE_ACLS: RequestCost(base_ms=0.21),
    ApiKey.DELETE_ACLS: RequestCost(base_ms=0.21),
    ApiKey.DESCRIBE_CONFIGS: RequestCost(base_ms=0.18, per_kib_ms=0.017),
    ApiKey.ALTER_CONFIGS: RequestCost(base_ms=0.31),
    ApiKey.DESCRIBE_LOG_DIRS: RequestCost(base_ms=0.51, per_kib_ms=0.034),
    ApiKey.CREATE_PARTITIONS: RequestCost(base_ms=0.3),
    ApiKey.DELETE_GROUPS: RequestCost(base_ms=0.11),
    ApiKey.ELECT_LEADERS: RequestCost(base_ms=0.14),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: RequestCost(base_ms=0.32),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: RequestCost(base_ms=0.13),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: RequestCost(base_ms=0.1),
    ApiKey.OFFSET_DELETE: RequestCost(base_ms=0.11),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: RequestCost(base_ms=0.02),
    ApiKey.ALTER_CLIENT_QUOTAS: RequestCost(base_ms=0.19),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: RequestCost(base_ms=0.054),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: RequestCost(base_ms=0.12),
    ApiKey.DESCRIBE_QUORUM: RequestCost(base_ms=0.11),
    ApiKey.DESCRIBE_CLUSTER: RequestCost(base_ms=0.033),
    ApiKey.DESCRIBE_PRODUCERS: RequestCost(base_ms=0.013, per_kib_ms=0.022),
    ApiKey.DESCRIBE_TRANSACTIONS: RequestCost(base_ms=0.02),
    ApiKey.LIST_TRANSACTIONS: RequestCost(base_ms=0.028),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: RequestCost(base_ms=0.02),
    ApiKey.CONSUMER_GROUP_DESCRIBE: RequestCost(base_ms=0.067),
    ApiKey.LIST_CONFIG_RESOURCES: RequestCost(base_ms=0.079),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: RequestCost(base_ms=0.041, per_kib_ms=0.056),
    ApiKey.SHARE_GROUP_HEARTBEAT: RequestCost(base_ms=0.02),
    ApiKey.SHARE_GROUP_DESCRIBE: RequestCost(base_ms=0.062),
    ApiKey.SHARE_FETCH: RequestCost(base_ms=0.48, per_kib_ms=0.00089),
    ApiKey.SHARE_ACKNOWLEDGE: RequestCost(base_ms=0.32),
}
"""The default costs by API key; the module's docstring states their source."""

FALLBACK_COST: Final = RequestCost(base_ms=0.067, per_kib_ms=0.027)
"""The cost of APIs that are not in the table: the median base, and the median of the costs per KiB above 0."""


def estimate_ms(
    api_key: int,
    request_bytes: int,
    response_bytes: int,
    observed_ms: float | None,
    costs: Mapping[int, RequestCost] = DEFAULT_COSTS,
) -> float:
    """Return the estimated handler time of a request, in milliseconds of one thread.

    Bytes are header and body, without the 4 bytes of the length field (``Request.request_bytes``, ``response_bytes``).
    ``observed_ms`` is the time between forwarding the request and the reply's first byte, 0 or more, or ``None`` if it
    is unknown; the estimate never exceeds it. Waiting in the broker, as in a long poll, a rebalance or for acks=all, is
    not part of the estimate. An API key that ``costs`` lacks costs `FALLBACK_COST`.
    """
    cost = costs.get(api_key, FALLBACK_COST)
    ms = cost.base_ms + cost.per_kib_ms * (request_bytes + response_bytes) / 1024
    return ms if observed_ms is None or ms < observed_ms else observed_ms
