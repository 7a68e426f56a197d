"""Answering in place of the broker: requests that a callback refuses, and ApiVersions requests that are too new.

Called by the request relay. The replies are queued among those of the broker, so that they are sent in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.proxy.connection.enforcement import enforce_on_own_answer
from headrace.proxy.connection.state.reply_actions import AnswerLocally, Rewrite, SettleMutations
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

    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.connection.state.in_flight import Exchange
    from headrace.quota_callbacks.verdicts import Refuse

QUOTA_MESSAGE: Final = "The throttling quota has been exceeded."
"""The message of Kafka's ``Errors.THROTTLING_QUOTA_EXCEEDED``."""


def answer_unsupported_version(state: ConnectionState, exchange: Exchange) -> None:
    """Answer an ApiVersions of an unknown version with UNSUPPORTED_VERSION in the format of v0, as brokers do.

    Raises `ClientFault` for any other API: the proxy has not offered that version.
    """
    api = APIS[exchange.api_key]
    if exchange.api_key != ApiKey.API_VERSIONS:
        raise ClientFault(f"{api.name} version {exchange.api_version} was not offered; at most {api.max_version} was")
    reply = unsupported_version_reply(exchange.correlation_id)
    answer(state, exchange, lambda: reply)


def answer(state: ConnectionState, exchange: Exchange, make_reply: Callable[[], bytes]) -> None:
    """Queue a reply of the proxy's own behind those in flight. ``make_reply`` is called when the reply is sent, so that
    it has the throttle time that remains then."""

    def reply() -> bytes:
        frame = make_reply()
        exchange.reply = exchange.layout.action  # break the reference cycle: no work for the collector
        exchange.response_bytes = len(frame) - LENGTH_BYTES
        return frame

    exchange.reply = AnswerLocally(reply)
    state.in_flight.add(exchange)


def note_refusal(state: ConnectionState, exchange: Exchange, refusal: Refuse) -> None:
    """Record that ``exchange``, or some of its topics, is refused, with the reason."""
    exchange.refused_code = refusal.error_code
    exchange.reason = refusal.reason or exchange.reason
    now_s = state.shared.clock()
    state.shared.decisions.record(exchange, Kind.REFUSED, refusal.throttle_ms, refusal.reason, now_s)


def refuse(state: ConnectionState, exchange: Exchange, refusal: Refuse, head: bytes, body: memoryview) -> bytes | None:
    """Refuse ``exchange``, or the topics that ``refusal`` lists; return the frame to forward in its place, or ``None``.

    ``head`` is the frame up to the body. Raises `ClientFault`, which closes the connection, if the protocol has no
    reply that can express the refusal.
    """
    note_refusal(state, exchange, refusal)
    if refusal.topics is not None:
        return _refuse_topics(state, exchange, refusal, head, body)
    enforce_on_own_answer(state, exchange, state.shared.clock())
    if exchange.api_key == ApiKey.PRODUCE and exchange.acks == 0:
        raise ClientFault(f"refused with error {refusal.error_code}, but a Produce with acks=0 has no reply")

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
        reply()  # raises now if there is no such reply, instead of when it is to be sent
    except (RefusalImpossible, UnknownMessage) as error:
        raise ClientFault(f"refused with error {refusal.error_code}, but {error}") from error
    answer(state, exchange, reply)
    return None


def _refuse_topics(
    state: ConnectionState, exchange: Exchange, refusal: Refuse, head: bytes, body: memoryview
) -> bytes | None:
    """Return the frame with the admitted topics; merge the refused ones into the reply, in the order of the request."""
    api_key, version = exchange.api_key, exchange.api_version
    if api_key not in (ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS):
        raise ClientFault(f"a callback refused topics of {API_NAMES[api_key]}, which can only be refused whole")
    message = refusal.message or QUOTA_MESSAGE
    refused = {
        topic: TopicRefusal(error_code=code, error_message=message) for topic, code in (refusal.topics or {}).items()
    }
    if exchange.mutations:  # one for each topic of the request
        asked_for = [each.topic for each in exchange.mutations]
    else:  # a plugin has refused topics without `Detail.MUTATIONS`
        asked_for = [topic.key for topic in read_mutation(api_key, version, body).topics]
    admitted = split_request(api_key, version, body, refused)

    def merge(reply_body: bytes | None, throttle_ms: int) -> bytes:
        return merge_response(api_key, version, reply_body, asked_for, refused, throttle_ms)

    if admitted is None:
        enforce_on_own_answer(state, exchange, state.shared.clock())
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
