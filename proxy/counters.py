"""What the proxy counts: plain integers on slots, read by whoever exports them (`headrace.proxy.admin.metrics_page`).

A ``+=`` on a slot costs 0.03 µs; an OpenTelemetry counter 5.6 µs. All are totals since the process started, but for
`connections`, which is now.
"""

from __future__ import annotations


class Counters:
    """One set for the process."""

    __slots__ = (
        "bytes_from_clients",
        "bytes_from_upstream",
        "bytes_spliced",
        "bytes_to_clients",
        "bytes_to_upstream",
        "connections",
        "connections_accepted",
        "connections_refused",
        "errors",
        "hints_hidden",
        "lookups",
        "observed",
        "refused",
        "requests",
        "throttled",
        "throttled_ms",
        "upstream_connections",
    )

    def __init__(self) -> None:
        self.connections = 0
        self.connections_accepted = 0
        self.connections_refused: dict[str, int] = {}
        """By limit."""
        self.upstream_connections = 0
        self.requests: dict[int, int] = {}
        """By API key."""
        self.bytes_from_clients = 0
        self.bytes_to_clients = 0
        self.bytes_from_upstream = 0
        self.bytes_to_upstream = 0
        self.bytes_spliced = 0
        """Those of them, in either direction, that never entered user space."""
        self.errors: dict[str, int] = {}
        """Connections that ended for a reason, by whose fault it was: client, upstream, proxy."""
        self.throttled: dict[str, int] = {}
        """Requests that a quota throttled, by quota key."""
        self.throttled_ms = 0
        """Sum of their throttle times."""
        self.observed: dict[str, int] = {}
        """Requests that a quota in shadow mode would have throttled or refused, by quota key."""
        self.lookups = 0
        """Requests of the proxy's own on clients' connections, to know what a mutation costs."""
        self.refused = 0
        self.hints_hidden = 0
        """Fetch replies whose leader hint was made inert."""
