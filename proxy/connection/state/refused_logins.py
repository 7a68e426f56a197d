"""SASL logins that the broker, or the proxy itself, has refused: counted, and logged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from headrace.quota_callbacks.client_addresses import counted_address

if TYPE_CHECKING:
    from headrace.proxy.connection.state.connection_state import ConnectionState

log = structlog.get_logger("headrace.connection")

KAFKAS_MECHANISMS: Final = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"})
OTHER: Final = "other"
"""Stands for all other mechanisms in the counter, since clients can invent any number of them."""


def note_refused_login(state: ConnectionState, mechanism: str, user: str | None, reason: str) -> None:
    """Count a refused login, and log it, as a warning at most once a minute for each host.

    ``user`` is the name that was given.
    """
    info = state.info
    state.shared.counters.logins_refused[mechanism if mechanism in KAFKAS_MECHANISMS else OTHER] += 1
    left_out = state.shared.repeated.due("login", counted_address(info.peer.host))
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
