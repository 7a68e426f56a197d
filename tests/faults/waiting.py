"""Waiting for something to come true, with a deadline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_S = 0.01


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 40.0, *, poll_s: float = POLL_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(poll_s)


def wait_until_steady(value: Callable[[], float], what: str, *, steady_s: float, timeout_s: float) -> float:
    """Wait until `value` has not changed for `steady_s`, and return it."""
    deadline = time.monotonic() + timeout_s
    last, since = value(), time.monotonic()
    while time.monotonic() - since < steady_s:
        assert time.monotonic() < deadline, f"still changing after {timeout_s:g} s: {what}"
        time.sleep(POLL_S)
        now = value()
        if now != last:
            last, since = now, time.monotonic()
    return last
