"""The APIs and versions that the proxy offers to clients: the broker's, restricted to what the proxy supports.

The broker's ApiVersions response is rewritten with `throttled_api_versions`; `unsupported_version_reply` is the proxy's
own response to an ApiVersions request of an unknown version. All other fields of the broker's response are copied byte
for byte: features, cluster and node ids, tagged fields. Called by `headrace.proxy.connection`.

Source: KIP-511 (the fallback to version 0), KAFKA-18659 (Produce's minimum), ``ApiVersionsResponse.json``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.proxy.wire.apis import APIS
from headrace.proxy.wire.errors import MalformedMessage
from headrace.proxy.wire.messages.codec import encode
from headrace.proxy.wire.messages.editing import DROP, edit
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.wire.messages.codec import Buffer, Message
    from headrace.proxy.wire.messages.editing import Drop, Edit

UNSUPPORTED_VERSION: Final = ErrorCode.UNSUPPORTED_VERSION.value
"""A plain integer, since the codes of replies are compared with it."""

MAX_REMEMBERED: Final = 64
"""Responses that are remembered with what they are rewritten to: those of some brokers, in each version."""
MAX_REMEMBERED_BYTES: Final = 16 * 1024
"""Size of the longest response that is remembered; a broker's have less than 1 KiB."""

_ERROR: Final = Struct(">h")
_FRAME: Final = Struct(">ii")


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedApi:
    """An API in an ApiVersions response."""

    api_key: int
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestrictedVersions:
    """A broker's ApiVersions response, restricted to the APIs and versions that the proxy supports."""

    body: bytes
    error_code: int
    offered: tuple[OfferedApi, ...]
    """The APIs that the broker offers."""
    cut: tuple[int, ...]
    """Keys of the APIs that were removed."""
    layout_version: int
    """The version whose layout the body has: 0 if the broker does not support the version of the request (KIP-511)."""
    throttle_time_ms: int | None
    """The broker's throttle time; ``None`` if the layout has none."""


def layout_version(version: int, body: Buffer) -> int:
    """Return the version whose layout a response to a request of ``version`` has.

    This is 0 for an UNSUPPORTED_VERSION response, otherwise ``version``. Raises `MalformedMessage` for a body shorter
    than its error code.
    """
    if len(body) < _ERROR.size:
        reason = f"{len(body)} bytes are too short for an error code"
        raise MalformedMessage(
            message="ApiVersionsResponse", version=version, field="error_code", offset=0, reason=reason
        )
    error_code: int = _ERROR.unpack_from(body)[0]
    return 0 if error_code == UNSUPPORTED_VERSION else version


def restrict_api_versions(
    version: int, body: Buffer, throttle_time_ms: int | None = None, *, known_only: bool = False
) -> RestrictedVersions:
    """Restrict a broker's ApiVersions response to the APIs and versions that the proxy supports.

    An unknown API is removed. An API that the proxy reads or rewrites (`Api.must_know`) is limited to the highest
    version for which there is a schema, and removed if its minimum is above that. All others keep the broker's range;
    no minimum is raised. With ``known_only``, all APIs are limited in this way. If ``throttle_time_ms`` is given, the
    field is set where the layout has it.

    Raises `UnknownMessage` for a version without a schema, and `MalformedMessage` for a body that violates it.
    """
    layout = layout_version(version, body)
    offered: list[OfferedApi] = []
    cut: list[int] = []
    codes: list[int] = []
    throttles: list[int] = []

    def restrict(row: Message) -> Message | Drop:
        key, low, high = row["api_key"], row["min_version"], row["max_version"]
        offered.append(OfferedApi(api_key=key, min_version=low, max_version=high))
        allowed = highest_allowed(key, low, high, known_only=known_only)
        if allowed is None:
            cut.append(key)
            return DROP
        return row if allowed == high else {**row, "max_version": allowed}

    def note(error_code: int) -> int:
        codes.append(error_code)
        return error_code

    def throttle(broker_ms: int) -> int:
        throttles.append(broker_ms)
        return broker_ms if throttle_time_ms is None else throttle_time_ms

    edits: dict[str, Edit] = {"error_code": note, "api_keys": restrict, "throttle_time_ms": throttle}
    edited = edit("ApiVersionsResponse", layout, body, edits)
    return RestrictedVersions(
        body=edited,
        error_code=codes[0],
        offered=tuple(offered),
        cut=tuple(cut),
        layout_version=layout,
        throttle_time_ms=throttles[0] if throttles else None,
    )


def throttled_api_versions(
    version: int, body: Buffer, throttle: Callable[[int], int], *, known_only: bool = False
) -> bytes:
    """Restrict a broker's ApiVersions response, and replace its throttle time by what ``throttle`` returns for it.

    A broker's responses are nearly always the same, and rewriting one takes 0.2 ms, so the latest are remembered.
    Otherwise clients that only ask for versions could keep the proxy busy. Raises as `restrict_api_versions`.
    """
    restrict = _remembered if len(body) <= MAX_REMEMBERED_BYTES else restrict_api_versions
    restricted = restrict(version, bytes(body), known_only=known_only)
    broker_ms = restricted.throttle_time_ms
    if broker_ms is None or (throttle_ms := throttle(broker_ms)) == broker_ms:
        return restricted.body
    edits: dict[str, Edit] = {"throttle_time_ms": lambda _broker_ms: throttle_ms}
    return edit("ApiVersionsResponse", restricted.layout_version, restricted.body, edits)


@lru_cache(maxsize=MAX_REMEMBERED)
def _remembered(version: int, body: bytes, *, known_only: bool) -> RestrictedVersions:
    return restrict_api_versions(version, body, known_only=known_only)


def highest_allowed(api_key: int, min_version: int, max_version: int, *, known_only: bool = False) -> int | None:
    """Return the highest version of a broker's range to offer to clients, or ``None`` to remove the API.

    ``known_only`` is whether there must be a schema for it, which is otherwise required for some APIs only.
    """
    api = APIS.get(api_key)
    if api is None:
        return None
    if not api.must_know and not known_only:
        return max_version
    return min(max_version, api.max_version) if min_version <= api.max_version else None


def unsupported_version_reply(correlation_id: int) -> bytes:
    """Return the frame that answers an ApiVersions request of a version that is too new, in the layout of version 0.

    Like a broker's, it contains only ApiVersions, so that the client sends the request again in a version that both
    support. Source: ``ApiVersionsRequest.getErrorResponse``.
    """
    api = APIS[ApiKey.API_VERSIONS]
    row = {"api_key": api.key, "min_version": api.min_version, "max_version": api.max_version}
    body = encode("ApiVersionsResponse", 0, {"error_code": UNSUPPORTED_VERSION, "api_keys": [row]})
    return _FRAME.pack(4 + len(body), correlation_id) + body
