"""Handshakes that are counted, and the configurations of proxies with TLS."""

from __future__ import annotations

import contextlib
import shutil
import ssl
import subprocess
import threading
import tomllib
from typing import TYPE_CHECKING

import pytest

from benchmarks.bench.errors import BenchError
from benchmarks.bench.handshakes import connect_many, handshakes_per_second
from benchmarks.bench.paths import HAPROXY_OF, TLS_SIDES
from benchmarks.bench.peers import HAPROXY_PLACES, haproxy_config
from benchmarks.bench.tls import CIPHER, TlsFiles, TlsSides, client_context, java_properties, tls_files
from tests.benchmarks.answering import Answering

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REPLY = bytes(8)
HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path=HAPROXY_PLACES)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return tls_files(tmp_path_factory.mktemp("certificates"))


@contextlib.contextmanager
def answering_by_tls(files: TlsFiles, *, resumes: bool = True) -> Iterator[Answering]:
    """A broker that answers everything with one reply, by TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate.certificate_file, files.certificate.key_file)
    if not resumes:
        context.num_tickets = 0
    server = Answering(REPLY, context)
    thread = threading.Thread(target=server.accept, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(20)


def test_as_many_handshakes_as_wanted_are_done_with_the_one_cipher(files: TlsFiles) -> None:
    with answering_by_tls(files) as broker:
        port = broker.address[1]
        assert handshakes_per_second(port, files.client, 9, resumed=False) > 0
        assert (broker.connections, broker.requests) == (9, 9)
        assert handshakes_per_second(port, files.client, 9, resumed=True) > 0
        assert (broker.connections, broker.requests) == (9 + 9 + 4, 9 + 9 + 4)  # the first of each thread is full
        assert broker.ciphers == {CIPHER}


def test_a_peer_that_resumes_no_session_ends_the_run(files: TlsFiles) -> None:
    with answering_by_tls(files, resumes=False) as broker, pytest.raises(BenchError, match="session"):
        handshakes_per_second(broker.address[1], files.client, 4, resumed=True)


def test_another_cipher_ends_the_run(files: TlsFiles) -> None:
    """Without its configuration file, OpenSSL prefers another one."""
    with answering_by_tls(files) as broker, pytest.raises(BenchError, match="has chosen the cipher"):
        connect_many(broker.address, client_context(files.client), 4, resumed=False)


def test_each_side_is_configured_alone(files: TlsFiles) -> None:
    for sides, tables in (
        (TlsSides.NONE, set()),
        (TlsSides.CLIENTS, {"listen"}),
        (TlsSides.BROKERS, {"upstream"}),
        (TlsSides.BOTH, {"listen", "upstream"}),
    ):
        assert set(tomllib.loads(files.headrace_config(sides))) == tables
        text = haproxy_config(1, 2, splice=False, tls=files, sides=sides)
        lines = {line.split()[0]: line for line in text.splitlines() if " ssl " in line}
        assert set(lines) == {{"listen": "bind", "upstream": "server"}[table] for table in tables}
        assert all(CIPHER in line for line in lines.values())


@pytest.mark.skipif(HAPROXY is None, reason="needs HAProxy")
def test_haproxy_accepts_its_configuration(files: TlsFiles, tmp_path: Path) -> None:
    assert HAPROXY is not None
    file = tmp_path / "haproxy.cfg"
    file.write_text(haproxy_config(1, 2, splice=False, tls=files, sides=TlsSides.BOTH), encoding="ascii")
    done = subprocess.run([HAPROXY, "-c", "-f", str(file)], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr


def test_clients_and_brokers_have_one_cipher(files: TlsFiles) -> None:
    assert java_properties(None) == {}
    properties = java_properties(files.client)
    assert (properties["security.protocol"], properties["ssl.cipher.suites"]) == ("SSL", CIPHER)
    assert files.listener("TLS").properties["ssl.cipher.suites"] == CIPHER


def test_every_path_with_tls_has_a_haproxy_to_compare_with() -> None:
    assert {TLS_SIDES[peer] is TLS_SIDES[path] for path, peer in HAPROXY_OF.items()} == {True}
    assert HAPROXY_OF.keys() == TLS_SIDES.keys()
