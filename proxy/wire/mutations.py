"""CreateTopics, DeleteTopics and CreatePartitions, topic by topic: reading and splitting requests, merging responses.

A controller mutation that exceeds its quota is refused per topic (KIP-599): `read_mutation_in_steps` returns what a
request asks for, `split_request_in_steps` removes the refused topics from it, and `merge_response_in_steps` inserts
them into the broker's response, in the order of the request. Admitted topics are copied byte for byte in both
directions. The caller, in `headrace.proxy.connection`, decides which topics are refused. For thousands of topics each
of these takes tens of milliseconds, so they yield after every few topics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.proxy.wire.errors import UnknownMessage
from headrace.proxy.wire.messages.codec import encode
from headrace.proxy.wire.messages.editing import Rows, edit_in_steps
from headrace.proxy.wire.messages.rows import read_rows
from headrace.proxy.wire.messages.schemas import schema
from headrace.proxy.wire.messages.stepwise import ROWS_A_STEP, decode_in_steps
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.proxy.wire.messages.codec import Buffer, Message
    from headrace.proxy.wire.messages.editing import Edit, Row
    from headrace.proxy.wire.messages.stepwise import Steps

TopicKey: TypeAlias = str | bytes
"""A topic in a request: its name, or the 16 bytes of its id (DeleteTopics from version 6)."""

NO_ID: Final = bytes(16)
"""Kafka's ``Uuid.ZERO_UUID``, which stands for no id."""

_KEY: Final = frozenset({"name", "topic_id"})
"""The fields of a row of a request or a response that say which topic it is about."""

