"""Answering instead of the broker: a request that a callback refuses, whole or in part, and one that is too new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.proxy.connection.enforcement import abandon
from headrace.proxy.connection.reply_actions import AnswerLocally, Rewrite, SettleMutations
from headrace.proxy.errors import ClientFault
from headrace.proxy.hooks.decisions import Kind
from headrace.proxy.wire.api_versions import unsupported_version_reply
from headrace.proxy.wire.apis import APIS
from headrace.proxy.wire.errors import RefusalImpossible, UnknownMessage
from headrace.proxy.wire.heads import LENGTH_BYTES
from headrace.proxy.wire.mutations import TopicRefusal, merge_response, read_mutation, split_request
from headrace.proxy.wire.refusals import refuse_whole, response_frame
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.connection.in_flight import Exchange
    from headrace.proxy.connection.state import ConnectionState
    from headrace.quota_callbacks.verdicts import Refuse

QUOTA_MESSAGE: Final = "The throttling quota has been exceeded."
"""``Errors.THROTTLING_QUOTA_EXCEEDED``'s own words."""


def answer_unsupported_version(state: ConnectionState, exchange: Exchange) -> None:
    """An ApiVersions newer than the proxy gets the v0-shaped UNSUPPORTED_VERSION, as from a broker that is older.

    Of any other API the proxy has not offered that version: raises `ClientFault`.
    """
    api = APIS[exchange.api_key]
    if exchange.api_key != ApiKey.API_VERSIONS:
        raise ClientFault(f"{api.name} version {exchange.api_version} was not offered; at most {api.max_version} was")
    reply = unsupported_version_reply(exchange.correlation_id)
    answer(state, exchange, lambda: reply)


def answer(state: ConnectionState, exchange: Exchange, make_reply: Callable[[], bytes]) -> None:
    """Put the proxy's own reply in its turn among the replies in flight; it is made when that has come, so that it
    tells the throttle time that remains then."""

    def reply() -> bytes:
        frame = make_reply()
        exchange.reply = exchange.layout.action  # without a cycle, nothing is left to the garbage collector
        exchange.response_bytes = len(frame) - LENGTH_BYTES
        return frame

    exchange.reply = AnswerLocally(reply)
    state.in_flight.add(exchange)


def note_refusal(state: ConnectionState, exchange: Exchange, refusal: Refuse) -> None:
    """``exchange``, or some topics of it, is refused: keep and tell why."""
    exchange.refused_code = refusal.error_code
    exchange.reason = refusal.reason or exchange.reason
    now_s = state.shared.clock()
    state.shared.decisions.record(exchange, Kind.REFUSED, refusal.throttle_ms, refusal.reason, now_s)


def refuse(state: ConnectionState, exchange: Exchange, refusal: Refuse, head: bytes, body: memoryview) -> bytes | None:
    """Refuse ``exchange`` as ``refusal`` says; the frame to forward in its place, or ``None`` when nothing is left of
    it.

    ``head`` is the frame up to the body. Raises `ClientFault` where the protocol has no reply that could say so: the
    connection is closed then, which is all that is left.
    """
    note_refusal(state, exchange, refusal)
    if refusal.topics is not None:
        return _refuse_topics(state, exchange, refusal, head, body)
    abandon(state, exchange)
    if exchange.api_key == ApiKey.PRODUCE and exchange.acks == 0:
        raise ClientFault(f"refused with error {refusal.error_code}, and Produce with acks=0 has no reply to say so")

    def reply() -> bytes:
        return refuse_whole(
            exchange.api_key,
            exchange.api_version,
            exchange.correlation_id,
            body,
            error_code=refusal.error_code,
            error_message=refusal.message,
            throttle_time_ms=state.throttle_left_ms,
        )

    try:
        reply()  # whether it can be said, before the client waits for its turn
    except (RefusalImpossible, UnknownMessage) as error:
        raise ClientFault(f"refused with error {refusal.error_code}, and {error}") from error
    answer(state, exchange, reply)
    return None


def _refuse_topics(
    state: ConnectionState, exchange: Exchange, refusal: Refuse, head: bytes, body: memoryview
) -> bytes | None:
    """Forward the admitted topics; the refused ones are merged into the reply, in the request's order."""
    api_key, version = exchange.api_key, exchange.api_version
    if api_key not in (ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS):
        raise ClientFault(f"a callback refused topics of {API_NAMES[api_key]}, which can only be refused whole")
    message = refusal.message or QUOTA_MESSAGE
    refused = {
        topic: TopicRefusal(error_code=code, error_message=message) for topic, code in (refusal.topics or {}).items()
    }
    asked_for = [topic.key for topic in read_mutation(api_key, version, body).topics]
    admitted = split_request(api_key, version, body, refused)

    def merge(reply_body: bytes | None, throttle_ms: int) -> bytes:
        return merge_response(api_key, version, reply_body, asked_for, refused, throttle_ms)

    if admitted is None:
        abandon(state, exchange)
        number = exchange.correlation_id
        answer(
            state,
            exchange,
            lambda: response_frame(api_key, version, number, merge(None, state.throttle_left_ms)),
        )
        return None
    exchange.reply = SettleMutations(merge) if isinstance(exchange.reply, SettleMutations) else Rewrite(merge)
    frame = head[4:] + admitted
    return len(frame).to_bytes(4, "big") + frame
