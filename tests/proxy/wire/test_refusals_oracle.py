"""Refusals are compared with `getErrorResponse` of Kafka's request classes, for every API and version."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.wire.apis import APIS, response_header_version
from headrace.proxy.wire.errors import RefusalImpossible
from headrace.proxy.wire.messages.codec import Message, decode, encode
from headrace.proxy.wire.refusal_templates import TEMPLATES
from headrace.quota_callbacks.api_keys import ApiKey
from testbed.kafka.jvm import KafkaClasses, start_jvm
from tests.proxy.wire.at_once import refuse_whole
from tests.proxy.wire.oracle import judge
from tests.proxy.wire.samples import LONG, sample

if TYPE_CHECKING:
    from random import Random

EVERY = [(key, version) for key in TEMPLATES for version in range(APIS[key].min_version, APIS[key].max_version + 1)]

THROTTLING_QUOTA_EXCEEDED = 89
TEXT = "The throttling quota has been exceeded."
"""Kafka's general message of the error, which it uses if it does not use the exception's message."""


@cache
def parse(kafka: KafkaClasses) -> Any:
    """Return Java's request object, decoded from bytes."""
    requests = kafka.cls("org.apache.kafka.common.requests.AbstractRequest")
    keys = kafka.cls("org.apache.kafka.common.protocol.ApiKeys")
    accessor = kafka.cls("org.apache.kafka.common.protocol.ByteBufferAccessor")
    wrap = start_jvm().java.nio.ByteBuffer.wrap

    def run(api_key: int, version: int, body: bytes) -> Any:
        buffer = wrap(body) if kafka.version == "3.9.1" else accessor(wrap(body))
        return requests.parseRequest(keys.forId(api_key), version, buffer).request

    return run


def kafkas_refusal(api_key: int, version: int, body: bytes, throttle_time_ms: int) -> bytes | None:
    """Return the body of Kafka's response, or `None` if there is none."""
    kafka = judge(api_key, version)
    errors = kafka.cls("org.apache.kafka.common.protocol.Errors")
    error = errors.forCode(THROTTLING_QUOTA_EXCEEDED).exception(CUSTOM)
    response = parse(kafka)(api_key, version, body).getErrorResponse(throttle_time_ms, error)
    return None if response is None else kafka.encode(response.data(), version)


def ours(api_key: int, version: int, body: bytes, throttle_time_ms: int) -> bytes:
    frame = refuse_whole(api_key, version, 7, body, THROTTLING_QUOTA_EXCEEDED, CUSTOM, throttle_time_ms)
    header = encode("ResponseHeader", response_header_version(api_key, version), {"correlation_id": 7})
    assert frame.startswith((len(frame) - 4).to_bytes(4) + header)
    return frame[4 + len(header) :]


CUSTOM = "too many at once"
"""The exception's message: Kafka uses it in responses with `ApiError`, and the error's general message in others."""

# APIs whose getErrorResponse in Kafka does not set throttle_time_ms although the response has the field.
JAVA_FORGETS_THROTTLE = {
    ApiKey.FIND_COORDINATOR,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
}

# APIs whose rows Kafka keeps in a HashMap, or sorts, so that they are in another order.
UNORDERED = {
    ApiKey.PRODUCE,
    ApiKey.OFFSET_FETCH,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.ALTER_REPLICA_LOG_DIRS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
}

# Values of fields that Java's constructors require to be known enumerations.
ENUMERATIONS = {
    "resource_type": 2,
    "resource_type_filter": 2,
    "pattern_type": 3,
    "pattern_type_filter": 3,
    "resource_pattern_type": 3,
    "operation": 3,
    "permission_type": 3,
}


IDENTITIES = ("name", "topic", "topic_id", "index", "partition", "partition_index", "producer_id", "group_id")

DECODED_ONLY = JAVA_FORGETS_THROTTLE | {ApiKey.FETCH}
"""APIs that are not compared byte for byte: those above, and Fetch, whose records are null in Kafka's old versions, and
empty here."""


