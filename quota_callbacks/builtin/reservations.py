"""Reservations of paced quotas, kept in ``request.notes`` until the request's cost is known or it is abandoned.

Each is kept under the slot of its quota key (`BucketSource.slot`). The bucket is kept with the amount: when the reply
arrives, the request may resolve to another bucket, because quotas, its user or its client id have changed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.kinds import RateBucket
    from headrace.quota_callbacks.requests import Request
    from headrace.quota_callbacks.verdicts import Throttle


def reserve(request: Request, slot: object, bucket: RateBucket, amount: float, now_ms: int) -> Throttle | None:
    """Reserve ``amount`` in ``bucket`` for ``request``; return how long to hold it.

    The callback is asked again at the end of the hold, and calls this again: the request is then held for longer if
    those before it have cost more than they had reserved.
    """
    notes = request.make_notes()
    kept: tuple[RateBucket, float, float] | None = notes.get(slot)
    if kept is not None:
        return _held_for_longer(request, slot, kept, now_ms)
    settled = bucket.settled()
    verdict = bucket.reserve(amount, now_ms)
    notes[slot] = (bucket, amount, settled)
    return None if verdict is None else replace(verdict, ask_again=True)


def _held_for_longer(
    request: Request, slot: object, kept: tuple[RateBucket, float, float], now_ms: int
) -> Throttle | None:
    bucket, amount, settled = kept
    if bucket.dropped or request.notes is None:
        return None
    verdict = bucket.delay(settled, bucket.policy.longest_throttle_ms - request.hold_ms, now_ms)
    if verdict is not None:
        request.notes[slot] = (bucket, amount, bucket.settled())
    return verdict


def reserved(request: Request, slot: object) -> float:
    """Return the amount of the reservation of ``request``; 0 if it has none."""
    kept: tuple[RateBucket, float, float] | None = None if request.notes is None else request.notes.get(slot)
    return 0.0 if kept is None else kept[1]


def settle(request: Request, slot: object, amount: float, now_ms: int) -> bool:
    """Charge ``amount`` in place of the reservation of ``request``; return false if it has none, or if its bucket was
    dropped since, so that the amount is to be charged to the bucket that exists now."""
    reservation = take_reservation(request, slot)
    if reservation is None:
        return False
    bucket, reserved = reservation
    if bucket.dropped:
        return False
    bucket.settle(amount, reserved, now_ms)
    return True


def give_back(request: Request, slot: object, now_ms: int) -> None:
    """Cancel the reservation of ``request``, if it has one."""
    reservation = take_reservation(request, slot)
    if reservation is not None:
        bucket, reserved = reservation
        bucket.correct(-reserved, now_ms)


def take_reservation(request: Request, slot: object) -> tuple[RateBucket, float] | None:
    """Remove and return the bucket and amount of the reservation of ``request``; ``None`` if it has none."""
    kept: tuple[RateBucket, float, float] | None = None if request.notes is None else request.notes.pop(slot, None)
    return None if kept is None else kept[:2]
