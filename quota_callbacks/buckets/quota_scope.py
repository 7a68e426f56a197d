"""The buckets of an entity type of a plugin, which are charged beside those of users and client ids.

A plugin creates a `QuotaScope` in `configure` and gives it to the built-in callbacks that it uses
(`headrace.quota_callbacks.builtin.bucket_callback.BucketCallback.charge_to`). The buckets are in the same table as all
others (`ClientQuotas`), so workers share them, a restart keeps them, and metrics show them. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.buckets.client_quotas import BucketSource, BucketT
from headrace.quota_callbacks.buckets.waiting import NEVER
from headrace.quota_callbacks.entities import quota_key

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas, MetricTags
    from headrace.quota_callbacks.requests import Request

_NOT_RESOLVED: Final = (-1, "", "", None, NEVER)


class QuotaScope(BucketSource):
    """The buckets of one entity type of a plugin.

    ``metric_tags`` returns the tags of the bucket for a quota key, user and client id, or ``None`` if the quota does
    not apply to them. It is called as the hook `quota_metric_tags` is: when a connection first needs a bucket, and
    after quotas changed. The tags must not be those of other buckets, so they contain the entity type. The limit is
    that of the hook `quota_limit` for these tags.
    """

    def __init__(self, entity_type: str, quotas: ClientQuotas, metric_tags: MetricTags) -> None:
        self._entity_type = entity_type
        self._quotas = quotas
        self._metric_tags = metric_tags

    def slot(self, key: str) -> object:
        """Return the quota key with the entity type."""
        return self._entity_type, key

    def bucket_for(self, request: Request, key: str, kind: type[BucketT]) -> BucketT | None:
        """Return the bucket that ``request`` is charged to in this scope; ``None`` if the quota does not apply.

        Cached as by `ClientQuotas.bucket_for`.
        """
        connection, quotas, slot = request.connection, self._quotas, self.slot(key)
        generation, user, client_id, bucket, first_used_ms = connection.cache.get(slot, _NOT_RESOLVED)
        if generation == quotas.generation and client_id == request.client_id and user == connection.user:
            resolved: BucketT | None = bucket
            if resolved is None or not resolved.dropped:
                return resolved
        user, client_id = connection.user, request.client_id
        tags = self._metric_tags(key, user, client_id)
        found = None if tags is None else quotas.named((quota_key(key), tuple(tags.items())))
        if found is not None and not isinstance(found, kind):
            raise TypeError(f"{key} is measured by a {type(found).__name__}, not by a {kind.__name__}")
        received_ms = int(request.received_s * 1000)
        if found is None or found is not bucket:
            first_used_ms = received_ms
        connection.cache[slot] = (quotas.generation, user, client_id, found, first_used_ms)
        if found is not None:
            found.learn_wait(received_ms)
        return found
