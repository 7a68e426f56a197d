"""Records that only an attacker writes, to a real proxy: each ends its own connection, and no other one notices."""

from __future__ import annotations

import contextlib
import ssl
from functools import cache
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from testbed.kafka.certificates import Authority, ClientTls
from testbed.proxy_process import ProxyProcess
from tests.clients.tls.proxies import listen_tls
from tests.faults import messages
from tests.faults.bystander import Bystander
from tests.faults.fake_broker import FakeBroker
from tests.faults.metrics import series
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback, events
from tests.faults.raw_client import speaking_tls
from tests.faults.waiting import wait_until
from tests.security.tls.handshakes import client_hello
from tests.security.tls.tls_records import (
    ALERT,
    CHANGE_CIPHER_SPEC,
    CLOSE_NOTIFY,
    DATA,
    FATAL,
    HANDSHAKE,
    KEY_UPDATE,
    NO_RENEGOTIATION,
    USER_CANCELED,
    RecordClient,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    Attack = Callable[[RecordClient], bytes]

V1_2, V1_3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
UNLIMITED: Final = '[limits]\nmax_connection_rate_per_ip = 0\nmax_connection_rate = 0\n[log]\nlevel = "debug"\n'
HEARTBEAT: Final = 24
UNKNOWN_TYPE: Final = 99
MANY: Final = 2000
ASK: Final = messages.request(messages.METADATA, messages.METADATA_VERSION, 7, messages.NO_TOPICS, "attacker")

ASKED: Final = 'headrace_requests_total{api="Metadata"}'


@cache
def hello_again() -> bytes:
    """Return a ClientHello without its record: a handshake that begins again."""
    return client_hello(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))[5:]


def repeated(kind: int, content: bytes) -> Attack:
    return lambda client: b"".join(client.record(kind, content) for _ in range(MANY))


def changed(client: RecordClient) -> bytes:
    record = client.record(DATA, ASK)
    return record[:-1] + bytes([record[-1] ^ 1])


