"""What the plugins that use OpenTelemetry share: who we are to a receiver, and what the SDK's exporters said last.

Called by `headrace.plugins.tracing` and `headrace.plugins.metrics`. Knows neither traces nor metrics.
"""

from __future__ import annotations

import logging
from collections import deque
from importlib.metadata import PackageNotFoundError, version

from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource


def own_resource(worker: int | None = None) -> Resource:
    """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, over our own name.

    Each of several workers is an instance of its own: its number stands behind ``service.instance.id``, which the SDK
    makes up where it is not set.
    """
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "headrace"}))
    if SERVICE_VERSION not in resource.attributes:
        resource = resource.merge(Resource({SERVICE_VERSION: own_version()}))
    if worker is not None:
        instance = resource.attributes.get(SERVICE_INSTANCE_ID, "headrace")
        resource = resource.merge(Resource({SERVICE_INSTANCE_ID: f"{instance}-worker-{worker}"}))
    return resource


def own_version() -> str:
    """The version of the distribution; "" for a tree that is not installed."""
    try:
        return version("headrace")
    except PackageNotFoundError:
        return ""


class LastWords(logging.Handler):
    """What an exporter of the SDK, by its logger's name, logged last: its return value does not say why it failed.

    Its lines are not let through to standard error, where there would be several for every export that fails.
    """

    def __init__(self, sdk_logger: str) -> None:
        super().__init__(logging.WARNING)
        self._words: deque[str] = deque(maxlen=2)
        """Two, since the line that names the cause is followed by one that says no more than that it was given up."""
        self._logger = logging.getLogger(sdk_logger)

    @property
    def text(self) -> str | None:
        """The last words; ``None`` before the first."""
        return " ".join(self._words) or None

    def note(self, text: str) -> None:
        """Keep what was said by other means."""
        self._words.append(text)

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging."""
        self.note(record.getMessage())

    def listen(self) -> None:
        """From now on."""
        self._logger.addHandler(self)
        self._logger.propagate = False

    def stop(self) -> None:
        """The lines go where they went before."""
        self._logger.removeHandler(self)
        self._logger.propagate = not self._logger.handlers
