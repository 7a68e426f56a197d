"""How long the event loop of a proxy was busy without looking for events; the proxy measures it itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from testbed.proxy_process import ProxyProcess

LAG = "headrace_event_loop_lag_seconds"
LONG_S = 0.5
"""Turns that take longer than this fail a test: a bucket of the histogram.

The turns of all attacks took less than 0.1 s on two cores, apart from the time for which they waited for one. That
number is not required, since it depends on the machine's speed: one that is five times as slow still passes.
"""
ATTEMPTS = 5


def assert_no_long_turn(proxy: ProxyProcess, attack: Callable[[], object]) -> None:
    """Require that the proxy's event loop looks for events at least every `LONG_S` seconds while ``attack`` is called.

    The duration of a turn includes the time for which other processes have the processors, so that a busy machine makes
    some turns longer. ``attack`` is called again then: turns that are long by themselves are so each time.
    """
    for _ in range(ATTEMPTS):
        before = long_turns(proxy)
        attack()
        if long_turns(proxy) == before:
            return
    raise AssertionError(f"a turn of more than {LONG_S:g} s in each of {ATTEMPTS} attacks\n{proxy.get('/metrics')[1]}")


def long_turns(proxy: ProxyProcess, longer_than_s: float = LONG_S) -> float:
    """The number of turns of the event loop that took longer than that, during which no client was served."""
    counts = {}
    for line in proxy.get("/metrics")[1].splitlines():  # one page, since turns are counted meanwhile
        name, _, value = line.rpartition(" ")
        counts[name] = value
    return float(counts[f"{LAG}_count"]) - float(counts[f'{LAG}_bucket{{le="{longer_than_s}"}}'])
