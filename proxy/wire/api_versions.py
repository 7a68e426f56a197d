"""What the proxy says of API versions: the broker's answer, cut to what the proxy can stand between.

The broker's ApiVersions response is rewritten with `restrict_api_versions`; the proxy's own answer to a request of a
version it does not know is `unsupported_version_reply`. Features, cluster and node ids, tagged fields and all else of
the broker's answer are copied byte for byte.

Source: KIP-511 (the fallback to version 0), KAFKA-18659 (Produce's minimum), ``ApiVersionsResponse.json``.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.proxy.wire.apis import APIS
from headrace.proxy.wire.errors import MalformedMessage
from headrace.proxy.wire.messages.codec import encode
from headrace.proxy.wire.messages.editing import DROP, edit
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from headrace.proxy.wire.messages.codec import Buffer, Message
    from headrace.proxy.wire.messages.editing import Drop, Edit

UNSUPPORTED_VERSION: Final = 35
"""``Errors.UNSUPPORTED_VERSION``."""

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
    """A broker's ApiVersions response, cut to what the proxy knows."""

    body: bytes
    error_code: int
    offered: tuple[OfferedApi, ...]
    """What the broker itself offers."""
    cut: tuple[int, ...]
    """The keys that were left out."""
    layout_version: int
    """The version whose layout the body has: 0 where the broker did not know the version asked for (KIP-511)."""


def layout_version(version: int, body: Buffer) -> int:
    """The version whose layout a response has: 0 for the UNSUPPORTED_VERSION reply to a newer request, else
    ``version``.

    Raises `MalformedMessage` for a body shorter than its error code.
    """
    if len(body) < _ERROR.size:
        reason = f"{len(body)} bytes hold no error code"
        raise MalformedMessage(
            message="ApiVersionsResponse", version=version, field="error_code", offset=0, reason=reason
        )
    error_code: int = _ERROR.unpack_from(body)[0]
    return 0 if error_code == UNSUPPORTED_VERSION else version


def restrict_api_versions(version: int, body: Buffer, throttle_time_ms: int | None = None) -> RestrictedVersions:
    """Cut a broker's ApiVersions response to what the proxy can stand between.

    An unknown API is cut. One that the proxy reads or rewrites (`Api.must_know`) is capped at the highest version that
    there is a schema for, and cut if its minimum lies above. All others keep the broker's range, and nobody's minimum
    is raised. Sets throttle_time_ms (milliseconds) if asked, where the layout has one.

    Raises `UnknownMessage` for a version without a schema and `MalformedMessage` for bytes that break it.
    """
    layout = layout_version(version, body)
    offered: list[OfferedApi] = []
    cut: list[int] = []
    codes: list[int] = []

    def restrict(row: Message) -> Message | Drop:
        key, low, high = row["api_key"], row["min_version"], row["max_version"]
        offered.append(OfferedApi(api_key=key, min_version=low, max_version=high))
        allowed = highest_allowed(key, low, high)
        if allowed is None:
            cut.append(key)
            return DROP
        return row if allowed == high else {**row, "max_version": allowed}

    def note(error_code: int) -> int:
        codes.append(error_code)
        return error_code

    edits: dict[str, Edit] = {"error_code": note, "api_keys": restrict}
    if throttle_time_ms is not None:
        edits["throttle_time_ms"] = lambda _old: throttle_time_ms
    edited = edit("ApiVersionsResponse", layout, body, edits)
    return RestrictedVersions(
        body=edited, error_code=codes[0], offered=tuple(offered), cut=tuple(cut), layout_version=layout
    )


def highest_allowed(api_key: int, min_version: int, max_version: int) -> int | None:
    """The highest version of a broker's range that clients may be offered, or ``None`` to leave the API out."""
    api = APIS.get(api_key)
    if api is None:
        return None
    if not api.must_know:
        return max_version
    return min(max_version, api.max_version) if min_version <= api.max_version else None


def unsupported_version_reply(correlation_id: int) -> bytes:
    """The whole frame that answers an ApiVersions request newer than the proxy knows, in the layout of version 0.

    It names ApiVersions alone, as a broker's does, so that the client asks again in a version that both know. Source:
    ``ApiVersionsRequest.getErrorResponse``.
    """
    api = APIS[ApiKey.API_VERSIONS]
    row = {"api_key": api.key, "min_version": api.min_version, "max_version": api.max_version}
    body = encode("ApiVersionsResponse", 0, {"error_code": UNSUPPORTED_VERSION, "api_keys": [row]})
    return _FRAME.pack(4 + len(body), correlation_id) + body
