"""Many TLS handshakes, full or resumed, by blocking sockets on threads: OpenSSL works without the interpreter's lock.

Each connection sends one ApiVersions and waits for the reply, so that a proxy also connects to the broker: proxies
differ in whether they do so before a client's first request.

The clients are a program of their own, ``python -m benchmarks.bench.handshakes PORT COUNT CA_FILE full|resumed``:
only a configuration file that OpenSSL reads when it starts can select a cipher of TLS 1.3 for Python's `ssl`.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from benchmarks.bench import raw
from benchmarks.bench.errors import BenchError
from benchmarks.bench.tls import CIPHER
from testbed.processes.ports import HOST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.kafka.certificates import ClientTls

AT_A_TIME: Final = 4
"""Connections that are made at the same time: enough for the proxy never to wait for the clients' core."""
TIMEOUT_S: Final = 600.0
FULL, RESUMED = "full", "resumed"
OPENSSL_CONFIG: Final = f"""\
openssl_conf = init
[init]
ssl_conf = modules
[modules]
system_default = tls
[tls]
Ciphersuites = {CIPHER}
"""


def handshakes_per_second(port: int, tls: ClientTls, count: int, *, resumed: bool) -> float:
    """Connect `count` times with the one cipher, and return the connections per second.

    Raises BenchError with what the program of the clients has written if it fails.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".cnf") as config:
        config.write(OPENSSL_CONFIG)
        config.flush()
        arguments = (str(port), str(count), str(tls.authority.ca_file), RESUMED if resumed else FULL)
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.bench.handshakes", *arguments],
            env={**os.environ, "OPENSSL_CONF": config.name},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    if done.returncode:
        raise BenchError(done.stderr.strip())
    return float(done.stdout)


def main(port: str, count: str, ca_file: str, kind: str) -> None:
    """Print the connections per second; end with the error's text if a handshake is not of the wanted kind."""
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        print(connect_many((HOST, int(port)), context, int(count), resumed=kind == RESUMED))
    except (BenchError, OSError) as error:
        sys.exit(str(error))


def connect_many(address: raw.Address, context: ssl.SSLContext, count: int, *, resumed: bool) -> float:
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
            if (cipher := connection.cipher()) is None or cipher[0] != CIPHER:
                raise BenchError(f"{address} has chosen the cipher {cipher}, and not {CIPHER}")


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


if __name__ == "__main__":
    main(*sys.argv[1:])
