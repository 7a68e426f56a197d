"""What to do with the reply to a request: one sum type, `ReplyAction`, and the table of layouts by API and version.

An `Exchange` starts with the default action of its layout; whoever handles the request replaces it where the reply
needs something else. The reply relay matches on the type, and nothing else decides how a reply passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.proxy.wire.apis import APIS, must_rewrite, response_header_version, throttle_offset
from headrace.proxy.wire.walks.fetch import FIRST_VERSION_WITH_HINTS
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable

    Watcher = Callable[[memoryview], None]
    Merge = Callable[[bytes, int], bytes]


class Forward:
    """Pass the reply on as it comes, but for a throttle time at a fixed place."""

    __slots__ = ()


class WalkFetch:
    """Pass a Fetch reply on, and make the leader hints behind its records inert on the way (KIP-951)."""

    __slots__ = ()


class Rewrite:
    """Collect the reply and edit it: addresses of brokers, the list of APIs, a throttle time without a fixed place."""

    __slots__ = ("merge",)

    def __init__(self, merge: Merge | None = None) -> None:
        self.merge = merge
        """Given the edited body and the throttle time in milliseconds, return the body with the refused topics in
        it."""


class SettleMutations:
    """As `Rewrite`, but quotas are asked only after the broker's error codes are known: what the broker refused is
    given back first."""

    __slots__ = ("merge",)

    def __init__(self, merge: Merge | None = None) -> None:
        self.merge = merge


class Observe:
    """Collect the reply, show its body to ``watch``, and pass it on unchanged."""

    __slots__ = ("watch",)

    def __init__(self, watch: Watcher) -> None:
        self.watch = watch


class PassToken:
    """Pass on a frame without a header, which answers a SASL token after SaslHandshake v0."""

    __slots__ = ("watch",)

    def __init__(self, watch: Watcher | None) -> None:
        self.watch = watch
        """Is shown the frame; ``None`` where nobody observes the authentication."""


class AnswerLocally:
    """Send the frame that ``make`` returns once its turn has come; nothing was forwarded to the broker."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], bytes]) -> None:
        self.make = make


class KeepForProxy:
    """Hand the body to ``take`` and send nothing: the proxy itself has asked."""

    __slots__ = ("take",)

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self.take = take


ReplyAction: TypeAlias = (
    Forward | WalkFetch | Rewrite | SettleMutations | Observe | PassToken | AnswerLocally | KeepForProxy
)

FORWARD: Final = Forward()
WALK_FETCH: Final = WalkFetch()
REWRITE: Final = Rewrite()
UNWATCHED_TOKEN: Final = PassToken(None)


class ReplyLayout:
    """How the replies of one API and version are laid out, and what is done with them by default."""

    __slots__ = ("action", "flexible", "throttle_at")

    def __init__(self, action: ReplyAction, throttle_at: int | None, *, flexible: bool) -> None:
        self.action = action
        self.throttle_at = throttle_at
        """Bytes from the body's first byte to ``throttle_time_ms``; ``None`` where it has no fixed place or is not
        there."""
        self.flexible = flexible
        """Whether the header has tagged fields."""


TOKEN_LAYOUT: Final = ReplyLayout(UNWATCHED_TOKEN, None, flexible=False)

_layouts: dict[tuple[int, int], ReplyLayout] = {}


def reply_layout(api_key: int, api_version: int) -> ReplyLayout:
    """Return the layout for ``api_key`` at ``api_version``.

    Layouts are kept for the versions that the API table knows, so the cache is never larger than that table.
    """
    layout = _layouts.get((api_key, api_version))
    if layout is None:
        layout = ReplyLayout(
            _default_action(api_key, api_version),
            throttle_offset(api_key, api_version),
            flexible=response_header_version(api_key, api_version) > 0,
        )
        if APIS[api_key].knows(api_version):
            _layouts[api_key, api_version] = layout
    return layout


def _default_action(api_key: int, api_version: int) -> ReplyAction:
    if api_key == ApiKey.FETCH and api_version >= FIRST_VERSION_WITH_HINTS:
        return WALK_FETCH
    if must_rewrite(api_key, api_version) or _has_floating_throttle(api_key, api_version):
        return REWRITE
    return FORWARD


def _has_floating_throttle(api_key: int, api_version: int) -> bool:
    """Whether the throttle time stands behind fields of varying length, so that the reply must be read to set it."""
    api = APIS[api_key]
    return (
        api.throttle_from is not None
        and api.throttle_from <= api_version <= api.max_version
        and throttle_offset(api_key, api_version) is None
    )
