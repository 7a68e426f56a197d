"""The number of open client connections, in total, by address and by user, for ``limits.max_connections``,
``limits.max_connections_per_ip`` and ``limits.max_connections_per_user``. Called by `admission`.
"""

from __future__ import annotations

from collections import Counter


class ConnectionCounts:
    """The number of open connections."""

    __slots__ = ("_by_host", "_by_user", "_open")

    def __init__(self) -> None:
        self._open = 0
        self._by_host: Counter[str] = Counter()
        self._by_user: Counter[str] = Counter()

    def add(self, host: str) -> None:
        """Count one more connection from ``host``."""
        self._open += 1
        self._by_host[host] += 1

    def remove(self, host: str) -> None:
        """Count one connection less from ``host``."""
        self._open -= 1
        _remove(self._by_host, host)

    def add_user(self, user: str) -> None:
        """Count one more connection of ``user``."""
        self._by_user[user] += 1

    def remove_user(self, user: str) -> None:
        """Count one connection less of ``user``."""
        _remove(self._by_user, user)

    def of_user(self, user: str) -> int:
        """Return the number of open connections of ``user``."""
        return self._by_user[user]

    def limit_reached(self, host: str, *, most: int, most_from_host: int) -> str | None:
        """Return the name of the limit that one more connection from ``host`` would exceed, or ``None``.

        ``most`` is ``limits.max_connections``, ``most_from_host`` is ``limits.max_connections_per_ip`` (0: no limit).
        """
        if self._open >= most:
            return "max_connections"
        if most_from_host and self._by_host[host] >= most_from_host:
            return "max_connections_per_ip"
        return None


def _remove(counts: Counter[str], name: str) -> None:
    """Reduce one of the counts by one; one that becomes 0 is removed."""
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
