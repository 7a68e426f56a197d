"""The base class of the built-in quota callbacks, which charge requests to the buckets of a `BucketSource`.

That is `ClientQuotas`, the buckets of users and client ids. For an entity type of a plugin there is a further callback
of the same class, which charges the buckets of that type (`BucketCallback.scoped_callback`). Knows nothing of APIs and
amounts; the subclasses implement the request hooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.client_quotas import BucketSource
    from headrace.quota_callbacks.buckets.quota_scope import QuotaScope
    from headrace.quota_callbacks.entities import QuotaKey
    from headrace.quota_callbacks.requests import Request
    from headrace.quota_callbacks.verdicts import Throttle


class BucketCallback:
    """A callback that enforces the quota keys ``keys``."""

    headrace_hooks: ClassVar[int] = HOOK_VERSION
    keys: ClassVar[frozenset[QuotaKey]]

    def __init__(self) -> None:
        self._context: PluginContext
        self._quotas: BucketSource
        self._slots: tuple[object, ...] = ()
        self._slot: object = None
        """Key under which a callback with one quota key keeps values with connections and requests."""

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Keep the buckets of users and client ids, and read the options."""
        self.charge(context.quotas, context)

    @hookimpl
    def scoped_callback(self, scope: QuotaScope) -> BucketCallback | None:
        """Return a callback of this class, with the same options, for the buckets of ``scope``; ``None`` if the
        entities of the scope can have none of ``keys``."""
        if self.keys.isdisjoint(scope.keys):
            return None
        callback = type(self)()
        callback.charge(scope, self._context)
        return callback

    def charge(self, quotas: BucketSource, context: PluginContext) -> None:
        """Charge the buckets of ``quotas``, with the options of ``context``. Raises `ValueError` for invalid ones."""
        self._context = context
        self._charge_to(quotas)
        self._read_options(context)

    def _charge_to(self, quotas: BucketSource) -> None:
        """Keep the buckets, and the keys (slots) under which their values are kept with connections and requests."""
        self._quotas = quotas
        self._slots = tuple(quotas.slot(key) for key in self.keys)
        self._slot = self._slots[0]

    @hookimpl
    def enforced_quotas(self) -> frozenset[QuotaKey]:
        """Return the quota keys that this callback enforces."""
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
