"""The hook implementations.

What counts is the size of the records, as they are sent: compressed, without the other fields of requests and replies.
It is known only when the request or reply passes, so the client is muted afterwards.

A Produce is charged when the broker has replied, and only for what it has appended, so that no client uses up the quota
of a topic without permission to write to it. Without a reply (acks=0, or a connection that was closed before it) it is
not known what was appended. Then the topic is charged if the broker has accepted an earlier Produce of this user to it;
otherwise a bucket that the user has for itself, with the topic's limit, so that no other user is throttled. A partition
that a request lists several times is charged in this way, too, if the reply has an error for it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from headrace.plugins.topic_quotas.options import TopicOptions
from headrace.plugins.topic_quotas.topics import MAX_NAME_LENGTH, TopicQuotaTable, check_topic, names_of
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.bucket_table import owner_of
from headrace.quota_callbacks.buckets.kinds import RateBucket
from headrace.quota_callbacks.buckets.waiting import NEVER
from headrace.quota_callbacks.client_addresses import counted_address
from headrace.quota_callbacks.definitions import EntityTypeDefinition
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.error_codes import ErrorCode
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl
from headrace.quota_callbacks.options import read_options
from headrace.quota_callbacks.policies import Limit, Quota, QuotaPolicy
from headrace.quota_callbacks.requests import Interest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
    from headrace.quota_callbacks.options import Table
    from headrace.quota_callbacks.requests import Request
    from headrace.quota_callbacks.topic_names import TopicNames
    from headrace.quota_callbacks.verdicts import Throttle

TOPIC: Final = "topic"
_ID: Final = ":"
"""Stands before the id of a topic whose name is not known. No name begins so, so that no quota of a name or a prefix
applies to it."""
PRODUCED, FETCHED = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE
PRODUCE: Final = ApiKey.PRODUCE.value
FETCH: Final = ApiKey.FETCH.value
SHARE_FETCH: Final = ApiKey.SHARE_FETCH.value
TOPIC_AUTHORIZATION_FAILED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED.value
SENDER: Final = "sender"
"""Metric tag of the bucket of a user that the broker may not allow to write to a topic."""

ALONE_MS: Final = 60_000
"""How long the Produce requests of a user are forwarded one by one after the quota of a topic has throttled one of
them. Otherwise a client could send many of them before the first one is charged, which happens with its reply."""

MAX_CACHED: Final = 10_000
"""Maximum number of topics whose buckets are cached, which takes about 2 MiB. The cache of pairs of users and topics
has the same maximum, and takes about as much."""


class TopicQuotas:
    """The plugin that defines the entity type ``topic``, and enforces its quotas. It does nothing unless it is
    enabled."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self._enabled = False
        self._quotas: ClientQuotas
        self._topics: TopicNames
        self._tables = {PRODUCED: TopicQuotaTable(), FETCHED: TopicQuotaTable()}
        self._buckets: dict[tuple[QuotaKey, str, str], RateBucket | None] = {}
        self._generation = -1
        self._accepted: set[tuple[str, str | bytes]] = set()
        """Users, and topics to which the broker has let them write."""
        self._alone_until_ms: dict[str, int] = {}
        """Time until which the Produce requests of a user are forwarded one by one."""
        self._throttled_by: dict[tuple[QuotaKey, str, str], RateBucket] = {}
        """The bucket by which a user was throttled last at an address: its new connections there wait for it, too."""

    @hookimpl
    def options_table(self) -> type[Table]:
        """Return the class of the options."""
        return TopicOptions

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
        help_text = 'A topic, or each topic that begins with a prefix ("orders.*"). All its clients share the quota.'
        keys = frozenset({PRODUCED.value, FETCHED.value})
        return (EntityTypeDefinition(name=TOPIC, help=help_text, check=check_topic, keys=keys, matching=_matching),)

    # --- quotas ---

    @hookimpl
    def update_quota(self, key: str, entity: QuotaEntity, value: float, policy: QuotaPolicy) -> bool:
        """Keep the quota of a topic."""
        name = entity.sole(TOPIC)
        if name is None:
            return False
        self._tables[QuotaKey(key)].update(name, Quota(value=value, policy=policy))
        return True

    @hookimpl
    def remove_quota(self, key: str, entity: QuotaEntity) -> bool:
        """Discard the quota of a topic."""
        name = entity.sole(TOPIC)
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
        """Return Produce, Fetch and ShareFetch, if enabled."""
        return tuple(Interest(api_key=each) for each in (PRODUCE, FETCH, SHARE_FETCH)) if self._enabled else ()

    @hookimpl
    def request_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Request that the topics are read, if there are quotas. Hold the first request of a new connection while the
        quota of a topic throttles the same user at the same address."""
        if request.api_key == PRODUCE:
            if not self._tables[PRODUCED]:
                return None
            request.read_batches = request.read_refused = True
            if now_ms < self._alone_until_ms.get(request.connection.user, 0):
                request.alone = True
            return self._wait(PRODUCED, request, now_ms)
        if not self._tables[FETCHED]:
            return None
        request.read_fetched = True
        request.alone = True
        return self._wait(FETCHED, request, now_ms)

    @hookimpl
    def batches_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge a Produce with acks=0, to which there is no reply."""
        return self._charge_unanswered(request, now_ms) if request.acks == 0 else None

    @hookimpl
    def response_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge what the broker has appended of a Produce to each topic, and remember which users may write."""
        if request.api_key != PRODUCE or not request.read_refused:
            return None
        user, refused = request.connection.user, request.refused
        produced: Counter[str | bytes] = Counter()
        unknown: Counter[str | bytes] = Counter()
        times = Counter((topic, partition) for topic, partition, _, _ in request.batches) if refused else Counter()
        for topic, partition, records_bytes in _parts(request):
            error_code = refused.get((topic, partition))
            if error_code is None:
                produced[topic] += records_bytes
            elif error_code == TOPIC_AUTHORIZATION_FAILED:
                self._accepted.discard((user, topic))
            elif times[topic, partition] != 1 or (topic, partition) in request.left_out_bytes:
                unknown[topic] += records_bytes  # listed more than once, and the reply has the error of one of them
        verdict = self._charge(PRODUCED, produced, now_ms, request)
        self._note_accepted(user, produced)
        if unknown:
            verdict = _longest(verdict, self._charge_unknown(request, unknown, now_ms))
        return self._throttled(request, verdict, now_ms)

    def _note_accepted(self, user: str, topics: Iterable[str | bytes]) -> None:
        for topic in topics:
            if self._bucket(PRODUCED, topic) is not None:
                if len(self._accepted) >= MAX_CACHED:
                    self._accepted.clear()
                self._accepted.add((user, topic))

    @hookimpl
    def request_abandoned(self, request: Request, now_ms: int) -> None:
        """Charge a Produce that was forwarded, but whose reply did not arrive."""
        if request.api_key == PRODUCE and request.forwarded_s is not None:
            self._charge_unanswered(request, now_ms)

    @hookimpl
    def records_fetched(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge what was fetched of each topic."""
        return self._charge(FETCHED, request.fetched_bytes, now_ms, request)

    # --- charges ---

    def _charge_unanswered(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge all of a Produce of which it is not known what was appended."""
        by_topic: Counter[str | bytes] = Counter()
        for topic, _, records_bytes in _parts(request):
            by_topic[topic] += records_bytes
        return self._throttled(request, self._charge_unknown(request, by_topic, now_ms), now_ms)

    def _charge_unknown(self, request: Request, by_topic: Mapping[str | bytes, int], now_ms: int) -> Throttle | None:
        """Charge bytes that may have been appended to the topics to which the broker has let the user write, and others
        to the sender; return the longest throttle."""
        user = request.connection.user
        to_topics: dict[str | bytes, int] = {}
        to_sender: dict[str | bytes, int] = {}
        for topic, records_bytes in by_topic.items():
            if records_bytes:
                (to_topics if (user, topic) in self._accepted else to_sender)[topic] = records_bytes
        return _longest(
            self._charge(PRODUCED, to_topics, now_ms, request),
            self._charge(PRODUCED, to_sender, now_ms, request, to_sender=True),
        )

    def _throttled(self, request: Request, verdict: Throttle | None, now_ms: int) -> Throttle | None:
        """Return the verdict. If it throttles, the user's next Produce requests are forwarded one by one."""
        if verdict is not None and not verdict.observe:
            if len(self._alone_until_ms) >= MAX_CACHED:
                self._alone_until_ms.clear()
            self._alone_until_ms[request.connection.user] = now_ms + ALONE_MS
        return verdict

    def _charge(
        self,
        key: QuotaKey,
        by_topic: Mapping[str | bytes, int],
        now_ms: int,
        request: Request,
        *,
        to_sender: bool = False,
    ) -> Throttle | None:
        """Charge bytes to topics, or to the buckets that the sender has for them; return the longest throttle. One that
        is only observed counts last."""
        longest: Throttle | None = None
        for topic, amount in by_topic.items():
            bucket = self._bucket(key, topic, request if to_sender else None)
            verdict = None if bucket is None else bucket.charge_forwarded(amount, now_ms)
            if bucket is not None and verdict is not None and (longest is None or _order(verdict) > _order(longest)):
                longest = verdict
                self._note_throttle(key, request, bucket, now_ms)
        return longest

    def _note_throttle(self, key: QuotaKey, request: Request, bucket: RateBucket, now_ms: int) -> None:
        if now_ms < bucket.gate_ms:  # which new connections wait for, by the policy of the quota
            if len(self._throttled_by) >= MAX_CACHED:
                over = [name for name, each in self._throttled_by.items() if now_ms >= each.gate_ms]
                for name in over or list(self._throttled_by)[:1]:
                    del self._throttled_by[name]
            connection = request.connection
            self._throttled_by[key, connection.user, counted_address(connection.peer.host)] = bucket

    def _wait(self, key: QuotaKey, request: Request, now_ms: int) -> Throttle | None:
        """Return how long to hold the first request of a new connection; ``None`` admits it.

        It is held once, until the present throttle is over, and has no place in the queue of the bucket: it may be for
        another topic, and who waits behind it would wait for a charge that does not come.
        """
        connection, slot = request.connection, (TOPIC, key)
        first_used_ms = connection.cache.setdefault(slot, int(request.received_s * 1000))
        throttled = (key, connection.user, counted_address(connection.peer.host))
        bucket = self._throttled_by.get(throttled)
        if bucket is None:
            return None
        if bucket.dropped or now_ms >= bucket.gate_ms:
            del self._throttled_by[throttled]
            return None
        verdict = bucket.rest_of_wait(first_used_ms, now_ms)
        if verdict is not None:
            connection.cache[slot] = NEVER
        return verdict

    def _bucket(self, key: QuotaKey, topic: str | bytes, sent: Request | None = None) -> RateBucket | None:
        """Return the bucket of a topic, or that of the user of the request ``sent`` for it; ``None`` if the topic has
        no quota, or no valid name. A topic whose name is not known has the quota of all topics, if there is one."""
        name = topic if isinstance(topic, str) else self._topics.name(topic) or f"{_ID}{topic.hex()}"
        if len(name) > MAX_NAME_LENGTH:
            return None
        if self._generation != self._quotas.generation or len(self._buckets) >= MAX_CACHED:
            self._buckets.clear()
            self._generation = self._quotas.generation
        cached = (key, name, "" if sent is None else sent.connection.user)
        bucket = self._buckets.get(cached)
        if (bucket is None and cached not in self._buckets) or (bucket is not None and bucket.dropped):
            bucket = self._resolve(key, name, sent)
            if bucket is None or not bucket.overflow:
                self._buckets[cached] = bucket
        return bucket

    def _resolve(self, key: QuotaKey, name: str, sent: Request | None) -> RateBucket | None:
        if self._tables[key].find(name) is None:
            return None
        tags: tuple[tuple[str, str], ...] = ((TOPIC, name),)
        owner = None
        if sent is not None:
            tags = (*tags, (SENDER, sent.connection.user))
            owner = owner_of(sent.connection, name, tags)
        bucket = self._quotas.named((key, tags), owner)
        return bucket if isinstance(bucket, RateBucket) else None


def _parts(request: Request) -> Iterator[tuple[str | bytes, int, int]]:
    """Yield topic, partition and bytes of the records of a Produce."""
    for topic, partition, records_bytes, _ in request.batches:
        yield topic, partition, records_bytes
    for (topic, partition), records_bytes in request.left_out_bytes.items():
        yield topic, partition, records_bytes


def _longest(*verdicts: Throttle | None) -> Throttle | None:
    return max((each for each in verdicts if each is not None), key=_order, default=None)


def _order(verdict: Throttle) -> tuple[bool, int]:
    return not verdict.observe, verdict.throttle_ms


def _matching(names: Mapping[str, str]) -> tuple[str, ...]:
    return names_of(names[TOPIC]) if TOPIC in names else ()
