"""The base class of the built-in quota callbacks, which charge requests to the buckets of `ClientQuotas`.

Knows nothing of APIs and amounts; the subclasses implement the request hooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from headrace.quota_callbacks.buckets.client_quotas import WAITS
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
    from headrace.quota_callbacks.entities import QuotaKey
    from headrace.quota_callbacks.requests import Request
    from headrace.quota_callbacks.verdicts import Throttle


class BucketCallback:
    """A callback that enforces the quota keys ``keys``."""

    headrace_hooks: ClassVar[int] = HOOK_VERSION
    keys: ClassVar[frozenset[QuotaKey]]

    def __init__(self) -> None:
        self._quotas: ClientQuotas

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Keep the buckets, and read the options."""
        self._quotas = context.quotas
        self._read_options(context)

    @hookimpl
    def enforced_quotas(self) -> frozenset[QuotaKey]:
        """Return ``keys``."""
        return self.keys

    @hookimpl
    def request_abandoned(self, request: Request, now_ms: int) -> Throttle | None:
        """Undo what was charged or reserved for ``request``, or, if it waits and was not charged, end its wait."""
        notes = request.notes
        bucket = next((notes.pop((WAITS, key)) for key in self.keys if (WAITS, key) in notes), None) if notes else None
        if bucket is None:
            return self._undo(request, now_ms)
        bucket.leave(request)
        return None

    def _undo(self, request: Request, now_ms: int) -> Throttle | None:  # noqa: ARG002 -- for subclasses
        """Give back what was charged or reserved for a request without a reply; return the throttle for what remains
        charged."""
        return None

    def _read_options(self, context: PluginContext) -> None:
        """Read the options of the subclass, if it has any. Raises `ValueError` for invalid ones."""
