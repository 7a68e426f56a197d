"""What a request costs a broker's request handler threads: the estimate that ``request_percentage`` is charged with.

The proxy does not see the broker's threads, so it estimates: a base per request and a price per KiB of request and
reply, by API, and never more than the time in which the broker had the request. Pure. Called once per reply; the
proxy's own thread time is added by the caller, who also decides which requests are exempt.

The defaults are the handler time that Kafka's own request quota charges (localTimeMs of ``kafka.request.logger`` on a
broker with a request quota, ``RequestChannel.Request.requestThreadTimeNanos``), medians over a JVM that is warm. They
come from Kafka 4.3.1, broker and controller in one process, by ``python -m benchmarks.request_costs``, which prints
this table anew. docs/request-costs.md says how, how well it fits, and what it leaves out.
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
    """A line: milliseconds of one handler thread for a request, and for each KiB of it and of its reply.

    Raises ValueError for what is negative or not finite.
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
"""By API key; see the module's docstring for where the numbers come from."""

FALLBACK_COST: Final = RequestCost(base_ms=0.067, per_kib_ms=0.027)
"""For an API that is not in the table: the median base and, of those that have one, the median price per KiB."""


def estimate_ms(
    api_key: int,
    request_bytes: int,
    response_bytes: int,
    observed_ms: float | None,
    costs: Mapping[int, RequestCost] = DEFAULT_COSTS,
) -> float:
    """Milliseconds of broker handler thread that a request took, by estimate.

    Bytes are header and body, without the 4 bytes of the length (``Request.request_bytes``, ``response_bytes``).
    ``observed_ms`` is the time between forwarding the request and the reply's first byte, not negative, or ``None``
    where it is not known: no handler can have worked longer than that. Waiting, as in a long poll, a rebalance or for
    acks=all, is not charged, since the line knows nothing of it. An API key that ``costs`` lacks costs `FALLBACK_COST`.
    """
    cost = costs.get(api_key, FALLBACK_COST)
    ms = cost.base_ms + cost.per_kib_ms * (request_bytes + response_bytes) / 1024
    return ms if observed_ms is None or ms < observed_ms else observed_ms
