"""The table of buckets: which exist, how many there may be, and which are dropped.

Clients choose their client ids, and each client id can have a bucket, so two maxima bound the table: `MAX_BUCKETS` for
all buckets, and `MAX_OWNED` for the buckets of the client ids of one user at one address. At a maximum, `ClientQuotas`
charges the client ids that have no bucket to one bucket that they share. To make room, `BucketTable.sweep` drops only
buckets for which a new bucket would make the same decisions (`QuotaBucket.forgotten`). So no client can end a throttle
by filling the table, and a client that reaches its own maximum shares a bucket only with itself. Pure: time is an
argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.buckets.quota_bucket import NEVER_USED
from headrace.quota_callbacks.client_addresses import counted_address

if TYPE_CHECKING:
    from collections.abc import Generator

    from headrace.quota_callbacks.buckets.quota_bucket import Owner, QuotaBucket, Tags
    from headrace.quota_callbacks.requests import Connection

MAX_BUCKETS: Final = 200_000
"""Maximum number of buckets, of 1.1 KiB each with a client id of the greatest length."""

MAX_OWNED: Final = 20_000
"""Maximum number of buckets for the client ids that one user has sent from one address: about 22 MiB. Behind a load
balancer that hides the addresses, it is enough for 5,000 client ids in a few minutes, with four quota keys each."""

IDLE_EXPIRY_MS: Final = 3_600_000
"""``ClientQuotaManager.InactiveSensorExpirationTimeSeconds``."""

STEP: Final = 32
"""Buckets that `BucketTable.sweep` looks at between two points where other tasks may run: less than 0.1 ms."""

BucketName = tuple[str, "Tags"]


class BucketTable:
    """The buckets by name, and the number of them by owner."""

    __slots__ = ("_buckets", "_max_buckets", "_max_owned", "_owned", "evicted")

    def __init__(self, max_buckets: int = MAX_BUCKETS, max_owned: int = MAX_OWNED) -> None:
        self._buckets: dict[BucketName, QuotaBucket] = {}
        self._owned: dict[Owner, int] = {}
        self._max_buckets = max_buckets
        self._max_owned = max_owned
        self.evicted = 0
        """Number of buckets that were dropped earlier than after `IDLE_EXPIRY_MS`, since there were many."""

    def get(self, name: BucketName) -> QuotaBucket | None:
        """Return the bucket with a name; ``None`` if it does not exist."""
        return self._buckets.get(name)

    def add(self, bucket: QuotaBucket) -> None:
        """Add a bucket, whether there is room for it or not."""
        self._buckets[bucket.name] = bucket
        if bucket.owner is not None:
            self._owned[bucket.owner] = self._owned.get(bucket.owner, 0) + 1

    @property
    def is_full(self) -> bool:
        """Whether no further bucket should be added."""
        return len(self._buckets) >= self._max_buckets

    def owns_too_many(self, owner: Owner | None) -> bool:
        """Return whether an owner has `MAX_OWNED` buckets."""
        return owner is not None and self._owned.get(owner, 0) >= self._max_owned

    def sweep(self, now_ms: int) -> Generator[None, None, int]:
        """Drop buckets; return their number. Yield where other tasks may run; only one sweep may run at a time.

        A bucket is dropped after `IDLE_EXPIRY_MS` without use, as by a broker, unless it has to be kept for longer
        (`QuotaBucket.outlasts_idling`). While the table is more than half full, or the bucket's owner has more than
        half of the buckets that it may have, a bucket is dropped at once if a new one would make the same decisions.
        A bucket that other threads may charge is kept.
        """
        dropped = 0
        for at, bucket in enumerate(list(self._buckets.values())):
            if at % STEP == 0:
                yield
            if bucket.meter is not None:
                continue
            if bucket.last_used_ms == NEVER_USED:
                bucket.last_used_ms = now_ms
                continue
            idle = now_ms - bucket.last_used_ms > max(IDLE_EXPIRY_MS, bucket.window.seconds * 1000)
            expired = idle and not bucket.outlasts_idling(now_ms)
            if expired or (self._is_crowded(bucket.owner) and bucket.forgotten(now_ms)):
                self._drop(bucket)
                dropped += 1
                self.evicted += not expired
        return dropped

    def _is_crowded(self, owner: Owner | None) -> bool:
        if 2 * len(self._buckets) > self._max_buckets:
            return True
        return owner is not None and 2 * self._owned[owner] > self._max_owned

    def _drop(self, bucket: QuotaBucket) -> None:
        del self._buckets[bucket.name]
        owner = bucket.owner
        if owner is not None:
            self._owned[owner] -= 1
            if not self._owned[owner]:
                del self._owned[owner]
        bucket.dropped = True

    def buckets(self) -> list[QuotaBucket]:
        """Return all buckets."""
        return list(self._buckets.values())

    def __len__(self) -> int:
        return len(self._buckets)


def owner_of(connection: Connection, chosen: str, tags: Tags) -> Owner | None:
    """Return the user and address whose maximum includes a bucket with ``tags``; an IPv6 address counts as its /64.

    ``chosen`` is a name that the client has chosen, such as its client id. Return ``None`` if the tags do not contain
    it, or if it is empty or the user's own name: a user has at most one such bucket of each kind, and it may be the
    bucket of the user itself.
    """
    if not chosen or chosen == connection.user or all(value != chosen for _, value in tags):
        return None
    return connection.user, counted_address(connection.peer.host)
