"""What is done with the reply to a request of a given API and version: one small table, filled as versions turn up."""

from __future__ import annotations

from enum import Enum
from typing import Final

from proxy.wire.apis import APIS, must_rewrite, response_header_version, throttle_offset
from proxy.wire.fetch_walk import FIRST_VERSION_WITH_HINTS
from quota_callbacks.api_keys import ApiKey


class ReplyKind(Enum):
    """How a reply passes."""

    PASS = "pass"  # noqa: S105
    """As it is, but for a throttle time at a fixed place."""
    COLLECT = "collect"
    """Read whole and edited."""
    WALK = "walk"
    """A Fetch that may carry leader hints behind its records."""
    TOKEN = "token"  # noqa: S105
    """A SASL token without a header, after SaslHandshake v0."""


class ReplyPlan:
    """How the replies of one API and version are treated."""

    __slots__ = ("api_key", "api_version", "flexible", "kind", "throttle_at")

    def __init__(self, kind: ReplyKind, api_key: int, api_version: int, throttle_at: int | None) -> None:
        self.kind = kind
        self.api_key = api_key
        self.api_version = api_version
        self.flexible = kind is not ReplyKind.TOKEN and response_header_version(api_key, api_version) > 0
        """Whether the header has tagged fields."""
        self.throttle_at = throttle_at
        """Where ``throttle_time_ms`` lies, from the body's first byte; ``None`` when it has no fixed place or none."""


TOKEN_PLAN: Final = ReplyPlan(ReplyKind.TOKEN, -1, 0, None)

_plans: dict[tuple[int, int], ReplyPlan] = {}


def reply_plan(api_key: int, api_version: int) -> ReplyPlan:
    """The plan for ``api_key`` at ``api_version``; the table is as large as the API table at most, for versions it
    knows."""
    plan = _plans.get((api_key, api_version))
    if plan is None:
        plan = ReplyPlan(_kind(api_key, api_version), api_key, api_version, throttle_offset(api_key, api_version))
        if APIS[api_key].knows(api_version):
            _plans[api_key, api_version] = plan
    return plan


def _kind(api_key: int, api_version: int) -> ReplyKind:
    if api_key == ApiKey.FETCH and api_version >= FIRST_VERSION_WITH_HINTS:
        return ReplyKind.WALK
    if must_rewrite(api_key, api_version) or _throttle_floats(api_key, api_version):
        return ReplyKind.COLLECT
    return ReplyKind.PASS


def _throttle_floats(api_key: int, api_version: int) -> bool:
    """Whether the reply has a throttle time behind fields of varying length, so that it must be read to set it."""
    api = APIS[api_key]
    return (
        api.throttle_from is not None
        and api.throttle_from <= api_version <= api.max_version
        and throttle_offset(api_key, api_version) is None
    )
