"""The OpenTelemetry resource that describes this proxy, and the latest errors that an exporter of the SDK has logged.

Called by `headrace.plugins.tracing` and `headrace.plugins.metrics`. Does not depend on traces or metrics.
"""

from __future__ import annotations

import logging
from collections import deque
from importlib.metadata import PackageNotFoundError, version

from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource


def own_resource() -> Resource:
    """Return the resource from OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES; the default name is ``headrace``."""
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "headrace"}))
    if SERVICE_VERSION not in resource.attributes:
        resource = resource.merge(Resource({SERVICE_VERSION: own_version()}))
    return resource


def own_version() -> str:
    """Return the version of the distribution, "" if it is not installed."""
    try:
        return version("headrace")
    except PackageNotFoundError:
        return ""


class LastErrors(logging.Handler):
    """The latest messages of an SDK exporter's logger, since the exporter's return value does not give the cause.

    The messages are not propagated to standard error, where every failed export would print several lines.
    """

    def __init__(self, sdk_logger: str) -> None:
        super().__init__(logging.WARNING)
        self._messages: deque[str] = deque(maxlen=2)
        """Two, since the message with the cause is followed by one that only states that the export was abandoned."""
        self._logger = logging.getLogger(sdk_logger)

    @property
    def text(self) -> str | None:
        """The latest messages, joined; ``None`` before the first."""
        return " ".join(self._messages) or None

    def note(self, text: str) -> None:
        """Keep an error that was not logged, such as an exception."""
        self._messages.append(text)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message of ``record``; called by `logging`."""
        self.note(record.getMessage())

    def listen(self) -> None:
        """Attach to the exporter's logger and stop its propagation."""
        self._logger.addHandler(self)
        self._logger.propagate = False

    def stop(self) -> None:
        """Detach from the exporter's logger and restore its propagation."""
        self._logger.removeHandler(self)
        self._logger.propagate = not self._logger.handlers
