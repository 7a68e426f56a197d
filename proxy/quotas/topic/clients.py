"""Which topic has the quotas, the settings of the clients of librdkafka, and their errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka import KafkaError


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """Which topic, and how to reach it."""

    topic: str
    properties: Mapping[str, str] = field(repr=False)
    """librdkafka's settings, with ``bootstrap.servers``."""
    replication_factor: int | None = None
    """Replication factor of a topic that the proxy creates; ``None`` is 3, or the number of brokers if that is
    lower."""
    history_ms: int
    """How long every record is kept; afterwards, compaction removes those that later ones supersede."""

    def about(self, what: str) -> str:
        """Return an error message that begins with the topic."""
        return f"the topic of quotas {self.topic}: {what}"


class ClientErrors:
    """The latest error that librdkafka reported in the background, which explains a time-out."""

    def __init__(self) -> None:
        self.latest = ""
        self.fatal = False

    def note(self, error: KafkaError) -> None:
        """Remember an error. Called by librdkafka in the thread that polls it."""
        self.latest = error.str()
        self.fatal = self.fatal or error.fatal()

    def suffix(self) -> str:
        """Return the latest error, for the end of a message."""
        return f" ({self.latest})" if self.latest else ""


def client_settings(settings: TopicSettings, errors: ClientErrors) -> dict[str, Any]:
    """Return the settings of every client; those of the operator take precedence over the first ones."""
    return {
        "client.id": "headrace-quotas",
        "log_level": 0,
        "reconnect.backoff.max.ms": 1_000,
        **settings.properties,
        "allow.auto.create.topics": False,
        "error_cb": errors.note,
    }


def reason_of(error: Exception, settings: TopicSettings) -> str:
    """Return librdkafka's error message about its settings, without the values that it quotes."""
    reason = str(error.args[0].str()) if hasattr(error.args[0], "str") else str(error)
    for value in settings.properties.values():
        reason = reason.replace(f'"{value}"', '"<hidden>"')
    return f"client_quotas.topic_properties: {reason}"
