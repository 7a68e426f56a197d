"""TLS of rustls that the threads relay, with peers that have OpenSSL: nothing is lost between both planes."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
from typing import TYPE_CHECKING, Any, Final

import pytest

from headrace.config.tables.tls import ListenTls, UpstreamTls
from headrace.proxy.network.tls.contexts import client_context, server_context
from headrace.quota_callbacks.api_keys import ApiKey
from tests.proxy.data_plane.wire import Wire, needs_engine
from tests.proxy.playbook import reply, request

if TYPE_CHECKING:
    from testbed.kafka.certificates import Authority

pytestmark = needs_engine

MIB: Final = 2**20
BEAT, BEATEN = request(ApiKey.HEARTBEAT, 4), reply(ApiKey.HEARTBEAT, 4)
UNKNOWN = request(ApiKey.CREATE_TOPICS, 5)
"""A request that the control plane has to process."""


class Peer:
    """A socket with TLS of OpenSSL, which reads and writes as one without."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> None:
        name = None if server_side else "localhost"
        self.tls = context.wrap_socket(
            sock, server_side=server_side, do_handshake_on_connect=False, server_hostname=name
        )
        self.fileno, self.close = self.tls.fileno, self.tls.close

    def shakes_hands(self) -> bool:
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
            return False
        return True

    def send(self, data: Any) -> int:
        try:
            return self.tls.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv(self, most: int) -> bytes:
        found = bytearray()
        try:
            while len(found) < most and (data := self.tls.recv(most)):
                found += data
        except ssl.SSLWantReadError:
            if not found:
                raise BlockingIOError from None
        return bytes(found)


class SecuredWire(Wire):
    """A connection whose ``secured`` sides have TLS."""

    def __init__(self, engine: Any, authority: Authority, secured: str = "both", **terms: Any) -> None:
        self._authority, self._secured = authority, secured
        self.sessions: dict[str, Any] = {}
        super().__init__(engine, **terms)

    def _relay(self, terms: dict[str, Any]) -> None:
        self.terms = terms
        certificate = str(self._authority.broker_certificate().keystore_file)
        server = server_context(ListenTls(certificate_file=certificate), "listen.tls", lambda _: True)
        ca_file = str(self._authority.ca_file)
        client = client_context(UpstreamTls(enabled=True, ca_file=ca_file), "upstream.tls")
        server.prefer_rustls()
        client.prefer_rustls()
        assert server.rustls is not None
        assert client.rustls is not None
        if self._secured in ("both", "client"):
            self.client: Any = Peer(self.client, client.current, server_side=False)
            self.sessions["client"] = server.rustls.accept()
            self._shake_hands(self.client, self.sessions["client"], self._to_client)
        if self._secured in ("both", "broker"):
            from headrace._engine import TlsSessions

            self.broker: Any = Peer(self.broker, server.current, server_side=True)
            self.sessions["broker"] = client.rustls.connect("localhost", TlsSessions())
            self._shake_hands(self.broker, self.sessions["broker"], self._to_broker)
        self.again()

    def again(self, **terms: Any) -> None:
        """Give the connection to the data plane."""
        self.rest = None
        super()._relay(
            self.terms | {"client_tls": self.sessions.get("client"), "broker_tls": self.sessions.get("broker")} | terms
        )

    def _shake_hands(self, peer: Peer, session: Any, sock: socket.socket) -> None:
        waits = True
        while waits or session.is_handshaking:
            waits = peer.shakes_hands()
            received = b""
            with contextlib.suppress(BlockingIOError):
                received = sock.recv(65536)
            session.decrypt(received, 0)
            sock.send(session.take_outgoing())
        assert session.failure is None

    def until_all_came(self) -> None:
        """Do nothing: what was sent is counted encrypted."""

    def rest_of(self, side: str) -> bytes:
        """Return what the data plane has not processed of a side, decrypted or not, read or not."""
        tail = self.rest.request_tail if side == "client" else self.rest.reply_tail
        session = self.sessions.get(side)
        received = self.unread(side)
        if session is None:
            return bytes(tail + received)
        return bytes(tail + session.decrypt(received, MIB))


