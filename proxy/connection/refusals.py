"""Answering in place of the broker: requests that a callback refuses, and ApiVersions requests that are too new.

Called by the request relay. The replies are queued among those of the broker, so that they are sent in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.proxy.connection.enforcement import enforce_on_own_answer
from headrace.proxy.connection.reply_edits import amended_in_steps
from headrace.proxy.connection.state.in_flight import REQUEST_BYTES
from headrace.proxy.connection.state.reply_actions import AnswerLocally, Rewrite, Settle
from headrace.proxy.errors import ClientFault
from headrace.proxy.hooks.decisions import Kind
from headrace.proxy.wire.api_versions import UNSUPPORTED_VERSION, unsupported_version_reply
from headrace.proxy.wire.apis import APIS, response_header_bytes
from headrace.proxy.wire.errors import RefusalImpossible, UnknownMessage
from headrace.proxy.wire.heads import LENGTH_BYTES
from headrace.proxy.wire.messages.stepwise import finish
from headrace.proxy.wire.mutations import (
    TopicRefusal,
    merge_response_in_steps,
    read_mutation_in_steps,
    split_request_in_steps,
)
from headrace.proxy.wire.refusals import OwnReply, refusal_in_steps, response_frame
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey
from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.connection.state.in_flight import Exchange
    from headrace.proxy.wire.messages.stepwise import Steps
    from headrace.quota_callbacks.verdicts import Refuse


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
        if exchange in state.in_flight.amendments:
            header = response_header_bytes(exchange.api_key, exchange.api_version)
            frame = finish(amended_in_steps(state, exchange, frame, LENGTH_BYTES + header))
        exchange.reply = exchange.layout.action  # break the reference cycle: no work for the collector
        exchange.response_bytes = len(frame) - LENGTH_BYTES
        return frame

    exchange.reply = AnswerLocally(reply)
    state.in_flight.add(exchange)


def note_refusal(state: ConnectionState, exchange: Exchange, refusal: Refuse) -> None:
    """Record that ``exchange``, or some of its topics, is refused, with the reason."""
    exchange.refused_code = refusal.error_code
    exchange.reason = refusal.reason or exchange.reason
    exchange.topic_errors = refusal.topics
    now_s = state.shared.clock()
    state.shared.decisions.record(exchange, Kind.REFUSED, refusal.throttle_ms, refusal.reason, now_s)


def refuse_in_steps(
    state: ConnectionState, exchange: Exchange, refusal: Refuse, head: bytes, body: memoryview
) -> Steps[bytes | None]:
    """Refuse ``exchange``, or the topics that ``refusal`` lists; return the frame to forward in its place, or ``None``.

    ``head`` is the frame up to the body. Yields now and then, since a request may have thousands of rows. Until it
    returns, the request is neither in flight nor abandoned. Raises `ClientFault`, which closes the connection, if the
    protocol has no reply that can express the refusal.
    """
    note_refusal(state, exchange, refusal)
    if refusal.topics is not None:
        return (yield from _refuse_topics(state, exchange, refusal, head, body))
    yield from _answer_with_error_in_steps(state, exchange, refusal.error_code, refusal.message, body)
    return None


def _answer_with_error_in_steps(
    state: ConnectionState, exchange: Exchange, error_code: int, message: str | None, body: memoryview
) -> Steps[None]:
    """Answer the whole request with one of Kafka's errors. Raises `ClientFault` as `refuse_in_steps`."""
    api_key, version = exchange.api_key, exchange.api_version
    if api_key == ApiKey.PRODUCE and exchange.acks == 0:
        raise ClientFault(f"refused with error {error_code}, but a Produce with acks=0 has no reply")
    if api_key == ApiKey.API_VERSIONS and error_code == UNSUPPORTED_VERSION:
        enforce_on_own_answer(state, exchange, state.shared.clock())
        answer_unsupported_version(state, exchange)
        return
    try:
        reply = yield from refusal_in_steps(api_key, version, body, error_code, message)
    except (RefusalImpossible, UnknownMessage) as error:
        raise ClientFault(f"refused with error {error_code}, but {error}") from error
    enforce_on_own_answer(state, exchange, state.shared.clock())
    answer_later(state, exchange, reply)


def answer_later(state: ConnectionState, exchange: Exchange, reply: OwnReply) -> None:
    """Queue a reply of the proxy's own, with the throttle time that remains when it is sent.

    It is kept until then, and so a large one counts as memory that the connection holds.
    """
    api_key, version, number = exchange.api_key, exchange.api_version, exchange.correlation_id

    def frame() -> bytes:
        return response_frame(api_key, version, number, reply.with_throttle_time(state.throttle_left_ms))

    answer(state, exchange, frame)
    if len(reply.body) > REQUEST_BYTES:
        state.in_flight.hold(exchange, len(reply.body))
        state.in_flight.count_held()


def _refuse_topics(
    state: ConnectionState, exchange: Exchange, refusal: Refuse, head: bytes, body: memoryview
) -> Steps[bytes | None]:
    """Return the frame with the admitted topics; merge the refused ones into the reply, in the order of the request."""
    api_key, version = exchange.api_key, exchange.api_version
    if api_key not in (ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS):
        raise ClientFault(f"a callback refused topics of {API_NAMES[api_key]}, which can only be refused whole")
    message = refusal.message or ErrorCode.THROTTLING_QUOTA_EXCEEDED.text
    refused = {
        topic: TopicRefusal(error_code=code, error_message=message) for topic, code in (refusal.topics or {}).items()
    }
    if exchange.mutations:  # one for each topic of the request
        asked_for = [each.topic for each in exchange.mutations]
    else:  # a plugin has refused topics without `Detail.MUTATIONS`
        asked_for = [topic.key for topic in (yield from read_mutation_in_steps(api_key, version, body)).topics]
    admitted = yield from split_request_in_steps(api_key, version, body, refused)

    def merge(reply_body: bytes | None, throttle_ms: int) -> Steps[bytes]:
        return merge_response_in_steps(api_key, version, reply_body, asked_for, refused, throttle_ms)

    if admitted is None:
        merged = yield from merge(None, 0)
        enforce_on_own_answer(state, exchange, state.shared.clock())
        answer_later(state, exchange, OwnReply(merged, exchange.layout.throttle_at))
        return None
    exchange.reply = Settle(merge) if isinstance(exchange.reply, Settle) else Rewrite(merge)
    frame = head[4:] + admitted
    return len(frame).to_bytes(4, "big") + frame
