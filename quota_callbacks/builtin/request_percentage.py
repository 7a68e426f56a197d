"""``request_percentage`` (KIP-124): thread time in percent of one thread, 100 being one thread that is always busy.

A proxy does not see the broker's threads. A request costs an estimate of the broker's handler time, which is charged
and checked when its reply comes, and the proxy's own thread time, which is charged with the connection's next request
and, like a broker's network thread time, checked only then (``ClientRequestQuotaManager``). No throttle is longer than
one sample of the window.

Exempt, and counted as such: Produce without acks, SASL while the connection authenticates, and what only brokers send
(``KafkaApis``, KIP-124).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.kinds import RateBucket
from headrace.quota_callbacks.builtin.request_costs import DEFAULT_COSTS, estimate_ms
from headrace.quota_callbacks.builtin.reservations import give_back_reservation, note_reservation, take_reservation
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
    from headrace.quota_callbacks.builtin.request_costs import RequestCost
    from headrace.quota_callbacks.requests import Request
    from headrace.quota_callbacks.verdicts import Throttle

KEY: Final = QuotaKey.REQUEST_PERCENTAGE
PRODUCE: Final = ApiKey.PRODUCE.value
SASL: Final = frozenset({17, 36})
"""SaslHandshake, SaslAuthenticate."""
BETWEEN_BROKERS: Final = frozenset(
    key.value
    for key in (
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.VOTE,
        ApiKey.BEGIN_QUORUM_EPOCH,
        ApiKey.END_QUORUM_EPOCH,
        ApiKey.ALTER_PARTITION,
        ApiKey.ENVELOPE,
        ApiKey.FETCH_SNAPSHOT,
        ApiKey.BROKER_REGISTRATION,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        ApiKey.CONTROLLER_REGISTRATION,
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
        ApiKey.UPDATE_RAFT_VOTER,
    )
)
"""APIs between brokers and controllers, whose cost Kafka counts as exempt."""
PERCENT_PER_NS: Final = 100.0 / 1e9
"""``ClientRequestQuotaManager.NANOS_TO_PERCENTAGE_PER_SECOND``."""


class RequestPercentage:
    """Charges thread time to the buckets of its sender."""

    headrace_hooks: ClassVar[int] = HOOK_VERSION

    def __init__(self) -> None:
        self._quotas: ClientQuotas
        self._request_time_ms: Callable[[Request], float | None]
        self._costs: Mapping[int, RequestCost] = DEFAULT_COSTS

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Take the buckets and the cost model: ``costs`` of the options, then those of ``costs_file``, which is read
        now, then the measured ones."""
        self._quotas = context.quotas
        self._request_time_ms = context.request_time_ms
        from headrace.quota_callbacks.builtin.cost_files import (
            CostOptions,  # pydantic: only where a plugin is configured
        )
        from headrace.quota_callbacks.options import read_options

        options = read_options(CostOptions, context.options, "request_percentage")
        self._costs = {**DEFAULT_COSTS, **options.by_api()}

    @hookimpl
    def enforced_quotas(self) -> frozenset[QuotaKey]:
        """Request time."""
        return frozenset({KEY})

    @hookimpl(trylast=True)
    def request_time_ms(self, request: Request) -> float:
        """Estimate it by what was measured on a real broker, or as the options have it."""
        observed_ms = _observed_ms(request)
        return estimate_ms(request.api_key, request.request_bytes, request.response_bytes, observed_ms, self._costs)

    @hookimpl
    def request_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Have the proxy's own time measured; charge what will have no reply; paced, take a place."""
        bucket = self._quotas.bucket_for(request, KEY, RateBucket)
        if bucket is None:
            return None
        request.connection.measure_thread_time = True
        if request.api_key == PRODUCE and request.acks == 0:
            self._exempt(request, now_ms)
            return None
        if bucket.paced and not is_exempt(request):
            expected = bucket.typical
            note_reservation(request, KEY, bucket, expected)
            return bucket.reserve(expected, now_ms)
        return None

    @hookimpl
    def response_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge the handler's time, and what the proxy has spent on this connection since the last reply."""
        bucket = self._quotas.bucket_for(request, KEY, RateBucket)
        if bucket is None:
            return None
        if is_exempt(request):
            self._exempt(request, now_ms)
            return None
        connection = request.connection
        nanos = round((self._request_time_ms(request) or 0.0) * 1e6)
        own_ns, connection.thread_ns = connection.thread_ns, 0
        request.charged_thread_ns = nanos + own_ns
        reservation = take_reservation(request, KEY, RateBucket)
        if reservation is not None:
            held, reserved = reservation
            held.settle((nanos + own_ns) * PERCENT_PER_NS, reserved, now_ms)
            return None
        if own_ns:
            bucket.record(own_ns * PERCENT_PER_NS, now_ms)
        return bucket.charge(nanos * PERCENT_PER_NS, now_ms, longest_ms=bucket.window.seconds * 1000)

    @hookimpl
    def request_abandoned(self, request: Request, now_ms: int) -> None:
        """Give back the place of a request whose reply did not come."""
        give_back_reservation(request, KEY, RateBucket, now_ms)

    def _exempt(self, request: Request, now_ms: int) -> None:
        connection = request.connection
        nanos = round((self._request_time_ms(request) or 0.0) * 1e6) + connection.thread_ns
        connection.thread_ns = request.charged_thread_ns = 0
        self._quotas.exempt_request_time.record(nanos * PERCENT_PER_NS, now_ms)


def is_exempt(request: Request) -> bool:
    """Whether no quota counts the time of ``request``."""
    api_key = request.api_key
    if api_key in SASL:
        return request.authenticating or request.connection.authenticating
    return api_key in BETWEEN_BROKERS or (api_key == PRODUCE and request.acks == 0)


def _observed_ms(request: Request) -> float | None:
    """The time between forwarding and reply, which no handler can have exceeded."""
    if request.forwarded_s is None or request.reply_s is None:
        return None
    return (request.reply_s - request.forwarded_s) * 1000.0
