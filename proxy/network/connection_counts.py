"""The number of open client connections, in total, by address and by user, for ``limits.max_connections``,
``limits.max_connections_per_ip`` and ``limits.max_connections_per_user``. Called by `admission`.
"""

from __future__ import annotations


class ConnectionCounts:
    """The number of open connections."""

    __slots__ = ("_by_host", "_by_user", "_open")

    def __init__(self) -> None:
        self._open = 0
        self._by_host: dict[str, int] = {}
        self._by_user: dict[str, int] = {}

    def add(self, host: str) -> None:
        """Count one more connection from ``host``."""
        self._open += 1
        _change(self._by_host, host, 1)

    def remove(self, host: str) -> None:
        """Count one connection less from ``host``."""
        self._open -= 1
        _change(self._by_host, host, -1)

    def add_user(self, user: str) -> None:
        """Count one more connection of ``user``."""
        _change(self._by_user, user, 1)

    def remove_user(self, user: str) -> None:
        """Count one connection less of ``user``."""
        _change(self._by_user, user, -1)

    def of_user(self, user: str) -> int:
        """Return the number of open connections of ``user``."""
        return self._by_user.get(user, 0)

    def limit_reached(self, host: str, *, most: int, most_from_host: int) -> str | None:
        """Return the name of the limit that one more connection from ``host`` would exceed, or ``None``.

        ``most`` is ``limits.max_connections``, ``most_from_host`` is ``limits.max_connections_per_ip`` (0: no limit).
        """
        if self._open >= most:
            return "max_connections"
        if most_from_host and self._by_host.get(host, 0) >= most_from_host:
            return "max_connections_per_ip"
        return None


def _change(counts: dict[str, int], name: str, change: int) -> None:
    """Change one of the counts; one that becomes 0 is removed."""
    count = counts.get(name, 0) + change
    if count:
        counts[name] = count
    else:
        del counts[name]
