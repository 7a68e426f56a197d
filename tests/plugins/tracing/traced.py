"""Requests made by hand, and the plugin behind the proxy's hook calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.requests import Address, Connection, Request
from headrace.quota_callbacks.verdicts import Reason

if TYPE_CHECKING:
    from headrace.proxy.hooks.calls.hook_calls import HookCalls

PRODUCE, FETCH, METADATA, CREATE_TOPICS = ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.CREATE_TOPICS

OVER_PRODUCE = Reason(quota="producer_byte_rate", entity="user=alice", observed=2048.0, limit=1024.0)
OVER_FETCH = Reason(quota="consumer_byte_rate", entity="client-id=<default>", observed=3.5, limit=2.0)
OVER_MUTATIONS = Reason(quota="controller_mutation_rate", entity="user=alice", observed=-3.0, limit=5.0)


class Traced:
    """The hooks with the tracing plugin behind them, and its metrics."""

    def __init__(self, hooks: HookCalls) -> None:
        self.hooks = hooks

    def complete(self, *requests: Request) -> None:
        """As the proxy does when the replies' last bytes are out."""
        for request in requests:
            self.hooks.request_completed(request)
        assert self.hooks.errors == 0, self.hooks.failures

    @property
    def metrics(self) -> dict[tuple[str, ...], float]:
        """By name and labels' values."""
        return {(metric.name, *metric.labels.values()): metric.value for metric in self.hooks.collect_metrics()}


def connection(**changes: Any) -> Connection:
    """Alice, from 10.0.0.7, to the broker at kafka-1."""
    fields: dict[str, Any] = {
        "connection_id": 12,
        "peer": Address(host="10.0.0.7", port=50123),
        "node_id": 1,
        "user": "alice",
        "upstream": Address(host="kafka-1.example", port=9092),
    }
    return Connection(**fields | changes)


def request(api_key: int = PRODUCE, *, sender: Connection | None = None, **changes: Any) -> Request:
    """Received at 100 s, forwarded 1 ms later, answered by the broker at 10 ms, over at 12 ms; and then ``changes``."""
    made = Request(sender or connection(), api_key, 9, 77, "producer-1", 1000, 100.0)
    fields: dict[str, Any] = {
        "forwarded_s": 100.001,
        "reply_s": 100.010,
        "completed_s": 100.012,
        "response_bytes": 50,
        "acks": -1 if api_key == PRODUCE else None,
    }
    for name, value in (fields | changes).items():
        setattr(made, name, value)
    return made


def throttled(**changes: Any) -> Request:
    """A Produce that overdrew its quota."""
    return request(**{"throttle_ms": 1500, "reason": OVER_PRODUCE} | changes)


def refused(**changes: Any) -> Request:
    """A CreateTopics that was refused whole, with error 89."""
    fields = {
        "refused_code": 89,
        "reason": OVER_MUTATIONS,
        "forwarded_s": None,
        "reply_s": None,
        "body": {"topics": [{"name": "orders", "num_partitions": 8}]},
    }
    return request(CREATE_TOPICS, **fields | changes)


def failed(**changes: Any) -> Request:
    """A Produce whose broker went away."""
    fields = {"error": "upstream: the broker closed; requests in flight: 1", "reply_s": None, "response_bytes": 0}
    return request(**fields | changes)
