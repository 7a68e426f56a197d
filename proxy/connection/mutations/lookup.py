"""Looking up at the broker how many partitions a request would create or delete, where the request does not contain it.

Called by `headrace.proxy.connection.mutations.requests` for clients to which ``controller_mutation_rate`` applies.
Lookups are sent over the client's own connection, in order with its requests and with its permissions. A new topic
whose number of partitions the client may not read costs one.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from headrace.proxy.errors import UpstreamFault
from headrace.proxy.long_work import LONG_STEP_BYTES
from headrace.proxy.wire.errors import PeerFault
from headrace.proxy.wire.messages.stepwise import ROWS_A_STEP, finish
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
    from collections.abc import Iterator, Sized

    from headrace.proxy.connection.state.created_topics import CreatedTopics
    from headrace.proxy.connection.state.in_flight import Exchange
    from headrace.proxy.long_work import InTurn
    from headrace.proxy.network.upstream import Ask
    from headrace.proxy.wire.messages.stepwise import Steps
    from headrace.proxy.wire.mutations import MutationRequest, TopicKey


Parsed = TypeVar("Parsed")

ASSUMED_PARTITIONS: Final = 1
"""Partitions of a new topic for which the broker reports no number: Kafka's default of ``num.partitions``."""

MAX_PARTITIONS: Final = 10_000
"""The most that one topic costs: brokers refuse more (``ReplicationControlManager.MAX_PARTITIONS_PER_BATCH``)."""


async def look_up_mutations(
    exchange: Exchange,
    asked_for: MutationRequest,
    body: memoryview,
    ask: Ask,
    in_turn: InTurn,
    created: CreatedTopics,
    now_s: float,
    tokens: float,
) -> None:
    """Fill in ``exchange.mutations`` of a CreateTopics, DeleteTopics or CreatePartitions.

    ``asked_for`` is what ``body`` contains, and ``tokens`` what the client's bucket holds. If a CreateTopics would
    overdraw it, the request is first validated by the broker, so that topics that the broker would refuse cost nothing.
    ``in_turn`` runs a long computation in slices.
    """
    exchange.validate_only = asked_for.validate_only
    if exchange.validate_only:
        exchange.mutations = ()
    elif exchange.api_key == ApiKey.CREATE_TOPICS:
        exchange.mutations = await _creations(asked_for, exchange.api_version, body, ask, in_turn, tokens)
    else:
        counts = await _partition_counts([topic.key for topic in asked_for.topics], ask, in_turn)
        for topic in asked_for.topics:
            if topic.key not in counts and (count := created.partitions(topic.key, now_s)):
                counts[topic.key] = count
        exchange.mutations = await in_turn(_in_steps(_changes(exchange.api_key, asked_for, counts)))


async def _creations(
    asked_for: MutationRequest, version: int, body: memoryview, ask: Ask, in_turn: InTurn, tokens: float
) -> tuple[TopicMutation, ...]:
    times = Counter(topic.key for topic in asked_for.topics)
    requested = [topic.partitions or 0 for topic in asked_for.topics if times[topic.key] == 1]
    validated: dict[str, int | None] = {}
    if BROKERS_DEFAULT in requested or (len(requested) > 1 and 0 <= tokens < sum(requested)):
        asked_version, asked_body = await in_turn(ask_to_validate(version, body))
        reply = await ask(ApiKey.CREATE_TOPICS, asked_version, asked_body)
        validated = await parse_in_turn(read_validated(asked_version, reply), in_turn)
    creations = (
        TopicMutation(
            topic=topic.key,
            partitions=_created_partitions(topic.partitions or 0, validated.get(str(topic.key), topic.partitions))
            if times[topic.key] == 1  # a broker refuses a topic that is listed twice
            else 0,
            at_most=_created_partitions(topic.partitions or 0, None),
        )
        for topic in asked_for.topics
    )
    return await in_turn(_in_steps(creations))


def _in_steps(mutations: Iterator[TopicMutation]) -> Steps[tuple[TopicMutation, ...]]:
    """Return all ``mutations``, which are computed one at a time; yield now and then."""
    found = []
    for number, mutation in enumerate(mutations):
        found.append(mutation)
        if number % ROWS_A_STEP == 0:
            yield
    return tuple(found)


def _created_partitions(asked_for: int, validated: int | None) -> int:
    """Return the cost of a new topic; ``validated`` is the broker's number of partitions, 0 if it would refuse it."""
    if validated == 0:
        return 0
    if asked_for != BROKERS_DEFAULT:
        return min(max(asked_for, 0), MAX_PARTITIONS)
    return ASSUMED_PARTITIONS if validated is None or validated == BROKERS_DEFAULT else validated


