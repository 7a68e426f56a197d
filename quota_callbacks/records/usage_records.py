"""The format of usage records: the traffic of a second by client, API and topic.

A record is a JSON object in a line of a file, or a message of a Kafka topic. ``headrace.plugins.usage_records`` writes
records and ``headrace.pipeline`` reads them; neither imports the other. Pure.

Every record has ``schema`` (`SCHEMA_VERSION`), ``kind``, ``instance`` (one run of one proxy) and ``sequence``,
which starts at 0 for each instance and increases by 1, so that a reader detects lost and duplicate records. Readers
ignore fields that they do not know; ``schema`` changes when existing readers would misinterpret a record.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypedDict

SCHEMA_VERSION: Final = 1

DEFAULT_TOPIC: Final = "headrace-usage"


class Kind(StrEnum):
    """The kinds of records."""

    USAGE = "usage"
    """The requests of one second with the same cluster, user, client id, API and topic (`UsageRecord`)."""
    LOST = "lost"
    """Records that could not be written (`LostRecord`)."""
    END = "end"
    """The instance has stopped normally; there are no records after this ``sequence``."""


class RecordHead(TypedDict):
    """The fields of every record."""

    schema: int
    kind: str
    instance: str
    sequence: int


class UsageRecord(RecordHead):
    """Sums over the requests that were completed in a second. Several records may have the same second, cluster, user,
    client id, API and topic. Bytes are header and body, without the 4 bytes of the length field, as quotas charge
    them."""

    second: int
    """Seconds since 1970, UTC."""
    cluster: str | None
    """Id of the cluster; null until the proxy has learned it."""
    user: str | None
    """Null together with ``client_id`` for the clients beyond the maximum number of records of a second, which are
    summed up by API."""
    client_id: str | None
    api_key: int
    topic: str | None
    """Null if the API has no topics or topics are not recorded, and for the part of a request without a topic."""
    requests: int
    errors: int
    """Number of requests without a reply, and of those that the proxy refused."""
    request_bytes: int
    response_bytes: int
    thread_ms: float
    """Thread time that ``request_percentage`` charged, or would have charged if it applied to the client: the cost
    model's estimate of the broker's handler time, and the proxy's own. 0 for exempt requests and those without a
    reply."""
    broker_ms: float
    """Time between forwarding and reply, including waiting in the broker."""
    mutations: int
    """Number of partitions created, deleted or added, if ``controller_mutation_rate`` applies to the client; else 0."""
    producer_ids: int
    """Number of producer ids that were new in the window, if a ``producer_ids_rate`` applies to the user; else 0."""
    throttle_ms: dict[str, int]
    """Sum of the longest throttle of each request, by the quota key that caused it; includes held requests."""
    throttled: dict[str, int]
    """Number of throttled or held requests, by quota key."""
    refused: dict[str, int]
    """Number of requests that were refused completely or partly, by quota key."""


class LostRecord(RecordHead):
    """The records that were lost for one reason since the last such record, and their sums."""

    first_second: int
    """Time at which the first loss was detected, in seconds since 1970, UTC."""
    second: int
    """Time at which the last loss was detected."""
    records: int
    """Number of lost records. They have no ``sequence``, except those that the Kafka producer accepted and could not
    deliver, whose numbers are missing."""
    requests: int
    request_bytes: int
    response_bytes: int
    reason: str
