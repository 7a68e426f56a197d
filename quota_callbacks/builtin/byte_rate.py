"""``producer_byte_rate`` and ``consumer_byte_rate``: bytes a second, as Kafka's ClientQuotaManager charges them.

Produce is charged when all of the request has been read: header and body, without the length before them. Fetch and
ShareFetch are charged when the reply's head is: 4 bytes and the body (``KafkaApis.handleFetchRequest``,
``FetchResponse.sizeOf``). Live, the bytes of a throttled Fetch stay recorded: the broker un-records because it
answers empty, and the proxy hands on what was fetched.

Paced, a request is held until its place comes. A Fetch reserves what its connection fetched last (or what is usual
with the entity), and the difference is settled when the reply comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.kinds import RateBucket
from headrace.quota_callbacks.builtin.reservations import give_back_reservation, note_reservation, take_reservation
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl
from headrace.quota_callbacks.requests import Interest, Request

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
    from headrace.quota_callbacks.verdicts import Throttle

PRODUCE: Final = ApiKey.PRODUCE.value
FETCH: Final = ApiKey.FETCH.value
SHARE_FETCH: Final = ApiKey.SHARE_FETCH.value

INT32_MAX: Final = 2**31 - 1
PRODUCED, FETCHED = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE


class ByteRate:
    """Charges Produce and Fetch bytes to the buckets of their sender."""

    headrace_hooks: ClassVar[int] = HOOK_VERSION

    def __init__(self) -> None:
        self._quotas: ClientQuotas

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Take the buckets."""
        self._quotas = context.quotas

    @hookimpl
    def enforced_quotas(self) -> frozenset[QuotaKey]:
        """Both byte rates."""
        return frozenset({PRODUCED, FETCHED})

    @hookimpl
    def request_interest(self) -> tuple[Interest, ...]:
        """Produce, Fetch and ShareFetch, by their heads."""
        return Interest(api_key=PRODUCE), Interest(api_key=FETCH), Interest(api_key=SHARE_FETCH)

    @hookimpl
    def request_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge a Produce; cap a Fetch at what its bucket holds in a window
        (``ClientQuotaManager.maxValueInQuotaWindow``)."""
        if request.api_key == PRODUCE:
            bucket = self._quotas.bucket_for(request, PRODUCED, RateBucket)
            if bucket is None:
                return None
            if bucket.paced:
                return self._hold_produce(request, bucket, now_ms)
            return bucket.charge(request.request_bytes, now_ms) if request.arrived else None
        bucket = self._quotas.bucket_for(request, FETCHED, RateBucket)
        if bucket is None or bucket.limit is None:
            return None
        window = bucket.window
        request.fetch_max_bytes = min(int(bucket.limit * (window.samples - 1) * window.seconds), INT32_MAX)
        return self._hold_fetch(request, bucket, now_ms) if bucket.paced else None

    @hookimpl
    def request_arrived(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge a Produce that was not there as a whole when its head was; what was promised and never sent is charged
        to nobody."""
        if request.api_key != PRODUCE or (request.notes is not None and PRODUCED in request.notes):
            return None
        bucket = self._quotas.bucket_for(request, PRODUCED, RateBucket)
        return None if bucket is None else bucket.charge(request.request_bytes, now_ms)

    @hookimpl
    def response_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge the bytes of a Fetch."""
        if request.api_key == PRODUCE:
            return None
        fetched = 4 + request.response_bytes - request.response_header_bytes
        reservation = take_reservation(request, FETCHED, RateBucket)
        if reservation is not None:
            held, reserved = reservation
            held.settle(fetched, reserved, now_ms)
            request.connection.cache[FETCH] = fetched
            return None
        bucket = self._quotas.bucket_for(request, FETCHED, RateBucket)
        return None if bucket is None else bucket.charge(fetched, now_ms)

    @hookimpl
    def request_abandoned(self, request: Request, now_ms: int) -> None:
        """Give back what was taken for a Produce that did not reach the broker whole, or for a Fetch whose reply did
        not come."""
        if request.api_key != PRODUCE:
            give_back_reservation(request, FETCHED, RateBucket, now_ms)
            return
        if request.arrived and request.forwarded_s is not None:
            return
        received_ms = int(request.received_s * 1000)
        reservation = take_reservation(request, PRODUCED, RateBucket)
        if reservation is not None:
            held, reserved = reservation
            held.correct(-reserved, now_ms)
            held.take_back(reserved, received_ms)
        elif request.arrived and (bucket := self._quotas.bucket_for(request, PRODUCED, RateBucket)) is not None:
            bucket.take_back(request.request_bytes, received_ms)

    def _hold_produce(self, request: Request, bucket: RateBucket, now_ms: int) -> Throttle | None:
        verdict = bucket.reserve(request.request_bytes, now_ms)
        bucket.record(request.request_bytes, now_ms)
        note_reservation(request, PRODUCED, bucket, request.request_bytes)
        return verdict

    def _hold_fetch(self, request: Request, bucket: RateBucket, now_ms: int) -> Throttle | None:
        expected = min(request.connection.cache.get(FETCH, bucket.typical), request.fetch_max_bytes or INT32_MAX)
        verdict = bucket.reserve(expected, now_ms)
        note_reservation(request, FETCHED, bucket, expected)
        return verdict
