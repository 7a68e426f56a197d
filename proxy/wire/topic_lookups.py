"""Look-ups that determine the cost of a mutation, which is the number of partitions that topics have or would get, and
the names of topics.

This module encodes requests that the proxy itself sends, in versions that every broker from 2.4 to 4.4 supports, and
reads their responses. `headrace.proxy.connection.mutation_lookup` sends them over the client's upstream connection, so
they are authorized as the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.proxy.wire.messages.codec import decode, encode
from headrace.proxy.wire.messages.editing import edit
from headrace.proxy.wire.messages.rows import count_elements_in_steps, read_rows
from headrace.proxy.wire.messages.stepwise import ROWS_A_STEP
from headrace.proxy.wire.mutations import NO_ID
from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.proxy.wire.messages.codec import Buffer
    from headrace.proxy.wire.messages.stepwise import Steps
    from headrace.proxy.wire.mutations import TopicKey

BY_NAME_VERSION: Final = 4
"""The first version of Metadata with ``allow_auto_topic_creation``."""
BY_ID_VERSION: Final = 12
"""The first version of Metadata that accepts topic ids (KIP-516)."""
VALIDATE_VERSION: Final = 5
"""The first version of CreateTopics whose response contains the number of partitions of a topic."""
TOPIC_IDS_FROM: Final = 10
"""The first version of Metadata whose response contains topic ids."""
AUTO_CREATION_FROM: Final = BY_NAME_VERSION
BROKERS_DEFAULT: Final = -1
"""Number of partitions, or replication factor, that stands for the broker's default."""


def ask_for_topics(topics: Iterable[TopicKey]) -> tuple[int, bytes]:
    """Return version and body of a Metadata request for topics, by name or by id, that creates no topic."""
    topics = list(topics)
    by_id = any(isinstance(topic, bytes) for topic in topics)
    version = BY_ID_VERSION if by_id else BY_NAME_VERSION
    rows: list[Any] = [
        {"topic_id": topic, "name": None} if isinstance(topic, bytes) else {"name": topic} for topic in topics
    ]
    fields = {"topics": rows, "allow_auto_topic_creation": False}
    return version, encode("MetadataRequest", version, fields)


def names_brokers(version: int, body: Buffer) -> bool:
    """Return whether a Metadata response names any broker.

    One to a client that the broker does not serve, because it has not authenticated yet, names none
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


def read_unknown_topics(version: int, body: Buffer) -> list[str]:
    """Return the names of the topics that do not exist according to a Metadata response."""
    rows = read_rows("MetadataResponse", version, body, "topics", ("error_code", "name"))
    return [row["name"] for row in rows if row["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and row["name"]]


def read_topic_names(version: int, body: Buffer) -> Iterator[tuple[bytes, str]]:
    """Yield the id and the name of each topic of a Metadata reply, from `TOPIC_IDS_FROM` on; partitions are stepped
    over. Raises `MalformedMessage`."""
    for row in read_rows("MetadataResponse", version, body, "topics", ("name", "topic_id")):
        if row["name"] and row["topic_id"] != NO_ID:
            yield row["topic_id"], row["name"]


def read_auto_creation(version: int, body: Buffer) -> list[str]:
    """Return the topics that a Metadata request names and would create if they do not exist.

    The list is empty if the request's flag is off, or it requests all topics.
    """
    request = decode("MetadataRequest", version, body)
    if not request.get("allow_auto_topic_creation", True):
        return []
    return [row["name"] for row in request["topics"] or () if row["name"]]


def without_auto_creation(version: int, body: Buffer) -> bytes:
    """Return the body of a Metadata request, v4 or later, with its auto-creation flag turned off."""
    return edit("MetadataRequest", version, body, {"allow_auto_topic_creation": lambda _old: False})


def ask_to_validate(version: int, body: Buffer) -> tuple[int, bytes]:
    """Return version and body of a client's CreateTopics request, changed to only validate.

    The version is raised to `VALIDATE_VERSION` if it is lower.
    """
    if version >= VALIDATE_VERSION:
        return version, edit("CreateTopicsRequest", version, body, {"validate_only": lambda _old: True})
    request = decode("CreateTopicsRequest", version, body)
    return VALIDATE_VERSION, encode("CreateTopicsRequest", VALIDATE_VERSION, request | {"validate_only": True})


def ask_to_validate_names(names: Iterable[str]) -> tuple[int, bytes]:
    """Return version and body of a validating CreateTopics request for topics with the broker's defaults.

    They are the same as for topics that a broker creates automatically.
    """
    rows = [{"name": name, "num_partitions": BROKERS_DEFAULT, "replication_factor": BROKERS_DEFAULT} for name in names]
    fields = {"topics": rows, "timeout_ms": 10_000, "validate_only": True}
    return VALIDATE_VERSION, encode("CreateTopicsRequest", VALIDATE_VERSION, fields)


def read_validated(version: int, body: Buffer) -> Steps[dict[str, int | None]]:
    """Return the number of partitions that each topic would get, from a response to a validating CreateTopics request;
    yield now and then.

    It is 0 if the broker would refuse the topic, and ``None`` if the response does not contain it, because the client
    is not authorized to describe configurations.
    """
    found: dict[str, int | None] = {}
    rows = read_rows("CreateTopicsResponse", version, body, "topics", ("name", "error_code", "num_partitions"))
    for number, row in enumerate(rows):
        partitions = row["num_partitions"]
        found[row["name"]] = 0 if row["error_code"] else partitions if partitions > 0 else None
        if number % ROWS_A_STEP == 0:
            yield
    return found
