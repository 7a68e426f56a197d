"""Reads the proxy's metrics page, including the metrics of the demo's plugin."""

from __future__ import annotations

import http
import http.client
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from prometheus_client.parser import text_string_to_metric_families

from testbed.errors import TestbedError, TestbedTimeoutError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testbed.proxy_process import ProxyProcess

LOG_TAIL: Final = 2000
"""Characters of the proxy's log at the end of an error."""
ENDING_S: Final = 0.5
"""Time to wait for the end of the process, since it closes its sockets first."""
ATTEMPTS: Final = 3
"""On a machine with ten times the load that it can handle, connections were reset twice in a hundred runs."""


class Fate(Enum):
    """The state of a proxy that did not answer."""

    RUNS = "the proxy runs, but its admin server does not answer"
    ENDED = "the proxy ended by itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientThrottling:
    """The throttling of one client id since the proxy started; see `throttle_watch`."""

    throttled_requests: int = 0
    longest_throttle_s: float = 0.0
    muted_s: float = 0.0
    connections: int = 0
    muted_connections: int = 0
    lost_connections: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyPage:
    """The values of the metrics page."""

    at_s: float
    """Time of the monotonic clock in seconds."""
    throttled_requests: int = 0
    errors: int = 0
    """Connections that ended with an error of any side."""
    enforcing: bool = True
    clients: Mapping[str, ClientThrottling] = field(default_factory=dict)

    def client(self, client_id: str) -> ClientThrottling:
        """Return the throttling of a client; zeros before its first Produce or Fetch."""
        return self.clients.get(client_id, ClientThrottling())


def read_page(proxy: ProxyProcess) -> ProxyPage:
    """Read the proxy's metrics page. Raises TestbedError, with the end of its log, if it does not answer."""
    status, text = _get(proxy, "/metrics")
    if status != http.HTTPStatus.OK:
        raise TestbedError(f"the proxy's metrics page failed with status {status}: {text}\n{proxy.log[-LOG_TAIL:]}")
    return parse_page(text, time.monotonic())


def _get(proxy: ProxyProcess, path: str) -> tuple[int, str]:
    attempt = 1
    while True:
        try:
            return proxy.get(path)
        except (OSError, http.client.HTTPException) as error:
            fate = _fate(proxy)
            if attempt == ATTEMPTS or fate is not Fate.RUNS:
                raise TestbedError(f"{fate.value}: {error!r}\n{proxy.log[-LOG_TAIL:]}") from error
            attempt += 1


def _fate(proxy: ProxyProcess) -> Fate:
    try:
        proxy.wait(ENDING_S)
    except TestbedTimeoutError:
        return Fate.RUNS
    return Fate.ENDED


def parse_page(text: str, at_s: float) -> ProxyPage:
    """Return the values of a metrics page."""
    sums: dict[str, float] = {}
    by_client: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
            if sample.name.startswith("headrace_demo_"):
                name = sample.name.removeprefix("headrace_demo_")
                by_client.setdefault(sample.labels["client_id"], {})[name] = sample.value
    return ProxyPage(
        at_s=at_s,
        throttled_requests=int(sums.get("headrace_throttled_requests_total", 0)),
        errors=int(sums.get("headrace_errors_total", 0)),
        enforcing=sums.get("headrace_enforcement_enabled", 1.0) == 1.0,
        clients={client_id: _throttling(values) for client_id, values in by_client.items()},
    )


def _throttling(values: Mapping[str, float]) -> ClientThrottling:
    return ClientThrottling(
        throttled_requests=int(values["throttled_requests_total"]),
        longest_throttle_s=values["longest_throttle_seconds"],
        muted_s=values["muted_seconds_total"],
        connections=int(values["data_connections"]),
        muted_connections=int(values["muted_data_connections"]),
        lost_connections=int(values["lost_connections_total"]),
    )
