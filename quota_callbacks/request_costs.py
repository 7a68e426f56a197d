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
    0: RequestCost(base_ms=0.068, per_kib_ms=0.0015),  # Produce
    1: RequestCost(base_ms=0.044),  # Fetch
    2: RequestCost(base_ms=0.039, per_kib_ms=0.024),  # ListOffsets
    3: RequestCost(base_ms=0.052, per_kib_ms=0.024),  # Metadata
    8: RequestCost(base_ms=0.082, per_kib_ms=0.027),  # OffsetCommit
    9: RequestCost(base_ms=0.056),  # OffsetFetch
    10: RequestCost(base_ms=0.024, per_kib_ms=0.032),  # FindCoordinator
    11: RequestCost(base_ms=0.023),  # JoinGroup
    12: RequestCost(base_ms=0.012),  # Heartbeat
    13: RequestCost(base_ms=0.022),  # LeaveGroup
    14: RequestCost(base_ms=0.028),  # SyncGroup
    15: RequestCost(base_ms=0.048),  # DescribeGroups
    16: RequestCost(base_ms=0.053),  # ListGroups
    18: RequestCost(base_ms=0.002),  # ApiVersions
    19: RequestCost(base_ms=0.21),  # CreateTopics
    20: RequestCost(base_ms=0.23),  # DeleteTopics
    21: RequestCost(base_ms=0.056, per_kib_ms=0.074),  # DeleteRecords
    22: RequestCost(base_ms=0.14),  # InitProducerId
    23: RequestCost(base_ms=0.02, per_kib_ms=0.04),  # OffsetForLeaderEpoch
    24: RequestCost(base_ms=0.11, per_kib_ms=0.081),  # AddPartitionsToTxn
    25: RequestCost(base_ms=0.044),  # AddOffsetsToTxn
    26: RequestCost(base_ms=0.082),  # EndTxn
    28: RequestCost(base_ms=0.13, per_kib_ms=0.028),  # TxnOffsetCommit
    29: RequestCost(base_ms=0.029),  # DescribeAcls
    30: RequestCost(base_ms=0.21),  # CreateAcls
    31: RequestCost(base_ms=0.21),  # DeleteAcls
    32: RequestCost(base_ms=0.18, per_kib_ms=0.017),  # DescribeConfigs
    33: RequestCost(base_ms=0.31),  # AlterConfigs
    35: RequestCost(base_ms=0.51, per_kib_ms=0.034),  # DescribeLogDirs
    37: RequestCost(base_ms=0.3),  # CreatePartitions
    42: RequestCost(base_ms=0.11),  # DeleteGroups
    43: RequestCost(base_ms=0.14),  # ElectLeaders
    44: RequestCost(base_ms=0.32),  # IncrementalAlterConfigs
    45: RequestCost(base_ms=0.13),  # AlterPartitionReassignments
    46: RequestCost(base_ms=0.1),  # ListPartitionReassignments
    47: RequestCost(base_ms=0.11),  # OffsetDelete
    48: RequestCost(base_ms=0.02),  # DescribeClientQuotas
    49: RequestCost(base_ms=0.19),  # AlterClientQuotas
    50: RequestCost(base_ms=0.054),  # DescribeUserScramCredentials
    51: RequestCost(base_ms=0.12),  # AlterUserScramCredentials
    55: RequestCost(base_ms=0.11),  # DescribeQuorum
    60: RequestCost(base_ms=0.033),  # DescribeCluster
    61: RequestCost(base_ms=0.013, per_kib_ms=0.022),  # DescribeProducers
    65: RequestCost(base_ms=0.02),  # DescribeTransactions
    66: RequestCost(base_ms=0.028),  # ListTransactions
    68: RequestCost(base_ms=0.02),  # ConsumerGroupHeartbeat
    69: RequestCost(base_ms=0.067),  # ConsumerGroupDescribe
    74: RequestCost(base_ms=0.079),  # ListConfigResources
    75: RequestCost(base_ms=0.041, per_kib_ms=0.056),  # DescribeTopicPartitions
    76: RequestCost(base_ms=0.02),  # ShareGroupHeartbeat
    77: RequestCost(base_ms=0.062),  # ShareGroupDescribe
    78: RequestCost(base_ms=0.48, per_kib_ms=0.00089),  # ShareFetch
    79: RequestCost(base_ms=0.32),  # ShareAcknowledge
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
