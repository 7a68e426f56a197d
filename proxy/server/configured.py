"""The configuration's values in the proxy's own types. Called by whoever makes parts of the proxy, and on reload."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.proxy.connection.shared_state import Limits
from headrace.quota_callbacks.requests import Address

if TYPE_CHECKING:
    from headrace.config.schema import Config
    from headrace.config.values import HostPort


def limits_of(config: Config) -> Limits:
    """The caps of one connection."""
    limits = config.limits
    return Limits(
        max_frame_bytes=limits.max_frame_bytes,
        max_collected_bytes=limits.max_collected_bytes,
        max_in_flight_requests=limits.max_in_flight_requests,
        idle_timeout_s=limits.idle_timeout_s,
        reply_timeout_s=config.upstream.reply_timeout_s,
    )


def addresses_of(servers: tuple[HostPort, ...]) -> tuple[Address, ...]:
    """Where to connect to."""
    return tuple(Address(host=server.host, port=server.port) for server in servers)
