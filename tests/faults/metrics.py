"""Single series of the proxy's metrics page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testbed.proxy_process import ProxyProcess


def series(proxy: ProxyProcess, name: str) -> float:
    """One series, labels included in `name`, as in `headrace_errors_total{fault="client"}`; 0 where it is not there."""
    for line in proxy.get("/metrics")[1].splitlines():
        key, _, value = line.rpartition(" ")
        if key == name:
            return float(value)
    return 0.0
