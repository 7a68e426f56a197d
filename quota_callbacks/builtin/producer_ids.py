"""``producer_ids_rate`` (KIP-936): how many producer ids a user may be active with in a window.

The id of every record batch is looked up while a Produce passes; one that was not seen in the window takes a token of
the user's bucket, and who overdraws it is muted. The batches have been forwarded by then, as the KIP has it: the
request that brings one id too many is served, and the next one waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.kinds import ProducerIdBucket
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl
from headrace.quota_callbacks.requests import Interest

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
    from headrace.quota_callbacks.requests import Request
    from headrace.quota_callbacks.verdicts import Throttle

KEY: Final = QuotaKey.PRODUCER_IDS_RATE
PRODUCE: Final = ApiKey.PRODUCE.value


class ProducerIds:
    """Charges producer ids to the buckets of their users."""

    headrace_hooks: ClassVar[int] = HOOK_VERSION

    def __init__(self) -> None:
        self._quotas: ClientQuotas

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Take the buckets."""
        self._quotas = context.quotas

    @hookimpl
    def enforced_quotas(self) -> frozenset[QuotaKey]:
        """Producer ids."""
        return frozenset({KEY})

    @hookimpl
    def request_interest(self) -> tuple[Interest, ...]:
        """Produce."""
        return (Interest(api_key=PRODUCE),)

    @hookimpl
    def request_received(self, request: Request, now_ms: int) -> None:  # noqa: ARG002 -- a shorter call is a slower one
        """Have the batches read, if the user is held to a quota."""
        if self._quotas.bucket_for(request, KEY, ProducerIdBucket) is not None:
            request.read_batches = True

    @hookimpl
    def batches_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge the ids that are new."""
        bucket = self._quotas.bucket_for(request, KEY, ProducerIdBucket)
        if bucket is None:
            return None
        before = bucket.new_ids
        longest = bucket.charge_new(now_ms) if request.batches_left_out else None
        for batch in request.batches:
            verdict = bucket.charge(batch[3], now_ms)
            if verdict is not None and (longest is None or verdict.throttle_ms > longest.throttle_ms):
                longest = verdict
        request.new_producer_ids = bucket.new_ids - before
        return longest
