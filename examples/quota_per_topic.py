"""A quota that Kafka does not have: bytes per second produced to a topic by all clients together.

    [plugins]
    load = ["examples.quota_per_topic:QuotaPerTopic"]

    [plugins.options."examples.quota_per_topic:QuotaPerTopic"]
    orders = 1048576

Produce names topics by id from v13 on; their names are learned from the Metadata replies that pass. A topic whose name
is not known yet is not limited.
"""

from __future__ import annotations

from collections import Counter

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.sampled_rate import SampledRate, Window
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl
from headrace.quota_callbacks.requests import Interest, Request
from headrace.quota_callbacks.verdicts import Reason, Throttle

PRODUCE = ApiKey.PRODUCE.value
QUOTA = "topic_byte_rate"


class QuotaPerTopic:
    """Charges every batch to its topic, and mutes the connection of a request that exceeds a topic's limit."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self.limits: dict[str, float] = {}
        self.rates: dict[str, SampledRate] = {}

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Read the limits, in bytes per second, and have topic names learned."""
        self.topics = context.topics
        self.topics.follow()
        for topic, limit in context.options.items():
            if not isinstance(limit, int | float) or not limit > 0:
                raise ValueError(f"{topic} = {limit!r}: expected bytes per second, above 0")
            self.limits[topic] = limit
            self.rates[topic] = SampledRate(Window())

    @hookimpl
    def request_interest(self) -> tuple[Interest, ...]:
        """Return an interest in Produce."""
        return (Interest(api_key=PRODUCE),)

    @hookimpl
    def request_received(self, request: Request) -> None:
        """Request that the record batches are read."""
        request.read_batches = True

    @hookimpl
    def batches_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge every topic, and return the longest throttle time."""
        produced: Counter[str | None] = Counter()
        for topic, _, records_bytes, _ in request.batches:
            produced[topic if isinstance(topic, str) else self.topics.name(topic)] += records_bytes
        verdicts = [
            self.charge(topic, amount, now_ms)
            for topic, amount in produced.items()
            if topic is not None and topic in self.limits
        ]
        throttles = [verdict for verdict in verdicts if verdict is not None]
        return max(throttles, key=lambda verdict: verdict.throttle_ms, default=None)

    def charge(self, topic: str, amount: int, now_ms: int) -> Throttle | None:
        """Record ``amount`` bytes, and return the throttle time, or ``None`` within the limit."""
        rate, limit = self.rates[topic], self.limits[topic]
        rate.record(amount, now_ms)
        throttle_ms = rate.throttle_ms(limit, now_ms)
        if throttle_ms == 0:
            return None
        reason = Reason(quota=QUOTA, entity=f"topic={topic}", observed=rate.rate(now_ms), limit=limit)
        return Throttle(throttle_ms=throttle_ms, reason=reason)
