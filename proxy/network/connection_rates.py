"""The rate of new client connections, in total and by address, for ``limits.max_connection_rate`` and
``limits.max_connection_rate_per_ip`` (KIP-612, ``kafka.network.ConnectionQuotas``), and by user, for
``limits.max_connection_rate_per_user``.

Called by `admission`, which has one object for addresses and one for users. Rates are measured as quotas are, over the
window of ``quota.window``: after a quiet window, ten times the limit may connect at once. Time is an argument, in
milliseconds.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.buckets.sampled_rate import SampledRate

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.sampled_rate import Window

MAX_ADDRESSES: Final = 16_384
"""Addresses whose rates are remembered; the one that connected longest ago is forgotten first.

With the default of ``limits.max_connection_rate`` at most 11,000 connections are served in a window, so none is
forgotten too early. A rate needs up to 1.5 KiB.
"""


class ConnectionRates:
    """The rates of new connections."""

    __slots__ = ("_by_address", "_longest_ms", "_total", "_window")

    def __init__(self, window: Window) -> None:
        self._window = window
        self._longest_ms = window.seconds * 1000
        self._total = SampledRate(window)
        self._by_address: OrderedDict[str, SampledRate] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of addresses whose rates are remembered."""
        return len(self._by_address)

    def add(self, limit: int, now_ms: int) -> float:
        """Count a connection, and return the seconds until the next one may be accepted.

        ``limit`` is in connections a second; 0 is unlimited. Above it connections are accepted at that rate. Kafka
        waits until the rate of the whole window is back at the limit, for up to a second before each connection, so
        that after a burst almost none is accepted for the rest of the window.
        """
        if not limit:
            return 0.0
        self._total.record(1.0, now_ms)
        return 1.0 / limit if self._total.rate(now_ms) > limit else 0.0

    def add_from(self, address: str, limit: float, now_ms: int) -> float:
        """Count a connection from ``address`` (see `counted_address`), or of a user, and return 0.

        If ``limit`` is exceeded by it, do not count it, and return the seconds after which Kafka closes it: at most the
        length of a sample.
        """
        if not limit:
            return 0.0
        rate = self._by_address.get(address)
        if rate is None:
            if len(self._by_address) >= MAX_ADDRESSES:
                self._by_address.popitem(last=False)
            self._by_address[address] = rate = SampledRate(self._window)
        else:
            self._by_address.move_to_end(address)
        rate.record(1.0, now_ms)
        throttle_ms = rate.throttle_ms(limit, now_ms, longest_ms=self._longest_ms)
        if throttle_ms:
            rate.record(-1.0, now_ms)
        return throttle_ms / 1000
