"""Counting a connection for its user once the user is proved, by a login or a certificate.

Kafka has no such limits. Its limits per address close a connection without an answer (KIP-402 ``max.connections``,
KIP-612), and so does this: the last step of the login is not answered. An error such as SASL_AUTHENTICATION_FAILED
means that the credentials are wrong, and ends a Java producer for good. After a connection that was closed, clients
try again, each time after a longer pause (``reconnect.backoff.max.ms``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from headrace.proxy.errors import ClientFault

if TYPE_CHECKING:
    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.network.admission import UserRefusal


class UserOverLimit(ClientFault):
    """The user has too many connections, or opens them too fast."""

    def __init__(self, user: str, refusal: UserRefusal) -> None:
        self.user = user
        self.refusal = refusal
        super().__init__(refusal.reason)


def admit_user(state: ConnectionState) -> None:
    """Count the connection for the user that was just proved, unless it counts for that user already.

    Raises `UserOverLimit` if it exceeds a limit. Once the user has changed, it no longer counts for the previous one.
    """
    admission, user = state.shared.admission, state.info.user
    if admission is None or state.counted_user == user:
        return
    refusal = admission.admit_user(user, state.shared.clock())
    if state.counted_user is not None:
        admission.leave_user(state.counted_user)
    state.counted_user = user if refusal is None else None
    if refusal is not None:
        raise UserOverLimit(user, refusal)


async def delay_refused(state: ConnectionState, refused: UserOverLimit) -> None:
    """Wait until a refused connection is to be closed; nothing is read meanwhile.

    A cancellation ends the delay.
    """
    admission, delay_s = state.shared.admission, refused.refusal.delay_s
    if admission is None or not delay_s:
        return
    state.stop_reading()
    try:
        await trio.sleep(delay_s)
    finally:
        admission.end_delay(refused.user)
