"""``request_percentage`` (KIP-124): thread time in percent of one thread; 100 is one thread that is always busy.

The proxy cannot measure the broker's threads. A request costs an estimate of the broker's handler time, which is
charged and checked when its reply arrives, and the proxy's own thread time, which is charged with the connection's
next request and, like a broker's network thread time, checked only then (``ClientRequestQuotaManager``). No throttle
is longer than one sample of the window. If several entities have this quota, such as a user and its team, each is
charged the same cost.

Two kinds of requests are exempt, and are counted as exempt: Produce with acks=0, and SASL requests while the connection
authenticates (``KafkaApis``). A broker also exempts the requests of other brokers if cluster authorization succeeds
(KIP-124). Here requests of these APIs are charged, since a client of the proxy is never a broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.kinds import RateBucket
from headrace.quota_callbacks.builtin.bucket_callback import BucketCallback
from headrace.quota_callbacks.builtin.request_costs import DEFAULT_COSTS, FALLBACK_COST, estimate_ms
from headrace.quota_callbacks.builtin.reservations import give_back, reserve, settle
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.hookspecs import PluginContext, hookimpl
from headrace.quota_callbacks.relay_terms import RelayTerms
from headrace.quota_callbacks.requests import PERCENT_PER_NS, is_time_exempt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.quota_callbacks.buckets.sampled_rate import SampledRate
    from headrace.quota_callbacks.builtin.request_costs import RequestCost
    from headrace.quota_callbacks.options import Table
    from headrace.quota_callbacks.requests import Request
    from headrace.quota_callbacks.verdicts import Throttle

KEY: Final = QuotaKey.REQUEST_PERCENTAGE
PRODUCE: Final = ApiKey.PRODUCE.value
API_VERSIONS: Final = ApiKey.API_VERSIONS.value
"""ApiVersions requests are charged, but they are not held while their entity has to wait: librdkafka closes a
connection whose ApiVersions request is not answered within ten seconds, and its next connection would have to wait
again."""
ABANDONED: Final = (KEY, "abandoned")
"""Key in ``request.notes`` of the slots in which a request without a reply was charged."""
FREE_IN_FLIGHT: Final = 10
"""Number of requests that a connection may have in flight in any case: twice that of Kafka's producers."""

LARGE_REPLY_BYTES: Final = 4096

REMEMBERED_MS: Final = 60_000
"""Length of an interval. A ratio counts in its own interval and in the next one."""


class HighestRatios:
    """The highest ratio of two costs in the current and the previous interval, at least 1, by API key."""

    __slots__ = ("_by_api",)

    def __init__(self) -> None:
        self._by_api: dict[int, tuple[int, float, float]] = {}
        """The number of an interval of `REMEMBERED_MS`, the highest ratio in it, and that of the interval before."""

    def note(self, api_key: int, cost: float, least: float, now_ms: int) -> None:
        """Note that a request has cost ``cost``, where ``least`` was expected."""
        if cost > least > 0:
            at, highest, before = self._at(api_key, now_ms)
            self._by_api[api_key] = (at, max(highest, cost / least), before)

    def highest(self, api_key: int, now_ms: int) -> float:
        """Return the highest ratio."""
        _, highest, before = self._at(api_key, now_ms)
        return max(highest, before)

    def _at(self, api_key: int, now_ms: int) -> tuple[int, float, float]:
        now = now_ms // REMEMBERED_MS
        at, highest, before = self._by_api.get(api_key, (now, 1.0, 1.0))
        if at == now:
            return at, highest, before
        return now, 1.0, highest if at == now - 1 else 1.0


