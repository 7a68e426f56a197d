"""What the proxy does in steps with refused requests and topics, without pauses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.proxy.wire.messages.stepwise import finish
from headrace.proxy.wire.mutations import (
    merge_response_in_steps,
    read_mutation_in_steps,
    read_topic_errors_in_steps,
    split_request_in_steps,
)
from headrace.proxy.wire.refusals import refusal_in_steps, response_frame

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.proxy.wire.messages.codec import Buffer
    from headrace.proxy.wire.mutations import MutationRequest, TopicKey, TopicRefusal


def read_mutation(api_key: int, version: int, body: Buffer) -> MutationRequest:
    return finish(read_mutation_in_steps(api_key, version, body))


def split_request(api_key: int, version: int, body: Buffer, refused: Mapping[TopicKey, TopicRefusal]) -> bytes | None:
    return finish(split_request_in_steps(api_key, version, body, refused))


def merge_response(
    api_key: int,
    version: int,
    body: Buffer | None,
    topics: Sequence[TopicKey],
    refused: Mapping[TopicKey, TopicRefusal],
    throttle_ms: int,
) -> bytes:
    return finish(merge_response_in_steps(api_key, version, body, topics, refused, throttle_ms))


def read_topic_errors(api_key: int, version: int, body: Buffer) -> dict[TopicKey, int]:
    return finish(read_topic_errors_in_steps(api_key, version, body))


def refuse_whole(
    api_key: int, version: int, number: int, body: Buffer, error_code: int, message: str | None, throttle_ms: int
) -> bytes:
    """The frame that refuses a request; ``number`` is the correlation id."""
    reply = finish(refusal_in_steps(api_key, version, body, error_code, message))
    return response_frame(api_key, version, number, reply.with_throttle_time(throttle_ms))
