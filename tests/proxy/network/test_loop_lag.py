"""The histogram of the event loop's turns."""

from __future__ import annotations

import time

import trio

from headrace.proxy.network.loop_lag import BOUNDS_S, LoopLag
from headrace.proxy.network.poller import Poller


def test_a_turn_is_counted_in_all_buckets_that_it_fits() -> None:
    lag = LoopLag()
    for busy_s in (0.015, 0.02, 0.07, 6.0):
        lag.add(busy_s)
    found = dict(lag.cumulative())
    assert found["0.02"] == 2
    assert found["0.05"] == 2
    assert found["0.1"] == found["5.0"] == 3
    assert found["+Inf"] == 4
    assert list(found) == [*map(str, BOUNDS_S), "+Inf"]


async def test_a_task_that_blocks_is_seen() -> None:
    poller = Poller()
    with poller.attach():
        await trio.sleep(0.001)
        before = poller.lag.counts[-5:]
        time.sleep(0.12)  # noqa: ASYNC251 -- this is what is measured
        await trio.sleep(0.001)
        assert sum(poller.lag.counts[-5:]) > sum(before)
        assert poller.lag.sum_s >= 0.12
