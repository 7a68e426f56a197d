"""The log line about a SASL login that the broker, or the proxy itself, has refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from headrace.proxy.connection.state.connection_state import ConnectionState

log = structlog.get_logger("headrace.connection")


def log_refused_login(state: ConnectionState, mechanism: str, user: str | None, reason: str) -> None:
    """Log a refused login, as a warning at most once a minute for each host. ``user`` is the name that was given."""
    info = state.info
    left_out = state.shared.repeated.due("login", info.peer.host)
    fields = {
        "peer": str(info.peer),
        "mechanism": mechanism,
        "user": user,
        "reason": reason,
        "upstream": str(info.upstream) if info.upstream is not None else None,
    }
    if left_out is None:
        log.debug("login refused", **fields)
    else:
        log.warning("login refused", **fields, left_out=left_out or None)
