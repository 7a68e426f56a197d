"""What a mutation would cost, where the request alone does not tell: asked of the broker, over the client's connection.

Called by the request relay for senders that ``controller_mutation_rate`` holds. Lookups go out in turn with the
client's own requests and with the client's rights; a new topic whose partitions
the client may not see costs it one.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, TypeVar

from headrace.proxy.errors import UpstreamFault
from headrace.proxy.wire.errors import PeerFault
from headrace.proxy.wire.mutations import read_mutation
from headrace.proxy.wire.topic_lookups import (
    AUTO_CREATION_FROM,
    BROKERS_DEFAULT,
    ask_for_topics,
    ask_to_validate,
    ask_to_validate_names,
    read_auto_creation,
    read_partition_counts,
    read_unknown_topics,
    read_validated,
    without_auto_creation,
)
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.requests import TopicMutation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from headrace.proxy.connection.in_flight import Exchange
    from headrace.proxy.wire.mutations import MutationRequest, TopicKey

    AskBroker = Callable[[int, int, bytes], Awaitable[bytes]]

Parsed = TypeVar("Parsed")

ASSUMED_PARTITIONS: Final = 1
"""What a topic is taken to have whose partitions the broker does not tell: Kafka's ``num.partitions``."""

CREATION_TAKES_S: Final = 10.0
"""For so long a topic that was charged for is not charged again, though Metadata does not show it yet."""

NO_CREATION_S: Final = 600.0
"""For so long a topic is not charged that has not come to be by `CREATION_TAKES_S`: the cluster does not create topics
by itself (``auto.create.topics.enable=false``), or not this one."""

MOST_PARTITIONS: Final = 10_000
"""A topic costs no more: brokers refuse a request for more (``ReplicationControlManager.MAX_PARTITIONS_PER_BATCH``)."""

MAX_REMEMBERED: Final = 10_000
"""Topics remembered so; when there are more, all are forgotten and may be charged again."""


class CreatedTopics:
    """Topics that were to be created lately, since brokers learn of them later than the client that asked for them.

    Those of auto-creation are not charged again. Those of CreateTopics are known by their partitions, or whoever
    changes or deletes them at once would do so for nothing.
    """

    __slots__ = ("_asked_for", "_since_s")

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        self._asked_for: dict[str, tuple[float, int]] = {}

    def new(self, names: Iterable[str], unknown: Iterable[str], now_s: float) -> list[str]:
        """Metadata was asked for ``names``, and the broker does not know some of them: those of them to be charged."""
        self.forget(set(names).difference(unknown))
        return [name for name in unknown if now_s - self._since_s.get(name, float("-inf")) >= NO_CREATION_S]

    def add(self, names: Iterable[str], now_s: float) -> None:
        """They are charged for now."""
        if len(self._since_s) >= MAX_REMEMBERED:
            self._since_s.clear()
        self._since_s.update(dict.fromkeys(names, now_s))

    def forget(self, names: Iterable[str]) -> None:
        """They are there, or deleted: what creates them from now on is charged."""
        for name in names:
            self._since_s.pop(name, None)

    def ask_for(self, mutations: Iterable[TopicMutation], now_s: float) -> None:
        """Somebody asks for these creations. What comes of them need not be known: what the broker then says about a
        topic that is not there is given back."""
        if len(self._asked_for) >= MAX_REMEMBERED:
            self._asked_for.clear()
        self._asked_for.update({str(each.topic): (now_s, each.partitions) for each in mutations})

    def partitions(self, topic: TopicKey, now_s: float) -> int:
        """How many partitions a topic was lately asked for with that its broker does not know; 0 if it was not."""
        since_s, partitions = self._asked_for.get(str(topic), (float("-inf"), 0))
        return partitions if now_s - since_s < CREATION_TAKES_S else 0


async def look_up_mutations(
    exchange: Exchange, body: memoryview, ask: AskBroker, created: CreatedTopics, now_s: float, tokens: float
) -> None:
    """Fill in ``exchange.mutations`` of a CreateTopics, DeleteTopics or CreatePartitions.

    ``tokens`` are what the sender's bucket holds: where a CreateTopics would overdraw it, the topics that the broker
    would refuse are validated from the others first, so that they cost nothing.
    """
    asked_for = read_mutation(exchange.api_key, exchange.api_version, body)
    exchange.validate_only = asked_for.validate_only
    if exchange.validate_only:
        exchange.mutations = ()
    elif exchange.api_key == ApiKey.CREATE_TOPICS:
        exchange.mutations = await _creations(asked_for, exchange.api_version, body, ask, tokens)
        created.ask_for(exchange.mutations, now_s)
    else:
        counts = await _partition_counts([topic.key for topic in asked_for.topics], ask)
        if exchange.api_key == ApiKey.DELETE_TOPICS:
            created.forget(key for key in counts if isinstance(key, str))
        for topic in asked_for.topics:
            if topic.key not in counts and (count := created.partitions(topic.key, now_s)):
                counts[topic.key] = count
        exchange.mutations = tuple(_changes(exchange.api_key, asked_for, counts))


