"""The table of Kafka's APIs: versions, header versions, offset of the throttle time, and what the proxy must support.

All functions are look-ups by API key and version, and fast enough for the hot path; the rows are generated from Kafka's
own definitions (`headrace.proxy.wire.messages.api_rows`). Keys are plain ``int`` values, since a key in a request may
be unknown; members of `ApiKey` are ints, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.proxy.wire.messages.api_rows import ROWS, ApiRow
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey

__all__ = [
    "APIS",
    "AUTHENTICATION_APIS",
    "CLIENT_QUOTA_APIS",
    "READ_IN_FULL",
    "TOKEN_APIS",
    "Api",
    "back_off_from",
    "must_rewrite",
    "request_header_version",
    "response_header_version",
    "throttle_offset",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """The properties of one API."""

    key: ApiKey
    name: str
    """Kafka's name, such as ``CreateTopics``. With ``Request`` or ``Response`` appended it names the messages."""
    min_version: int
    max_version: int
    """The highest version for which `headrace.proxy.wire` has a schema, including unstable versions."""
    flexible_from: int | None
    """The first version with tagged fields and compact lengths (KIP-482)."""
    throttle_from: int | None
    """The first version whose response has throttle_time_ms."""
    throttle_offset: int | None
    """Offset in bytes of throttle_time_ms in the response's body, the same in every version that has the field.

    ``None`` if there is no such field, or it follows fields of variable length: Produce, ApiVersions,
    CreateDelegationToken, DescribeDelegationToken."""
    back_off_from: int | None
    """The first version for which Java's client (4.4) waits for throttle_time_ms; for older ones the proxy must mute
    the connection."""
    controller_only: bool
    """Whether no broker of 4.4 serves the API to clients: it is for controllers, or was for brokers with ZooKeeper."""
    rewrite_from: int | None
    """The first version whose response must be edited before it is sent to a client; see `must_rewrite`."""
    must_know: bool
    """Whether the proxy reads or edits its requests or responses, so that clients must not use a version above
    ``max_version``."""

    def knows(self, version: int) -> bool:
        """Return whether there is a schema for this version."""
        return self.min_version <= version <= self.max_version


# By API, the first version whose response contains a broker's address, or the list of APIs. In Produce that is the
# leader hint of KIP-951. Fetch has one, too, but is not collected: see `headrace.proxy.wire.walks.fetch`.
_REWRITE_FROM: Final = {
    ApiKey.PRODUCE: 10,
    ApiKey.METADATA: 0,
    ApiKey.FIND_COORDINATOR: 0,
    ApiKey.API_VERSIONS: 0,
    ApiKey.DESCRIBE_CLUSTER: 0,
    ApiKey.SHARE_FETCH: 0,
    ApiKey.SHARE_ACKNOWLEDGE: 0,
}

# APIs that the proxy reads for other reasons: leader hints and limits in Fetch, authentication, mutations that are
# refused by topic, and the client quota APIs, which the proxy answers itself.
_MUST_KNOW: Final = frozenset(_REWRITE_FROM) | {
    ApiKey.FETCH,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    ApiKey.ALTER_CLIENT_QUOTAS,
}


def _api(row: ApiRow) -> Api:
    key = ApiKey(row.key)
    return Api(
        key=key,
        name=API_NAMES[row.key],
        min_version=row.min_version,
        max_version=row.max_version,
        flexible_from=row.flexible_from,
        throttle_from=row.throttle_from,
        throttle_offset=row.throttle_offset,
        back_off_from=row.back_off_from,
        controller_only=row.controller_only,
        rewrite_from=_REWRITE_FROM.get(key),
        must_know=key in _MUST_KNOW,
    )


APIS: Final[dict[int, Api]] = {row.key: _api(row) for row in ROWS}
"""Every API of Kafka 3.9 and 4.4, by key."""

AUTHENTICATION_APIS: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
TOKEN_APIS: Final = frozenset(
    {
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
    }
)
CLIENT_QUOTA_APIS: Final = frozenset({ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS})
READ_IN_FULL: Final = frozenset(
    {
        *(*AUTHENTICATION_APIS, *TOKEN_APIS, *CLIENT_QUOTA_APIS),
        *(ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS),
    }
)
"""The APIs whose requests the proxy itself may read in full. Those that plugins require are besides them
(`headrace.proxy.hooks.calls.hook_calls.HookCalls.collects`)."""

_NEVER: Final = 1 << 15  # above any INT16

_FLEXIBLE_FROM: Final = {
    api.key.value: _NEVER if api.flexible_from is None else api.flexible_from for api in APIS.values()
}
_REWRITTEN_FROM: Final = {api.key.value: api.rewrite_from for api in APIS.values() if api.rewrite_from is not None}
_THROTTLE: Final = {
    api.key.value: (api.throttle_from, api.throttle_offset)
    for api in APIS.values()
    if api.throttle_from is not None and api.throttle_offset is not None
}
_BACK_OFF_FROM: Final = {api.key.value: api.back_off_from for api in APIS.values() if api.back_off_from is not None}


def request_header_version(api_key: int, version: int) -> int:
    """Return the version of a request's header: 2 with tagged fields, 1 with a client id, 0 with neither.

    A version above the highest known one has the header of the highest (a flexible API stays flexible); an unknown key
    is taken as flexible, as all APIs added since 2.4 are. Source: ``ApiMessageType.requestHeaderVersion``.
    """
    if version >= _FLEXIBLE_FROM.get(api_key, 0):
        return 2
    return 0 if api_key == ApiKey.CONTROLLED_SHUTDOWN and version == 0 else 1


def response_header_version(api_key: int, version: int) -> int:
    """Return the version of a response's header: 1 with tagged fields, 0 without; always 0 for ApiVersions.

    Unknown versions and keys are handled as in `request_header_version`. Source:
    ``ApiMessageType.responseHeaderVersion``.
    """
    if api_key == ApiKey.API_VERSIONS:
        return 0
    return 1 if version >= _FLEXIBLE_FROM.get(api_key, 0) else 0


def response_header_bytes(api_key: int, version: int) -> int:
    """Return the length of a response's header without tagged fields in it."""
    return 4 if response_header_version(api_key, version) == 0 else 5


def must_rewrite(api_key: int, version: int) -> bool:
    """Return whether the response has to be collected and edited (`headrace.proxy.wire.endpoints`,
    `headrace.proxy.wire.api_versions`).

    This is false for Fetch, whose leader hints are hidden while it is forwarded.
    """
    first = _REWRITTEN_FROM.get(api_key)
    return first is not None and version >= first


def back_off_from(api_key: int) -> int:
    """Return the first version for which Java's client obeys throttle_time_ms; above any version if there is none."""
    return _BACK_OFF_FROM.get(api_key, _NEVER)


def throttle_offset(api_key: int, version: int) -> int | None:
    """Return the offset in bytes of throttle_time_ms (INT32) in the response's body, or ``None`` if it varies.

    Also returns ``None`` if the version has no such field, or is above the highest known, whose layout may differ.
    """
    found = _THROTTLE.get(api_key)
    if found is None or version < found[0] or version > APIS[api_key].max_version:
        return None
    return found[1]
