"""Counters of the proxy: plain integers on slots, exported by `headrace.proxy.admin.metrics_page`.

Incrementing a slot costs 0.03 µs, an OpenTelemetry counter 5.6 µs. Each counter is a total since the process started,
except ``connections``, which is a gauge.
"""

from __future__ import annotations

from collections import defaultdict


class Counters:
    """The counters of the proxy."""

    __slots__ = (
        "accept_delayed_s",
        "accept_paused_s",
        "allowed",
        "bytes_from_clients",
        "bytes_from_upstream",
        "bytes_spliced",
        "bytes_to_clients",
        "bytes_to_upstream",
        "connections",
        "connections_accepted",
        "connections_aged",
        "connections_refused",
        "denied",
        "errors",
        "hints_hidden",
        "logins_refused",
        "lookups",
        "observed",
        "refused",
        "requests",
        "throttled",
        "throttled_ms",
        "tls_handshakes_failed",
        "tls_handshakes_full",
        "tls_handshakes_resumed",
        "token_owners_unknown",
        "upstream_connections",
    )

    def __init__(self) -> None:
        self.connections = 0
        self.connections_accepted = 0
        self.connections_refused: dict[str, int] = {}
        """Connections refused, by the name of the limit that they exceeded."""
        self.accept_delayed_s = 0.0
        """Seconds for which accepting was delayed because of ``limits.max_connection_rate``."""
        self.accept_paused_s: dict[str, float] = {}
        """Seconds for which accepting was paused, by what the process was short of: descriptors or memory."""
        self.connections_aged = 0
        """Connections that were ended because of ``limits.max_connection_age``."""
        self.upstream_connections = 0
        self.tls_handshakes_full = 0
        """TLS handshakes with clients that succeeded and resumed no session."""
        self.tls_handshakes_resumed = 0
        self.tls_handshakes_failed = 0
        self.logins_refused: defaultdict[str, int] = defaultdict(int)
        """SASL logins of clients that the proxy or a broker has refused, by mechanism."""
        self.requests: defaultdict[int, int] = defaultdict(int)
        """Requests received, by API key."""
        self.bytes_from_clients = 0
        self.bytes_to_clients = 0
        self.bytes_from_upstream = 0
        self.bytes_to_upstream = 0
        self.bytes_spliced = 0
        """Bytes, in either direction, that were forwarded without entering user space."""
        self.errors: dict[str, int] = {}
        """Connections that ended because of a fault, by the side at fault: client, upstream or proxy."""
        self.allowed: defaultdict[int, int] = defaultdict(int)
        """Requests that were authorized and of which nothing was denied, by API key."""
        self.denied: dict[tuple[str, str, str], int] = {}
        """Denials, by operation, type of resource and API; one for each request and operation."""
        self.throttled: dict[str, int] = {}
        """Requests that a quota throttled or held, by quota key."""
        self.throttled_ms = 0
        """Sum of the throttle times of all throttled requests."""
        self.observed: dict[str, int] = {}
        """Requests that a quota in shadow mode would have throttled or refused, by quota key."""
        self.lookups = 0
        """Requests that the proxy itself sent over clients' connections."""
        self.token_owners_unknown = 0
        """Logins by a delegation token whose owner the proxy could not learn from the brokers."""
        self.refused = 0
        """Requests that a quota refused, whole or in part."""
        self.hints_hidden = 0
        """Leader hints in Fetch replies that were hidden (KIP-951)."""


class AdminCounters:
    """The counters of the admin server."""

    __slots__ = ("connections", "expiries_s", "refused")

    def __init__(self) -> None:
        self.connections = 0
        """Connections that are open now."""
        self.expiries_s: dict[str, float] = {}
        """Times at which the first certificate of the admin server's chain (``certificate``) and of its
        ``certificate authority`` expire, in seconds since 1970."""
        self.refused: dict[str, int] = {}
        """Requests that were refused and connections that were closed, by reason."""

    def refuse(self, reason: str) -> None:
        """Count a refused request or a closed connection."""
        self.refused[reason] = self.refused.get(reason, 0) + 1
