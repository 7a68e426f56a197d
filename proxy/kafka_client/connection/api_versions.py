"""The versions of APIs that this client can send, and those of them that a broker serves (KIP-35, KIP-511)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.proxy.kafka_client.errors import UnsupportedVersionError
from headrace.proxy.wire.apis import APIS
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.proxy.wire.messages.codec import Message

PREFERRED_API_VERSIONS: Final = 3
"""The first version with the name of the client's software. Later ones have nothing that the client needs."""

VERSIONS: Final[Mapping[ApiKey, tuple[int, int]]] = {
    ApiKey.METADATA: (1, 12),  # from version 1 on with the controller
    ApiKey.SASL_HANDSHAKE: (1, 1),  # version 0 has tokens without headers
    ApiKey.API_VERSIONS: (0, PREFERRED_API_VERSIONS),
    ApiKey.CREATE_TOPICS: (0, 7),
    ApiKey.DELETE_TOPICS: (0, 6),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (0, 3),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
}
"""The lowest and the highest version that the client can write and read."""

_SINCE: Final[Mapping[ApiKey, str]] = {
    ApiKey.METADATA: "Kafka 0.10.0",
    ApiKey.SASL_HANDSHAKE: "Kafka 1.0",
    ApiKey.CREATE_TOPICS: "Kafka 0.10.1",
    ApiKey.DELETE_TOPICS: "Kafka 0.10.1",
    ApiKey.SASL_AUTHENTICATE: "Kafka 1.0",
    ApiKey.CREATE_PARTITIONS: "Kafka 1.0",
    ApiKey.DESCRIBE_DELEGATION_TOKEN: "Kafka 1.1 (KIP-48)",
    ApiKey.DESCRIBE_CLIENT_QUOTAS: "Kafka 2.6 (KIP-546)",
    ApiKey.ALTER_CLIENT_QUOTAS: "Kafka 2.6 (KIP-546)",
}
"""The first release whose brokers have a version in `VERSIONS`."""


def offered_versions(reply: Message) -> dict[int, tuple[int, int]]:
    """Return the lowest and highest version of each API in an ApiVersions reply, by API key."""
    return {row["api_key"]: (row["min_version"], row["max_version"]) for row in reply["api_keys"]}


def usable_version(api_key: ApiKey, offered: Mapping[int, tuple[int, int]], address: str) -> int:
    """Return the highest version that both sides have.

    Raises `UnsupportedVersionError`, whose message names the API, its key, the versions of both sides, and the first
    release of Kafka that has it.
    """
    lowest, highest = VERSIONS[api_key]
    name = f"{APIS[api_key].name} (API key {api_key.value})"
    since = f"brokers have it since {_SINCE.get(api_key, 'Kafka 0.10.0')}"
    found = offered.get(api_key)
    if found is None:
        raise UnsupportedVersionError(
            f"the broker {address} has no {name}",
            explanation=f"the client needs version {lowest} to {highest}; {since}",
        )
    version = min(highest, found[1])
    if version < max(lowest, found[0]):
        raise UnsupportedVersionError(
            f"the broker {address} has versions {found[0]} to {found[1]} of {name}",
            explanation=f"the client needs version {lowest} to {highest}; {since}",
        )
    return version
