"""Meters: the credit within which the threads of the data plane charge buckets, and the recording of these charges.

A meter belongs to a bucket. The bucket's credit (`RateBucket.credit`) is granted to it; a charge within the credit has
no verdict. Before the control plane decides about a charge of its own, it withdraws the credit, so that all charges of
a bucket are recorded in one order; `MeterTable.grant` gives a new one afterwards.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import structlog

from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.requests import PERCENT_PER_NS

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._engine import Engine
    from headrace.quota_callbacks.buckets.kinds import RateBucket

log = structlog.get_logger("headrace.data_plane")

UNLIMITED: Final = 2**62
"""The credit of a bucket without a limit, or with one that is larger than the data plane can count."""

ROUNDING_NS: Final = 1000
"""The part of a credit of thread time that is not granted: the rate adds percentages, the meter nanoseconds."""


class _Credit(Enum):
    """What has become of the credit of a meter."""

    GRANTED = auto()
    WITHDRAWN = auto()
    """Charges wait for a new one."""
    ENDED = auto()
    """Charges are refused."""


class BucketMeter:
    """What charges one bucket in the threads of the data plane."""

    __slots__ = (
        "_credit",
        "_engine",
        "_now_ms",
        "_unit",
        "_withdrawn",
        "bucket",
        "connections",
        "number",
    )

    def __init__(
        self, engine: Engine, bucket: RateBucket, now_ms: Callable[[], int], withdrawn: list[BucketMeter]
    ) -> None:
        self._engine = engine
        self._now_ms = now_ms
        self._withdrawn = withdrawn
        self._credit = _Credit.GRANTED
        self._unit = PERCENT_PER_NS if bucket.key == QuotaKey.REQUEST_PERCENTAGE else 1.0
        self.bucket = bucket
        self.number = engine.create_meter()
        self.connections = 0
        """Number of connections in the data plane that are charged to it."""

    def withdraw(self) -> None:
        """Record what was charged, and let nothing more be charged until `grant`."""
        if self._credit is not _Credit.WITHDRAWN:
            self._credit = _Credit.WITHDRAWN
            self._withdrawn.append(self)
            self._record(self._engine.withdraw(self.number))

    def collect(self) -> None:
        """Record what was charged, and grant what the bucket still has room for, unless the credit is withdrawn or has
        ended.

        Threads go on charging meanwhile.
        """
        if self._credit is _Credit.GRANTED:
            self._record(self._engine.take_charges(self.number))
            self._engine.grant(self.number, self._room())

    def grant(self) -> None:
        """Grant what the bucket has room for, if the credit is withdrawn."""
        if self._credit is _Credit.WITHDRAWN:
            self._credit = _Credit.GRANTED
            self._engine.grant(self.number, self._room())

    def end(self) -> None:
        """Record what was charged, and refuse everything until a new credit is granted after `withdraw`."""
        self._credit = _Credit.ENDED
        self._record(self._engine.withdraw(self.number))
        self._engine.grant(self.number, 0)

    def _room(self) -> int:
        credit = self.bucket.credit(self._now_ms()) / self._unit
        if credit >= UNLIMITED:
            return UNLIMITED
        if self._unit == 1.0:
            return max(-1, int(credit))
        return max(0, int(credit) - ROUNDING_NS)

    def _record(self, charges: list[tuple[int, int]]) -> None:
        bucket, unit = self.bucket, self._unit
        for at_ms, amount in charges:
            if bucket.charge_forwarded(amount * unit, at_ms) is not None:
                log.error("charge beyond the credit", entity=bucket.entity, quota=bucket.key, amount=amount)


class MeterTable:
    """The meters of all buckets that connections in the data plane are charged to."""

    def __init__(self, engine: Engine, now_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._now_ms = now_ms
        self._withdrawn: list[BucketMeter] = []
        self._meters: dict[int, BucketMeter] = {}
        self._is_suspended = False

    def take(self, bucket: RateBucket) -> BucketMeter:
        """Return the meter of ``bucket``, for one connection more."""
        meter = bucket.meter
        if not isinstance(meter, BucketMeter):
            meter = BucketMeter(self._engine, bucket, self._now_ms, self._withdrawn)
            meter.collect()
            self._meters[meter.number] = bucket.meter = meter
        meter.connections += 1
        return meter

    def give_back(self, meter: BucketMeter) -> None:
        """Delete the meter if no other connection is charged to it."""
        meter.connections -= 1
        if not meter.connections:
            meter.end()
            meter.bucket.meter = None
            del self._meters[meter.number]
            self._engine.remove_meter(meter.number)

    def suspend(self) -> None:
        """Record what was charged until now, and let nothing more be charged until `resume`."""
        self._is_suspended = True
        for meter in self._meters.values():
            meter.withdraw()

    def resume(self) -> None:
        """Grant new credits to all meters that were not ended since `suspend`."""
        self._is_suspended = False
        self.grant()

    def grant(self) -> None:
        """Grant new credits to the meters that were withdrawn."""
        if self._is_suspended:
            return
        withdrawn = self._withdrawn
        while withdrawn:
            meter = withdrawn.pop()
            if meter.connections:
                meter.grant()

    def collect(self) -> None:
        """Record all charges since the last call."""
        for number in self._engine.charged():
            if number in self._meters:
                self._meters[number].collect()

    def end(self) -> None:
        """Refuse all charges from now on; each connection returns with its next request."""
        for meter in self._meters.values():
            meter.end()
