"""The check on which the other tests here rely: a client that goes around the proxy is noticed."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from headrace.quota_callbacks.api_keys import ApiKey
from tests.clients.fronts import eventually
from tests.clients.peers import PeerWatch
from tests.clients.wire_connection import WireConnection

if TYPE_CHECKING:
    from tests.clients.fronts import Front


def test_a_connection_around_the_proxy_is_named(front: Front, watch: PeerWatch) -> None:
    broker = front.cluster.brokers[0]
    strict = PeerWatch([front])
    strict.start()
    with WireConnection((broker.host, broker.port)) as connection:
        watch.allow(connection.local_port)
        eventually(lambda: connection.local_port in strict.client_ports, "the connection is seen")
        found = strict.stop()
        assert len(found) == 2
        assert f"connected to the broker at {broker.port} from port {connection.local_port}" in found[0]
        assert f"1 connections to brokers of {front.version}, while 0 clients" in found[1]


def test_one_that_is_over_at_once_is_counted(front: Front, watch: PeerWatch) -> None:
    broker = front.cluster.brokers[0]
    strict = PeerWatch([front])
    with ExitStack() as stack:
        while True:  # until one has a port that no connection had that is still in TIME_WAIT
            connection = stack.enter_context(WireConnection((broker.host, broker.port)))
            watch.allow(connection.local_port)
            if connection.local_port not in strict.earlier_ports:
                break
        connection.ask(ApiKey.API_VERSIONS, 0)
    strict.start()  # only now: it looks for the first time when the connection has ended
    found = strict.stop()
    assert len(found) == 1
    assert f"1 connections to brokers of {front.version}, while 0 clients" in found[0]


def test_a_connection_through_the_proxy_is_fine(front: Front) -> None:
    strict = PeerWatch([front])
    strict.start()
    with WireConnection(("127.0.0.1", front.proxy.port)) as connection:
        connection.ask(ApiKey.API_VERSIONS, 0)
        eventually(lambda: strict.client_ports, "the proxy's connection is seen")
        assert strict.stop() == []
