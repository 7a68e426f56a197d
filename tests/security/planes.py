"""The two data planes, and connections of which it is sure that one of them relays what they send next.

A connection is relayed natively from its third request on, or later, so an attack that sends one or two meets the
Python relays alone, whatever ``data_plane`` is. `warm_up` shows by the proxy's own count that it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from headrace.proxy.data_plane.native import EXTENSION, is_installed
from tests.faults import messages
from tests.faults.metrics import series
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from testbed.proxy_process import ProxyProcess
    from tests.faults.raw_client import RawClient

NATIVE: Final = "native"
NEEDS_ENGINE: Final = pytest.mark.skipif(not is_installed(), reason=f"{EXTENSION} is not built")
PLANES: Final = (pytest.param(NATIVE, marks=NEEDS_ENGINE), "python")
"""Values of ``data_plane``, as parameters of tests and fixtures."""
FIRST_NATIVE: Final = (PLANES[0], pytest.param("python", marks=pytest.mark.exhaustive))
"""As `PLANES`, for attacks on which the Python relays have other quick tests."""
REQUESTS: Final = 5
"""Requests after which a connection is relayed natively, if nothing speaks against it."""


def warm_up(proxy: ProxyProcess, plane: str, *clients: RawClient) -> None:
    """Let clients send requests until the native data plane relays all of their connections; as many if ``plane`` is
    ``python``. No other client of the proxy may be relayed natively.

    Each request is a Heartbeat with the client's own client id, which costs 0.012 ms of thread time and no bytes.
    """
    for client in clients:
        for _ in range(REQUESTS):
            client.call(messages.HEARTBEAT, messages.HEARTBEAT_VERSION, messages.heartbeat_body())
    wanted = len(clients) if plane == NATIVE else 0
    wait_until(lambda: native_connections(proxy) == wanted, f"{wanted} connections are relayed natively")


def native_connections(proxy: ProxyProcess) -> float:
    """Return how many connections are relayed natively now."""
    return proxy.metric("headrace_native_connections")


def native_returns(proxy: ProxyProcess, reason: str) -> float:
    """Return how many connections have returned from the native data plane for ``reason``."""
    return series(proxy, f'headrace_native_returns_total{{reason="{reason}"}}')
