"""``producer_byte_rate`` and ``consumer_byte_rate``: bytes a second, as Kafka's ClientQuotaManager charges them.

Produce is charged when the request's head is read: header and body, without the length before them. Fetch and
ShareFetch are charged when the reply's head is: 4 bytes and the body (``KafkaApis.handleFetchRequest``,
``FetchResponse.sizeOf``). Live, the bytes of a throttled Fetch stay recorded: the broker un-records because it
answers empty, and the proxy hands on what was fetched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from quota_callbacks.entities import QuotaKey
from quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl
from quota_callbacks.requests import Interest, Request

if TYPE_CHECKING:
    from quota_callbacks.client_quotas import ClientQuotas, RateBucket
    from quota_callbacks.verdicts import Throttle

PRODUCE: Final = 0
FETCH: Final = 1
SHARE_FETCH: Final = 78

INT32_MAX: Final = 2**31 - 1


class ByteRate:
    """Charges Produce and Fetch bytes to the buckets of their sender."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self._quotas: ClientQuotas | None = None

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Take the buckets."""
        self._quotas = context.quotas

    @hookimpl
    def enforced_quotas(self) -> frozenset[QuotaKey]:
        """Both byte rates."""
        return frozenset({QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE})

    @hookimpl
    def request_interest(self) -> tuple[Interest, ...]:
        """Produce, Fetch and ShareFetch, by their heads."""
        return Interest(api_key=PRODUCE), Interest(api_key=FETCH), Interest(api_key=SHARE_FETCH)

    @hookimpl
    def request_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge a Produce; cap a Fetch at what its bucket holds in a window
        (``ClientQuotaManager.maxValueInQuotaWindow``)."""
        if request.api_key == PRODUCE:
            bucket = self._bucket(request, QuotaKey.PRODUCER_BYTE_RATE)
            return None if bucket is None else bucket.charge(request.request_bytes, now_ms)
        bucket = self._bucket(request, QuotaKey.CONSUMER_BYTE_RATE)
        if bucket is not None and bucket.limit is not None and self._quotas is not None:
            window = self._quotas.window(QuotaKey.CONSUMER_BYTE_RATE)
            request.fetch_max_bytes = min(int(bucket.limit * (window.samples - 1) * window.seconds), INT32_MAX)
        return None

    @hookimpl
    def response_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge the bytes of a Fetch."""
        if request.api_key == PRODUCE:
            return None
        bucket = self._bucket(request, QuotaKey.CONSUMER_BYTE_RATE)
        if bucket is None:
            return None
        return bucket.charge(4 + request.response_bytes - request.response_header_bytes, now_ms)

    def _bucket(self, request: Request, key: QuotaKey) -> RateBucket | None:
        quotas = self._quotas
        if quotas is None:
            return None
        cache = request.connection.cache
        generation, user, client_id, bucket = cache.get(key, (-1, "", "", None))
        if generation == quotas.generation and client_id == request.client_id and user == request.connection.user:
            resolved: RateBucket | None = bucket
            return resolved
        user, client_id = request.connection.user, request.client_id
        resolved = quotas.bucket(key, user, client_id)
        cache[key] = (quotas.generation, user, client_id, resolved)
        return resolved
