"""Targets: decoding, editing and answering whole messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.proxy.wire.api_versions import highest_allowed, restrict_api_versions
from headrace.proxy.wire.apis import APIS, must_rewrite
from headrace.proxy.wire.endpoints import rewrite_endpoints
from headrace.proxy.wire.errors import MalformedMessage, RefusalImpossible
from headrace.proxy.wire.headerless_tokens import HeaderlessTokens, handshake_mechanism
from headrace.proxy.wire.messages.codec import TAGS, decode, encode
from headrace.proxy.wire.messages.editing import edit
from headrace.proxy.wire.messages.schemas import message_names, schema
from headrace.proxy.wire.messages.stepwise import finish
from headrace.proxy.wire.mutations import TopicRefusal
from headrace.proxy.wire.topic_lookups import (
    TOPIC_IDS_FROM,
    VALIDATE_VERSION,
    ask_for_topics,
    ask_to_validate,
    ask_to_validate_names,
    read_auto_creation,
    read_partition_counts,
    read_topic_names,
    read_unknown_topics,
    read_validated,
    without_auto_creation,
)
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey
from tests.fuzzing.choices import Choices
from tests.fuzzing.wire_messages import API_KEYS, any_version, message_body
from tests.proxy.wire.at_once import merge_response, read_mutation, read_topic_errors, refuse_whole, split_request

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES: Final = tuple(sorted(message_names()))
PROXY: Final = "proxy"
PORT: Final = 9193
MUTATIONS: Final = (ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS)
REWRITTEN: Final = tuple(sorted(key for key in APIS if must_rewrite(key, 1 << 14) and key != ApiKey.API_VERSIONS))
REFUSAL: Final = TopicRefusal(error_code=89, error_message="over quota")


def _decoded(name: str, version: int, body: bytes) -> dict[str, Any] | None:
    try:
        return decode(name, version, body)
    except MalformedMessage:
        return None


def codec(data: bytes) -> None:
    """Decode any message: what is decoded can be encoded, and an edit that changes nothing changes no byte."""
    choices = Choices(data)
    name = choices.pick(NAMES)
    version = any_version(choices, name)
    wanted = choices.byte()
    body = message_body(choices, name, version)
    message = _decoded(name, version, body)
    fields = [field.name for place, field in enumerate(schema(name, version).fields) if wanted & 1 << place % 8]
    try:
        edited = edit(name, version, body, dict.fromkeys(fields, lambda value: value))
    except MalformedMessage:
        assert message is None, "an edit refuses what the codec reads"
    else:
        assert edited == body
    if message is None:
        return
    encoded = encode(name, version, message)
    again = decode(name, version, encoded)
    assert repr(again) == repr(message)  # repr, since NaN differs from itself
    assert encode(name, version, again) == encoded


def rewriting(data: bytes) -> None:
    """Replace the brokers' addresses: none is left, and nothing else changes."""
    choices = Choices(data)
    key = choices.pick(REWRITTEN)
    name = f"{API_NAMES[key]}Response"
    version = any_version(choices, name)
    throttle_ms = choices.pick((None, 0, 7, 2**31 - 1))
    most = choices.byte()
    body = message_body(choices, name, version)
    try:
        rewritten = rewrite_endpoints(
            key, version, body, lambda node_id: (PROXY, PORT) if 0 <= node_id <= most else None, throttle_ms
        )
    except MalformedMessage:
        assert _decoded(name, version, body) is None, "a reply that a client reads is refused"
        return
    before, after = _decoded(name, version, body), _decoded(name, version, rewritten.body)
    if before is None:
        return
    assert after is not None
    learnt = [broker.node_id for broker in rewritten.brokers]
    assert set(rewritten.left_out) <= set(learnt)
    for array, node_id in (
        ("brokers", "node_id"),
        ("brokers", "broker_id"),
        ("node_endpoints", "node_id"),
        ("coordinators", "node_id"),
    ):
        rows = [row for row in after.get(array) or () if node_id in row]
        for row in rows:
            assert (row["host"], row["port"]) == (PROXY, PORT) or (array == "coordinators" and row[node_id] < 0)
            assert 0 <= row[node_id] <= most or array == "coordinators"
        assert len(rows) <= len(before[array] or ()) if rows else True
    if throttle_ms is not None and "throttle_time_ms" in after:
        assert after["throttle_time_ms"] == throttle_ms
    addresses = {"brokers", "node_endpoints", "coordinators", "host", "port", "throttle_time_ms"}
    if key == ApiKey.FIND_COORDINATOR:
        addresses |= {"error_code", "error_message", "node_id"}
    assert repr({k: v for k, v in after.items() if k not in addresses}) == repr(
        {k: v for k, v in before.items() if k not in addresses}
    )


def offered_versions(data: bytes) -> None:
    """Restrict an ApiVersions reply: it offers only what the proxy supports, and its other fields stay as they are."""
    choices = Choices(data)
    version = any_version(choices, "ApiVersionsResponse")
    throttle_ms = choices.pick((None, 5))
    body = message_body(choices, "ApiVersionsResponse", version)
    try:
        restricted = restrict_api_versions(version, body, throttle_ms)
    except MalformedMessage:
        return
    after = _decoded("ApiVersionsResponse", restricted.layout_version, restricted.body)
    before = _decoded("ApiVersionsResponse", restricted.layout_version, body)
    if before is None:
        return
    assert after is not None
    for row in after["api_keys"]:
        assert highest_allowed(row["api_key"], row["min_version"], row["max_version"]) == row["max_version"]
    assert len(after["api_keys"]) + len(restricted.cut) == len(before["api_keys"]) == len(restricted.offered)
    changed = ("api_keys", "throttle_time_ms")
    assert {k: v for k, v in after.items() if k not in changed} == {k: v for k, v in before.items() if k not in changed}