async def _creations(
    asked_for: MutationRequest, version: int, body: memoryview, ask: AskBroker, tokens: float
) -> tuple[TopicMutation, ...]:
    times = Counter(topic.key for topic in asked_for.topics)
    wanted = [topic.partitions or 0 for topic in asked_for.topics if times[topic.key] == 1]
    validated: dict[str, int | None] = {}
    if BROKERS_DEFAULT in wanted or (len(wanted) > 1 and 0 <= tokens < sum(wanted)):
        asked_version, asked_body = ask_to_validate(version, body)
        reply = await ask(ApiKey.CREATE_TOPICS, asked_version, asked_body)
        validated = _parse_reply(read_validated, asked_version, reply)
    return tuple(
        TopicMutation(
            topic=topic.key,
            partitions=_created_partitions(topic.partitions or 0, validated.get(str(topic.key), topic.partitions))
            if times[topic.key] == 1  # a broker refuses a topic that stands there twice
            else 0,
        )
        for topic in asked_for.topics
    )


def _created_partitions(asked_for: int, validated: int | None) -> int:
    """What a new topic costs; ``validated`` is 0 where the broker would refuse it."""
    if validated == 0:
        return 0
    if asked_for != BROKERS_DEFAULT:
        return min(max(asked_for, 0), MOST_PARTITIONS)
    return ASSUMED_PARTITIONS if validated is None or validated == BROKERS_DEFAULT else validated


def _parse_reply(read: Callable[[int, bytes], Parsed], version: int, reply: bytes) -> Parsed:
    """What a broker's reply tells; one that breaks its schema is the broker's fault, not the client's."""
    try:
        return read(version, reply)
    except PeerFault as fault:
        raise UpstreamFault(str(fault)) from fault


def _changes(api_key: int, asked_for: MutationRequest, counts: dict[TopicKey, int]) -> Iterator[TopicMutation]:
    """Deletions cost what a topic has; CreatePartitions what it gets more. A topic that is not there costs nothing."""
    for topic in asked_for.topics:
        now = counts.get(topic.key)
        if api_key == ApiKey.DELETE_TOPICS:
            partitions = now or 0
        else:
            partitions = 0 if now is None else min(max((topic.partitions or 0) - now, 0), MOST_PARTITIONS)
        yield TopicMutation(topic=topic.key, partitions=partitions)


async def _partition_counts(topics: list[TopicKey], ask: AskBroker) -> dict[TopicKey, int]:
    if not topics:
        return {}
    version, body = ask_for_topics(topics)
    return _parse_reply(read_partition_counts, version, await ask(ApiKey.METADATA, version, body))


async def look_up_auto_creation(
    exchange: Exchange, body: memoryview, ask: AskBroker, created: CreatedTopics, now_s: float
) -> bytes | None:
    """Fill in ``exchange.mutations`` of a Metadata request that may create topics.

    Asks the same with the flag off. Returns that reply's body, which the client may have when every topic is there or
    what would be created is refused; ``None`` where the request has to go on: topics that were charged lately, or that
    the cluster would not create, and from v0 to v3, where no such request can be made of it.
    """
    exchange.mutations = ()
    names = read_auto_creation(exchange.api_version, body)
    if not names:
        return None
    version = exchange.api_version
    flagged = version >= AUTO_CREATION_FROM
    asked_version, asked_body = (version, without_auto_creation(version, body)) if flagged else ask_for_topics(names)
    reply = await ask(ApiKey.METADATA, asked_version, asked_body)
    unknown = _parse_reply(read_unknown_topics, asked_version, reply)
    new = created.new(names, unknown, now_s)
    if new:
        validate_version, validate_body = ask_to_validate_names(new)
        reply_to_validate = await ask(ApiKey.CREATE_TOPICS, validate_version, validate_body)
        validated = _parse_reply(read_validated, validate_version, reply_to_validate)
        counts = {name: ASSUMED_PARTITIONS if validated.get(name) is None else validated[name] for name in new}
        exchange.mutations = tuple(
            TopicMutation(topic=name, partitions=count) for name, count in counts.items() if count
        )
    return reply if flagged and (new or not unknown) else None
