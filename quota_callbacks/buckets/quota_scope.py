"""The buckets of an entity type of a plugin, which are charged beside those of users and client ids.

The proxy creates a `QuotaScope` for each entity type that has ``metric_tags``
(`headrace.quota_callbacks.definitions.EntityTypeDefinition`), and gives it to the callbacks that enforce its keys (the
hook `scoped_callback`). The buckets are in the same table as all others (`ClientQuotas`), so a restart keeps them, and
metrics show them. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.buckets.client_quotas import BucketSource, BucketT
from headrace.quota_callbacks.buckets.waiting import NEVER

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

    def __init__(self, entity_type: str, keys: frozenset[str], quotas: ClientQuotas, metric_tags: MetricTags) -> None:
        self.entity_type = entity_type
        self.keys = keys
        """The quota keys that entities of this type can have."""
        self._quotas = quotas
        self._metric_tags = metric_tags

    def slot(self, key: str) -> object:
        """Return the quota key with the entity type."""
        return self.entity_type, key

    def bucket_for(self, request: Request, key: str, kind: type[BucketT]) -> BucketT | None:
        """Return the bucket that ``request`` is charged to in this scope; ``None`` if the quota does not apply.

        Cached as by `ClientQuotas.bucket_for`.
        """
        connection, quotas, slot = request.connection, self._quotas, self.slot(key)
        generation, user, client_id, bucket, _ = connection.cache.get(slot, _NOT_RESOLVED)
        if generation == quotas.generation and client_id == request.client_id and user == connection.user:
            resolved: BucketT | None = bucket
            if resolved is None:
                return None
            if not resolved.dropped:
                if resolved.meter is not None:
                    resolved.meter.withdraw()
                return resolved
        tags = self._metric_tags(key, connection.user, request.client_id) if key in self.keys else None
        return quotas.resolved(request, slot, key, kind, tags)
