"""Look-ups of the proxy's own: the number of partitions that topics have or would get, which is the cost of a mutation,
and the names of topics.

This module encodes requests that the proxy itself sends, in versions that every broker from 2.4 to 4.4 supports, and
reads their responses, in steps, since requests and responses may name thousands of topics.
`headrace.proxy.connection.mutations.lookup` sends them over the client's upstream connection, so
they are authorized as the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.proxy.wire.messages.editing import Rows, edit_in_steps
from headrace.proxy.wire.messages.rows import count_elements_in_steps, read_rows
from headrace.proxy.wire.messages.stepwise import ROWS_A_STEP, decode_in_steps, encode_in_steps
from headrace.proxy.wire.mutations import NO_ID
from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.proxy.wire.messages.codec import Buffer, Message
    from headrace.proxy.wire.messages.editing import Edit
    from headrace.proxy.wire.messages.stepwise import Steps
    from headrace.proxy.wire.mutations import TopicKey

BY_NAME_VERSION: Final = 4
"""The first version of Metadata with ``allow_auto_topic_creation``."""
BY_ID_VERSION: Final = 12
"""The first version of Metadata that accepts topic ids (KIP-516)."""
VALIDATE_VERSION: Final = 5
"""The first version of CreateTopics whose response contains the number of partitions of a topic."""
VALIDATE_TIMEOUT_MS: Final = 10_000
"""The time-out of a validation, whatever the client's own request has: with a shorter one, a client could let the
validation fail and the request succeed."""
UNCERTAIN: Final = frozenset(
    {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.THROTTLING_QUOTA_EXCEEDED}
)
"""Errors of a validation after which the request itself may succeed."""
TOPIC_IDS_FROM: Final = 10
"""The first version of Metadata whose response contains topic ids."""
AUTO_CREATION_FROM: Final = BY_NAME_VERSION
BROKERS_DEFAULT: Final = -1
"""Number of partitions, or replication factor, that stands for the broker's default."""
_SAME_ROWS: Final = Rows(lambda rows: rows, frozenset())
"""The edit of an array that stays as it is: it is passed over in steps, and not at once."""


def ask_for_topics(topics: Iterable[TopicKey]) -> Steps[tuple[int, bytes]]:
    """Return version and body of a Metadata request for topics, that creates no topic.

    Either all are given by name or all by id: brokers ignore names beside an id (``KafkaApis``). Raises `ValueError`
    for both.
    """
    rows: list[Message] = []
    by_id = False
    for number, topic in enumerate(topics):
        if by_id != isinstance(topic, bytes) and number:
            raise ValueError("topics by name and by id in one question, of which brokers ignore the names")
        by_id = isinstance(topic, bytes)
        rows.append({"topic_id": topic, "name": None} if by_id else {"name": topic})
        if number % ROWS_A_STEP == 0:
            yield
    version = BY_ID_VERSION if by_id else BY_NAME_VERSION
    fields = {"topics": rows, "allow_auto_topic_creation": False}
    return version, (yield from _encoded("MetadataRequest", version, fields))


def _encoded(name: str, version: int, fields: Message) -> Steps[bytes]:
    body, _ = yield from encode_in_steps(name, version, fields)
    return body


def names_brokers(version: int, body: Buffer) -> bool:
    """Return whether a Metadata response names any broker.

    A response to a client that the broker does not serve, because the client has not authenticated yet, names none
    (``SaslServerAuthenticator`` answers with ``MetadataRequest.getErrorResponse`` before it closes the connection).
    """
    return any(True for _ in read_rows("MetadataResponse", version, body, "brokers", ("node_id",)))


def read_partition_counts(version: int, body: Buffer) -> Steps[dict[TopicKey, int]]:
    """Return the number of partitions of each topic in a Metadata response, by name and by id; yield now and then.

    Topics with an error are left out.
    """
    counts: dict[TopicKey, int] = {}
    wanted = ("error_code", "name", "topic_id") if version >= TOPIC_IDS_FROM else ("error_code", "name")
    rows = yield from count_elements_in_steps("MetadataResponse", version, body, "topics", wanted, "partitions")
    for row in rows:
        if row["error_code"]:
            continue
        if row["name"] is not None:
            counts[row["name"]] = row["partitions"]
        if "topic_id" in row:
            counts[row["topic_id"]] = row["partitions"]
    return counts


