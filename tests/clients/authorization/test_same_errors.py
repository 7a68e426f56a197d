"""The same requests of every API and version at a broker with ACLs and at a proxy with the same rules."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from headrace.proxy.wire.authorization.table import TABLE, WITHOUT_REQUIREMENTS
from headrace.quota_callbacks.api_keys import ApiKey
from tests.clients.authorization.requests import requests
from tests.clients.fronts import NOT_LOADED, eventually

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.proxy.wire.messages.codec import Message
    from tests.clients.authorization.scene import Scene
    from tests.clients.wire_connection import WireConnection

NAMES = (
    "name",
    "topic",
    "topic_name",
    "topic_id",
    "group_id",
    "key",
    "transactional_id",
    "resource_type",
    "resource_name",
    "index",
    "partition",
    "partition_index",
    "partition_id",
)
CODES = ("error_code", "partition_error_code", "topic_config_error_code")
LEFT_OUT = {
    ApiKey.API_VERSIONS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    # refused where the proxy authenticates clients; the broker refuses them on a listener without authentication
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    # nothing is authorized
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    ApiKey.PUSH_TELEMETRY,
    # for brokers and controllers only, or served by no broker of 4.3
    ApiKey.ADD_RAFT_VOTER,
    ApiKey.REMOVE_RAFT_VOTER,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE,
    ApiKey.WRITE_SHARE_GROUP_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
    ApiKey.UNREGISTER_CONTROLLER,
}


def errors_of(value: Any, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Return the errors in a reply, each after the names of what it is about, in an order of their own."""
    if isinstance(value, list):
        return sorted((error for row in value for error in errors_of(row, path)), key=repr)
    if not isinstance(value, dict):
        return []
    names = NAMES if "num_partitions" not in value else ("name",)  # the id of a new topic is a random number
    here = (*path, *((field, value[field]) for field in names if field in value))
    found = [(*here, field, value[field]) for field in CODES if field in value]
    for field in value:
        found += errors_of(value[field], (*here, field))
    return sorted(found, key=repr)


def asked(
    connection: WireConnection, api: ApiKey, version: int, message: Message, behind: bytes = b""
) -> list[tuple[object, ...]]:
    """Return the errors of the reply to a message with bytes ``behind`` it. A broker is asked again while one is of
    `NOT_LOADED`: it answers so while it waits for producer ids of its controller, too."""

    def settled() -> list[list[tuple[object, ...]]]:
        errors = errors_of(connection.ask(api, version, message, behind))
        return [] if any(error[-1] in NOT_LOADED for error in errors) else [errors]

    (errors,) = eventually(settled, f"an answer to {api.name}")
    return errors


@pytest.mark.exhaustive
@pytest.mark.parametrize("user", ["bob", "alice"])
def test_the_same_errors(found_scene: Scene, user: str) -> None:
    with ExitStack() as stack:
        connections = [stack.enter_context(found_scene.logged_in(address, user)) for address in found_scene.fronts]
        count, differences = compare(connections, requests(found_scene.topic_ids))
    assert count > 600
    assert differences == [], "\n".join(differences)


def compare(connections: Sequence[WireConnection], cases: Mapping[ApiKey, Sequence[Message]]) -> tuple[int, list[str]]:
    """Return how many requests were sent over each connection, and those whose errors differ."""
    software = {"client_software_name": "x", "client_software_version": "1"}
    count, differences = 0, []
    for row in connections[-1].ask(ApiKey.API_VERSIONS, 3, software)["api_keys"]:
        api = ApiKey(row["api_key"])
        for version in range(row["min_version"], row["max_version"] + 1):
            for message in cases.get(api, ()):
                if _fits(api, version, message):
                    answers = [asked(connection, api, version, message) for connection in connections]
                    count += 1
                    if answers[0] != answers[1]:
                        differences.append(f"{api.name} v{version} {message}: {answers[0]} but {answers[1]}")
                    elif asked(connections[1], api, version, message, b"abc") != answers[1]:
                        differences.append(f"{api.name} v{version} {message}: bytes behind it change the answer")
    return count, differences


def test_every_api_is_compared() -> None:
    known = set(TABLE) | WITHOUT_REQUIREMENTS
    assert set(requests({})) | LEFT_OUT == known
    assert not set(requests({})) & LEFT_OUT


def _fits(api: ApiKey, version: int, message: Message) -> bool:
    """Return whether the version has what the request is about."""
    if api == ApiKey.CREATE_TOPICS:
        return version >= 1  # before, it cannot only validate
    if api == ApiKey.PRODUCE:
        return version >= 3  # before, record batches are of an older format
    if api == ApiKey.METADATA and message["topics"] is not None and message["topics"][0]["name"] is None:
        return version >= 12
    if api == ApiKey.METADATA and message["topics"] is None:
        return version >= 1
    if api == ApiKey.OFFSET_FETCH:
        by_group = bool(message["groups"])
        return version >= 8 if by_group else (2 if message["topics"] is None else 0) <= version <= 7
    if api == ApiKey.DELETE_TOPICS and "topics" in message and message["topics"][0]["name"] is None:
        return version >= 6
    return True
