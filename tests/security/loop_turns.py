"""How long the event loop of a proxy was busy without looking for events; the proxy measures it itself."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.proxy_process import ProxyProcess

LAG = "headrace_event_loop_lag_seconds"
LEAST_WAIT_S = 0.5
"""For so long a turn of a second must have waited for a processor to be no fault of the proxy."""


@contextlib.contextmanager
def no_long_turn(proxy: ProxyProcess) -> Iterator[None]:
    """A block in which the proxy's event loop looks for events at least once a second.

    On an idle machine no attack takes the loop for more than 100 ms at a time. The duration includes
    the time for which the process waits for a processor, so that a turn may be as long if it has waited for most of it.
    """
    before, waited_before_s = long_turns(proxy), waited_s(proxy)
    yield
    found, waiting_s = long_turns(proxy) - before, waited_s(proxy) - waited_before_s
    assert found <= waiting_s / LEAST_WAIT_S, f"{waiting_s:.2f} s without a processor\n{proxy.get('/metrics')[1]}"


def waited_s(proxy: ProxyProcess) -> float:
    """The seconds for which the proxy's event loop could have run, and other processes had the processors."""
    _, waited_ns, _ = Path(f"/proc/{proxy.pid}/schedstat").read_text(encoding="ascii").split()
    return int(waited_ns) / 1e9


def long_turns(proxy: ProxyProcess, longer_than_s: float = 1.0) -> float:
    """The number of turns of the event loop that took longer than that, during which no client was served."""
    counts = {}
    for line in proxy.get("/metrics")[1].splitlines():  # one page, since turns are counted meanwhile
        name, _, value = line.rpartition(" ")
        counts[name] = value
    return float(counts[f"{LAG}_count"]) - float(counts[f'{LAG}_bucket{{le="{longer_than_s}"}}'])
