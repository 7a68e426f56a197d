"""``producer_ids_rate`` (KIP-936): the number of producer ids that a user may be active with in a window.

The producer id of every record batch is looked up while the Produce request is forwarded. An id that was not seen in
the window takes a token of the user's bucket; while the bucket is overdrawn, the client is throttled. As in the KIP,
the request with the excess id is forwarded, and the next one waits.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar, Final

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.kinds import ProducerIdBucket
from headrace.quota_callbacks.builtin.bucket_callback import BucketCallback
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.hookspecs import hookimpl
from headrace.quota_callbacks.relay_terms import RelayTerms
from headrace.quota_callbacks.requests import Interest

if TYPE_CHECKING:
    from headrace.quota_callbacks.requests import Request
    from headrace.quota_callbacks.verdicts import Throttle

KEY: Final = QuotaKey.PRODUCER_IDS_RATE
PRODUCE: Final = ApiKey.PRODUCE.value
MOST_LOOKED_UP: Final = 512
"""Ids of a request that are looked up, which takes up to 10 ms; further ones count as new. A producer has one id."""

_id_of = itemgetter(3)


class ProducerIds(BucketCallback):
    """The callback that charges new producer ids."""

    keys: ClassVar[frozenset[QuotaKey]] = frozenset({KEY})

    @hookimpl
    def request_interest(self) -> tuple[Interest, ...]:
        """Return Produce."""
        return (Interest(api_key=PRODUCE),)

    @hookimpl
    def request_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Request the record batches if the user has a quota."""
        bucket = self._quotas.bucket_for(request, KEY, ProducerIdBucket)
        if bucket is None:
            return None
        request.read_batches = True
        if now_ms < bucket.gate_ms and (verdict := self._quotas.wait(request, self._slot, bucket, now_ms)) is not None:
            return verdict
        # Its ids are not known yet, so nothing is reserved for it, and many such requests may be held by another quota.
        return self._quotas.ask_again(request, self._slot) if bucket.paced else None

    @hookimpl
    def relay_terms(self, request: Request, now_ms: int) -> RelayTerms | None:
        """Return the bucket of the user's producer ids."""
        bucket = self._quotas.bucket_for(request, KEY, ProducerIdBucket)
        if bucket is not None and bucket.gate_ms > now_ms:
            return None
        return RelayTerms(producer_ids=bucket)

    @hookimpl
    def batches_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge the ids that are new."""
        bucket = self._quotas.bucket_for(request, KEY, ProducerIdBucket)
        if bucket is None:
            return None
        before = bucket.new_ids
        longest = None
        distinct = dict.fromkeys([*map(_id_of, request.batches), *request.left_out_ids])
        ids = [number for number in distinct if number >= 0]  # a batch without an id has -1
        further = len(ids) - MOST_LOOKED_UP
        for producer_id in ids if further <= 0 else ids[:MOST_LOOKED_UP]:
            verdict = bucket.charge(producer_id, now_ms)
            if verdict is not None and (longest is None or verdict.throttle_ms > longest.throttle_ms):
                longest = verdict
        if further > 0:
            longest = bucket.charge_new(now_ms, further) or longest
        new_ids = bucket.new_ids - before
        request.new_producer_ids = max(request.new_producer_ids, new_ids)  # other callbacks may count other entities
        bucket.last_used_ms = now_ms
        return longest