def read_unknown_topics(version: int, body: Buffer) -> Steps[list[str]]:
    """Return the names of the topics that do not exist according to a Metadata response."""
    wanted = ("error_code", "name")
    rows = yield from count_elements_in_steps("MetadataResponse", version, body, "topics", wanted, "partitions")
    return [row["name"] for row in rows if row["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and row["name"]]


def read_topic_names(version: int, body: Buffer) -> Steps[list[tuple[bytes, str]]]:
    """Return the id and the name of each topic of a Metadata reply, from `TOPIC_IDS_FROM` on; partitions are stepped
    over. Raises `MalformedMessage`."""
    wanted = ("name", "topic_id")
    rows = yield from count_elements_in_steps("MetadataResponse", version, body, "topics", wanted, "partitions")
    return [(row["topic_id"], row["name"]) for row in rows if row["name"] and row["topic_id"] != NO_ID]


def read_auto_creation(version: int, body: Buffer) -> Steps[list[str]]:
    """Return the topics that a Metadata request names and would create if they do not exist.

    The list is empty if the request's flag is off, or it requests all topics.
    """
    request = yield from decode_in_steps("MetadataRequest", version, body)
    if not request.get("allow_auto_topic_creation", True):
        return []
    return [row["name"] for row in request["topics"] or () if row["name"]]


def without_auto_creation(version: int, body: Buffer) -> Steps[bytes]:
    """Return the body of a Metadata request, v4 or later, with its auto-creation flag turned off."""
    edits: dict[str, Edit] = {"topics": _SAME_ROWS, "allow_auto_topic_creation": lambda _old: False}
    return edit_in_steps("MetadataRequest", version, body, edits)


def ask_to_validate(version: int, body: Buffer) -> Steps[tuple[int, bytes]]:
    """Return version and body of a client's CreateTopics request, changed to only validate.

    The version is raised to `VALIDATE_VERSION` if it is lower.
    """
    if version >= VALIDATE_VERSION:
        edits: dict[str, Edit] = {
            "topics": _SAME_ROWS,
            "timeout_ms": lambda _old: VALIDATE_TIMEOUT_MS,
            "validate_only": lambda _old: True,
        }
        return version, (yield from edit_in_steps("CreateTopicsRequest", version, body, edits))
    request = yield from decode_in_steps("CreateTopicsRequest", version, body)
    fields = request | {"timeout_ms": VALIDATE_TIMEOUT_MS, "validate_only": True}
    return VALIDATE_VERSION, (yield from _encoded("CreateTopicsRequest", VALIDATE_VERSION, fields))


def ask_to_validate_names(names: Iterable[str]) -> Steps[tuple[int, bytes]]:
    """Return version and body of a validating CreateTopics request for topics with the broker's defaults.

    They are the same as for topics that a broker creates automatically.
    """
    rows = [{"name": name, "num_partitions": BROKERS_DEFAULT, "replication_factor": BROKERS_DEFAULT} for name in names]
    fields = {"topics": rows, "timeout_ms": VALIDATE_TIMEOUT_MS, "validate_only": True}
    return VALIDATE_VERSION, (yield from _encoded("CreateTopicsRequest", VALIDATE_VERSION, fields))


def read_validated(version: int, body: Buffer) -> Steps[dict[str, int | None]]:
    """Return the number of partitions that each topic would get, from a response to a validating CreateTopics request;
    yield now and then.

    It is 0 if the broker would refuse the topic. It is ``None`` if the response does not contain it, because the client
    is not authorized to describe configurations, or if the error does not show what the request itself will get
    (`UNCERTAIN`).
    """
    found: dict[str, int | None] = {}
    rows = read_rows("CreateTopicsResponse", version, body, "topics", ("name", "error_code", "num_partitions"))
    for number, row in enumerate(rows):
        partitions = row["num_partitions"]
        if row["error_code"]:
            found[row["name"]] = None if row["error_code"] in UNCERTAIN else 0
        else:
            found[row["name"]] = partitions if partitions > 0 else None
        if number % ROWS_A_STEP == 0:
            yield
    return found
