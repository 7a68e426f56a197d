"""Kafka's metric names, the names of the metrics here, and the labels of a bucket.

Source: ``ClientQuotaManager``, ``ClientRequestQuotaManager``, ``ControllerMutationQuotaManager`` of Kafka 4.3.1, and
KIP-936 for producer ids.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.entities import QuotaKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.quota_callbacks.buckets.kinds import QuotaBucket

Labels = dict[str, str]

LONGEST_TEXT: Final = 256
"""Characters of a label's value, as many as tracing keeps; a client may choose a client id of up to 32 KiB."""

OTHER: Final = "other"
"""User and client id of the series that sum the entities without their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One metric."""

    kafka: str
    """The name in Kafka, or a new name if Kafka has no such metric."""
    unit: str
    """The UCUM unit, as OpenTelemetry requires; empty where it depends on the quota."""
    text: str
    """The help text."""
    together: Callable[[float, float], float] | None = None
    """Combines the values of two entities without their own series; ``None``: there is no combined series."""

    @property
    def instrument(self) -> str:
        """The name of the OpenTelemetry instrument."""
        return f"headrace.quota.{self.kafka.replace('-', '_')}"


def _sum(one: float, other: float) -> float:
    return one + other


BYTE_RATE, REQUEST_TIME, MUTATION_RATE, RATE = "byte-rate", "request-time", "mutation-rate", "rate"
TOKENS, THROTTLE_TIME, LIMIT = "tokens", "throttle-time", "limit"
EXEMPT_REQUEST_TIME, QUEUE_SIZE, ENTITIES = "exempt-request-time", "queue-size", "entities"

MEASURES: Final = (
    Measure(
        kafka=BYTE_RATE,
        unit="By/s",
        text="Bytes per second that an entity produced or fetched (window).",
        together=_sum,
    ),
    Measure(
        kafka=REQUEST_TIME,
        unit="%",
        text="Thread time of an entity's requests, in percent of one thread.",
        together=_sum,
    ),
    Measure(
        kafka=MUTATION_RATE,
        unit="{partition}/s",
        text="Partitions per second that an entity created, added or deleted.",
        together=_sum,
    ),
    Measure(
        kafka=RATE,
        unit="1/s",
        text="New producer ids of an entity per second; for a key of a plugin, the rate of what that key limits.",
        together=_sum,
    ),
    Measure(
        kafka=TOKENS,
        unit="{token}",
        text="Tokens that an entity has left; below 0, the entity is throttled. In the series other: the lowest value.",
        together=min,
    ),
    Measure(
        kafka=THROTTLE_TIME,
        unit="ms",
        text="Average nonzero throttle time of an entity, in milliseconds. In the series other: the highest average.",
        together=max,
    ),
    Measure(kafka=LIMIT, unit="", text="Quota of an entity, in the quota's own unit."),
    Measure(
        kafka=EXEMPT_REQUEST_TIME,
        unit="%",
        text="Thread time of requests that are exempt from quotas, in percent of one thread.",
    ),
    Measure(
        kafka=QUEUE_SIZE,
        unit="{connection}",
        text="Connections that are currently muted or held because of a quota.",
    ),
    Measure(
        kafka=ENTITIES,
        unit="{entity}",
        text="Measured entities by state: own (has its own series), other (summed with others) or idle (not reported).",
    ),
)

_SERIES: Final[Mapping[str, tuple[str, ...]]] = {
    QuotaKey.PRODUCER_BYTE_RATE: (BYTE_RATE, THROTTLE_TIME, LIMIT),
    QuotaKey.CONSUMER_BYTE_RATE: (BYTE_RATE, THROTTLE_TIME, LIMIT),
    QuotaKey.REQUEST_PERCENTAGE: (REQUEST_TIME, THROTTLE_TIME, LIMIT),
    QuotaKey.CONTROLLER_MUTATION_RATE: (MUTATION_RATE, TOKENS, THROTTLE_TIME, LIMIT),
    QuotaKey.PRODUCER_IDS_RATE: (RATE, TOKENS, THROTTLE_TIME, LIMIT),
}
"""The series that a bucket of a built-in key can have."""
_SERIES_OF_PLUGINS: Final = (RATE, THROTTLE_TIME, LIMIT)


def series_of(key: str) -> tuple[str, ...]:
    """Return the series that a bucket of a quota key can have."""
    return _SERIES.get(key, _SERIES_OF_PLUGINS)


def labels_of(bucket: QuotaBucket) -> Labels:
    """Return the label ``quota`` and the bucket's tags: ``user`` and ``client_id``, or those of a custom callback.

    The values of tags that map to the same label are joined with ``;``, as in OpenTelemetry's mapping to Prometheus.
    """
    labels = {"quota": str(bucket.key)}
    for tag, text in bucket.tags.items():
        name = _label(tag)
        labels[name] = f"{labels[name]};{_value(text)}" if name in labels else _value(text)
    return labels


@lru_cache(maxsize=1024)
def others(key: str, tags: tuple[str, ...]) -> Labels:
    """Return the labels of the series that sums the entities without their own that have a quota key and these tags.

    The dictionary is shared and must not be changed.
    """
    return {"quota": str(key)} | {_label(tag): OTHER for tag in tags}


def _label(tag: str) -> str:
    """Return ``tag`` as a valid label name for Prometheus that differs from the labels of this plugin."""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", tag)
    return f"tag_{name.lstrip('_')}" if name == "quota" or not re.match(r"[a-zA-Z]|_(?!_)", name) else name


def _value(text: str) -> str:
    """Return ``text`` in a form that UTF-8 can encode; a long one is cut and gets a hash, so that values stay
    distinct."""
    if len(text) > LONGEST_TEXT:
        digest = hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()
        text = f"{text[: LONGEST_TEXT - len(digest) - 1]}~{digest}"
    return text.encode("utf-8", "backslashreplace").decode()
