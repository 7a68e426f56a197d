"""The bounds of TLS handshakes with clients: their number, their time, and their share of the event loop.

There is one `Handshakes`. A client costs nothing but its connection until it has sent a ClientHello. The state of a
handshake takes some tens of KiB, and at most 150 KiB, since the libraries limit what a client may send until it is
complete. So their number is limited. At the limit, a new handshake ends another one: one whose client has been silent
for `SILENT_S`, or else one of the address with the most handshakes. The computations of a handshake take about a
millisecond; they are done one at a time, in turns that go round the addresses, and clients that are connected keep at
least half of the time.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

from headrace.proxy.errors import ClientFault, ClientGone
from headrace.proxy.network.tls.handshake_turns import TurnsByAddress
from headrace.quota_callbacks.client_addresses import counted_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headrace.proxy.counters import Counters
    from headrace.proxy.network.tls.contexts import TlsContext
    from headrace.proxy.network.tls.secured_socket import SecuredClientSocket

PAUSE_FACTOR: Final = 1
"""The pause after a computation, in durations of that computation."""
SILENT_S: Final = 1.0
"""Time without an answer after which a handshake is ended before those of any other address: more than a round trip,
also over a satellite (0.6 s)."""


class _Handshake:
    """A handshake under way, whose ``scope`` ends it."""

    __slots__ = ("address", "scope", "silent_since_s")

    def __init__(self, scope: trio.CancelScope, address: str) -> None:
        self.scope = scope
        self.address = address
        self.silent_since_s: float | None = None
        """When its last computation ended; ``None`` while it waits for its turn, which is not the client's fault."""


class Handshakes:
    """The handshakes of all clients. ``most`` and ``timeout_s`` may be replaced on reload."""

    def __init__(self, counters: Counters, *, most: int, timeout_s: float) -> None:
        self.most = most
        self.timeout_s = timeout_s
        self._counters = counters
        self._by_address: dict[str, dict[_Handshake, None]] = {}
        """The handshakes under way, by address (see `counted_address`), and in the order of their beginning."""
        self._count = 0
        """The number of handshakes under way."""
        self._silent: OrderedDict[_Handshake, None] = OrderedDict()
        """The handshakes that wait for their client; the first one has waited longest."""
        self.turns = TurnsByAddress(PAUSE_FACTOR)
        """The turns of all clients, and of handshakes with brokers that clients cause before they are known."""

    async def serve(self, sock: SecuredClientSocket, context: TlsContext, client: str) -> None:
        """Do the handshake with a client, whose address is ``client``.

        Raises `ClientFault`; `ClientGone` if it closes without a byte.
        """
        try:
            with trio.fail_after(self.timeout_s):
                await sock.receive_hello(context.setting)
                await self._handshake(sock, context, client)
        except trio.TooSlowError:
            self._count_failure()
            setting = f"limits.tls_handshake_timeout = {self.timeout_s:g} s"
            raise ClientFault(f"the TLS handshake was not complete within {setting}") from None
        except ClientGone:
            raise
        except ClientFault:
            self._count_failure()
            raise
        if sock.is_resumed:
            self._counters.tls_handshakes_resumed += 1
        else:
            self._counters.tls_handshakes_full += 1

    async def _handshake(self, sock: SecuredClientSocket, context: TlsContext, client: str) -> None:
        address = counted_address(client)
        with trio.CancelScope() as scope:
            while self._count >= self.most:
                ended = self._to_end()
                self._remove(ended)
                ended.scope.cancel()
            handshake = _Handshake(scope, address)
            self._by_address.setdefault(address, {})[handshake] = None
            self._count += 1
            try:
                sock.start(context, server_side=True)
                await sock.handshake(lambda: self._in_turn(handshake, client))
            finally:
                self._remove(handshake)
        if scope.cancelled_caught:
            rule = "is reached, and its client was silent, or its address has the most"
            raise ClientFault(f"the TLS handshake was ended: limits.max_tls_handshakes = {self.most} {rule}")

    def _to_end(self) -> _Handshake:
        """Return the handshake to end for another one. Takes time in the number of addresses that have one."""
        silent = next(iter(self._silent), None)
        if silent is not None and trio.current_time() - (silent.silent_since_s or 0.0) >= SILENT_S:
            return silent
        most = max(self._by_address.values(), key=len)
        found = [each for each in most if each.silent_since_s is not None]
        return min(found, key=lambda each: each.silent_since_s or 0.0) if found else next(reversed(most))

    def _remove(self, handshake: _Handshake) -> None:
        """Forget a handshake, unless that was done when it was ended."""
        same_address = self._by_address.get(handshake.address, {})
        if handshake not in same_address:
            return
        del same_address[handshake]
        if not same_address:
            del self._by_address[handshake.address]
        self._silent.pop(handshake, None)
        self._count -= 1

    @asynccontextmanager
    async def _in_turn(self, handshake: _Handshake, client: str) -> AsyncIterator[None]:
        handshake.silent_since_s = None
        self._silent.pop(handshake, None)
        async with self.turns.turn(client):
            yield
        if not handshake.scope.cancel_called:
            handshake.silent_since_s = trio.current_time()
            self._silent[handshake] = None

    def _count_failure(self) -> None:
        self._counters.tls_handshakes_failed += 1