def mutations(data: bytes) -> None:
    """Split a topic mutation and merge its reply: each topic is answered, and admitted ones are copied."""
    choices = Choices(data)
    key = choices.pick(MUTATIONS)
    version = any_version(choices, f"{API_NAMES[key]}Request")
    chosen = choices.byte()
    request = message_body(choices, f"{API_NAMES[key]}Request", version)
    try:
        asked = read_mutation(key, version, request)
    except MalformedMessage:
        return
    keys = [topic.key for topic in asked.topics]
    refused = {topic: REFUSAL for place, topic in enumerate(keys) if chosen & 1 << place % 8}
    forwarded = split_request(key, version, request, refused)
    left = [topic for topic in keys if topic not in refused]
    if forwarded is None:
        assert not left
    else:
        assert [topic.key for topic in read_mutation(key, version, forwarded).topics] == left
        assert refused or forwarded == request
    name = f"{API_NAMES[key]}Response"
    reply = None if forwarded is None else message_body(choices, name, version)
    try:
        merged = merge_response(key, version, reply, keys, refused, 7)
    except MalformedMessage:
        return
    if reply is not None and _decoded(name, version, reply) is None:
        return
    errors = read_topic_errors(key, version, merged)
    assert all(topic in errors for topic in refused if topic not in {"", bytes(16)})


def lookups(data: bytes) -> None:
    """Read what the proxy's own look-ups need from Metadata and CreateTopics, and write these look-ups."""
    choices = Choices(data)
    reading: Callable[[int, bytes], Any]
    request = choices.flag()
    if request:
        name = choices.pick(("MetadataRequest", "CreateTopicsRequest"))
        version = any_version(choices, name)
        body = message_body(choices, name, version)
        message = _decoded(name, version, body)
        try:
            if name == "CreateTopicsRequest":
                validating, changed = finish(ask_to_validate(version, body))
                assert message is None or decode(name, validating, changed)["validate_only"]
                return
            names = finish(read_auto_creation(version, body))
            finish(ask_to_validate_names(names))
            finish(ask_for_topics(names))
            if version >= 4:
                assert not finish(read_auto_creation(version, finish(without_auto_creation(version, body))))
        except MalformedMessage:
            assert message is None
        return
    for reading, name in (
        (partition_counts, "MetadataResponse"),
        (unknown_topics, "MetadataResponse"),
        (lambda version, body: finish(read_topic_names(version, body)), "MetadataResponse"),
        (validated, "CreateTopicsResponse"),
    ):
        version = any_version(choices, name)
        if reading is validated:  # only responses to the proxy's own requests are read
            version = max(version, VALIDATE_VERSION)
        elif reading not in (partition_counts, unknown_topics):
            version = max(version, TOPIC_IDS_FROM)
        body = message_body(choices, name, version)
        try:
            reading(version, body)
        except MalformedMessage:
            assert _decoded(name, version, body) is None


def unknown_topics(version: int, body: bytes) -> list[str]:
    """Read the topics that do not exist without a pause."""
    return finish(read_unknown_topics(version, body))


def partition_counts(version: int, body: bytes) -> dict[str | bytes, int]:
    """Read the partition counts without a pause."""
    return finish(read_partition_counts(version, body))


def validated(version: int, body: bytes) -> dict[str, int | None]:
    """Read the reply to a validating request without a pause."""
    return finish(read_validated(version, body))


def refusals(data: bytes) -> None:
    """Refuse any request: the reply is one that its client can decode, and contains the error and the throttle time."""
    choices = Choices(data)
    key = choices.pick(API_KEYS)
    name = API_NAMES[key]
    version = any_version(choices, f"{name}Request")
    code, message = choices.pick(((89, "over quota"), (35, None), (44, "")))
    body = message_body(choices, f"{name}Request", version)
    try:
        frame = refuse_whole(key, version, 77, body, code, message, 1234)
    except (MalformedMessage, RefusalImpossible):
        return
    assert frame[:8] == (len(frame) - 4).to_bytes(4, "big") + (77).to_bytes(4, "big")
    if key == ApiKey.API_VERSIONS:
        return
    header_bytes = 9 if APIS[key].flexible_from is not None and version >= (APIS[key].flexible_from or 0) else 8
    reply = decode(f"{name}Response", version, frame[header_bytes:])
    assert TAGS not in reply
    assert encode(f"{name}Response", version, reply) == frame[header_bytes:]
    assert reply.get("throttle_time_ms", 1234) == 1234


def tokens(data: bytes) -> None:
    """Distinguish tokens from requests, whatever the window; and read the mechanism of a SaslHandshake."""
    choices = Choices(data)
    mechanism = handshake_mechanism(choices.take(choices.byte() % 40))
    chosen = choices.pick(("PLAIN", "SCRAM-SHA-256", "GSSAPI", "OAUTHBEARER", mechanism))
    window = bytearray(choices.rest())
    whole = HeaderlessTokens(chosen).is_token(window, 0, len(window))
    for end in range(min(len(window), 12)):
        assert HeaderlessTokens(chosen).is_token(window, 0, end) in (None, whole)
    if len(window) >= 8:
        size, api_key = int.from_bytes(window[:4], "big", signed=True), int.from_bytes(window[4:6], "big")
        assert whole or chosen not in ("PLAIN", "SCRAM-SHA-256")
        if chosen in ("GSSAPI", "OAUTHBEARER"):
            assert whole == (size < 8 or api_key >= 256)
