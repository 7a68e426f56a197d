"""Whether quotas are enforced, and which users and client ids are exempt.

The switch lets an operator end the effect of a wrong quota at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from headrace.quota_callbacks.entities import bounded_name

if TYPE_CHECKING:
    from collections.abc import Iterable

log = structlog.get_logger("headrace.enforcement")


class Enforcement:
    """The switch and the exemptions: read for every request, changed by the admin server and on reload."""

    __slots__ = ("enabled", "exempt_client_ids", "exempt_users")

    def __init__(
        self, *, enabled: bool = True, exempt_users: Iterable[str] = (), exempt_client_ids: Iterable[str] = ()
    ) -> None:
        self.enabled = enabled
        self.exempt(exempt_users, exempt_client_ids)

    def exempt(self, users: Iterable[str], client_ids: Iterable[str]) -> None:
        """Exempt these users and client ids from all quotas, and no others."""
        self.exempt_users = frozenset(map(bounded_name, users))
        self.exempt_client_ids = frozenset(map(bounded_name, client_ids))

    def switch(self, *, enabled: bool, by: str) -> None:
        """Turn enforcement on or off, and log ``by``, the origin of the change. The caller unmutes clients."""
        if enabled != self.enabled:
            log.warning("enforcement switched", enabled=enabled, by=by)
        self.enabled = enabled

    def applies(self, user: str, client_id: str) -> bool:
        """Return whether quotas apply to requests of ``user`` and ``client_id``."""
        return self.enabled and user not in self.exempt_users and client_id not in self.exempt_client_ids
