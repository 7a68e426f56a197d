"""What a paced quota has reserved for a request, kept with the request until its cost is known or it is abandoned.

The bucket is kept, too: by then another one may be the request's, since quotas, its user or its client id have changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.quota_bucket import QuotaBucket
    from headrace.quota_callbacks.entities import QuotaKey
    from headrace.quota_callbacks.requests import Request

BucketT = TypeVar("BucketT", bound="QuotaBucket")


def note_reservation(request: Request, key: QuotaKey, bucket: QuotaBucket, amount: float) -> None:
    """``amount`` of ``bucket`` was reserved for ``request`` with the quota ``key``."""
    if request.notes is None:
        request.notes = {}
    request.notes[key] = (bucket, amount)


def take_reservation(request: Request, key: QuotaKey, kind: type[BucketT]) -> tuple[BucketT, float] | None:
    """The bucket and what was reserved of it, once; ``None`` if nothing was."""
    found = None if request.notes is None else request.notes.pop(key, None)
    if found is None:
        return None
    bucket, amount = found
    if not isinstance(bucket, kind):
        raise TypeError(f"{key} was reserved of a {type(bucket).__name__}, not of a {kind.__name__}")
    return bucket, amount


def give_back_reservation(request: Request, key: QuotaKey, kind: type[QuotaBucket], now_ms: int) -> None:
    """``request`` does not need what was reserved for it after all."""
    found = take_reservation(request, key, kind)
    if found is not None:
        bucket, amount = found
        bucket.correct(-amount, now_ms)
