"""Conversion of configuration values to the proxy's own types.

Called by the server when it creates the parts of the proxy, and at a reload.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from headrace.proxy.connection.state.shared_state import Limits
from headrace.proxy.hooks.loading import Choice
from headrace.proxy.network.admission import AdmissionLimits
from headrace.proxy.network.listening_sockets import Ports
from headrace.proxy.network.overload import default_max_memory_bytes
from headrace.quota_callbacks.entities import bounded_name

if TYPE_CHECKING:
    from headrace.config.schema import Config


def limits_of(config: Config) -> Limits:
    """Return the limits that apply to each connection."""
    limits = config.limits
    return Limits(
        max_frame_bytes=limits.max_frame_bytes,
        max_handshake_bytes=limits.max_handshake_bytes,
        max_whole_request_bytes=limits.max_whole_request_bytes,
        max_request_rows=limits.max_request_rows,
        max_collected_bytes=limits.max_collected_bytes,
        max_in_flight_requests=limits.max_in_flight_requests,
        idle_timeout_s=limits.idle_timeout_s,
        login_timeout_s=limits.login_timeout_s,
        request_timeout_s=limits.request_timeout_s,
        max_connection_age_s=limits.max_connection_age_s,
    )


def admission_limits_of(config: Config, most_connections: int = sys.maxsize) -> AdmissionLimits:
    """Return the limits on the number and the rate of connections.

    There are descriptors for ``most_connections``, so by default an address may have half of these.
    """
    limits = config.limits
    per_ip = limits.max_connections_per_ip
    most = min(limits.max_connections, most_connections)
    return AdmissionLimits(
        max_connections=limits.max_connections,
        max_connections_per_ip=per_ip if per_ip is not None else (most + 1) // 2,
        max_connection_rate=limits.max_connection_rate,
        max_connection_rate_per_ip=limits.max_connection_rate_per_ip,
        per_ip_exempt=limits.per_ip_exempt,
        max_connections_per_user=limits.max_connections_per_user,
        max_connection_rate_per_user=limits.max_connection_rate_per_user,
        per_user_exempt=frozenset(map(bounded_name, limits.per_user_exempt)),
    )


def ports_of(config: Config) -> tuple[Ports, ...]:
    """Return the ports of all listeners."""
    return tuple(
        Ports(
            setting=each.setting,
            host=each.listen.address.host,
            port=each.listen.address.port,
            node_ids=each.listen.node_ids if each.listen.broker_host is None else (),
            backlog=each.listen.backlog,
        )
        for each in config.all_listeners()
    )


def choice_of(config: Config) -> Choice:
    """Return which plugins to load."""
    plugins = config.plugins
    return Choice(autoload=plugins.autoload, disabled=plugins.disabled, load=plugins.load)


def max_memory_bytes(config: Config) -> int:
    """Return ``limits.max_memory`` or its default; 0 is unlimited."""
    configured = config.limits.max_memory
    return default_max_memory_bytes() if configured is None else configured