IN_EACH_VERSION: Final[Mapping[str, Attack]] = {
    "empty records": repeated(DATA, b""),
    "warnings": repeated(ALERT, USER_CANCELED),
    "a fatal alert": lambda client: client.record(ALERT, bytes([FATAL, 80])),
    "half of an alert, then data": lambda client: client.record(ALERT, b"\2") + client.record(DATA, ASK),
    "more data than a record may have": lambda client: client.record(DATA, bytes(16_385)),
    "a record of 65,535 bytes": lambda _: bytes([DATA, 3, 3, 0xFF, 0xFF]) + bytes(65_535),
    "a changed record": changed,
    "a record again": lambda client: client.record(DATA, ASK) * 2,
    "plaintext": lambda _: ASK,
    "a heartbeat": lambda client: client.record(HEARTBEAT, bytes([1, 0xFF, 0xFF]) + bytes(32)),
    "a record of no known type": lambda client: client.record(UNKNOWN_TYPE, b"x"),
    "Finished again": lambda client: client.record(HANDSHAKE, bytes([20, 0, 0, 12]) + bytes(12)),
    "a certificate afterwards": lambda client: client.record(HANDSHAKE, bytes([11, 0, 0, 4]) + bytes(4)),
    "a message of 16 MiB": lambda client: client.record(HANDSHAKE, bytes([24, 0xFF, 0xFF, 0xFF]) + bytes(9000)),
}
IN_1_3: Final[Mapping[str, Attack]] = {
    "key updates": lambda client: b"".join(client.key_update() for _ in range(MANY)),
    "key updates for both": lambda client: b"".join(client.key_update(for_both=True) for _ in range(MANY)),
    "a key update that is not valid": lambda client: client.record(HANDSHAKE, bytes([24, 0, 0, 1, 2])),
    "a key update and more in a record": lambda client: client.record(HANDSHAKE, KEY_UPDATE * 2),
    "half of a key update, then data": lambda client: (
        client.record(HANDSHAKE, KEY_UPDATE[:2]) + client.record(DATA, ASK)
    ),
    "a ClientHello": lambda client: client.record(HANDSHAKE, hello_again()),
    "only padding": lambda client: b"".join(client.record(DATA, b"x", padding=16_000) for _ in range(20)),
}
IN_1_2: Final[Mapping[str, Attack]] = {
    "renegotiations": lambda client: b"".join(client.record(HANDSHAKE, hello_again()) for _ in range(200)),
    "many renegotiations in a record": lambda client: b"".join(
        client.record(HANDSHAKE, hello_again() * (16_000 // len(hello_again()))) for _ in range(20)
    ),
    "refusals of a renegotiation": repeated(ALERT, NO_RENEGOTIATION),
    "a change of the cipher": repeated(CHANGE_CIPHER_SPEC, b"\1"),
}


@pytest.fixture(scope="module")
def proxy(authority: Authority) -> Iterator[ProxyProcess]:
    config = listen_tls(authority.broker_certificate()) + UNLIMITED
    with (
        FakeBroker({}) as broker,
        ProxyProcess(broker.address, config=config, arguments=JSON_LOG) as process,
        speaking_tls(process.port, ClientTls(authority=authority).ssl_context()),
    ):
        wait_until(lambda: "brokers changed" in process.log, "the proxy knows that brokers serve anybody")
        yield process
        assert_no_traceback(process)


@pytest.fixture
def connect(proxy: ProxyProcess, authority: Authority, tmp_path: Path) -> Callable[[ssl.TLSVersion], RecordClient]:
    return lambda version: RecordClient(proxy.port, ClientTls(authority=authority).ssl_context(), tmp_path, version)


def ends(client: RecordClient) -> bool:
    """Read until the connection ends; return ``False`` if it does not."""
    try:
        while True:
            client.receive(1)
    except TimeoutError:
        return False
    except (OSError, EOFError):
        return True


@pytest.mark.parametrize(("version", "more"), [(V1_2, IN_1_2), (V1_3, IN_1_3)], ids=["1.2", "1.3"])
def test_records_of_attackers(
    proxy: ProxyProcess,
    connect: Callable[[ssl.TLSVersion], RecordClient],
    version: ssl.TLSVersion,
    more: Mapping[str, Attack],
) -> None:
    """Each comes at once, and behind a request that is served."""
    process = psutil.Process(proxy.pid)
    with Bystander(proxy.port) as bystander, bystander.watching():
        before = process.num_fds()
        for name, attack in {**IN_EACH_VERSION, **more}.items():
            for served in (False, True):
                with connect(version) as client:
                    if served:
                        client.send(client.record(DATA, ASK))
                        size = int.from_bytes(client.receive(4), "big")
                        assert client.receive(size)[:4] == b"\0\0\0\7"
                    with contextlib.suppress(ConnectionError):
                        client.send(attack(client))
                    assert ends(client), name
        wait_until(lambda: proxy.metric("headrace_connections") == 1, "only the bystander is left")
        wait_until(lambda: process.num_fds() <= before, "no descriptor is left")
        assert proxy.metric("headrace_held_bytes") == 0
    closed = [event["reason"] for event in events(proxy) if event["event"] == "connection closed"]
    assert closed
    assert all(reason.startswith("client: ") for reason in closed), set(closed)


@pytest.mark.parametrize("version", [V1_2, V1_3], ids=["1.2", "1.3"])
def test_nothing_behind_the_end_of_the_stream_is_served(
    proxy: ProxyProcess, connect: Callable[[ssl.TLSVersion], RecordClient], version: ssl.TLSVersion
) -> None:
    with connect(version) as client:
        client.send(client.record(DATA, ASK))
        size = int.from_bytes(client.receive(4), "big")
        client.receive(size)
        before = series(proxy, ASKED)
        client.send(client.record(ALERT, CLOSE_NOTIFY) + client.record(DATA, ASK))
        assert ends(client)
    assert series(proxy, ASKED) == before


@pytest.mark.parametrize("version", [V1_2, V1_3], ids=["1.2", "1.3"])
def test_the_proxy_forgets_a_client_that_only_closes_its_side(
    proxy: ProxyProcess, connect: Callable[[ssl.TLSVersion], RecordClient], version: ssl.TLSVersion
) -> None:
    with connect(version) as client:
        client.send(client.record(ALERT, CLOSE_NOTIFY))
        assert ends(client)
    wait_until(lambda: proxy.metric("headrace_connections") == 0, "nothing is left")
