"""The ways to process the reply to a request, as one sum type, `ReplyAction`, and reply layouts by API and version.

An `Exchange` starts with the default action of its layout. The code that handles the request replaces the action if
its reply needs another. The reply relay decides by the type of the action alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.proxy.wire.apis import APIS, must_rewrite, response_header_version, throttle_offset
from headrace.proxy.wire.walks.fetch import FIRST_VERSION_WITH_HINTS
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.wire.messages.stepwise import Steps

    Watcher = Callable[[memoryview], None]
    Merge = Callable[[bytes, int], Steps[bytes]]


class Forward:
    """Forward the reply without collecting it; only a throttle time at a fixed offset is set."""

    __slots__ = ()


class WalkFetch:
    """Forward a Fetch reply without collecting it, and hide the leader hints behind its records (KIP-951)."""

    __slots__ = ("by_topic",)

    def __init__(self, *, by_topic: bool = False) -> None:
        self.by_topic = by_topic
        """Whether the bytes of the records are summed by topic, and ``records_fetched`` is called."""


class Rewrite:
    """Collect the reply and edit it: addresses of brokers, the list of APIs, a throttle time at a variable offset."""

    __slots__ = ("merge",)

    def __init__(self, merge: Merge | None = None) -> None:
        self.merge = merge
        """Returns the body with the refused topics, in steps, given the edited body and the throttle time in
        milliseconds."""


class Settle:
    """Collect the reply, call quota callbacks with what it contains, and edit it as `Rewrite` does.

    The content is the broker's error codes, by which callbacks return or keep a charge, or the records of a ShareFetch.
    """

    __slots__ = ("merge",)

    def __init__(self, merge: Merge | None = None) -> None:
        self.merge = merge


class Observe:
    """Collect the reply, call ``watch`` with its body, and forward it unchanged."""

    __slots__ = ("watch",)

    def __init__(self, watch: Watcher) -> None:
        self.watch = watch


class PassToken:
    """Forward a frame without a header, which answers a SASL token after SaslHandshake v0."""

    __slots__ = ("watch",)

    def __init__(self, watch: Watcher | None) -> None:
        self.watch = watch
        """Called with the content of the frame; ``None`` if the authentication is not observed."""


class AnswerLocally:
    """Send the frame that ``make`` returns, after the replies to earlier requests; nothing is sent to the broker."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], bytes]) -> None:
        self.make = make


class KeepForProxy:
    """Call ``take`` with the body and send nothing to the client: the proxy itself sent the request."""

    __slots__ = ("take",)

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self.take = take


ReplyAction: TypeAlias = Forward | WalkFetch | Rewrite | Settle | Observe | PassToken | AnswerLocally | KeepForProxy

FORWARD: Final = Forward()
WALK_FETCH: Final = WalkFetch()
WALK_TOPICS: Final = WalkFetch(by_topic=True)
REWRITE: Final = Rewrite()
SETTLE: Final = Settle()
UNWATCHED_TOKEN: Final = PassToken(None)


class ReplyLayout:
    """The layout of the replies of one API and version, and the default action for them."""

    __slots__ = ("action", "flexible", "throttle_at")

    def __init__(self, action: ReplyAction, throttle_at: int | None, *, flexible: bool) -> None:
        self.action = action
        self.throttle_at = throttle_at
        """Offset of ``throttle_time_ms`` in the body, in bytes; ``None`` if it is variable or there is none."""
        self.flexible = flexible
        """Whether the response header has tagged fields."""


TOKEN_LAYOUT: Final = ReplyLayout(UNWATCHED_TOKEN, None, flexible=False)

_layouts: dict[tuple[int, int], ReplyLayout] = {}


def reply_layout(api_key: int, api_version: int) -> ReplyLayout:
    """Return the layout for ``api_key`` at ``api_version``.

    Layouts are cached for the versions in the API table, so the cache is never larger than that table.
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
    if must_rewrite(api_key, api_version) or _has_variable_throttle_offset(api_key, api_version):
        return REWRITE
    return FORWARD


def _has_variable_throttle_offset(api_key: int, api_version: int) -> bool:
    """Return whether ``throttle_time_ms`` follows fields of variable length, so that the reply must be collected."""
    api = APIS[api_key]
    return (
        api.throttle_from is not None
        and api.throttle_from <= api_version <= api.max_version
        and throttle_offset(api_key, api_version) is None
    )
