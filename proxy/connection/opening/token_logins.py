"""The user of a client that has authenticated to a broker by a delegation token (KIP-48): the owner of the token.

Called when the broker has accepted the token, by `headrace.proxy.connection.broker_questions` before the next request
of a client whose token's owner is not known yet, and now and then by the server for clients that send none. Nothing of
the connection is charged before the owner is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from headrace.proxy.connection.opening.user_admission import UserOverLimit
from headrace.proxy.connection.state.token_owners import LookupFailed
from headrace.proxy.errors import ConnectionFault, UpstreamFault

if TYPE_CHECKING:
    from headrace.proxy.connection.state.authentication import TokenLogin
    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.connection.state.token_owners import TokenOwners

log = structlog.get_logger("headrace.authentication")


def token_accepted(state: ConnectionState, login: TokenLogin) -> None:
    """Adopt the owner of the token if it is known; otherwise ask for it, and let the next request wait.

    Without a lookup the client becomes the fallback user, which is logged once for each table of brokers. Raises as
    `adopt_owner`.
    """
    owners = _owners_of(state)
    if owners is None:
        adopt_owner(state, login, None)
        setting = f"{state.listener.upstream.setting}.owner_lookup"
        if setting not in state.shared.reported_tokens:
            state.shared.reported_tokens.add(setting)
            log.warning("the owners of delegation tokens are not known", counted_as=state.info.user, setting=setting)
    elif (owner := owners.known(login.token_id)) is not None:
        adopt_owner(state, login, owner)
    else:
        owners.want(login.token_id)
        state.await_owner(login)


async def learn_owner(state: ConnectionState, login: TokenLogin) -> None:
    """Wait until the owner of the token is known, and adopt it; without an answer, the fallback user.

    Raises as `adopt_owner`, and `UpstreamFault` if clients without a known owner are refused.
    """
    owners = _owners_of(state)
    if owners is None:
        raise AssertionError("an owner is awaited without a lookup")
    try:
        adopt_owner(state, login, await owners.find(login.token_id))
    except LookupFailed as failed:
        if owners.refuses_unknown:
            _note_unknown(state, login, failed)
            table = f"{state.listener.upstream.setting}.owner_lookup"
            reason = f"the owner of the client's delegation token is not known ({failed}), and {table}.unknown_owner"
            raise UpstreamFault(f'{reason} = "refuse"') from failed
        adopt_owner(state, login, None)
        _note_unknown(state, login, failed)


def adopt_late_owner(state: ConnectionState) -> None:
    """Adopt the owner of a token if it has become known since its login, of a client that has sent no request yet.

    So the connection counts for the limits of its user, and ``limits.idle_timeout`` applies to it as to others. It is
    ended if the user is refused.
    """
    login = state.token_login
    if login is None or state.draining or state.ended:
        return
    owners = _owners_of(state)
    owner = None if owners is None else owners.known(login.token_id)
    if owner is None:
        return
    try:
        adopt_owner(state, login, owner)
    except ConnectionFault as fault:
        if isinstance(fault, UserOverLimit) and fault.refusal.delay_s and state.shared.admission is not None:
            state.shared.admission.end_delay(fault.user)
        state.end_for_fault(fault.side, str(fault), type(fault).__name__)


def adopt_owner(state: ConnectionState, login: TokenLogin, owner: str | None) -> None:
    """Make the owner, or without one the fallback user, the user of the connection.

    Raises `UserRefused` if a plugin refuses the user, and `UserOverLimit`.
    """
    if state.authentication is None:
        raise AssertionError("a token was accepted in no authentication")
    state.authentication.adopt_owner(login, owner)
    state.note_owner()


def _note_unknown(state: ConnectionState, login: TokenLogin, failed: LookupFailed) -> None:
    shared = state.shared
    shared.counters.token_owners_unknown += 1
    left_out = shared.repeated.due("unknown owner", state.listener.upstream.setting, failed.kind)
    counted_as = None if state.token_login is login else state.info.user
    fields = {"peer": str(state.info.peer), "token_id": login.token_id, "counted_as": counted_as, "reason": str(failed)}
    if left_out is None:
        log.debug("the owner of a delegation token is not known", **fields)
    else:
        log.warning("the owner of a delegation token is not known", **fields, left_out=left_out or None)


def _owners_of(state: ConnectionState) -> TokenOwners | None:
    return state.shared.token_owners.get(state.listener.upstream.setting)
