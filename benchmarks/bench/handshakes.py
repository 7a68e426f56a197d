"""Many TLS handshakes, full or resumed, by blocking sockets on threads: OpenSSL works without the interpreter's lock.

Each connection sends one ApiVersions and waits for the reply, so that a proxy also connects to the broker: proxies
differ in whether they do so before a client's first request.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from benchmarks.bench import raw
from benchmarks.bench.errors import BenchError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

AT_A_TIME: Final = 4
"""Connections that are made at the same time: enough for the proxy never to wait for the clients' core."""


def handshakes_per_second(address: raw.Address, context: ssl.SSLContext, count: int, *, resumed: bool) -> float:
    """Connect `count` times, and return the connections per second.

    With `resumed`, each thread first makes a full handshake, whose session the others resume. Raises BenchError if the
    peer does not resume a session, or resumes one that was not to be.
    """
    shares = [count // AT_A_TIME + (number < count % AT_A_TIME) for number in range(AT_A_TIME)]
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        first = threads.map(lambda _: _session(address, context) if resumed else None, shares)
        sessions = list(first)
        begin_s = time.perf_counter()
        for _ in threads.map(lambda share, session: _connect_often(address, context, share, session), shares, sessions):
            pass  # raises what a thread has raised
        return count / (time.perf_counter() - begin_s)


def _session(address: raw.Address, context: ssl.SSLContext) -> ssl.SSLSession:
    """Return a session that can be resumed: with TLS 1.3, the ticket comes before the first reply."""
    with _connection(address, context, None) as connection:
        if connection.session is None:
            raise BenchError(f"{address} offers no session to resume")
        return connection.session


def _connect_often(address: raw.Address, context: ssl.SSLContext, count: int, session: ssl.SSLSession | None) -> None:
    for _ in range(count):
        with _connection(address, context, session) as connection:
            if connection.session_reused is not (session is not None):
                raise BenchError(f"{address} {'resumed a' if session is None else 'did not resume the'} session")


@contextlib.contextmanager
def _connection(
    address: raw.Address, context: ssl.SSLContext, session: ssl.SSLSession | None
) -> Iterator[ssl.SSLSocket]:
    """Connect, and get a reply to ApiVersions."""
    with (
        raw.connect(address) as plain,
        context.wrap_socket(plain, server_hostname=address[0], session=session) as connection,
    ):
        connection.sendall(raw.API_VERSIONS)
        raw.receive_reply(connection)
        yield connection
