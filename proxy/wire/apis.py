"""The table of Kafka's APIs: versions, header versions, where the throttle time stands, and what the proxy must know.

Everything here is a look-up by API key and version, for the hot path; the rows come from Kafka's own definitions
(`headrace.proxy.wire.api_rows`). A key is taken as a plain ``int``: `ApiKey` members are ints, and what comes off the
wire need not be one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.proxy.wire.api_rows import ROWS
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey

__all__ = [
    "APIS",
    "Api",
    "back_off_from",
    "must_rewrite",
    "request_header_version",
    "response_header_version",
    "throttle_offset",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """What is known of one API."""

    key: ApiKey
    name: str
    """As Kafka writes it: ``CreateTopics``. The messages are this name with ``Request`` and ``Response`` behind it."""
    min_version: int
    max_version: int
    """The highest version that `headrace.proxy.wire` has a schema for, unstable ones included."""
    flexible_from: int | None
    """The first version with tagged fields and compact lengths (KIP-482)."""
    throttle_from: int | None
    """The first version whose response has throttle_time_ms."""
    throttle_offset: int | None
    """Bytes from the start of the response's body to throttle_time_ms, in every version that has one.

    ``None`` where there is none or where it lies behind fields of varying length: Produce, ApiVersions,
    CreateDelegationToken, DescribeDelegationToken."""
    back_off_from: int | None
    """The first version for which Java's client (4.4) waits as throttle_time_ms says; older ones must be muted."""
    controller_only: bool
    """No broker of 4.4 serves it to clients: a controller's API, or one between the brokers of the ZooKeeper days."""
    rewrite_from: int | None
    """The first version whose response must be edited before a client may see it. `must_rewrite` looks it up."""
    must_know: bool
    """The proxy reads or edits its requests or responses: a version beyond ``max_version`` must not be negotiated."""

    def knows(self, version: int) -> bool:
        """Whether there is a schema for this version."""
        return self.min_version <= version <= self.max_version


# Where a broker's address, or the list of APIs, comes to the client. Fetch is not collected:
# `headrace.proxy.wire.walks.fetch`. Produce, Fetch: the leader hints of KIP-951.
_REWRITE_FROM: Final = {
    ApiKey.PRODUCE: 10,
    ApiKey.METADATA: 0,
    ApiKey.FIND_COORDINATOR: 0,
    ApiKey.API_VERSIONS: 0,
    ApiKey.DESCRIBE_CLUSTER: 0,
    ApiKey.SHARE_FETCH: 0,
    ApiKey.SHARE_ACKNOWLEDGE: 0,
}

# Beside those: Fetch's hints and limits; who the client is; what is refused by topic; what the proxy answers itself.
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


def _api(row: tuple[int, int, int, int | None, int | None, int | None, int | None, bool]) -> Api:
    number, low, high, flexible, throttle_from, offset, back_off, controller_only = row
    key = ApiKey(number)
    return Api(
        key=key,
        name=API_NAMES[number],
        min_version=low,
        max_version=high,
        flexible_from=flexible,
        throttle_from=throttle_from,
        throttle_offset=offset,
        back_off_from=back_off,
        controller_only=controller_only,
        rewrite_from=_REWRITE_FROM.get(key),
        must_know=key in _MUST_KNOW,
    )


APIS: Final[dict[int, Api]] = {row[0]: _api(row) for row in ROWS}
"""Every API of Kafka 3.9 and 4.4, by key."""

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
    """Which RequestHeader stands before a request: 2 with tagged fields, 1 with a client id, 0 with neither.

    A version above the highest known keeps what the highest has (a flexible API stays flexible); an unknown key is
    taken for flexible, as every API since 2.4 is. Source: ``ApiMessageType.requestHeaderVersion``.
    """
    if version >= _FLEXIBLE_FROM.get(api_key, 0):
        return 2
    return 0 if api_key == ApiKey.CONTROLLED_SHUTDOWN and version == 0 else 1


def response_header_version(api_key: int, version: int) -> int:
    """Which ResponseHeader stands before a response: 1 with tagged fields, 0 without; always 0 for ApiVersions.

    Unknown versions and keys as in `request_header_version`. Source: ``ApiMessageType.responseHeaderVersion``.
    """
    if api_key == ApiKey.API_VERSIONS:
        return 0
    return 1 if version >= _FLEXIBLE_FROM.get(api_key, 0) else 0


def must_rewrite(api_key: int, version: int) -> bool:
    """Whether the response has to be collected and edited (`headrace.proxy.wire.endpoints`,
    `headrace.proxy.wire.api_versions`).

    Fetch is not among them: its hints are made inert as it passes.
    """
    first = _REWRITTEN_FROM.get(api_key)
    return first is not None and version >= first


def back_off_from(api_key: int) -> int:
    """The first version for which Java's client obeys throttle_time_ms; above any version where it never does."""
    return _BACK_OFF_FROM.get(api_key, _NEVER)


def throttle_offset(api_key: int, version: int) -> int | None:
    """Bytes from the start of the response's body to throttle_time_ms (INT32), or ``None`` if it has no fixed place.

    ``None`` also for a version above the highest known, whose layout may differ.
    """
    found = _THROTTLE.get(api_key)
    if found is None or version < found[0] or version > APIS[api_key].max_version:
        return None
    return found[1]