_KEY_AND_ERROR: Final = _KEY | {"error_code"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRefusal:
    """The error with which a topic is refused."""

    error_code: int
    error_message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """One row of a mutation request."""

    key: TopicKey
    partitions: int | None
    """CreateTopics: the number of partitions, -1 for the broker's default. CreatePartitions: the new total number.
    DeleteTopics: ``None``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationRequest:
    """The contents of a mutation request."""

    topics: tuple[RequestedTopic, ...]
    """The topics in the order of the request, which may contain a topic twice."""
    validate_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrays:
    """The names of the fields with the rows."""

    request: tuple[str, ...]
    """The possible names; each version has one of them."""
    response: str


_ARRAYS: Final = {
    ApiKey.CREATE_TOPICS.value: _Arrays(request=("topics",), response="topics"),
    ApiKey.DELETE_TOPICS.value: _Arrays(request=("topics", "topic_names"), response="responses"),
    ApiKey.CREATE_PARTITIONS.value: _Arrays(request=("topics",), response="results"),
}

MUTATIONS: Final = frozenset(_ARRAYS)
"""The API keys of the requests that are split."""


def _arrays(api_key: int) -> _Arrays:
    try:
        return _ARRAYS[api_key]
    except KeyError:
        raise UnknownMessage(f"api key {api_key} is not a controller mutation") from None


def read_mutation_in_steps(api_key: int, version: int, body: Buffer) -> Steps[MutationRequest]:
    """Read the body of a mutation request.

    Raises `UnknownMessage` for another API or a version without a schema, and `MalformedMessage` for a body that
    violates it.
    """
    arrays = _arrays(api_key)
    request = yield from decode_in_steps(f"{API_NAMES[api_key]}Request", version, body)
    topics = []
    for name in arrays.request:
        for row in request.get(name, ()):
            topics.append(RequestedTopic(key=_key(row), partitions=_partitions(row)))
            if len(topics) % ROWS_A_STEP == 0:
                yield
    return MutationRequest(topics=tuple(topics), validate_only=request.get("validate_only", False))


def _key(row: str | Message) -> TopicKey:
    """Return the topic of a request's row: the name if it has one, otherwise the id, as brokers read it."""
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


def split_request_in_steps(
    api_key: int, version: int, body: Buffer, refused: Mapping[TopicKey, TopicRefusal]
) -> Steps[bytes | None]:
    """Return the request's body without the refused topics, or ``None`` if all topics are refused.

    If no topic is refused, the body is unchanged. Raises the errors of `read_mutation_in_steps`.
    """
    if not refused:
        return bytes(body)
    left = 0

    def admit(rows: list[Row]) -> Steps[list[Row]]:
        nonlocal left
        admitted = []
        for number, row in enumerate(rows):
            if _key(row.value) not in refused:
                admitted.append(row)
            if number % ROWS_A_STEP == 0:
                yield
        left += len(admitted)
        return admitted

    edits: dict[str, Edit] = {name: Rows(admit, _KEY) for name in _arrays(api_key).request}
    forwarded = yield from edit_in_steps(f"{API_NAMES[api_key]}Request", version, body, edits)
    return forwarded if left else None


def merge_response_in_steps(
    api_key: int,
    version: int,
    body: Buffer | None,
    request_topics: Sequence[TopicKey],
    refused: Mapping[TopicKey, TopicRefusal],
    throttle_time_ms: int,
) -> Steps[bytes]:
    """Return the broker's response with rows for the refused topics, all in the order of the request.

    ``body`` is ``None`` if nothing was forwarded; ``request_topics`` are the topics of the request, including refused
    ones. Only rows of refused topics get an error message, if the version has the field. Rows of the broker for topics
    that are not in the request are kept at the end. Sets ``throttle_time_ms`` if the version has the field. Raises the
    errors of `read_mutation_in_steps`.
    """
    name = f"{API_NAMES[api_key]}Response"
    array = _arrays(api_key).response
    fields = next(field.fields for field in schema(name, version).fields if field.name == array)
    known = {field.name for field in fields}

    def merge(rows: list[Row]) -> Steps[list[Row | Message]]:
        answers = yield from _by_key(rows)
        out: list[Row | Message] = []
        placed: set[int] = set()
        for number, key in enumerate(dict.fromkeys(request_topics)):
            if key in refused:
                out.append({part: value for part, value in _refused_row(key, refused[key]).items() if part in known})
            for place in answers.get(key, ()):
                if place not in placed:
                    placed.add(place)
                    out.append(rows[place])
            if number % ROWS_A_STEP == 0:
                yield
        return out + [row for place, row in enumerate(rows) if place not in placed]

    edits: dict[str, Edit] = {"throttle_time_ms": lambda _old: throttle_time_ms, array: Rows(merge, _KEY)}
    return (yield from edit_in_steps(name, version, encode(name, version, {}) if body is None else body, edits))


def read_topic_errors_in_steps(api_key: int, version: int, body: Buffer) -> Steps[dict[TopicKey, int]]:
    """Return the error code of each topic in the broker's response, by name and, if it has one, also by id.

    Raises the errors of `read_mutation_in_steps`.
    """
    name, array = f"{API_NAMES[api_key]}Response", _arrays(api_key).response
    [field] = [each for each in schema(name, version).fields if each.name == array]
    wanted = tuple(each.name for each in field.fields if each.name in _KEY_AND_ERROR)
    errors: dict[TopicKey, int] = {}
    for number, row in enumerate(read_rows(name, version, body, array, wanted)):
        if row["name"] is not None:
            errors[row["name"]] = row["error_code"]
        if row.get("topic_id", NO_ID) != NO_ID:
            errors[row["topic_id"]] = row["error_code"]
        if number % ROWS_A_STEP == 0:
            yield
    return errors


def _by_key(rows: Sequence[Row]) -> Steps[dict[TopicKey, list[int]]]:
    """Return the indexes of a broker's rows, by name and, if there is one, by id: the request may have used either."""
    answers: dict[TopicKey, list[int]] = {}
    for place, row in enumerate(rows):
        topic_id = row.value.get("topic_id", NO_ID)
        if row.value["name"] is not None:
            answers.setdefault(row.value["name"], []).append(place)
        if topic_id != NO_ID:
            answers.setdefault(topic_id, []).append(place)
        if place % ROWS_A_STEP == 0:
            yield
    return answers


def _refused_row(key: TopicKey, refusal: TopicRefusal) -> Message:
    by_name = isinstance(key, str)
    return {
        "name": key if by_name else None,
        "topic_id": NO_ID if by_name else key,
        "error_code": refusal.error_code,
        "error_message": refusal.error_message,
    }
