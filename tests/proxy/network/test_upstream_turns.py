"""Turns of TLS handshakes with brokers: which clients wait, and for which others."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from headrace.config.tables.tls import UpstreamTls
from headrace.proxy.errors import UpstreamFault
from headrace.proxy.network.poller import Poller
from headrace.proxy.network.tls.contexts import client_context
from headrace.proxy.network.tls.handshake_turns import TurnsByAddress
from headrace.proxy.network.tls.rustls_socket import RustlsSocket
from headrace.proxy.network.tls.tls_socket import TlsSocket
from headrace.proxy.network.topology import Topology
from headrace.proxy.network.upstream import Upstream
from headrace.quota_callbacks.requests import Address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from testbed.kafka.certificates import Authority

WAIT_S = 20
HOLDER = "192.0.2.1"
STRANGER = Address(host="192.0.2.2", port=5000)


class Brokers:
    """A port that accepts connections, and the handshakes there: each fails after its first turn."""

    def __init__(self, upstream: Upstream, turns: TurnsByAddress) -> None:
        self.upstream = upstream
        self.turns = turns
        self.asked = trio.Event()
        """Set when a handshake has asked for its turn."""
        self.computed = trio.Event()
        """Set when it has had it."""

    async def handshake(self, _sock: object, turn: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        self.asked.set()
        async with turn():
            self.computed.set()
        raise UpstreamFault("computed")

    async def dial(self, node_id: int | None, client: Address | None, *, waits: bool) -> None:
        with pytest.raises(UpstreamFault):
            await self.upstream.dial(node_id, client, waits=waits)


@pytest.fixture
async def brokers(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Brokers]:
    poller, turns = Poller(), TurnsByAddress(1)
    with trio.fail_after(WAIT_S), poller.attach():
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with listener:
            upstream = Upstream(
                bootstrap_servers=[Address(host="127.0.0.1", port=listener.socket.getsockname()[1])],
                topology=Topology(advertised_host="proxy", advertised_port=9192, node_ids=range(3)),
                connect_timeout_s=WAIT_S,
                poller=poller,
                tls=client_context(UpstreamTls(enabled=True, ca_file=str(authority.ca_file)), "upstream.tls"),
                turns=turns,
            )
            brokers = Brokers(upstream, turns)
            for kind in (TlsSocket, RustlsSocket):
                monkeypatch.setattr(kind, "handshake", lambda sock, turn: brokers.handshake(sock, turn))
            yield brokers


async def test_the_handshake_for_a_stranger_waits_for_its_turn(brokers: Brokers) -> None:
    async with trio.open_nursery() as nursery:
        async with brokers.turns.turn(HOLDER):
            nursery.start_soon(partial(brokers.dial, None, STRANGER, waits=True))
            await brokers.asked.wait()
            await wait_all_tasks_blocked()
            assert not brokers.computed.is_set()
        await brokers.computed.wait()


async def test_a_refresh_that_a_stranger_causes_waits_for_no_turn(brokers: Brokers) -> None:
    """Known clients and the proxy share it."""
    async with trio.open_nursery() as nursery, brokers.turns.turn(HOLDER):
        nursery.start_soon(partial(brokers.dial, 1, STRANGER, waits=True))
        await brokers.upstream.wait_for_refresh()
        await brokers.computed.wait()
        nursery.cancel_scope.cancel()


async def test_a_known_client_waits_for_no_stranger(brokers: Brokers) -> None:
    async with brokers.turns.turn(HOLDER):
        await brokers.dial(None, STRANGER, waits=False)
        assert brokers.computed.is_set()


async def test_the_proxys_own_connections_wait_for_no_stranger(brokers: Brokers) -> None:
    async with brokers.turns.turn(HOLDER):
        await brokers.upstream.refresh()
        assert brokers.computed.is_set()
