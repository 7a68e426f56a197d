"""The usage record: who used what in a second, as the proxy writes it and the pipeline reads it.

One JSON object a line, or a message of a topic. Written by ``headrace.plugins.usage_records``, read by ``pipeline``:
this is the one place that both know. Pure.

Every record has ``schema`` (`SCHEMA_VERSION`), ``kind``, ``instance`` (one run of one process of the proxy), and
``sequence``, which begins at 0 for an instance and grows by 1: what is missing in it was lost, and what comes twice is
a duplicate. A reader passes over fields that it does not know; what an old reader would misunderstand gets a new
``schema``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypedDict

SCHEMA_VERSION: Final = 1

DEFAULT_TOPIC: Final = "headrace-usage"


class Kind(StrEnum):
    """What a record tells."""

    USAGE = "usage"
    """The requests of one second with the same cluster, user, client id, API and topic (`UsageRecord`)."""
    LOST = "lost"
    """Records that could not be written (`LostRecord`)."""
    END = "end"
    """The instance has stopped in order: nothing is missing behind this ``sequence``."""


class RecordHead(TypedDict):
    """What every record begins with."""

    schema: int
    kind: str
    instance: str
    sequence: int


class UsageRecord(RecordHead):
    """Sums over the requests that were completed in a second; more than one record may tell of the same. Bytes are
    header and body, without the 4 bytes of the length before them, as quotas charge them."""

    second: int
    """Seconds since 1970, UTC."""
    cluster: str | None
    """The cluster's id; null until the proxy has learned it."""
    user: str | None
    """Null, with ``client_id``: more senders came in this second than rows are kept; these are all others of this API.
    """
    client_id: str | None
    api_key: int
    topic: str | None
    """Null where the API has none, where topics are not recorded, and for the part of a request that has no topic."""
    requests: int
    errors: int
    """Requests without a reply, and those that the proxy refused."""
    request_bytes: int
    response_bytes: int
    thread_ms: float
    """What ``request_percentage`` has charged, or would have if it held the sender: the cost model's estimate of the
    broker's request handlers and the proxy's own thread time; 0 for what this quota exempts and what had no reply."""
    broker_ms: float
    """Time between the requests' forwarding and their replies, waiting included."""
    mutations: int
    """Partitions that were created, deleted or added, where a ``controller_mutation_rate`` holds the sender; else 0."""
    producer_ids: int
    """Producer ids that were new in the window, where a ``producer_ids_rate`` holds the user; else 0."""
    throttle_ms: dict[str, int]
    """Of the requests' longest throttles, by the quota key that asked for them; held requests included."""
    throttled: dict[str, int]
    """How many requests were throttled or held, likewise."""
    refused: dict[str, int]
    """How many requests were refused as a whole or in part, likewise."""


class LostRecord(RecordHead):
    """Records that could not be written or had no room, for one reason since that was told last, and what they held."""

    first_second: int
    """When it was first found that one of them is lost."""
    second: int
    """When it was last found."""
    records: int
    """How many. They have no ``sequence``, but for those that a topic's producer took and the cluster then did not:
    these are missing in it, too."""
    requests: int
    request_bytes: int
    response_bytes: int
    reason: str