@pytest.mark.parametrize("secured", ["both", "client", "broker"])
def test_large_frames_pass(engine: Any, authority: Authority, secured: str) -> None:
    asked = request(ApiKey.PRODUCE, 10, 1, acks=1, padding=3 * MIB)
    ask = request(ApiKey.FETCH, 17, 2, max_bytes=MIB)
    rows = [{"partitions": [{"records": bytes(range(256)) * 20_000}]}]
    answers = reply(ApiKey.PRODUCE, 10, 1) + reply(ApiKey.FETCH, 17, 2, responses=rows)
    with SecuredWire(engine, authority, secured) as wire:
        wire.send("client", asked + ask)
        wire.until(lambda: len(wire.received["broker"]) == len(asked + ask))
        wire.send("broker", answers)
        wire.until(lambda: len(wire.received["client"]) == len(answers))
        rest = wire.recalled()
        assert (rest.reason, rest.in_flight, rest.fault) == ("recalled", [], None)
        assert wire.received["broker"] == asked + ask
        assert wire.received["client"].endswith(answers[-5 * MIB // 2 :])
        assert wire.progress.bytes[4] == 0, "nothing is spliced"


def test_a_connection_returns_in_the_middle_of_records(engine: Any, authority: Authority) -> None:
    """What is behind the request that the control plane processes is in the tail, in the session, or not read."""
    behind = UNKNOWN + BEAT * 3000
    with SecuredWire(engine, authority) as wire:
        wire.send("client", BEAT * 3 + behind)
        wire.send("broker", BEATEN * 3)
        wire.until(lambda: wire.rest is not None and len(wire.received["broker"]) >= 3 * len(BEAT))
        assert wire.rest.reason == "request"
        assert wire.received["broker"] == BEAT * 3
        assert wire.rest_of("client") == behind
        assert wire.rest_of("broker") == BEATEN * 3
        wire.again(request_tail=BEAT)
        wire.until(lambda: len(wire.received["broker"]) == 4 * len(BEAT))
        wire.send("client", BEAT)
        wire.until(lambda: len(wire.received["broker"]) == 5 * len(BEAT))
        wire.send("broker", BEATEN * 2)
        wire.until(lambda: wire.received["client"] == BEATEN * 2)


def test_a_part_of_a_record_is_a_request_that_arrives(engine: Any, authority: Authority) -> None:
    """Otherwise a byte now and then would keep the connection alive, as each counts as activity."""
    with SecuredWire(engine, authority) as wire:
        wire.send("client", BEAT)
        wire.until(lambda: len(wire.received["broker"]) == len(BEAT))
        assert not wire.progress.is_arriving
        os.write(wire.client.fileno(), b"\x17\x03\x03\x01\x00" + bytes(5))
        wire.until(lambda: wire.progress.is_arriving)
        assert wire.rest is None


def test_what_was_read_before_is_relayed(engine: Any, authority: Authority) -> None:
    """A decrypted part of a record, and the beginning of the next one, which the session has."""
    with SecuredWire(engine, authority) as wire:
        wire.recalled()
        wire.client.send(BEAT * 2)
        wire.client.send(BEAT)
        received = b""
        while len(received) < 3 * len(BEAT) + 2 * 22:
            received += wire.unread("client")
        session = wire.sessions["client"]
        tail = session.decrypt(received[:-10], 7)
        assert (len(tail), session.held) == (7, 2 * len(BEAT) - 7 + len(BEAT) + 22 - 10)
        assert session.decrypt(b"", 0) == b""
        session.decrypt(received[-10:], 0)
        wire.again(request_tail=tail)
        wire.until(lambda: len(wire.received["broker"]) == 3 * len(BEAT))
        assert wire.received["broker"] == BEAT * 3


def test_a_client_that_does_not_read(engine: Any, authority: Authority) -> None:
    """Its replies are kept, encrypted, and counted; all of them arrive when it reads."""
    count = 20
    answers = [
        reply(ApiKey.FETCH, 12, number, responses=[{"partitions": [{"records": bytes(MIB)}]}])
        for number in range(count)
    ]
    stream = b"".join(answers)
    with SecuredWire(engine, authority) as wire:
        wire.reads = {"broker"}
        wire.send("client", b"".join(request(ApiKey.FETCH, 12, number, max_bytes=MIB) for number in range(count)))
        wire.until(lambda: wire.progress.in_flight == count)
        at = 0
        with contextlib.suppress(BlockingIOError):
            while at < len(stream):
                at += wire.broker.send(stream[at:])
        assert at < len(stream)
        wire.until(lambda: wire.progress.held > 0)
        assert wire.progress.held < MIB
        wire.reads = {"client", "broker"}
        wire.send("broker", stream[at:])
        wire.until(lambda: len(wire.received["client"]) == len(stream))
        assert wire.received["client"] == stream
        assert wire.recalled().fault is None


@pytest.mark.parametrize("side", ["client", "broker"])
def test_an_end_of_the_stream(engine: Any, authority: Authority, side: str) -> None:
    with SecuredWire(engine, authority) as wire:
        wire.send("client", BEAT)
        wire.until(lambda: len(wire.received["broker"]) == len(BEAT))
        with contextlib.suppress(ssl.SSLWantReadError):
            getattr(wire, side).tls.unwrap()
        wire.until(lambda: wire.rest is not None)
        assert (wire.rest.reason, wire.rest.fault) == ("end", None)
        assert wire.sessions[side].has_ended


def test_a_changed_record_is_a_fault_of_its_side(engine: Any, authority: Authority) -> None:
    with SecuredWire(engine, authority) as wire:
        raw = socket.socket(fileno=wire.client.tls.detach())
        wire.client = raw
        raw.send(b"\x17\3\3\0\x20" + bytes(32))
        wire.until(lambda: wire.rest is not None)
        assert wire.rest.fault == ("client", errno.EPROTO)
        assert wire.sessions["client"].failure == ("reason", "DECRYPTION_FAILED_OR_BAD_RECORD_MAC")
