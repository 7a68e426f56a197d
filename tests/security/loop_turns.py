"""How long the event loop of a proxy was busy without looking for events; the proxy measures it itself."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.proxy_process import ProxyProcess

LAG = "headrace_event_loop_lag_seconds"


@contextlib.contextmanager
def no_long_turn(proxy: ProxyProcess) -> Iterator[None]:
    """A block in which the proxy's event loop looks for events at least once a second.

    On an idle machine no attack takes the loop for more than 100 ms at a time. The duration includes
    the time for which the process waits for a processor: up to half a second while other tests run.
    """
    before = long_turns(proxy)
    yield
    assert long_turns(proxy) == before, proxy.get("/metrics")[1]


def long_turns(proxy: ProxyProcess, longer_than_s: float = 1.0) -> float:
    """The number of turns of the event loop that took longer than that, during which no client was served."""
    counts = {}
    for line in proxy.get("/metrics")[1].splitlines():  # one page, since turns are counted meanwhile
        name, _, value = line.rpartition(" ")
        counts[name] = value
    return float(counts[f"{LAG}_count"]) - float(counts[f'{LAG}_bucket{{le="{longer_than_s}"}}'])
