"""The hook implementations.

What counts is the size of the records, as they are sent: compressed, without the other fields of requests and replies.
It is known only when the request or reply passes, so the client is muted afterwards.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from headrace.plugins.topic_quotas.options import TopicOptions
from headrace.plugins.topic_quotas.topics import TopicQuotaTable, check_topic
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.kinds import RateBucket
from headrace.quota_callbacks.definitions import EntityTypeDefinition
from headrace.quota_callbacks.entities import EntityName, QuotaEntity, QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl
from headrace.quota_callbacks.options import read_options
from headrace.quota_callbacks.policies import Limit, Quota, QuotaPolicy
from headrace.quota_callbacks.requests import Interest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
    from headrace.quota_callbacks.requests import Request
    from headrace.quota_callbacks.topic_names import TopicNames
    from headrace.quota_callbacks.verdicts import Throttle

TOPIC: Final = "topic"
PRODUCED, FETCHED = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE
PRODUCE: Final = ApiKey.PRODUCE.value
FETCH: Final = ApiKey.FETCH.value

MAX_CACHED: Final = 10_000
"""Topics whose buckets are found without looking for their quotas; about 2 MiB."""


class TopicQuotas:
    """Defines the entity type ``topic``, and enforces its quotas. Does nothing unless it is enabled."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self._enabled = False
        self._quotas: ClientQuotas
        self._topics: TopicNames
        self._tables = {PRODUCED: TopicQuotaTable(), FETCHED: TopicQuotaTable()}
        self._buckets: dict[tuple[QuotaKey, str], RateBucket | None] = {}
        self._generation = -1

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Read the options; if enabled, have the names of topics learned."""
        self._enabled = read_options(TopicOptions, context.options, "topic_quotas").enabled
        self._quotas, self._topics = context.quotas, context.topics
        if self._enabled:
            self._topics.follow()

    @hookimpl
    def quota_definitions(self) -> tuple[EntityTypeDefinition, ...]:
        """Return the entity type, if enabled."""
        if not self._enabled:
            return ()
        help_text = 'A topic, or all topics whose names begin alike ("orders.*"), each by itself: all clients together.'
        keys = frozenset({PRODUCED.value, FETCHED.value})
        return (EntityTypeDefinition(name=TOPIC, help=help_text, check=check_topic, keys=keys),)

    # --- quotas ---

    @hookimpl
    def update_quota(self, key: str, entity: QuotaEntity, value: float, policy: QuotaPolicy) -> bool:
        """Keep the quota of a topic."""
        name = _topic_in(entity)
        if name is None:
            return False
        self._tables[QuotaKey(key)].update(name, Quota(value=value, policy=policy))
        return True

    @hookimpl
    def remove_quota(self, key: str, entity: QuotaEntity) -> bool:
        """Discard the quota of a topic."""
        name = _topic_in(entity)
        return name is not None and self._tables[QuotaKey(key)].remove(name)

    @hookimpl
    def quota_limit(self, key: str, tags: Mapping[str, str]) -> float | None:
        """Return the limit of a topic's bucket.

        Its entity is the topic itself, since a quota for several topics limits each by itself.
        """
        topic = tags.get(TOPIC)
        if topic is None or key not in self._tables:
            return None
        found = self._tables[QuotaKey(key)].find(topic)
        if found is None:
            return None
        _, quota = found
        return Limit(quota.value, QuotaEntity(other=((TOPIC, topic),)), quota.policy)

    # --- requests ---

    @hookimpl
    def request_interest(self) -> tuple[Interest, ...]:
        """Return Produce and Fetch, if enabled."""
        return (Interest(api_key=PRODUCE), Interest(api_key=FETCH)) if self._enabled else ()

    @hookimpl
    def request_received(self, request: Request) -> None:
        """Request that the topics are read, if there are quotas."""
        if request.api_key == PRODUCE:
            if self._tables[PRODUCED]:
                request.read_batches = True
        elif self._tables[FETCHED]:
            request.read_fetched = True
            request.alone = True

    @hookimpl
    def batches_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge what was produced to each topic."""
        produced: Counter[str | bytes] = Counter()
        for topic, _, records_bytes, _ in request.batches:
            produced[topic] += records_bytes
        return self._charge(PRODUCED, produced, now_ms)

    @hookimpl
    def records_fetched(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge what was fetched of each topic."""
        return self._charge(FETCHED, request.fetched_bytes, now_ms)

    def _charge(self, key: QuotaKey, by_topic: Mapping[str | bytes, int], now_ms: int) -> Throttle | None:
        """Charge bytes to topics; return the longest throttle. One that is only observed counts last."""
        longest: Throttle | None = None
        for topic, amount in by_topic.items():
            bucket = self._bucket(key, topic)
            verdict = None if bucket is None else bucket.charge_forwarded(amount, now_ms)
            if verdict is not None and (longest is None or _order(verdict) > _order(longest)):
                longest = verdict
        return longest

    def _bucket(self, key: QuotaKey, topic: str | bytes) -> RateBucket | None:
        """Return the bucket of a topic; ``None`` if it has no quota, or if its name is not known."""
        name = topic if isinstance(topic, str) else self._topics.name(topic)
        if name is None:
            return None
        if self._generation != self._quotas.generation or len(self._buckets) >= MAX_CACHED:
            self._buckets.clear()
            self._generation = self._quotas.generation
        bucket = self._buckets.get((key, name))
        if (bucket is None and (key, name) not in self._buckets) or (bucket is not None and bucket.dropped):
            bucket = self._buckets[key, name] = self._resolve(key, name)
        return bucket

    def _resolve(self, key: QuotaKey, name: str) -> RateBucket | None:
        if self._tables[key].find(name) is None:
            return None
        bucket = self._quotas.named((key, ((TOPIC, name),)))
        return bucket if isinstance(bucket, RateBucket) else None


def _order(verdict: Throttle) -> tuple[bool, int]:
    return not verdict.observe, verdict.throttle_ms


def _topic_in(entity: QuotaEntity) -> EntityName | None:
    """Return the topic of an entity; ``None`` for another one."""
    return entity.other[0][1] if len(entity.other) == 1 and entity.other[0][0] == TOPIC else None
