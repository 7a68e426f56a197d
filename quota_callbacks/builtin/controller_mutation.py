"""``controller_mutation_rate`` (KIP-599): partitions created, deleted or added a second, in a token bucket.

New versions of the clients are told with error 89 for each topic beyond the quota (*strict*: topics in the order of
the request, each admitted while the bucket is not overdrawn); of older ones everything is forwarded and the channel is
muted until the bucket is paid off (*permissive*). ValidateOnly is exempt. What the broker refuses is given back.

A Metadata request that would create topics is held to the same bucket, which closes the KIP's known limitation: beyond
the quota it goes on with its auto-creation flag off, and from v0 to v3, which have no flag, the channel is muted.

Paced, a request is held until its place comes, whatever its version, and nothing is refused.

Source: ``ControllerMutationQuotaManager``, ``ControllerApis``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Final

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.kinds import MutationBucket
from headrace.quota_callbacks.builtin.reservations import note_reservation, take_reservation
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl
from headrace.quota_callbacks.requests import Detail, Interest
from headrace.quota_callbacks.verdicts import THROTTLING_QUOTA_EXCEEDED, Refuse, Throttle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
    from headrace.quota_callbacks.requests import Request, TopicMutation
    from headrace.quota_callbacks.verdicts import Verdict

KEY: Final = QuotaKey.CONTROLLER_MUTATION_RATE
METADATA: Final = ApiKey.METADATA.value
STRICT_FROM: Final = {
    ApiKey.CREATE_TOPICS.value: 6,
    ApiKey.DELETE_TOPICS.value: 5,
    ApiKey.CREATE_PARTITIONS.value: 3,
    METADATA: 4,
}
"""The first version that can be told error 89 (KIP-599); of Metadata, the first with the flag."""

_CHARGED: Final = "controller_mutation"


class ControllerMutation:
    """Charges controller mutations to the buckets of their sender."""

    headrace_hooks: ClassVar[int] = HOOK_VERSION

    def __init__(self) -> None:
        self._quotas: ClientQuotas

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Take the buckets."""
        self._quotas = context.quotas

    @hookimpl
    def enforced_quotas(self) -> frozenset[QuotaKey]:
        """Controller mutations."""
        return frozenset({KEY})

    @hookimpl
    def request_interest(self) -> tuple[Interest, ...]:
        """What changes topics, by what it would change."""
        return tuple(Interest(api_key=api_key, detail=Detail.MUTATIONS) for api_key in STRICT_FROM)

    @hookimpl
    def mutation_budget(self, request: Request, now_ms: int) -> float | None:
        """The tokens of the sender's bucket; of old versions nothing can be refused."""
        bucket = self._quotas.bucket_for(request, KEY, MutationBucket)
        if bucket is None or bucket.limit is None:
            return None
        return math.inf if request.api_version < STRICT_FROM[request.api_key] else bucket.tokens(now_ms)

    @hookimpl
    def request_received(self, request: Request, now_ms: int) -> Verdict | None:
        """Admit topic by topic, or charge everything; paced, take a place."""
        mutations = request.mutations
        if not mutations or request.validate_only:
            return None
        bucket = self._quotas.bucket_for(request, KEY, MutationBucket)
        if bucket is None:
            return None
        if bucket.paced:
            return _hold(request, mutations, bucket, now_ms)
        if request.api_version < STRICT_FROM[request.api_key]:
            bucket.charge(sum(each.partitions for each in mutations), now_ms)
            _note_charge(request, bucket, mutations)
            return None
        if request.api_key == METADATA:
            return _admit_auto_creation(request, mutations, bucket, now_ms)
        return _admit(request, mutations, bucket, now_ms)

    @hookimpl
    def response_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Give back what the broker refused; then a permissive request's throttle is known."""
        charge = _take_charge(request)
        if charge is None:
            return None
        bucket, mutations = charge
        errors = request.topic_errors or {}
        refused = sum(each.partitions for each in mutations if errors.get(each.topic, 0))
        if take_reservation(request, KEY, MutationBucket) is not None:
            bucket.correct(-refused, now_ms)
            return None
        if refused:
            bucket.give_back(refused, now_ms)
        return bucket.throttle(now_ms) if request.api_version < STRICT_FROM[request.api_key] else None

    @hookimpl
    def request_abandoned(self, request: Request, now_ms: int) -> None:
        """Give back what a request has cost that was not forwarded; of another one it is not known what became."""
        charge = _take_charge(request)
        if charge is None or request.forwarded_s is not None:
            return
        bucket, mutations = charge
        if take_reservation(request, KEY, MutationBucket) is not None:
            bucket.correct(-sum(each.partitions for each in mutations), now_ms)
        else:
            bucket.give_back(sum(each.partitions for each in mutations), now_ms)


def _hold(
    request: Request, mutations: tuple[TopicMutation, ...], bucket: MutationBucket, now_ms: int
) -> Throttle | None:
    amount = sum(each.partitions for each in mutations)
    bucket.record(amount, now_ms)
    _note_charge(request, bucket, mutations)
    note_reservation(request, KEY, bucket, amount)
    return bucket.reserve(amount, now_ms)


def _admit(
    request: Request, mutations: tuple[TopicMutation, ...], bucket: MutationBucket, now_ms: int
) -> Refuse | None:
    refused: dict[str | bytes, int] = {}
    admitted: list[TopicMutation] = []
    verdict: Throttle | None = None
    for each in mutations:
        denied = bucket.admit(each.partitions, now_ms) if each.partitions else None
        if denied is None:
            admitted.append(each)
        else:
            refused[each.topic] = THROTTLING_QUOTA_EXCEEDED
            verdict = denied
    _note_charge(request, bucket, admitted)
    if verdict is None:
        return None
    return Refuse(throttle_ms=verdict.throttle_ms, topics=refused, reason=verdict.reason, observe=verdict.observe)


def _admit_auto_creation(
    request: Request, mutations: tuple[TopicMutation, ...], bucket: MutationBucket, now_ms: int
) -> Refuse | None:
    """One flag stands for all topics. The client is not muted: it goes on with the topics that exist."""
    denied = bucket.admit(sum(each.partitions for each in mutations), now_ms)
    if denied is None:
        _note_charge(request, bucket, mutations)
        return None
    topics = {each.topic: THROTTLING_QUOTA_EXCEEDED for each in mutations}
    return Refuse(topics=topics, reason=denied.reason, observe=denied.observe)


def _note_charge(request: Request, bucket: MutationBucket, charged: Sequence[TopicMutation]) -> None:
    if request.notes is None:
        request.notes = {}
    request.notes[_CHARGED] = (bucket, charged)


def _take_charge(request: Request) -> tuple[MutationBucket, Sequence[TopicMutation]] | None:
    charge: tuple[MutationBucket, Sequence[TopicMutation]] | None
    charge = None if request.notes is None else request.notes.pop(_CHARGED, None)
    return charge
