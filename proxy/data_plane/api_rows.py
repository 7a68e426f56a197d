"""The table of APIs that are relayed natively, in the form that the extension module takes."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

from headrace.proxy.wire.apis import (
    APIS,
    must_rewrite,
    request_header_version,
    response_header_version,
    throttle_offset,
)
from headrace.proxy.wire.walks.fetch import FIRST_VERSION_WITH_HINTS
from headrace.proxy.wire.walks.produce import LAST_VERSION as LAST_PRODUCE
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

ApiRow: TypeAlias = tuple[int, int, int, int, bool, int, float, float]
"""API key, version, kind, version of the request's header, whether the reply's header is flexible, offset of the
throttle time (-1 without one), and the costs: milliseconds of a request, and of each KiB."""


class Kind(IntEnum):
    """How the data plane processes an API."""

    PLAIN = 0
    PRODUCE = 1
    FETCH = 2
    FETCH_WITH_HINTS = 3


def api_rows(read: Collection[int], costs: Callable[[int], tuple[float, float]]) -> Iterator[ApiRow]:
    """Yield the rows of the APIs and versions that are relayed natively.

    ``read`` are the APIs whose requests the control plane has to see. ``costs`` returns the milliseconds of a request
    of an API, and of each KiB.
    """
    for api_key, api in APIS.items():
        if api_key in read:
            continue
        for version in range(api.min_version, api.max_version + 1):
            kind = _kind(api_key, version)
            if kind is None or request_header_version(api_key, version) == 0:
                continue
            offset = throttle_offset(api_key, version)
            yield (
                api_key,
                version,
                kind.value,
                request_header_version(api_key, version),
                response_header_version(api_key, version) > 0,
                -1 if offset is None or kind is Kind.PRODUCE else offset,
                *costs(api_key),
            )


def _kind(api_key: int, version: int) -> Kind | None:
    if api_key == ApiKey.PRODUCE:
        return Kind.PRODUCE if version <= LAST_PRODUCE else None
    if api_key == ApiKey.FETCH:
        return Kind.FETCH_WITH_HINTS if version >= FIRST_VERSION_WITH_HINTS else Kind.FETCH
    api = APIS[api_key]
    has_throttle = api.throttle_from is not None and version >= api.throttle_from
    if must_rewrite(api_key, version) or (has_throttle and throttle_offset(api_key, version) is None):
        return None
    return Kind.PLAIN
