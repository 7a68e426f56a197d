"""CreateTopics, DeleteTopics and CreatePartitions, topic by topic: what is asked for, which part goes on, what comes
back.

A controller mutation over quota is refused per topic (KIP-599): `read_mutation` says what a request asks for,
`split_request` takes the refused topics out of it, and `merge_response` puts them into the broker's answer in the
order of the request. What was admitted is copied byte for byte in both directions. Deciding is the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headrace.proxy.wire.errors import UnknownMessage
from headrace.proxy.wire.messages.codec import decode, encode
from headrace.proxy.wire.messages.editing import DROP, Rows, edit
from headrace.proxy.wire.messages.schemas import schema
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.proxy.wire.messages.codec import Buffer, Message
    from headrace.proxy.wire.messages.editing import Drop, Edit, Row

TopicKey: TypeAlias = str | bytes
"""How a request names a topic: by its name, or by the 16 bytes of its id (DeleteTopics from version 6)."""

NO_ID: Final = bytes(16)
"""``Uuid.ZERO_UUID``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRefusal:
    """Why a topic is refused."""

    error_code: int
    error_message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """One row of a mutation."""

    key: TopicKey
    partitions: int | None
    """CreateTopics: how many to create, -1 for the broker's default. CreatePartitions: how many there shall be in all.

    DeleteTopics: ``None``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationRequest:
    """What a mutation asks for."""

    topics: tuple[RequestedTopic, ...]
    """In the order of the request; a topic may stand there twice."""
    validate_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrays:
    """Where the rows stand."""

    request: tuple[str, ...]
    """One of them, by version."""
    response: str


_ARRAYS: Final = {
    ApiKey.CREATE_TOPICS.value: _Arrays(request=("topics",), response="topics"),
    ApiKey.DELETE_TOPICS.value: _Arrays(request=("topics", "topic_names"), response="responses"),
    ApiKey.CREATE_PARTITIONS.value: _Arrays(request=("topics",), response="results"),
}


def _arrays(api_key: int) -> _Arrays:
    try:
        return _ARRAYS[api_key]
    except KeyError:
        raise UnknownMessage(f"api key {api_key} is no controller mutation") from None


def read_mutation(api_key: int, version: int, body: Buffer) -> MutationRequest:
    """What a mutation's body asks for.

    Raises `UnknownMessage` for another API or a version without a schema, and `MalformedMessage` for bytes that break
    it.
    """
    arrays = _arrays(api_key)
    request = decode(f"{API_NAMES[api_key]}Request", version, body)
    rows = [row for name in arrays.request for row in request.get(name, ())]
    return MutationRequest(
        topics=tuple(RequestedTopic(key=_key(row), partitions=_partitions(row)) for row in rows),
        validate_only=request.get("validate_only", False),
    )


def _key(row: str | Message) -> TopicKey:
    """How a row of a request names its topic; by name if it has one, as ``DeleteTopicState`` is read."""
    if isinstance(row, str):
        return row
    key: TopicKey = row["topic_id"] if row["name"] is None else row["name"]
    return key


def _partitions(row: str | Message) -> int | None:
    if isinstance(row, str):
        return None
    if "num_partitions" in row:
        return len(row["assignments"]) or int(row["num_partitions"])
    return row.get("count")


def split_request(api_key: int, version: int, body: Buffer, refused: Mapping[TopicKey, TopicRefusal]) -> bytes | None:
    """The request without the refused topics, or ``None`` if none is left to forward.

    A request that names no topic at all goes on as it is. Raises as `read_mutation` does.
    """
    if not refused:
        return bytes(body)
    left = 0

    def admit(row: Any) -> Any | Drop:
        nonlocal left
        if _key(row) in refused:
            return DROP
        left += 1
        return row

    edits: dict[str, Edit] = dict.fromkeys(_arrays(api_key).request, admit)
    forwarded = edit(f"{API_NAMES[api_key]}Request", version, body, edits)
    return forwarded if left else None


def merge_response(
    api_key: int,
    version: int,
    body: Buffer | None,
    request_topics: Sequence[TopicKey],
    refused: Mapping[TopicKey, TopicRefusal],
    throttle_time_ms: int,
) -> bytes:
    """The broker's answer with the refused topics in it, all in the order of the request.

    ``body`` is ``None`` where nothing was forwarded; ``request_topics`` are the keys of the request, refused ones
    included. An error message stands on refused rows only, and where the version has the field. A row of the broker's
    that nobody asked for stays, at the end. Sets throttle_time_ms (milliseconds) where the version has it. Raises as
    `read_mutation`.
    """
    name = f"{API_NAMES[api_key]}Response"
    array = _arrays(api_key).response
    fields = next(field.fields for field in schema(name, version).fields if field.name == array)
    known = {field.name for field in fields}

    def merge(rows: list[Row]) -> list[Row | Message]:
        answers = _by_key(rows)
        out: list[Row | Message] = []
        placed: set[int] = set()
        for key in dict.fromkeys(request_topics):
            if key in refused:
                out.append({part: value for part, value in _refused_row(key, refused[key]).items() if part in known})
            for place in answers.get(key, ()):
                if place not in placed:
                    placed.add(place)
                    out.append(rows[place])
        return out + [row for place, row in enumerate(rows) if place not in placed]

    edits: dict[str, Edit] = {"throttle_time_ms": lambda _old: throttle_time_ms, array: Rows(merge)}
    return edit(name, version, encode(name, version, {}) if body is None else body, edits)


def read_topic_errors(api_key: int, version: int, body: Buffer) -> dict[TopicKey, int]:
    """The error code of every topic in the broker's answer, by name and, where it has one, by id. Raises as
    `read_mutation` does."""
    response = decode(f"{API_NAMES[api_key]}Response", version, body)
    errors: dict[TopicKey, int] = {}
    for row in response[_arrays(api_key).response]:
        if row["name"] is not None:
            errors[row["name"]] = row["error_code"]
        if row.get("topic_id", NO_ID) != NO_ID:
            errors[row["topic_id"]] = row["error_code"]
    return errors


def _by_key(rows: Sequence[Row]) -> dict[TopicKey, list[int]]:
    """Where a broker's rows stand, by name and, if there is one, by id: the request may have used either."""
    answers: dict[TopicKey, list[int]] = {}
    for place, row in enumerate(rows):
        topic_id = row.value.get("topic_id", NO_ID)
        if row.value["name"] is not None:
            answers.setdefault(row.value["name"], []).append(place)
        if topic_id != NO_ID:
            answers.setdefault(topic_id, []).append(place)
    return answers


def _refused_row(key: TopicKey, refusal: TopicRefusal) -> Message:
    by_name = isinstance(key, str)
    return {
        "name": key if by_name else None,
        "topic_id": NO_ID if by_name else key,
        "error_code": refusal.error_code,
        "error_message": refusal.error_message,
    }
