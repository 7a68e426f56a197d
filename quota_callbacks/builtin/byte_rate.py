"""``producer_byte_rate`` and ``consumer_byte_rate``: bytes a second, charged as Kafka's ClientQuotaManager does.

A Produce request is charged when all of it has been read: header and body, without the length field. Fetch and
ShareFetch are charged when the head of the reply has been read: 4 bytes and the body (``KafkaApis.handleFetchRequest``,
``FetchResponse.sizeOf``). The bytes of a throttled Fetch stay recorded: a broker un-records them because it returns an
empty reply, whereas the proxy forwards the fetched records.

A paced quota holds the request until its reserved time. A Fetch reserves the size of the connection's previous reply
(or the entity's average), and the difference is settled when the reply arrives. A Produce request that has arrived
reserves its size. If it has not arrived, its size is only announced, and other requests would wait for it. So the size
is reserved if the quota is for a user that has authenticated, which no other client can name. Otherwise, at most the
size of an earlier request of the connection is reserved, and the difference is settled when the request has arrived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.kinds import RateBucket
from headrace.quota_callbacks.builtin.bucket_callback import BucketCallback
from headrace.quota_callbacks.builtin.reservations import give_back, reserve, reserved, settle, take_reservation
from headrace.quota_callbacks.definitions import INT_MAX
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.hookspecs import hookimpl
from headrace.quota_callbacks.relay_terms import RelayTerms
from headrace.quota_callbacks.requests import Interest, Request

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.client_quotas import BucketSource
    from headrace.quota_callbacks.verdicts import Throttle

PRODUCE: Final = ApiKey.PRODUCE.value
FETCH: Final = ApiKey.FETCH.value
SHARE_FETCH: Final = ApiKey.SHARE_FETCH.value

PRODUCED, FETCHED = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE


class ByteRate(BucketCallback):
    """The callback that charges the bytes of Produce, Fetch and ShareFetch."""

    keys: ClassVar[frozenset[QuotaKey]] = frozenset({PRODUCED, FETCHED})

    def __init__(self) -> None:
        super().__init__()
        self._produced: object = PRODUCED
        self._produced_before: object = (PRODUCED, PRODUCE)
        """The key in the cache of a connection for the size that its next Produce request may reserve before it has
        arrived: the size of the last Produce request that arrived in parts, its head first, or of a larger Produce
        request that has arrived in one piece since then."""
        self._charged: object = (PRODUCED, "charged")
        """The key in ``request.notes`` of the time of a charge that came later than the request."""
        self._fetched: object = FETCHED

    def _charge_to(self, quotas: BucketSource) -> None:
        super()._charge_to(quotas)
        self._produced, self._fetched = quotas.slot(PRODUCED), quotas.slot(FETCHED)
        self._produced_before = (self._produced, PRODUCE)
        self._charged = (self._produced, "charged")

    @hookimpl
    def request_interest(self) -> tuple[Interest, ...]:
        """Return Produce, Fetch and ShareFetch."""
        return Interest(api_key=PRODUCE), Interest(api_key=FETCH), Interest(api_key=SHARE_FETCH)

    @hookimpl
    def request_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge a Produce request; cap the size of a Fetch at its quota over a window."""
        if request.api_key == PRODUCE:
            bucket = self._quotas.bucket_for(request, PRODUCED, RateBucket)
            if bucket is None:
                return None
            if bucket.paced:
                return self._reserve_produced(request, bucket, now_ms)
            if request.notes is not None and self._produced in request.notes:
                return None  # it was charged before its hold, when the quota was paced
            if now_ms < bucket.gate_ms and (verdict := self._quotas.wait(request, self._produced, bucket, now_ms)):
                return verdict
            return self._charge(bucket, request, now_ms) if request.arrived else None
        bucket = self._quotas.bucket_for(request, FETCHED, RateBucket)
        if bucket is None or bucket.limit is None:
            return None
        if not bucket.policy.observe:
            request.alone = True
            most_bytes = _most_fetched(bucket)
            if request.fetch_max_bytes is None or most_bytes < request.fetch_max_bytes:
                request.fetch_max_bytes = most_bytes
        if not bucket.paced:
            return self._quotas.wait(request, self._fetched, bucket, now_ms) if now_ms < bucket.gate_ms else None
        expected = min(request.connection.cache.get(FETCH, bucket.typical), request.fetch_max_bytes or INT_MAX)
        return reserve(request, self._fetched, bucket, expected, now_ms)

    @hookimpl
    def relay_terms(self, request: Request, now_ms: int) -> RelayTerms:  # noqa: ARG002 -- for other callbacks
        """Return the buckets of the byte rates, and the cap of a Fetch."""
        produced = self._quotas.bucket_for(request, PRODUCED, RateBucket)
        fetched = self._quotas.bucket_for(request, FETCHED, RateBucket)
        capped = fetched is not None and fetched.limit is not None and not fetched.policy.observe
        return RelayTerms(
            produced=produced,
            fetched=fetched,
            fetch_max_bytes=_most_fetched(fetched) if fetched is not None and capped else None,
            fetch_alone=capped,
        )

    @hookimpl
    def request_arrived(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge a Produce request that was incomplete in `request_received`, so that bytes which the client announced
        but never sent are not charged."""
        if request.api_key != PRODUCE:
            return None
        if request.notes is not None and self._produced in request.notes:
            request.connection.cache[self._produced_before] = request.request_bytes
            if reserved(request, self._produced) == request.request_bytes:
                return None
            if settle(request, self._produced, request.request_bytes, now_ms):
                return None
        bucket = self._quotas.bucket_for(request, PRODUCED, RateBucket)
        if bucket is None:
            return None
        self._note_charge(request, now_ms)
        return bucket.charge_forwarded(request.request_bytes, now_ms)

    def _charge(self, bucket: RateBucket, request: Request, now_ms: int) -> Throttle | None:
        self._note_charge(request, now_ms)
        return bucket.charge(request.request_bytes, now_ms)

    def _note_charge(self, request: Request, now_ms: int) -> None:
        """Keep the time of a charge that is later than the request, such as after a hold."""
        if now_ms != int(request.received_s * 1000):
            request.make_notes()[self._charged] = now_ms

    def _charged_ms(self, request: Request) -> int:
        received_ms = int(request.received_s * 1000)
        return received_ms if request.notes is None else request.notes.get(self._charged, received_ms)

    @hookimpl
    def response_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge the bytes of a Fetch."""
        if request.api_key == PRODUCE:
            return None
        fetched = 4 + request.response_bytes - request.response_header_bytes
        if settle(request, self._fetched, fetched, now_ms):
            request.connection.cache[FETCH] = fetched
            return None
        bucket = self._quotas.bucket_for(request, FETCHED, RateBucket)
        return None if bucket is None else bucket.charge(fetched, now_ms)

    def _reserve_produced(self, request: Request, bucket: RateBucket, now_ms: int) -> Throttle | None:
        amount = request.request_bytes
        if request.notes is None or self._produced not in request.notes:  # otherwise it asks again
            cache = request.connection.cache
            if request.arrived:
                cache[self._produced_before] = max(amount, cache.get(self._produced_before, 0))
            elif not bucket.is_of(request.connection.user):
                amount = min(amount, cache.pop(self._produced_before, 0))
            if amount == request.request_bytes:
                self._note_charge(request, now_ms)
                bucket.record(amount, now_ms)
        return reserve(request, self._produced, bucket, amount, now_ms)

    def _undo(self, request: Request, now_ms: int) -> None:
        """Give back what was reserved for a Fetch without a reply, or charged for the part of a Produce request that
        was not forwarded; charge the part that was, if it was not charged yet."""
        if request.api_key != PRODUCE:
            give_back(request, self._fetched, now_ms)
            return
        lost = request.request_bytes if request.forwarded_s is None else request.missing_bytes
        reservation = take_reservation(request, self._produced)
        if reservation is not None:
            reserved_in, amount = reservation
            if amount == request.request_bytes:
                reserved_in.correct(-lost, now_ms)
                reserved_in.take_back(lost, self._charged_ms(request), now_ms)
            elif request.forwarded_s is None:
                reserved_in.correct(-amount, now_ms)
            else:
                reserved_in.settle(request.request_bytes - lost, amount, now_ms)
        elif (bucket := self._quotas.bucket_for(request, PRODUCED, RateBucket)) is None:
            return
        elif not request.arrived and request.forwarded_s is not None:
            bucket.charge(request.request_bytes - lost, now_ms)
        elif request.arrived and lost:
            bucket.take_back(lost, self._charged_ms(request), now_ms)


def _most_fetched(bucket: RateBucket) -> int:
    """Return the most bytes of a Fetch: the quota over a window (``ClientQuotaManager.maxValueInQuotaWindow``)."""
    window = bucket.window
    limit = 0.0 if bucket.limit is None else bucket.limit
    return int(min(limit * (window.samples - 1) * window.seconds, INT_MAX))
