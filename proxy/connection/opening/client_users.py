"""The user of a client that has proved to the proxy who it is, and the identity at the brokers that follows from it.

Called by `headrace.proxy.connection.opening.transport` for certificates, by
`headrace.proxy.connection.opening.sasl_termination`, and for the login by `headrace.proxy.connection.broker_questions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.proxy.errors import ClientFault
from headrace.proxy.hooks.calls.users import UserRefused

if TYPE_CHECKING:
    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.quota_callbacks.identities import UserSource
    from headrace.quota_callbacks.sasl import UpstreamSasl


def proved_user(state: ConnectionState, principal: str, source: UserSource) -> str:
    """Return the user that a client gets which has proved to be ``principal``.

    Raises `UserRefused` if a plugin refuses it, or if no identity at the brokers is configured for it.
    """
    user = state.shared.hooks.users.rewritten(state.info, principal, source)
    identities = state.listener.identities
    if identities is not None and identities.of(user) is None:
        raise UserRefused(_without_identity(state, user), user=user)
    return user


def broker_login_of(state: ConnectionState, own: UpstreamSasl) -> UpstreamSasl:
    """Return the identity as which the proxy authenticates this connection to the broker; ``own`` is the proxy's.

    Raises `ClientFault` for a client that has not authenticated, or one without an identity, if users have identities.
    """
    identities = state.listener.identities
    if identities is None:
        return own
    if not state.proved:
        setting = state.listener.setting
        raise ClientFault(
            f"the client has not authenticated, and {_identities(state)} has identities for users only; it has to show"
            f" a certificate ({setting}.tls.client_certificates) or to authenticate ({setting}.sasl.mode)"
        )
    found = identities.of(state.info.user)
    if found is None:
        raise ClientFault(_without_identity(state, state.info.user))
    return found


def _without_identity(state: ConnectionState, user: str) -> str:
    return (
        f"the user {user} has no identity at the brokers; add it to {_identities(state)}, or one with"
        ' client = "*" for all other users'
    )


def _identities(state: ConnectionState) -> str:
    """Return the name of the setting that has the identities."""
    return f"{state.listener.upstream.setting}.sasl.identities"
