"""Requests that create or delete partitions, or may (Metadata): looking up their cost, forwarding or answering them.

Called by `headrace.proxy.connection.whole_requests`, which enforces the quotas and forwards the requests.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from headrace.proxy.connection.broker_questions import ask_broker
from headrace.proxy.connection.enforcement import enforce_on_reply
from headrace.proxy.connection.mutations.lookup import look_up_auto_creation, look_up_mutations, parse_in_turn
from headrace.proxy.connection.refusals import answer, note_refusal
from headrace.proxy.connection.reply_edits import edit_reply, learn_names_in_steps, names_topics
from headrace.proxy.errors import UpstreamFault
from headrace.proxy.wire.apis import response_header_bytes
from headrace.proxy.wire.errors import PeerFault
from headrace.proxy.wire.heads import LENGTH_BYTES
from headrace.proxy.wire.mutations import read_mutation_in_steps
from headrace.proxy.wire.refusals import response_frame
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Container

    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.connection.state.in_flight import Exchange
    from headrace.proxy.connection.state.shared_state import SharedState
    from headrace.proxy.connection.state.thread_time import Stopwatch
    from headrace.proxy.wire.messages.codec import Buffer
    from headrace.quota_callbacks.verdicts import Refuse


async def look_up(state: ConnectionState, exchange: Exchange, body: memoryview, watch: Stopwatch) -> Buffer | None:
    """Fill in ``exchange.mutations``, in steps, asking the broker if that is necessary.

    Return the broker's reply to a Metadata request without auto-creation, if it can be the answer; the names of its
    topics are learned, if a plugin has asked for them. ``watch`` does not measure while this waits. Raises
    `UpstreamFault` if the broker cannot be reached or its reply is malformed, and `PeerFault` for a malformed body.
    """
    shared = state.shared
    ask = partial(ask_broker, state, exchange.correlation_id, exchange.client_id, watch)
    created, now_s = shared.created_topics, shared.clock()
    in_turn = partial(shared.long_steps.run, state.counts_for, paused=watch.paused)
    if exchange.api_key == ApiKey.METADATA:
        known_reply = await look_up_auto_creation(exchange, body, ask, in_turn, created, now_s)
        if known_reply is not None and names_topics(state, exchange):
            await parse_in_turn(learn_names_in_steps(state, exchange.api_version, known_reply), in_turn)
        return known_reply
    budget = shared.hooks.mutation_budget(exchange, int(now_s * 1000))
    asked_for = await in_turn(read_mutation_in_steps(exchange.api_key, exchange.api_version, body))
    tokens = math.inf if budget is None else budget
    await look_up_mutations(exchange, asked_for, body, ask, in_turn, created, now_s, tokens)
    return None


def must_forward(state: ConnectionState, exchange: Exchange, refusal: Refuse | None) -> bool:
    """Return whether a Metadata request creates topics that were admitted, so that it is forwarded; remember them as
    charged."""
    if refusal is not None:
        note_refusal(state, exchange, refusal)
    elif exchange.mutations:
        created, now_s = state.shared.created_topics, state.shared.clock()
        created.add([each.topic for each in exchange.mutations if isinstance(each.topic, str)], now_s)
        created.ask_for(exchange.mutations, now_s)
        return True
    return False


def answer_with(state: ConnectionState, exchange: Exchange, body: Buffer) -> None:
    """Answer a request with the body of a reply that the broker has sent to the proxy.

    Raises `UpstreamFault` for one that does not match its schema.
    """
    now_s = state.shared.clock()
    api_key, version = exchange.api_key, exchange.api_version
    frame = response_frame(api_key, version, exchange.correlation_id, bytes(body))
    exchange.forwarded_s, exchange.reply_s = exchange.received_s, now_s
    exchange.response_bytes = len(frame) - LENGTH_BYTES
    exchange.response_header_bytes = response_header_bytes(api_key, version)
    exchange.topic_errors = exchange.topic_errors or {}
    enforce_on_reply(state, exchange, now_s)
    try:
        edited = edit_reply(state, exchange, frame)
    except PeerFault as fault:
        raise UpstreamFault(str(fault)) from fault
    answer(state, exchange, lambda: edited)


def note_creations(shared: SharedState, exchange: Exchange, refused: Container[str | bytes], now_s: float) -> None:
    """Remember the topics of a CreateTopics that were forwarded. Refused topics are not remembered, so that their
    creation by another client is charged."""
    if exchange.api_key == ApiKey.CREATE_TOPICS and exchange.mutations:
        forwarded = [each for each in exchange.mutations if each.topic not in refused]
        shared.created_topics.ask_for(forwarded, now_s)
