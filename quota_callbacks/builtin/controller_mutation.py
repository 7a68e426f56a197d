"""``controller_mutation_rate`` (KIP-599): partitions created, deleted or added a second, in a token bucket.

Requests of newer versions get error 89 for each topic that exceeds the quota (*strict*: topics are admitted in the
order of the request while the bucket is not overdrawn). Requests of older versions are forwarded, and the channel is
muted until the bucket is no longer overdrawn (*permissive*). ValidateOnly requests are exempt. Tokens for topics that
the broker or another plugin refuses are given back, but not after an error that leaves it open whether the topic was
changed. If several entities have this quota, such as a user and its team, a topic that one of them refuses is not
charged to the others.

A Metadata request that would create topics is charged to the same bucket, which removes the KIP's known limitation. If
it exceeds the quota, it is forwarded without its auto-creation flag; versions 0 to 3, which lack the flag, are
permissive.

A paced quota holds requests of all versions until their reserved time and refuses nothing.

Source: ``ControllerMutationQuotaManager``, ``ControllerApis``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Final

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.kinds import MutationBucket
from headrace.quota_callbacks.builtin.bucket_callback import BucketCallback
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.error_codes import ErrorCode
from headrace.quota_callbacks.hookspecs import hookimpl
from headrace.quota_callbacks.requests import Detail, Interest
from headrace.quota_callbacks.verdicts import THROTTLING_QUOTA_EXCEEDED, Refuse, Throttle

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.quota_callbacks.buckets.client_quotas import BucketSource
    from headrace.quota_callbacks.buckets.quota_scope import QuotaScope
    from headrace.quota_callbacks.requests import Request, TopicMutation
    from headrace.quota_callbacks.verdicts import Verdict

KEY: Final = QuotaKey.CONTROLLER_MUTATION_RATE
UNCHANGED: Final = frozenset[int](ErrorCode) - {
    ErrorCode.NONE,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""The errors after which a topic is certainly unchanged. After REQUEST_TIMED_OUT the change may still be made: a broker
with ZooKeeper returns it for every request with ``timeout_ms`` 0, and carries out the request afterwards."""
METADATA: Final = ApiKey.METADATA.value
STRICT_FROM: Final = {
    ApiKey.CREATE_TOPICS.value: 6,
    ApiKey.DELETE_TOPICS.value: 5,
    ApiKey.CREATE_PARTITIONS.value: 3,
    METADATA: 4,
}
"""The first version of each API that defines error 89 (KIP-599); for Metadata, the first with the flag."""
TOKENS: Final = (KEY, "tokens")
"""Key in ``request.notes`` of the tokens that each entity had before the request was charged, by slot."""


