"""Follows Kafka's request log (``kafka.request.logger`` at DEBUG), which has one line of JSON per request.

Called by `benchmarks.request_costs`. Source of the fields: ``RequestConvertToJson.requestDescMetrics``.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

MARK = "Completed request:"
# The network thread writes a line after it has sent the reply, which may be late on a machine under load.
LINES_TIMEOUT_S = 60.0
POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """A log line of the broker, or its controller, about a request that it has answered."""

    api_key: int
    client_id: str
    correlation_id: int
    local_ms: float
    """From dequeuing to the end of the handler's work, in microsecond steps."""
    total_ms: float
    forwarded: bool
    """Whether the controller logged it, about a request from a broker. The broker's own line has the same ids."""


def parse_line(line: str) -> LoggedRequest | None:
    """Parse a line; return ``None`` if it does not belong to the request log. Raises ValueError or KeyError."""
    _, found, text = line.partition(MARK)
    if not found:
        return None
    entry = json.loads(text)
    header = entry["requestHeader"]
    return LoggedRequest(
        api_key=header["requestApiKey"],
        client_id=header["clientId"] or "",
        correlation_id=header["correlationId"],
        local_ms=entry["localTimeMs"],
        total_ms=entry["totalTimeMs"],
        forwarded=entry["isForwarded"],
    )


class RequestLog:
    """A follower of the log of one client id, from the file's current end."""

    def __init__(self, path: Path, client_id: str) -> None:
        self._path = path
        self._client_id = client_id
        self._at = path.stat().st_size

    def handler_ms(self, correlation_ids: Collection[int]) -> dict[int, float]:
        """Wait for the lines of all these requests, and return the handler time in ms by correlation id.

        For a forwarded request it is the sum of the broker's and the controller's time. The controller's line is nearly
        always written first; exceptions are too rare to affect medians. Raises TimeoutError.
        """
        deadline = time.monotonic() + LINES_TIMEOUT_S
        missing, found = set(correlation_ids), dict.fromkeys(correlation_ids, 0.0)
        while True:
            for request in self._new_requests():
                if request.correlation_id in found:
                    found[request.correlation_id] += request.local_ms
                    if not request.forwarded:
                        missing.discard(request.correlation_id)
            if not missing:
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(missing)} of {len(found)} requests are not in {self._path}")
            time.sleep(POLL_S)

    def _new_requests(self) -> Iterator[LoggedRequest]:
        with self._path.open("rb") as file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._at += len(line)
                # Cheaper than parsing the JSON of requests from other clients and from the controller.
                if self._client_id.encode() in line:
                    request = parse_line(line.decode())
                    if request is not None and request.client_id == self._client_id:
                        yield request
