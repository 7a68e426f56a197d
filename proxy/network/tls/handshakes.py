"""The bounds of TLS handshakes with clients: their number, their time, and their share of the event loop.

One `Handshakes` for a process. A client costs nothing but its connection until it has sent a ClientHello. The state of
a handshake takes some tens of KiB, so their number is limited: one more ends the one that has waited for its client
for longest, which answers within a round trip if it is honest. The computations of a handshake take about a
millisecond; they are done one at a time, and clients that are connected keep at least half of the time.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

from headrace.proxy.errors import ClientFault, ClientGone

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headrace.proxy.counters import Counters
    from headrace.proxy.network.tls.contexts import TlsContext
    from headrace.proxy.network.tls.secured_socket import SecuredSocket

PAUSE: Final = 1.0
"""The pause after a computation, in durations of that computation."""


class Handshakes:
    """Does the handshakes of all clients of a process. ``most`` and ``timeout_s`` may be replaced on reload."""

    def __init__(self, counters: Counters, *, most: int, timeout_s: float) -> None:
        self.most = most
        self.timeout_s = timeout_s
        self._counters = counters
        self._waiting: OrderedDict[trio.CancelScope, None] = OrderedDict()
        """The handshakes under way, by the time of their last computation."""
        self._turn = trio.Lock()

    async def serve(self, sock: SecuredSocket, context: TlsContext) -> None:
        """Do the handshake with a client. Raises `ClientFault`; `ClientGone` if it closes without a byte."""
        try:
            with trio.fail_after(self.timeout_s):
                await sock.receive_hello(context.setting)
                await self._handshake(sock, context)
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

    async def _handshake(self, sock: SecuredSocket, context: TlsContext) -> None:
        with trio.CancelScope() as scope:
            self._make_room()
            self._waiting[scope] = None
            try:
                sock.start(context, server_side=True)
                await sock.handshake(lambda: self._in_turn(scope))
            finally:
                self._waiting.pop(scope, None)
        if scope.cancelled_caught:
            rule = f"limits.max_tls_handshakes = {self.most} is reached, and it has waited for longest"
            raise ClientFault(f"the TLS handshake was ended: {rule}")

    def _make_room(self) -> None:
        while len(self._waiting) >= self.most:
            scope, _ = self._waiting.popitem(last=False)
            scope.cancel()

    @asynccontextmanager
    async def _in_turn(self, scope: trio.CancelScope) -> AsyncIterator[None]:
        async with self._turn:
            began_s = trio.current_time()
            yield
            if scope in self._waiting:
                self._waiting.move_to_end(scope)
            await trio.sleep(PAUSE * (trio.current_time() - began_s))

    def _count_failure(self) -> None:
        self._counters.tls_handshakes_failed += 1
