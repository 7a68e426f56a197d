"""Floods of the admin port by many connections, and probes beside them."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from tests.faults import messages
from tests.faults.raw_client import RawClient
from tests.security.admin.admin_client import connected

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

    from testbed.proxy_process import ProxyProcess

FLOOD_S: Final = 1.5
FLOODING: Final = 90
"""Connections, from five addresses."""


def seconds(action: Callable[[], object]) -> float:
    began_s = time.monotonic()
    action()
    return time.monotonic() - began_s


def probe(address: str, source: str, tls: ssl.SSLContext | None = None) -> None:
    """Send a probe from this address of the machine, and check its answer."""
    with connected(address, source, tls) as sock:
        sock.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert sock.recv(1000).startswith(b"HTTP/1.1 200 ")


def times_beside(
    process: ProxyProcess, flood: tuple[bytes, bytes], tls: ssl.SSLContext | None = None
) -> tuple[list[float], list[float]]:
    """Return the seconds that requests of a Kafka client and probes take beside a flood of the admin port."""
    latencies_s: list[float] = []
    probes_s: list[float] = []
    with RawClient(process.port, client_id="bystander") as client:
        client.call(messages.API_VERSIONS, 0)
        with flooding(process.admin, *flood) as thread:
            while thread.is_alive():
                latencies_s.append(seconds(lambda: client.call(messages.API_VERSIONS, 0)))
                if len(latencies_s) % 20 == 1:
                    probes_s.append(seconds(lambda: probe(process.admin, "127.0.0.77", tls)))
    return latencies_s, probes_s


@contextlib.contextmanager
def flooding(address: str, first: bytes, then: bytes) -> Iterator[threading.Thread]:
    """Run `send_again_and_again` in a thread, and wait for its end, also after a failure."""
    thread = threading.Thread(target=send_again_and_again, args=(address, first, then))
    thread.start()
    try:
        yield thread
    finally:
        thread.join()


def send_again_and_again(address: str, first: bytes, then: bytes) -> None:
    """Send as much as `FLOODING` connections take for `FLOOD_S`, and connect again when one is closed."""
    ends_s = time.monotonic() + FLOOD_S
    with selectors.DefaultSelector() as selector:

        def connect(number: int) -> None:
            sock = connected(address, f"127.0.0.{30 + number % 5}")
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, (number, bytearray(first)))

        for number in range(FLOODING):
            connect(number)
        while time.monotonic() < ends_s:
            for key, events in selector.select(0.1):
                sock, (number, unsent) = key.fileobj, key.data
                assert isinstance(sock, socket.socket)
                if not send_and_receive(sock, events, unsent, then):
                    selector.unregister(sock)
                    sock.close()
                    connect(number)
        for key in list(selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()


def send_and_receive(sock: socket.socket, events: int, unsent: bytearray, then: bytes) -> bool:
    """Send and receive what the socket takes and has; return whether the connection is open."""
    try:
        if events & selectors.EVENT_READ and not sock.recv(1 << 16):
            return False
        if events & selectors.EVENT_WRITE:
            unsent += b"" if unsent else then
            del unsent[: sock.send(unsent)]
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True