class RequestPercentage(BucketCallback):
    """The callback that charges thread time."""

    keys: ClassVar[frozenset[QuotaKey]] = frozenset({KEY})

    def __init__(self) -> None:
        super().__init__()
        self._request_time_ms: Callable[[Request], float | None]
        self._costs: Mapping[int, RequestCost] = DEFAULT_COSTS
        self._costlier = HighestRatios()
        """The ratios of the cost of a request to the cost that the model predicts without its reply."""
        self._exempt_time: SampledRate

    def _read_options(self, context: PluginContext) -> None:
        """Read the cost model. The option ``costs`` takes precedence over ``costs_file``, and that over the defaults.

        Reads the file and blocks. Raises `ValueError` for invalid options and files.
        """
        # Imported here, since they need pydantic, which other users of this module do not.
        from headrace.quota_callbacks.builtin.cost_files import CostOptions
        from headrace.quota_callbacks.options import read_options

        self._request_time_ms = context.request_time_ms
        self._exempt_time = context.quotas.exempt_request_time
        options = read_options(CostOptions, context.options, "request_percentage")
        self._costs = {**DEFAULT_COSTS, **options.by_api()}

    @hookimpl
    def options_table(self) -> type[Table]:
        """Return the class of the options."""
        from headrace.quota_callbacks.builtin.cost_files import CostOptions

        return CostOptions

    @hookimpl(trylast=True)
    def request_time_ms(self, request: Request) -> float:
        """Return the estimate of the cost model."""
        observed_ms = _observed_ms(request)
        return estimate_ms(request.api_key, request.request_bytes, request.response_bytes, observed_ms, self._costs)

    @hookimpl(trylast=True)
    def request_costs(self, api_key: int) -> tuple[float, float]:
        """Return the costs of the model of `request_time_ms`."""
        cost = self._costs.get(api_key, FALLBACK_COST)
        return cost.base_ms, cost.per_kib_ms

    @hookimpl
    def relay_terms(self, request: Request, now_ms: int) -> RelayTerms:  # noqa: ARG002 -- for other callbacks
        """Return the bucket of the thread time."""
        return RelayTerms(request_time=self._quotas.bucket_for(request, KEY, RateBucket))

    @hookimpl
    def request_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Start measuring the proxy's own time, charge a Produce with acks=0, and hold the request of a paced quota."""
        bucket = self._quotas.bucket_for(request, KEY, RateBucket)
        if bucket is None:
            return None
        request.connection.measure_thread_time = True
        if request.api_key == PRODUCE and request.acks == 0:
            self._exempt(request, now_ms)
            return None
        if bucket.was_throttled(now_ms) or (request.in_flight and self._may_exceed(request, bucket, now_ms)):
            request.alone = True
        if bucket.paced:
            return None if is_time_exempt(request) else reserve(request, self._slot, bucket, bucket.typical, now_ms)
        if now_ms < bucket.gate_ms and request.api_key != API_VERSIONS and not is_time_exempt(request):
            return self._quotas.wait(request, self._slot, bucket, now_ms)
        return None

    @hookimpl
    def response_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge the handler time, and the proxy's time for this connection since its last reply."""
        bucket = self._quotas.bucket_for(request, KEY, RateBucket)
        if bucket is None:
            return None
        if is_time_exempt(request):
            self._exempt(request, now_ms)
            return None
        if request.charged_thread_ns is None:  # otherwise a callback of another entity has measured it
            connection = request.connection
            own_ns, connection.thread_ns = connection.thread_ns, 0
            request.charged_thread_ns = self._handler_ns(request) + own_ns
        amount = request.charged_thread_ns * PERCENT_PER_NS
        if request.in_flight or request.response_bytes > LARGE_REPLY_BYTES:  # others cost about the estimate
            self._costlier.note(request.api_key, amount, self._least_cost(request), now_ms)
        if settle(request, self._slot, amount, now_ms):
            return None
        return bucket.charge(amount, now_ms, longest_ms=bucket.window.seconds * 1000)

    def _undo(self, request: Request, now_ms: int) -> Throttle | None:
        """Cancel the reservation of a request without a reply, and charge its cost: the proxy's own time, and if it was
        forwarded, also the handler time, since a broker serves a request even if its client has closed the connection.
        """
        give_back(request, self._slot, now_ms)
        bucket = None if is_time_exempt(request) else self._quotas.bucket_for(request, KEY, RateBucket)
        if bucket is None or not self._may_charge_abandoned(request):
            return None
        if request.charged_thread_ns is None:
            connection = request.connection
            own_ns, connection.thread_ns = connection.thread_ns, 0
            request.charged_thread_ns = own_ns + (0 if request.forwarded_s is None else self._handler_ns(request))
        if request.charged_thread_ns == 0 and request.forwarded_s is None:
            return None
        amount = request.charged_thread_ns * PERCENT_PER_NS
        if bucket.paced:
            bucket.record(amount, now_ms)
            bucket.correct(amount, now_ms, forwarded=True)
            return None
        return bucket.charge(amount, now_ms, longest_ms=bucket.window.seconds * 1000)

    @hookimpl
    def request_denied(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge the proxy's own time for a request that was not authorized, as a broker does."""
        bucket = self._quotas.bucket_for(request, KEY, RateBucket)
        if bucket is None:
            return None
        request.connection.measure_thread_time = True
        return self._undo(request, now_ms)

    def _may_charge_abandoned(self, request: Request) -> bool:
        """Return whether this callback has not charged the request yet, and note that it does now."""
        charged_by = None if request.notes is None else request.notes.get(ABANDONED)
        if charged_by is None:
            if request.charged_thread_ns is not None:  # its reply was charged
                return False
            charged_by = request.make_notes()[ABANDONED] = set()
        first_time = self._slot not in charged_by
        charged_by.add(self._slot)
        return first_time

    def _may_exceed(self, request: Request, bucket: RateBucket, now_ms: int) -> bool:
        """Return whether ``request`` and the earlier ones of its connection, which are charged with their replies, may
        together be throttled.

        A broker handles one request of a connection after the other, and throttles the client before it reads the next
        one. Here a few may be in flight in any case, so that a client near its limit need not wait for each reply, and
        more if the bucket has credit for them.
        """
        limit = bucket.limit
        if request.in_flight < FREE_IN_FLIGHT or limit is None or bucket.policy.observe:
            return False
        credit = bucket.burst_left(limit, now_ms) if bucket.paced else bucket.credit(now_ms)
        cost = self._least_cost(request) * self._costlier.highest(request.api_key, now_ms)
        return (request.in_flight + 1) * cost > credit

    def _least_cost(self, request: Request) -> float:
        """Return what the cost model has for a request without its reply, in the unit of the bucket."""
        ms = estimate_ms(request.api_key, request.request_bytes, 0, None, self._costs)
        return ms * 1e6 * PERCENT_PER_NS

    def _handler_ns(self, request: Request) -> int:
        return round((self._request_time_ms(request) or 0.0) * 1e6)

    def _exempt(self, request: Request, now_ms: int) -> None:
        if request.charged_thread_ns is not None:  # by a callback of another entity
            return
        connection = request.connection
        nanos = self._handler_ns(request) + connection.thread_ns
        connection.thread_ns = request.charged_thread_ns = 0
        self._exempt_time.record(nanos * PERCENT_PER_NS, now_ms)


def _observed_ms(request: Request) -> float | None:
    """Return the time between forwarding and reply, an upper bound of the handler time."""
    if request.forwarded_s is None or request.reply_s is None:
        return None
    return (request.reply_s - request.forwarded_s) * 1000.0
