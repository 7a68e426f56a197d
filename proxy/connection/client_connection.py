"""The connection of one client, from accept to close: its state, its two relays and its upstream connection.

Created by the server for each accepted socket. The accepting task runs the request relay. The reply relay runs in a
second task, which is started when the broker is dialled, on the first request. Both end with the connection. Any fault
ends this connection only and is logged in one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
import trio

from headrace.proxy.connection.enforcement import abandon
from headrace.proxy.connection.native.relay import NativeRelay
from headrace.proxy.connection.opening.transport import open_connection
from headrace.proxy.connection.opening.user_admission import UserOverLimit, delay_refused
from headrace.proxy.connection.reply_relay import ReplyRelay
from headrace.proxy.connection.request_relay import RequestRelay
from headrace.proxy.connection.state.connection_state import ConnectionState
from headrace.proxy.errors import ClientGone, ConnectionFault, UpstreamFault
from headrace.proxy.network.upstream import other_protocol_of_broker
from headrace.proxy.repeated_lines import place_of
from headrace.proxy.wire.errors import OtherProtocol, PeerFault
from headrace.proxy.wire.other_protocols import PROXY, TLS
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.proxy.connection.state.shared_state import SharedState
    from headrace.proxy.network.listener import Listener
    from headrace.proxy.network.sockets import Socket
    from headrace.quota_callbacks.requests import Connection

log = structlog.get_logger("headrace.connection")


class ClientConnection:
    """The owner of the sockets to the client and the broker, and of the nursery of the two relays.

    *Cancellation:* closes both sockets at once; the client gets no reply to requests in flight, as when a broker dies.
    """

    __slots__ = ("_nursery", "_opened", "_requests", "_upstream_lost", "state")

    def __init__(self, shared: SharedState, listener: Listener, info: Connection, client: Socket) -> None:
        self.state = ConnectionState(shared, listener, info, client, self._dial)
        self._nursery: trio.Nursery | None = None
        self._requests = RequestRelay(self.state)
        self._opened = False
        """Whether `connection_opened` was called, so that `connection_closed` has to be."""
        self._upstream_lost = False
        """Whether the broker closed a connection on which the client itself had authenticated."""

    async def serve(self) -> None:
        """Relay until either side closes, a fault, or a cancellation; then close both sockets. Raises only a
        cancellation from outside."""
        state = self.state
        try:
            with state.scope:
                await self._guard("client", self._open)
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    await self._guard("client", self._requests.run)
                    if state.upstream is not None:
                        state.upstream.shut_down_writing()
                    self.state.note_half_closed()
                    nursery.cancel_scope.cancel()
        finally:
            self._close()

    async def _open(self) -> None:
        await open_connection(self.state)
        self._opened = True
        self.state.shared.hooks.connection_opened(self.state.info)

    async def _dial(self) -> Socket:
        state = self.state
        if self._upstream_lost:
            raise UpstreamFault("the broker closed the authenticated connection while the client was muted")
        state.dialling = True
        upstream, address = await state.listener.upstream.dial(
            state.info.node_id, state.info.peer, waits=not state.is_known
        )
        state.dialling = False
        state.upstream = upstream
        state.info.upstream = address
        state.can_splice = upstream.can_splice and state.client.can_splice
        state.shared.counters.upstream_connections += 1
        if self._nursery is None:
            raise AssertionError("a connection dialled a broker before serve() was called")
        replies = ReplyRelay(state, upstream)
        if state.shared.data_plane is not None:
            state.native = NativeRelay(state, self._requests, replies)
        self._nursery.start_soon(self._relay_replies, replies)
        return upstream

    async def _relay_replies(self, replies: ReplyRelay) -> None:
        await self._guard("upstream", replies.run)
        state = self.state
        waiting, first = len(state.in_flight), state.in_flight.first
        if state.reason is not None:  # a fault, which has been logged and counted
            state.cancel()
        elif first is not None and first.is_token:
            reason = f"the broker refused the SASL login: it closed the connection after a token ({self._login()})"
            state.end_for_fault("client", reason, "login")
        elif first is not None and first.api_key == ApiKey.SASL_AUTHENTICATE:
            reason = f"the broker closed the connection without answering a SASL login ({self._login()})"
            state.end_for_fault("upstream", reason, "login")
        elif waiting and not state.accepted and not state.authenticates:
            reason = (
                "the broker closed the connection instead of serving a client that did not log in; if its listener"
                f" requires SASL, set the client's security.protocol to {state.listener.sasl_protocol}"
            )
            state.end_for_fault("client", reason, "no login")
        elif waiting or replies.mid_reply:
            state.end_for_fault("upstream", f"the broker closed; requests in flight: {waiting}", "closed")
        elif state.mid_request:
            state.end_for_fault("upstream", "the broker closed in the middle of a request", "closed in a request")
        elif self._may_outlive_upstream():
            self._drop_upstream()
        else:
            state.cancel()

    def _may_outlive_upstream(self) -> bool:
        """Return whether the client's connection stays open after the broker has closed the one to it.

        It does while the client is muted, if no request was lost with the broker's connection.
        """
        state = self.state
        muted = state.mute.until_s > state.shared.clock()
        return muted and not state.requesting and not state.unacknowledged

    def _drop_upstream(self) -> None:
        """Close the upstream connection only, so that the client stays muted although the broker has closed."""
        state = self.state
        state.native = None
        if state.upstream is not None:
            self._count_bytes(state.upstream, upstream=True)
            state.upstream.close()
        state.note_upstream_lost()
        self._upstream_lost = state.authenticates and state.sasl is None

    async def _guard(self, peer: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run a relay, whose peer is ``client`` or ``upstream``. If it raises, end the connection."""
        state = self.state
        try:
            await run()
        except ClientGone as fault:
            state.end_for_fault(fault.side, str(fault), None)
        except UserOverLimit as refused:
            await delay_refused(state, refused)
            state.end_for_fault(refused.side, str(refused), refused.refusal.limit)
        except ConnectionFault as fault:
            state.end_for_fault(fault.side, str(fault), place_of(fault))
        except OtherProtocol as fault:
            state.end_for_fault(peer, self._other_protocol(peer, fault.protocol), fault.protocol)
        except PeerFault as fault:
            state.end_for_fault(peer, str(fault), place_of(fault))
        except Exception as error:
            place = place_of(error)
            state.end_for_fault("proxy", f"{type(error).__name__}: {error}", place)
            if state.shared.repeated.due("internal error", place) is not None:
                log.exception("internal error; the connection was closed", peer=str(state.info.peer), exc_info=error)

    def _login(self) -> str:
        """Describe the login that is under way, without secrets."""
        authentication = self.state.authentication
        return "mechanism unknown" if authentication is None else authentication.describe()

    def _other_protocol(self, peer: str, protocol: str) -> str:
        """Return why a connection whose ``peer`` speaks ``protocol`` is closed, and what to change."""
        state, info, setting = self.state, self.state.info, self.state.listener.setting
        if peer == "upstream":
            return other_protocol_of_broker(str(info.upstream), protocol, state.listener.upstream.setting)
        listener = "the bootstrap listener" if info.node_id is None else f"the listener of broker {info.node_id}"
        if protocol == TLS and state.listener.tls is not None:
            return (
                "speaks TLS without a header of the PROXY protocol before it, which connections from"
                f" {setting}.proxy_protocol_from begin with"
            )
        if protocol == TLS:
            return (
                f"speaks TLS, but {listener} ({setting}.address) accepts plaintext only; set"
                f" {setting}.tls.certificate_file, or the client's security.protocol to PLAINTEXT or SASL_PLAINTEXT"
            )
        if protocol == PROXY:
            return (
                f"{listener} ({setting}.address) does not accept the PROXY protocol from this address; add it to"
                f" {setting}.proxy_protocol_from, or turn it off at the load balancer"
            )
        return (
            f"speaks {protocol}, but {listener} ({setting}.address) accepts Kafka's protocol only; the address"
            " of the admin server is admin.listen"
        )

    def _close(self) -> None:
        state = self.state
        if state.native is not None:
            state.native.take_back()
        self._count_bytes(state.client, upstream=False)
        state.client.close()
        if state.upstream is not None:
            self._count_bytes(state.upstream, upstream=True)
            state.upstream.close()
        if state.authentication is not None:
            state.authentication.close()
        unsettled = [*state.in_flight.take_all(), *self._requests.unsettled_requests()]
        known = set(unsettled)
        unsent = {each: None for each in self._requests.unsent if each not in known}
        for exchange in [*unsettled, *unsent]:
            if state.upstream is None:  # no broker could be dialled for it, so nothing was sent
                exchange.forwarded_s = None
            exchange.error = state.reason or "connection closed"
            if exchange not in unsent or state.upstream is None:
                abandon(state, exchange)
            state.completed(exchange)
        state.shared.grant_credits()
        if self._opened:
            state.shared.hooks.connection_closed(state.info, state.reason)

    def _count_bytes(self, sock: Socket, *, upstream: bool) -> None:
        counters = self.state.shared.counters
        if upstream:
            counters.upstream_connections -= 1
            counters.bytes_from_upstream += sock.bytes_received
            counters.bytes_to_upstream += sock.bytes_sent
        else:
            counters.bytes_from_clients += sock.bytes_received
            counters.bytes_to_clients += sock.bytes_sent
