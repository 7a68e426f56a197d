"""Target: a request and its reply at a proxy that authorizes by random rules, without a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.plugins.authorization.rules import Rule, Rules
from headrace.proxy.wire.apis import APIS
from headrace.proxy.wire.authorization.denied_rows import DeniedRows
from headrace.proxy.wire.authorization.requirements import requirements_in_steps, requirements_of
from headrace.proxy.wire.authorization.visible_rows import Viewer, filter_of, filter_reply_in_steps
from headrace.proxy.wire.errors import MalformedMessage, RefusalImpossible
from headrace.proxy.wire.messages.codec import decode
from headrace.proxy.wire.messages.stepwise import finish
from headrace.proxy.wire.refusals import refusal_in_steps
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey
from headrace.quota_callbacks.authorization import (
    CLUSTER_NAME,
    Action,
    Operation,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from tests.fuzzing.choices import Choices
from tests.fuzzing.wire_messages import any_version, message_body

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.proxy.wire.authorization.requirement_types import RowKey
    from headrace.proxy.wire.messages.codec import Message

CLIENT_APIS: Final = tuple(sorted(key for key, api in APIS.items() if not api.controller_only))
NAMES: Final = ("*", "", "t", "topic-1", "topic-1", "h", "x", CLUSTER_NAME)
TYPES: Final = tuple(ResourceType)
OPERATIONS: Final = tuple(Operation)
LISTED: Final = {
    ApiKey.METADATA: ("topics", ResourceType.TOPIC, "name"),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ("topics", ResourceType.TOPIC, "name"),
    ApiKey.LIST_TRANSACTIONS: ("transaction_states", ResourceType.TRANSACTIONAL_ID, "transactional_id"),
}
"""The arrays of replies that name nothing that the client may not describe, once they are filtered."""
TOPIC_AUTHORIZATION_FAILED: Final = 29


def authorization(data: bytes) -> None:
    """Authorize a request, split it, and filter and complete its reply."""
    choices = Choices(data)
    api_key = choices.pick(CLIENT_APIS)
    version = any_version(choices, f"{API_NAMES[api_key]}Request")
    rules = Rules(_rule(choices, number) for number in range(choices.byte() % 5))
    known = choices.flag()
    parts = [Choices(choices.take(choices.number())), choices]
    body = message_body(parts[0], f"{API_NAMES[api_key]}Request", version)
    reply = message_body(parts[1], f"{API_NAMES[api_key]}Response", version)

    def authorize(actions: Sequence[Action]) -> list[bool]:
        return [rules.decide("bob", "", action).allowed for action in actions]

    def name_of(topic_id: bytes) -> str | None:
        return "topic-1" if known and topic_id.endswith(b"\1") else None

    try:
        requirements = requirements_of(api_key, version, body, name_of)
    except MalformedMessage:
        assert _decoded(api_key, "Request", version, body) is None, "a request that brokers read is refused"
        return
    assert finish(requirements_in_steps(api_key, version, body, name_of)) == requirements
    denied = [one for one in requirements.found if not any(authorize(one.any_of))]
    if any(one.row is None or not DeniedRows.can_split(api_key) for one in denied):
        _refuse(api_key, version, body, denied[0].error_code)
        return
    rows: dict[RowKey, int] = {one.row: one.error_code for one in denied if one.row is not None}
    try:
        split = finish(DeniedRows.split_in_steps(api_key, version, body, rows)) if rows else None
        hidden = filter_of(api_key, version, body)
    except MalformedMessage:
        assert _decoded(api_key, "Request", version, body) is None, "a request that was read in part cannot be split"
        return
    if split is not None:
        assert split.memory_bytes >= 0
        if split.left is None:
            decode(f"{API_NAMES[api_key]}Response", version, finish(split.reply_in_steps()).with_throttle_time(7))
            return
        left = {one.row for one in requirements_of(api_key, version, split.left, name_of).found}
        assert not left & rows.keys(), "something that is denied is forwarded"
        decode(f"{API_NAMES[api_key]}Request", version, split.left)
    viewer = Viewer("bob", authorize, name_of)
    try:
        if hidden is not None:
            reply = finish(filter_reply_in_steps(api_key, version, reply, hidden, viewer))
            _check_listed(api_key, version, reply, viewer)
        if split is not None:
            reply = finish(split.add_to_in_steps(reply))
    except MalformedMessage:
        assert _decoded(api_key, "Response", version, reply) is None, "a reply that clients read is refused"
        return


def _rule(choices: Choices, number: int) -> Rule:
    resource_type = choices.pick(TYPES)
    return Rule(
        number=number,
        allow=choices.byte() % 4 != 3,
        pattern=ResourcePattern(
            resource_type=resource_type,
            name=CLUSTER_NAME if resource_type is ResourceType.CLUSTER else choices.pick(NAMES),
            pattern_type=choices.pick((PatternType.LITERAL, PatternType.PREFIXED)),
        ),
        users=None,
        operations=frozenset({choices.pick(OPERATIONS)}) if choices.flag() else None,
    )


def _decoded(api_key: int, kind: str, version: int, body: bytes) -> Message | None:
    try:
        return decode(f"{API_NAMES[api_key]}{kind}", version, body)
    except MalformedMessage:
        return None


def _refuse(api_key: int, version: int, body: bytes, error_code: int) -> None:
    try:
        reply = finish(refusal_in_steps(api_key, version, body, error_code, None))
    except MalformedMessage:
        assert _decoded(api_key, "Request", version, body) is None, "a request that brokers read cannot be refused"
    except RefusalImpossible:
        return
    else:
        decode(f"{API_NAMES[api_key]}Response", version, reply.with_throttle_time(7))


def _check_listed(api_key: int, version: int, reply: bytes, viewer: Viewer) -> None:
    listed = LISTED.get(ApiKey(api_key))
    message = _decoded(api_key, "Response", version, reply)
    if listed is None or message is None:
        return
    array, resource_type, field = listed
    rows: list[dict[str, Any]] = message[array]
    names = [row[field] for row in rows if row[field]]
    assert finish(viewer.may_describe(resource_type, names)) == frozenset(names), "a hidden name is shown"
