"""Sessions of TLS: which are resumed, which are kept, and that none replaces a certificate."""

from __future__ import annotations

import datetime as dt
import ssl
from typing import TYPE_CHECKING, cast

import pytest
import trio

from headrace.config.tables.tls import ClientCertificates
from headrace.proxy.errors import ClientFault
from headrace.proxy.network.tls import failures
from headrace.proxy.network.tls.tls_socket import NoTurn, TlsSocket
from tests.proxy.network.tls.pairs import (
    connecting,
    ignore_faults,
    listening,
    read,
    shake_hands,
    sockets,
    without_tls_1_3,
)

if TYPE_CHECKING:
    from testbed.kafka.certificates import Authority, Certificate


@pytest.mark.usefixtures("libraries")
async def test_a_session_is_resumed(authority: Authority, broker: Certificate) -> None:
    client, server = connecting(authority), listening(broker)
    kept: list[object] = []
    async with sockets() as (to_broker, to_client):
        await shake_hands((to_broker, to_client), client, server)
        to_broker.keep_session = kept.append
        await to_client.send([b"x"])
        assert await read(to_broker, 1) == b"x"  # a ticket has come before it
    assert len(kept) == 1
    async with sockets() as (to_broker, to_client):
        to_broker.start(client, server_side=False, server_hostname="localhost", session=kept[0])

        async def serve() -> None:
            await to_client.receive_hello(server.setting)
            to_client.start(server, server_side=True)
            await to_client.handshake(NoTurn)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            await to_broker.handshake(NoTurn)
        assert to_client.is_resumed


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("lowest_only", [False, True])
async def test_a_session_of_another_listener_is_no_substitute_for_a_certificate(
    authority: Authority, broker: Certificate, *, lowest_only: bool
) -> None:
    """With the same certificate of the proxy, the same name and the same client."""
    client, open_to_all = connecting(authority), listening(broker)
    required = listening(broker, client_certificates=ClientCertificates.REQUIRED, client_ca_file=str(authority.ca_file))
    if lowest_only:
        without_tls_1_3(client)
    kept: list[object] = []
    async with sockets() as (to_broker, to_client):
        to_broker.keep_session = kept.append
        await shake_hands((to_broker, to_client), client, open_to_all)
        await to_client.send([b"x"])
        assert await read(to_broker, 1) == b"x"
    for server, is_served in ((open_to_all, True), (required, False)):
        async with sockets() as (to_broker, to_client):
            to_broker.start(client, server_side=False, server_hostname="localhost", session=kept[0])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ignore_faults, to_broker)
                await to_client.receive_hello(server.setting)
                to_client.start(server, server_side=True)
                if is_served:
                    await to_client.handshake(NoTurn)
                    assert to_client.is_resumed
                else:
                    with pytest.raises(ClientFault, match="certificate"):
                        await to_client.handshake(NoTurn)
                    to_client.close()


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("lowest_only", [False, True])
async def test_a_session_ends_with_the_certificate_of_the_client(
    authority: Authority, broker: Certificate, monkeypatch: pytest.MonkeyPatch, *, lowest_only: bool
) -> None:
    """Each resumed handshake begins a new session, which would go on for ever."""
    shown = str(authority.client_certificate("CN=alice", name="short", valid_for=dt.timedelta(hours=1)).keystore_file)
    client = connecting(authority, certificate_file=shown)
    server = listening(broker, client_certificates=ClientCertificates.REQUIRED, client_ca_file=str(authority.ca_file))
    if lowest_only:
        without_tls_1_3(client)
    kept: list[object] = [None]
    for after_hours in (0, 0, 2):
        monkeypatch.setattr(failures, "datetime", clock_after(dt.timedelta(hours=after_hours)))
        async with sockets() as (to_broker, to_client):
            to_broker.start(client, server_side=False, server_hostname="localhost", session=kept[-1])
            to_broker.keep_session = kept.append
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ignore_faults, to_broker)
                await to_client.receive_hello(server.setting)
                to_client.start(server, server_side=True)
                if after_hours:
                    with pytest.raises(ClientFault, match="the client resumed a session whose certificate has expired"):
                        await to_client.handshake(NoTurn)
                    to_client.close()
                    return
                await to_client.handshake(NoTurn)
            assert to_client.is_resumed is (kept[0] is None and len(kept) > 1)
            await to_client.send([b"x"])
            assert await read(to_broker, 1) == b"x"


def clock_after(later: dt.timedelta) -> type[dt.datetime]:
    """A class whose ``now`` is the time that it will be then."""

    class Later(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Later:
            return cast("Later", dt.datetime.now(tz) + later)

    return Later


@pytest.mark.parametrize("ends", ["the client", "the proxy"])
async def test_no_session_of_a_client_without_tickets_is_kept(
    authority: Authority, broker: Certificate, ends: str
) -> None:
    server, client = listening(broker), connecting(authority)
    client.current.maximum_version = ssl.TLSVersion.TLSv1_2
    client.current.options |= ssl.OP_NO_TICKET
    for _ in range(5):
        async with sockets() as pair:
            await shake_hands(pair, client, server)
            to_broker, to_client = pair
            assert server.current.session_stats()["number"] == 1, "while the connection is open"
            if ends == "the client":
                to_broker.close()
                await to_client.readable()
                assert to_client.receive_into(bytearray(10)) == 0
            to_client.close()
            assert isinstance(to_client, TlsSocket)
            to_client.tls = None
    assert server.current.session_stats()["number"] == 0