def tidy(value: Any) -> Any:
    """Change a random request to one that Kafka accepts: known enumerations, no null records, no duplicate or empty
    rows."""
    if isinstance(value, dict):
        return {key: ENUMERATIONS.get(key, tidy(one)) for key, one in value.items()} | (
            {"records": b""} if value.get("records", b"") is None else {}
        )
    if isinstance(value, list):
        rows = {repr(identity(one)): tidy(one) for one in value}
        return [one for one in rows.values() if not isinstance(one, dict) or [] not in one.values()]
    return value


def acceptable(api_key: int, request: Message) -> Message:
    """Return a random request that Kafka can decode, and refuse without raising an exception."""
    request = tidy(request)
    if api_key == ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS:
        request["users"] = request["users"] or []
    if api_key == ApiKey.ALTER_USER_SCRAM_CREDENTIALS:  # a user in both arrays gets only one row
        deleted = {row["name"] for row in request["deletions"]}
        request["upsertions"] = [row for row in request["upsertions"] if row["name"] not in deleted]
    return request


def identity(row: Any) -> Any:
    """Return the fields that identify a row in its array."""
    if not isinstance(row, dict):
        return row
    return [row[name] for name in IDENTITIES if name in row] or row


def canonical(api_key: int, value: Any) -> Any:
    """Return a response without intended differences: messages (which are set everywhere), null records, and order."""
    if isinstance(value, dict):
        blank = {"error_message": None, "records": None}
        return {key: blank[key] if key in blank else canonical(api_key, one) for key, one in value.items()}
    if isinstance(value, list):
        rows = [canonical(api_key, one) for one in value]
        return sorted(rows, key=repr) if api_key in UNORDERED else rows
    return value


def messages(value: Any) -> list[str | None]:
    """Return all error messages in a response, in order."""
    if isinstance(value, dict):
        return [one for key, inner in value.items() for one in ([inner] if key == "error_message" else messages(inner))]
    return [one for row in value for one in messages(row)] if isinstance(value, list) else []


def compare(api_key: int, version: int, request: Message, throttle_time_ms: int) -> None:
    name = APIS[api_key].name
    body = encode(f"{name}Request", version, request)
    theirs = kafkas_refusal(api_key, version, body, throttle_time_ms)
    try:
        mine = ours(api_key, version, body, throttle_time_ms)
    except RefusalImpossible:
        unsaid = theirs is None or error_codes(decode(f"{name}Response", version, theirs)) <= {0}
        assert unsaid
        return
    assert theirs is not None
    expected, given_ = decode(f"{name}Response", version, theirs), decode(f"{name}Response", version, mine)
    if expected.get("throttle_time_ms") != given_.get("throttle_time_ms"):
        assert api_key in JAVA_FORGETS_THROTTLE
        assert (expected["throttle_time_ms"], given_["throttle_time_ms"]) == (0, throttle_time_ms)
        del expected["throttle_time_ms"], given_["throttle_time_ms"]
    assert set(messages(given_)) <= {CUSTOM}
    assert len(messages(given_)) == len(messages(expected))
    assert set(messages(expected)) <= {CUSTOM, TEXT, None, ""}
    assert canonical(api_key, given_) == canonical(api_key, expected), (name, version, request)
    if messages(expected) == messages(given_) and api_key not in UNORDERED | DECODED_ONLY:
        assert mine == theirs, (name, version, request)


def error_codes(value: Any) -> set[int]:
    """Return all error codes in a response."""
    if isinstance(value, dict):
        found = {inner for key, inner in value.items() if key.endswith("error_code")}
        return found.union(*(error_codes(inner) for inner in value.values()))
    return set().union(*(error_codes(row) for row in value)) if isinstance(value, list) else set()


def check(rng: Random, api_key: int, version: int) -> None:
    request = acceptable(api_key, sample(rng, f"{APIS[api_key].name}Request", version, unknown_tags=False))
    compare(api_key, version, request, rng.choice((0, 1234)))


def test_refusals_are_kafkas(rng: Random) -> None:
    for api_key, version in EVERY:
        for _ in range(5):
            check(rng, api_key, version)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("api_key", "version"), EVERY)
@LONG
@given(rng=st.randoms(use_true_random=False))
def test_refusals_are_kafkas_at_length(api_key: int, version: int, rng: Random) -> None:
    check(rng, api_key, version)