def _changes(api_key: int, asked_for: MutationRequest, counts: dict[TopicKey, int]) -> Iterator[TopicMutation]:
    """Yield what each topic costs: all partitions if deleted, added ones in CreatePartitions, 0 if it is unknown.

    A topic may change before the request is carried out. So one that has as many partitions as a CreatePartitions asks
    for, which the broker refuses, costs what is added if it has only one by then.
    """
    for topic in asked_for.topics:
        existing = counts.get(topic.key)
        if api_key == ApiKey.DELETE_TOPICS:
            partitions, at_most = existing or 0, ASSUMED_PARTITIONS if existing is None else 0
        else:
            asked = min(max(topic.partitions or 0, 0), MAX_PARTITIONS)
            partitions = 0 if existing is None else max(asked - existing, 0)
            at_most = asked if existing is None else 0 if partitions else max(asked - 1, 0)
        yield TopicMutation(topic=topic.key, partitions=partitions, at_most=at_most)


async def _partition_counts(topics: list[TopicKey], ask: Ask, in_turn: InTurn) -> dict[TopicKey, int]:
    """Return the number of partitions of those topics that exist. A request may list topics by name and others by id,
    and each needs a question of its own."""
    counts: dict[TopicKey, int] = {}
    by_name: list[TopicKey] = [each for each in topics if isinstance(each, str)]
    by_id: list[TopicKey] = [each for each in topics if isinstance(each, bytes)]
    for asked_for in (by_name, by_id):
        if asked_for:
            version, body = await in_turn(ask_for_topics(asked_for))
            reply = await ask(ApiKey.METADATA, version, body)
            counts |= await parse_in_turn(read_partition_counts(version, reply), in_turn)
    return counts


async def parse_in_turn(steps: Steps[Parsed], in_turn: InTurn) -> Parsed:
    """Parse a broker's reply in steps. Raises `UpstreamFault` for one that does not match its schema, since that is
    the broker's fault, not the client's."""
    try:
        return await in_turn(steps)
    except PeerFault as fault:
        raise UpstreamFault(str(fault)) from fault


def _turns_for(message: Sized, in_turn: InTurn) -> InTurn:
    """Return ``in_turn`` if work for ``message`` is a long step, and otherwise what does it at once."""
    return in_turn if len(message) > LONG_STEP_BYTES else _at_once


async def _at_once(steps: Steps[Parsed]) -> Parsed:
    await trio.lowlevel.checkpoint_if_cancelled()
    return finish(steps)


async def look_up_auto_creation(
    exchange: Exchange, body: memoryview, ask: Ask, in_turn: InTurn, created: CreatedTopics, now_s: float
) -> bytes | memoryview | None:
    """Fill in ``exchange.mutations`` of a Metadata request that may create topics.

    Sends the same request with auto-creation turned off, and returns the body of the reply. It can be sent to the
    client if all topics exist, or if their creation is refused. Returns ``None`` if the request must be forwarded:
    its topics were charged recently, or its version (0 to 3) has no flag to turn auto-creation off.
    """
    exchange.mutations = ()
    of_request = _turns_for(body, in_turn)
    names = await of_request(read_auto_creation(exchange.api_version, body))
    if not names:
        return None
    version = exchange.api_version
    flagged = version >= AUTO_CREATION_FROM
    if flagged:
        asked_version, asked_body = version, await of_request(without_auto_creation(version, body))
    else:
        asked_version, asked_body = await of_request(ask_for_topics(names))
    reply = await ask(ApiKey.METADATA, asked_version, asked_body)
    unknown = await parse_in_turn(read_unknown_topics(asked_version, reply), _turns_for(reply, in_turn))
    new = created.new(names, unknown, now_s)
    if new:
        validate_version, validate_body = await of_request(ask_to_validate_names(new))
        reply_to_validate = await ask(ApiKey.CREATE_TOPICS, validate_version, validate_body)
        validated = await parse_in_turn(read_validated(validate_version, reply_to_validate), in_turn)
        exchange.mutations = await in_turn(_in_steps(_auto_creations(new, validated)))
    return reply if flagged and (new or not unknown) else None


def _auto_creations(names: list[str], validated: dict[str, int | None]) -> Iterator[TopicMutation]:
    """Yield what each topic costs that would be created; ``validated`` is as `read_validated` returns it."""
    for name in dict.fromkeys(names):
        count = validated.get(name)
        if count != 0:
            yield TopicMutation(topic=name, partitions=ASSUMED_PARTITIONS if count is None else count)
