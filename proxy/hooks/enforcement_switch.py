"""Whether quotas are enforced now, and for whom: the switch for the night when a quota was wrong, and the exempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterable

log = structlog.get_logger("headrace.enforcement")


class Enforcement:
    """Read for every request; changed by the admin server and on reload."""

    __slots__ = ("enabled", "exempt_client_ids", "exempt_users")

    def __init__(
        self, *, enabled: bool = True, exempt_users: Iterable[str] = (), exempt_client_ids: Iterable[str] = ()
    ) -> None:
        self.enabled = enabled
        self.exempt_users = frozenset(exempt_users)
        self.exempt_client_ids = frozenset(exempt_client_ids)

    def switch(self, *, enabled: bool, by: str) -> None:
        """Turn enforcement on or off. The server then ends the mutes that have begun."""
        if enabled != self.enabled:
            log.warning("enforcement switched", enabled=enabled, by=by)
        self.enabled = enabled

    def applies(self, user: str, client_id: str) -> bool:
        """Whether a request of ``user`` and ``client_id`` is held to quotas."""
        return self.enabled and user not in self.exempt_users and client_id not in self.exempt_client_ids
