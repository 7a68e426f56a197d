"""Plugins that raise in every hook, each time another class, or hold the event loop. Loaded by the proxies of
`test_hostile_plugins`."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, Final

from headrace.quota_callbacks import hookspecs
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.quota_callbacks.hookspecs import Metric


class RaisedByPluginError(BaseException):
    """No `Exception`, as some cancellations and ends of programs."""


KINDS: Final = (
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    RaisedByPluginError("of a stranger"),
    BaseExceptionGroup("several", [SystemExit(4)]),
)
AT_START: Final = (
    *("authorizes_requests", "configure", "enforced_quotas", "quota_definitions", "request_interest"),
    "request_sample_ratio",
)
"""What these raise ends the start."""
REFUSING: Final = ("authorize_requests", "rewrite_user")
"""What these raise refuses the client."""
HOOKS: Final = tuple(
    name
    for name, hook in vars(hookspecs).items()
    if hasattr(hook, "headrace_spec") and name not in (*AT_START, *REFUSING, "prepare_metrics", "collect_metrics")
)
BLOCKED_S: Final = 0.15
"""Longer than ``plugins.slow_call`` is by default, and than one of the bounds of the metric of the loop's lag."""
_next = itertools.cycle(KINDS)


def _raise(_self: object) -> Any:
    raise next(_next)


class _Observer:
    def exchanged(self, client_token: bytes, broker_token: bytes) -> None:
        raise next(_next)

    def served(self) -> None:
        raise next(_next)

    @property
    def principal(self) -> str | None:
        raise next(_next)

    def claimed_user(self, client_token: bytes) -> str | None:
        raise next(_next)


class _Hostile:
    headrace_hooks = HOOK_VERSION

    @hookimpl
    async def prepare_metrics(self) -> None:
        raise next(_next)

    @hookimpl
    def collect_metrics(self) -> Iterator[Metric]:
        """Raise not in the call, but once the proxy iterates over the answer."""
        yield from ()
        raise next(_next)


hostile = type("Hostile", (_Hostile,), {name: hookimpl(lambda self: _raise(self)) for name in HOOKS})()


class Watching:
    """Its observer raises whatever it is called for."""

    headrace_hooks = HOOK_VERSION

    @hookimpl
    def authentication_started(self) -> _Observer:
        return _Observer()


class Blocking:
    """Holds the event loop whenever a quota changes."""

    headrace_hooks = HOOK_VERSION

    @hookimpl
    def update_quota(self) -> None:
        time.sleep(BLOCKED_S)
