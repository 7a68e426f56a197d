"""How long the event loop of a proxy was busy without looking for events; the proxy measures it itself."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.proxy_process import ProxyProcess

LAG = "headrace_event_loop_lag_seconds"
LONG_S = 0.5
"""Turns that take longer than this fail a test: a bucket of the histogram.

The turns of all attacks took less than 0.1 s on two cores, apart from the time for which they waited for one. That
number is not required, since it depends on the machine's speed: one that is five times as slow still passes.
"""
LEAST_WAIT_S = LONG_S / 2
"""For so long a long turn must have waited for a processor to be no fault of the proxy."""
SAMPLE_S = 0.05


@contextlib.contextmanager
def no_long_turn(proxy: ProxyProcess) -> Iterator[None]:
    """A block in which the proxy's event loop looks for events at least every `LONG_S` seconds.

    The duration of a turn includes the time for which the process waits for a processor or is stalled, so that a turn
    may be longer if this was at least half of `LONG_S`.
    """
    with stalls_of(proxy.pid) as stalls_s:
        before, waited_before_s = long_turns(proxy), waited_s(proxy)
        yield
        found, waiting_s = long_turns(proxy) - before, waited_s(proxy) - waited_before_s
    waiting_s += sum(stalls_s)
    assert found <= waiting_s / LEAST_WAIT_S, f"{waiting_s:.2f} s without a processor\n{proxy.get('/metrics')[1]}"


@contextlib.contextmanager
def stalls_of(pid: int) -> Iterator[list[float]]:
    """Collect the seconds in which the proxy was stopped or waited for a disk, or in which this process stood still,
    as when the whole machine does."""
    found: list[float] = []
    is_over = threading.Event()

    def watch() -> None:
        last_s = time.monotonic()
        while not is_over.is_set():
            is_over.wait(SAMPLE_S)
            passed_s = time.monotonic() - last_s
            last_s += passed_s
            state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2][0]
            if state in "DT" or passed_s > LEAST_WAIT_S:
                found.append(passed_s)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


def waited_s(proxy: ProxyProcess) -> float:
    """The seconds for which the proxy's event loop could have run, and other processes had the processors."""
    _, waited_ns, _ = Path(f"/proc/{proxy.pid}/schedstat").read_text(encoding="ascii").split()
    return int(waited_ns) / 1e9


def long_turns(proxy: ProxyProcess, longer_than_s: float = LONG_S) -> float:
    """The number of turns of the event loop that took longer than that, during which no client was served."""
    counts = {}
    for line in proxy.get("/metrics")[1].splitlines():  # one page, since turns are counted meanwhile
        name, _, value = line.rpartition(" ")
        counts[name] = value
    return float(counts[f"{LAG}_count"]) - float(counts[f'{LAG}_bucket{{le="{longer_than_s}"}}'])
