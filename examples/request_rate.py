"""A quota key that Kafka does not have: requests per second of a user, a client id, or a pair of both.

    [plugins]
    load = ["examples.request_rate:RequestRate"]

    [[quotas]]
    entity = { user = "<default>" }
    request_rate = 100

The key is set like the built-in keys: in the configuration file or by AlterClientQuotas; for users, client ids and
their defaults; with paced enforcement or in shadow mode. The plugin only counts requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.quota_callbacks.buckets.kinds import RateBucket
from headrace.quota_callbacks.definitions import USER_AND_CLIENT_ID, QuotaKeyDefinition, ValueType
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl

if TYPE_CHECKING:
    from headrace.quota_callbacks.requests import Request
    from headrace.quota_callbacks.verdicts import Throttle

KEY = "request_rate"


class RequestRate:
    """The callback that charges every request."""

    headrace_hooks = HOOK_VERSION

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Keep the buckets."""
        self.quotas = context.quotas

    @hookimpl
    def quota_definitions(self) -> tuple[QuotaKeyDefinition, ...]:
        """Return the key."""
        return (
            QuotaKeyDefinition(
                name=KEY,
                value_type=ValueType.DOUBLE,
                entity_types=USER_AND_CLIENT_ID,
                help="Requests a second.",
                unit="requests/s",
            ),
        )

    @hookimpl
    def enforced_quotas(self) -> frozenset[str]:
        """Return the key."""
        return frozenset({KEY})

    @hookimpl
    def request_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge one request; hold it first if its connection is new and its entity has to wait."""
        bucket = self.quotas.bucket_for(request, KEY, RateBucket)
        if bucket is None:
            return None
        if not bucket.paced and now_ms < bucket.gate_ms:
            verdict = self.quotas.wait(request, self.quotas.slot(KEY), bucket, now_ms)
            if verdict is not None:
                return verdict
        return bucket.charge_forwarded(1, now_ms)

    @hookimpl
    def request_abandoned(self, request: Request) -> None:
        """End the wait of a request whose client has gone."""
        self.quotas.leave(request, self.quotas.slot(KEY))
