"""The steps before a client's first request: the PROXY header and the TLS handshake. They determine its peer and user.

Called by `headrace.proxy.connection.client_connection` before its relays run. Hooks see a connection once this has
succeeded.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import trio

from headrace.proxy.connection.opening.client_users import proved_user
from headrace.proxy.connection.opening.user_admission import admit_user
from headrace.proxy.errors import ClientFault, ClientGone
from headrace.proxy.network.admission import is_in
from headrace.proxy.network.sockets import PlainSocket
from headrace.proxy.network.tls.secured_socket import SecuredClientSocket
from headrace.proxy.network.tls.subjects.principals import NoPrincipal, distinguished_name
from headrace.proxy.wire.proxy_protocol import FIXED_BYTES, MAX_HEADER_BYTES, read_header
from headrace.quota_callbacks.identities import UserSource
from headrace.quota_callbacks.requests import Address

if TYPE_CHECKING:
    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.network.listener import ListenerTls


async def open_connection(state: ConnectionState) -> None:
    """Read the PROXY header of a load balancer, and do the TLS handshake, if the listener has them.

    Set the connection's peer, broker and user from them, and count it for its user. Raises `ClientFault` and
    `UserRefused`, and `MalformedFrame` for the header.
    """
    listener, client = state.listener, state.client
    if is_in(state.info.peer.host.partition("%")[0], listener.proxy_protocol_from) and isinstance(client, PlainSocket):
        await _read_proxy_header(state, client)
    if listener.tls is None or not isinstance(client, SecuredClientSocket):
        return
    await state.shared.handshakes.serve(client, listener.tls.context, state.info.peer.host)
    if client.server_name and listener.broker_names is not None:
        node_id = listener.broker_names.node_id_of(client.server_name)
        if node_id is not None and not listener.topology.may_exist(node_id):  # with a session for another name
            raise ClientFault(
                f"TLS: the client asked for broker {node_id}, which is outside {listener.setting}.node_ids"
            )
        state.info.node_id = node_id
    if client.peer_certificate is not None:
        await _adopt_subject(state, listener.tls, client.peer_certificate)


async def _read_proxy_header(state: ConnectionState, client: PlainSocket) -> None:
    """Make the client that a load balancer names the peer of the connection."""
    header = None
    with trio.move_on_after(state.shared.handshakes.timeout_s):
        data = await client.receive_exactly(FIXED_BYTES)
        header = read_header(data)
        if header is None and len(data) == FIXED_BYTES:
            size = min(int.from_bytes(data[-2:], "big"), MAX_HEADER_BYTES)
            header = read_header(data + await client.receive_exactly(size))
        if not data:
            raise ClientGone("the load balancer closed the connection before a header of the PROXY protocol")
    if header is None:
        raise ClientFault(
            "no complete header of the PROXY protocol, which connections from"
            f" {state.listener.setting}.proxy_protocol_from begin with"
        )
    if header.source is None:
        return
    peer = Address(host=str(header.source.address), port=header.source.port)
    admission = state.shared.admission
    reason = None if admission is None else admission.admit_client(state.info.peer, peer, state.shared.clock())
    if reason is not None:
        raise ClientFault(f"the client {peer} behind the load balancer {state.info.peer} is not served: {reason}")
    state.info.peer = peer


async def _adopt_subject(state: ConnectionState, tls: ListenerTls, certificate: bytes) -> None:
    """Make the subject of a client's certificate, which was verified in the handshake, the user of the connection.

    Where the proxy authenticates clients by SASL, that decides, as at a broker's SASL_SSL listener. Mapping rules may
    take longer than a handshake for a new subject, so this waits for a turn of its address, as a handshake does.
    """
    if tls.principals is None or (state.sasl is not None and state.sasl.is_missing):
        return
    subject = distinguished_name(certificate)
    turns = state.shared.handshakes.turns
    async with turns.turn(state.info.peer.host) if tls.principals.takes_long(subject) else nullcontext():
        principal = tls.principals.principal(subject)
    if not principal:
        raise NoPrincipal(
            "TLS: no user follows from the client's certificate: its subject, or what a rule makes of it, is empty"
        )
    state.info.mechanism = "TLS"
    state.info.user = proved_user(state, principal, UserSource.CERTIFICATE)
    state.note_proved()
    admit_user(state)