class ControllerMutation(BucketCallback):
    """The callback that charges controller mutations."""

    keys: ClassVar[frozenset[QuotaKey]] = frozenset({KEY})

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[BucketSource] = []
        """The bucket sources of this callback and of those that `scoped_callback` has created, which share this
        list."""

    def _charge_to(self, quotas: BucketSource) -> None:
        super()._charge_to(quotas)
        self.sources = [quotas]

    @hookimpl
    def scoped_callback(self, scope: QuotaScope) -> BucketCallback | None:
        """Return a callback for the buckets of ``scope``, which refuses topics together with this one."""
        callback = super().scoped_callback(scope)
        if isinstance(callback, ControllerMutation):
            self.sources.append(scope)
            callback.sources = self.sources
        return callback

    @hookimpl
    def request_interest(self) -> tuple[Interest, ...]:
        """Return the APIs that create, change or delete topics."""
        return tuple(Interest(api_key=api_key, detail=Detail.MUTATIONS) for api_key in STRICT_FROM)

    @hookimpl
    def mutation_budget(self, request: Request, now_ms: int) -> float | None:
        """Return the tokens of the sender's bucket; infinity for old versions, of which nothing can be refused, and for
        an overdrawn bucket that refuses nothing."""
        bucket = self._quotas.bucket_for(request, KEY, MutationBucket)
        if bucket is None or bucket.limit is None:
            return None
        if request.api_version < STRICT_FROM[request.api_key]:
            return math.inf
        tokens = bucket.tokens(now_ms)
        return tokens if tokens >= 0 or _refuses(bucket) else math.inf

    @hookimpl
    def request_received(self, request: Request, now_ms: int) -> Verdict | None:
        """Admit topic by topic, or charge the whole request, or hold it."""
        mutations = request.mutations
        if not mutations or request.validate_only:
            return None
        bucket = self._quotas.bucket_for(request, KEY, MutationBucket)
        if bucket is None:
            return None
        if bucket.paced:
            return self._hold(request, mutations, bucket, now_ms)
        if request.api_version < STRICT_FROM[request.api_key]:
            if now_ms < bucket.gate_ms and (verdict := self._quotas.wait(request, self._slot, bucket, now_ms)):
                return verdict
            bucket.charge(sum(each.partitions for each in mutations), now_ms)
            self._note_charge(request, bucket, mutations)
            return None
        if request.api_key == METADATA:
            return self._admit_auto_creation(request, mutations, bucket, now_ms)
        return self._admit(request, mutations, bucket, now_ms)

    @hookimpl
    def response_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Give back tokens for topics that were refused, and charge what was changed although nothing was charged for
        it; return the throttle of a permissive request."""
        charge = self._take_charge(request)
        if charge is None:
            return None
        bucket, mutations, held = charge
        errors = request.topic_errors or {}
        refused = sum(each.partitions for each in mutations if errors.get(each.topic, 0) in UNCHANGED)
        if held or refused:
            _give_back(bucket, refused, now_ms, held=held)
        changed = (each for each in mutations if errors.get(each.topic) == 0)
        _charge_unforeseen(bucket, changed, now_ms, held=held)
        return bucket.throttle(now_ms) if not held and request.api_version < STRICT_FROM[request.api_key] else None

    def _undo(self, request: Request, now_ms: int) -> None:
        """Give back the tokens for a request that was not forwarded. The outcome of a forwarded one is unknown, so that
        it is charged for all that the broker may have changed."""
        charge = self._take_charge(request)
        if charge is None:
            return
        bucket, mutations, held = charge
        if request.forwarded_s is None:
            _give_back(bucket, sum(each.partitions for each in mutations), now_ms, held=held)
        else:
            _charge_unforeseen(bucket, mutations, now_ms, held=held)

    def _hold(
        self, request: Request, mutations: tuple[TopicMutation, ...], bucket: MutationBucket, now_ms: int
    ) -> Throttle | None:
        amount = sum(each.partitions for each in mutations)
        bucket.record(amount, now_ms)
        self._note_charge(request, bucket, mutations, held=True)
        return bucket.reserve(amount, now_ms)

    def _admit(
        self, request: Request, mutations: tuple[TopicMutation, ...], bucket: MutationBucket, now_ms: int
    ) -> Refuse | None:
        refused: dict[str | bytes, int] = {}
        admitted: list[TopicMutation] = []
        verdict: Throttle | None = None
        others_tokens = self._others_tokens(request, now_ms)
        for each in mutations:
            if each.partitions and verdict is None:  # once the bucket is overdrawn, it denies all that follow
                if others_tokens < 0 <= bucket.tokens(now_ms):
                    continue  # another entity refuses the topic
                others_tokens -= each.partitions
                verdict = bucket.admit(each.partitions, now_ms)
            if each.partitions and verdict is not None:
                refused[each.topic] = THROTTLING_QUOTA_EXCEEDED
            else:
                admitted.append(each)
        self._note_charge(request, bucket, admitted)
        if verdict is None:
            return None
        return Refuse(throttle_ms=verdict.throttle_ms, topics=refused, reason=verdict.reason, observe=verdict.observe)

    def _admit_auto_creation(
        self, request: Request, mutations: tuple[TopicMutation, ...], bucket: MutationBucket, now_ms: int
    ) -> Refuse | None:
        """Admit or refuse all topics, since they share one flag. The client is not muted, and can use other topics."""
        if self._others_tokens(request, now_ms) < 0 <= bucket.tokens(now_ms):
            return None  # another entity refuses them
        denied = bucket.admit(sum(each.partitions for each in mutations), now_ms)
        if denied is None:
            self._note_charge(request, bucket, mutations)
            return None
        topics = {each.topic: THROTTLING_QUOTA_EXCEEDED for each in mutations}
        return Refuse(topics=topics, reason=denied.reason, observe=denied.observe)

    def _others_tokens(self, request: Request, now_ms: int) -> float:
        """Return the lowest number of tokens that another entity of this request had before any was charged for it.

        All of them are charged the same, so that the one with the fewest tokens is the first to refuse a topic.
        """
        if len(self.sources) == 1:
            return math.inf
        notes = request.make_notes()
        tokens: dict[object, float] | None = notes.get(TOKENS)
        if tokens is None:
            tokens = notes[TOKENS] = {each.slot(KEY): _tokens(each, request, now_ms) for each in self.sources}
        return min(found for slot, found in tokens.items() if slot != self._slot)

    def _note_charge(
        self, request: Request, bucket: MutationBucket, charged: Sequence[TopicMutation], *, held: bool = False
    ) -> None:
        request.make_notes()[self._slot] = (bucket, charged, held)

    def _take_charge(self, request: Request) -> tuple[MutationBucket, Sequence[TopicMutation], bool] | None:
        charge: tuple[MutationBucket, Sequence[TopicMutation], bool] | None
        charge = None if request.notes is None else request.notes.pop(self._slot, None)
        return charge


def _tokens(source: BucketSource, request: Request, now_ms: int) -> float:
    """Return the tokens of the request's bucket in ``source``; infinity without one, or if it refuses nothing."""
    bucket = source.bucket_for(request, KEY, MutationBucket)
    return bucket.tokens(now_ms) if bucket is not None and _refuses(bucket) else math.inf


def _refuses(bucket: MutationBucket) -> bool:
    """Return whether ``bucket`` refuses topics when it is overdrawn, instead of holding requests or reporting only."""
    return bucket.limit is not None and not bucket.paced and not bucket.policy.observe


def _charge_unforeseen(bucket: MutationBucket, mutations: Iterable[TopicMutation], now_ms: int, *, held: bool) -> None:
    """Charge changes of topics for which nothing was charged, because the broker was expected to refuse them."""
    amount = sum(each.at_most for each in mutations if not each.partitions)
    if amount and held:
        bucket.record(amount, now_ms)
        bucket.correct(amount, now_ms, forwarded=True)
    elif amount:
        bucket.charge(amount, now_ms)


def _give_back(bucket: MutationBucket, amount: int, now_ms: int, *, held: bool) -> None:
    if held:
        bucket.correct(-amount, now_ms)
    else:
        bucket.give_back(amount, now_ms)
