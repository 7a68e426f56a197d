"""Kafka's metrics by name, what they are called here, and the labels of a bucket.

Source: ``ClientQuotaManager``, ``ClientRequestQuotaManager``, ``ControllerMutationQuotaManager`` of Kafka 4.3.1, and
KIP-936 for producer ids.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.hookspecs import AcrossWorkers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.quota_callbacks.buckets.kinds import QuotaBucket

Labels = dict[str, str]

LONGEST_TEXT: Final = 256
"""Client ids are their clients' to choose, up to 32 KiB; a label is cut to as many characters as tracing keeps."""

OTHER: Final = "other"
"""User and client id of what has no series of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One metric."""

    kafka: str
    """Its name in Kafka, or a name of ours where Kafka has none."""
    unit: str
    """By UCUM, as OpenTelemetry asks; empty where it depends on the quota."""
    text: str
    together: Callable[[float, float], float] | None = None
    """How two entities without series of their own become one value; ``None``: they have none together."""
    across_workers: AcrossWorkers = AcrossWorkers.MAX
    """Workers share what an entity has used, so all that have looked of late tell the same."""

    @property
    def instrument(self) -> str:
        """Its name in OpenTelemetry."""
        return f"headrace.quota.{self.kafka.replace('-', '_')}"


def _sum(one: float, other: float) -> float:
    return one + other


BYTE_RATE, REQUEST_TIME, MUTATION_RATE, RATE = "byte-rate", "request-time", "mutation-rate", "rate"
TOKENS, THROTTLE_TIME, LIMIT = "tokens", "throttle-time", "limit"
EXEMPT_REQUEST_TIME, QUEUE_SIZE, ENTITIES = "exempt-request-time", "queue-size", "entities"

MEASURES: Final = (
    Measure(
        kafka=BYTE_RATE, unit="By/s", text="Bytes a second that an entity produced or fetched (window).", together=_sum
    ),
    Measure(
        kafka=REQUEST_TIME,
        unit="%",
        text="Thread time that an entity's requests took, in percent of one thread.",
        together=_sum,
    ),
    Measure(
        kafka=MUTATION_RATE,
        unit="{partition}/s",
        text="Partitions a second that an entity created, added or deleted.",
        together=_sum,
    ),
    Measure(kafka=RATE, unit="{producer}/s", text="New producer ids of an entity a second.", together=_sum),
    Measure(
        kafka=TOKENS,
        unit="{token}",
        text="Tokens that are left to an entity; below 0 it is throttled. Of other entities: the fewest.",
        together=min,
        across_workers=AcrossWorkers.MIN,
    ),
    Measure(
        kafka=THROTTLE_TIME,
        unit="ms",
        text="Average of an entity's throttle times that were not 0, in milliseconds. Of other entities: the longest.",
        together=max,
    ),
    Measure(kafka=LIMIT, unit="", text="The quota that an entity is held to, in the quota's own unit."),
    Measure(
        kafka=EXEMPT_REQUEST_TIME,
        unit="%",
        text="Thread time of requests that no quota counts, in percent of one thread.",
        across_workers=AcrossWorkers.SUM,
    ),
    Measure(
        kafka=QUEUE_SIZE,
        unit="{connection}",
        text="Connections that are muted or held now because of a quota.",
        across_workers=AcrossWorkers.SUM,
    ),
    Measure(
        kafka=ENTITIES,
        unit="{entity}",
        text="Entities that are measured: with series of their own, summed as other, or idle and left out.",
    ),
)

SERIES_OF: Final[Mapping[QuotaKey, tuple[str, ...]]] = {
    QuotaKey.PRODUCER_BYTE_RATE: (BYTE_RATE, THROTTLE_TIME, LIMIT),
    QuotaKey.CONSUMER_BYTE_RATE: (BYTE_RATE, THROTTLE_TIME, LIMIT),
    QuotaKey.REQUEST_PERCENTAGE: (REQUEST_TIME, THROTTLE_TIME, LIMIT),
    QuotaKey.CONTROLLER_MUTATION_RATE: (MUTATION_RATE, TOKENS, THROTTLE_TIME, LIMIT),
    QuotaKey.PRODUCER_IDS_RATE: (RATE, TOKENS, THROTTLE_TIME, LIMIT),
}
"""The series that a bucket can have."""


def labels_of(bucket: QuotaBucket) -> Labels:
    """``quota``, and the bucket's tags: ``user`` and ``client_id``, or those that a custom callback named.

    Tags that become one label are joined by ``;``, as OpenTelemetry's mapping to Prometheus has it.
    """
    labels = {"quota": bucket.key.value}
    for tag, text in bucket.tags.items():
        name = _label(tag)
        labels[name] = f"{labels[name]};{_value(text)}" if name in labels else _value(text)
    return labels


def others(key: QuotaKey) -> Labels:
    """The labels of what has no series of its own."""
    return {"quota": key.value, "user": OTHER, "client_id": OTHER}


def _label(tag: str) -> str:
    """A name that Prometheus takes, and that is none of ours."""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", tag)
    return f"tag_{name.lstrip('_')}" if name == "quota" or not re.match(r"[a-zA-Z]|_(?!_)", name) else name


def _value(text: str) -> str:
    """``text`` that UTF-8 can hold; one that is too long keeps its beginning and a hash, so that no two become one."""
    if len(text) > LONGEST_TEXT:
        digest = hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()
        text = f"{text[: LONGEST_TEXT - len(digest) - 1]}~{digest}"
    return text.encode("utf-8", "backslashreplace").decode()
