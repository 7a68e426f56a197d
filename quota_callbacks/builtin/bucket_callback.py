"""The base class of the built-in quota callbacks, which charge requests to the buckets of a `BucketSource`.

That is `ClientQuotas`, the buckets of users and client ids. A plugin may have callbacks of its own that charge the
buckets of its entity type (`BucketCallback.charge_to`). Knows nothing of APIs and amounts; the subclasses implement the
request hooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.client_quotas import BucketSource
    from headrace.quota_callbacks.entities import QuotaKey
    from headrace.quota_callbacks.requests import Request
    from headrace.quota_callbacks.verdicts import Throttle


class BucketCallback:
    """A callback that enforces the quota keys ``keys``."""

    headrace_hooks: ClassVar[int] = HOOK_VERSION
    keys: ClassVar[frozenset[QuotaKey]]

    def __init__(self) -> None:
        self._quotas: BucketSource
        self._slots: tuple[object, ...] = ()

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Keep the buckets, and read the options."""
        self.charge_to(context.quotas)
        self._read_options(context)

    def charge_to(self, quotas: BucketSource) -> None:
        """Charge the buckets of ``quotas``. Called by `configure`, or instead of it by a plugin that has this callback
        as a part."""
        self._quotas = quotas
        self._slots = tuple(quotas.slot(key) for key in self.keys)

    @hookimpl
    def enforced_quotas(self) -> frozenset[QuotaKey]:
        """Return ``keys``."""
        return self.keys

    @hookimpl
    def request_abandoned(self, request: Request, now_ms: int) -> Throttle | None:
        """Undo what was charged or reserved for ``request``, or, if it waits and was not charged, end its wait."""
        if not request.notes or not any(self._quotas.leave(request, slot) for slot in self._slots):
            return self._undo(request, now_ms)
        return None

    def _undo(self, request: Request, now_ms: int) -> Throttle | None:  # noqa: ARG002 -- for subclasses
        """Give back what was charged or reserved for a request without a reply; return the throttle for what remains
        charged."""
        return None

    def _read_options(self, context: PluginContext) -> None:
        """Read the options of the subclass, if it has any. Raises `ValueError` for invalid ones."""
