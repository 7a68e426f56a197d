"""Faults of a broker in its TLS handshake, and in the login of the proxy, at every byte that it sends.

The client is closed in time, the log blames the broker with the setting, nothing is left over, and the next connection
works.
"""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from testbed.kafka.certificates import EXPIRED, Authority
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.metrics import series
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback, events
from tests.faults.raw_client import ConnectionEndedError, RawClient
from tests.faults.tls.faulty_connection import Kind, every
from tests.faults.tls.tls_broker import TlsBroker
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from testbed.kafka.certificates import Certificate
    from tests.faults.tls.faulty_connection import Fault

TIMEOUT_S: Final = 2
"""For the broker's handshake, and for its replies. A busy machine may pause for as long: so requests are repeated."""
PATIENT_S: Final = 20
"""For tests in which nothing stalls: no pause of a busy machine is taken for a broker that hangs."""
LOGIN_TIMEOUT_S: Final = 30
"""Long enough for clients and the scripted broker, which share one interpreter with 40 threads each."""
AT_A_TIME: Final = 40
QUICK: Final = 8
"""Offsets of each kind in the quick form."""
VERSIONS: Final = (pytest.param(ssl.TLSVersion.TLSv1_2, marks=pytest.mark.exhaustive), ssl.TLSVersion.TLSv1_3)


def broker_contexts(
    authority: Authority, version: ssl.TLSVersion, certificate: Certificate | None = None
) -> Callable[[], ssl.SSLContext]:
    shown = certificate or authority.broker_certificate()

    def new_context() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = context.maximum_version = version
        context.load_cert_chain(shown.keystore_file)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.ca_file)
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        return context

    return new_context


@contextmanager
def proxy_before(
    broker: TlsBroker,
    authority: Authority,
    folder: Path,
    timeout_s: float = TIMEOUT_S,
    data_plane: str = "auto",
) -> Iterator[ProxyProcess]:
    password = folder / "password"
    password.write_text("secret-of-the-proxy", encoding="ascii")
    own = authority.client_certificate("CN=proxy")
    config = (
        f'data_plane = "{data_plane}"\n[upstream]\nconnect_timeout = "{timeout_s}s"\nreply_timeout = "{timeout_s}s"\n'
        f'[upstream.tls]\nenabled = true\nca_file = "{authority.ca_file}"\ncertificate_file = "{own.keystore_file}"\n'
        f'[upstream.sasl]\nmechanism = "PLAIN"\nuser = "proxy"\npassword = {{ file = "{password}" }}\n'
        f'[limits]\nlogin_timeout = "{LOGIN_TIMEOUT_S}s"\nmax_connection_rate_per_ip = 0\nmax_connection_rate = 0\n'
        '[log]\nlevel = "debug"\n'
    )
    with ProxyProcess(broker.address, config=config, arguments=JSON_LOG) as process:
        results = ("brokers changed", "the cluster cannot be reached")  # it asks once, maybe in a pause
        wait_until(lambda: any(each in process.log for each in results), "the proxy has asked for the brokers")
        yield process


def is_served(proxy: ProxyProcess) -> bool:
    """Return whether the broker's answer arrives; if not, the proxy must close the connection in time."""
    with RawClient(proxy.port, timeout_s=60) as client:
        try:
            return len(client.call(messages.METADATA, messages.METADATA_VERSION, messages.NO_TOPICS)) > 0
        except ConnectionEndedError:
            return False


def flight_bytes(proxy: ProxyProcess, broker: TlsBroker) -> int:
    """Return how many bytes the broker sends to a connection on which one request is answered."""
    wait_until(lambda: broker.open == 0, "the proxy's own connection has ended")
    count = len(broker.sent)
    wait_until(lambda: is_served(proxy), "a request is answered in time")
    wait_until(lambda: broker.open == 0, "the broker's connection has ended")
    return max(broker.sent[count:])


def run_faults(proxy: ProxyProcess, broker: TlsBroker, faults: Sequence[Fault]) -> None:
    """Open a connection for each fault, and check that it ends and that nothing is left over."""
    process = psutil.Process(proxy.pid)
    wait_until(lambda: broker.open == 0, "no connection is left of what was before")
    descriptors, errors = process.num_fds(), series(proxy, 'headrace_errors_total{fault="upstream"}')
    ended = len(broker.sent)
    broker.faults.extend(faults)
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        served = list(threads.map(lambda _: is_served(proxy), faults))
    wait_until(lambda: not broker.faults, "the broker has accepted all connections, also those that ended before")
    wait_until(lambda: broker.open == 0, "the proxy has closed all connections")
    own = len(broker.sent) - ended - len(faults)  # in minutes, the proxy asks for the cluster's brokers by itself
    assert sum(served) <= own, {fault.kind for fault in faults}
    wait_until(lambda: proxy.metric("headrace_connections") == 0, "no connection of a client is left")
    wait_until(lambda: process.num_fds() <= descriptors, "no descriptor is left")
    assert proxy.metric("headrace_held_bytes") == 0
    assert_broker_is_blamed(proxy)
    assert series(proxy, 'headrace_errors_total{fault="upstream"}') - errors >= len(faults) - own
    wait_until(lambda: is_served(proxy), "the next connection works")


def reasons(proxy: ProxyProcess) -> set[str]:
    return {event["reason"] for event in events(proxy) if event["event"] == "connection closed" and event["reason"]}


def assert_broker_is_blamed(proxy: ProxyProcess) -> None:
    found = reasons(proxy)
    assert not [reason for reason in found if not reason.startswith("upstream: ")], found
    assert_no_traceback(proxy)
    assert "secret-of-the-proxy" not in proxy.log


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_faults_at_some_bytes(
    authority: Authority, tmp_path: Path, version: ssl.TLSVersion, rng: random.Random
) -> None:
    with TlsBroker(broker_contexts(authority, version)) as broker, proxy_before(broker, authority, tmp_path) as proxy:
        size = flight_bytes(proxy, broker) - 20  # signatures differ by some bytes
        faults = [fault for kind in Kind for fault in every([kind], [0, size, *rng.sample(range(1, size), QUICK)])]
        rng.shuffle(faults)
        run_faults(proxy, broker, faults)
        text = "\n".join(reasons(proxy))
        assert f"no answer within upstream.connect_timeout = {TIMEOUT_S} s" in text


@pytest.mark.exhaustive
@pytest.mark.parametrize("data_plane", ["auto", "python"])
@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_resets_at_every_byte_and_other_faults_at_every_fourth(
    authority: Authority, tmp_path: Path, version: ssl.TLSVersion, data_plane: str, rng: random.Random
) -> None:
    """By rustls, where the native data plane is installed, and by OpenSSL."""
    with (
        TlsBroker(broker_contexts(authority, version)) as broker,
        proxy_before(broker, authority, tmp_path, data_plane=data_plane) as proxy,
    ):
        size = flight_bytes(proxy, broker) - 20
        for kind in Kind:
            step = 1 if kind is Kind.RESET else 4
            run_faults(proxy, broker, every([kind], range(rng.randrange(step), size, step)))


def test_a_certificate_that_changes_between_two_connections(authority: Authority, tmp_path: Path) -> None:
    """Whatever a broker shows next, it has no effect on the connections before and after."""
    stranger = Authority(tmp_path, "stranger")
    good = broker_contexts(authority, ssl.TLSVersion.TLSv1_3)
    expired = authority.broker_certificate("expired", valid_for=EXPIRED)
    elsewhere = authority.broker_certificate("elsewhere", hosts=["broker.elsewhere.example"])
    cases = [
        (expired, "the broker's certificate is not accepted: certificate has expired"),
        (elsewhere, "connect to a name in the certificate, or set upstream.tls.verify_names = false"),
        (stranger.broker_certificate(), "add its authority to upstream.tls.ca_file"),
    ]
    with (
        TlsBroker(good) as broker,
        proxy_before(broker, authority, tmp_path, PATIENT_S) as proxy,
        RawClient(proxy.port) as before,
    ):
        ask = (messages.METADATA, messages.METADATA_VERSION, messages.NO_TOPICS)
        assert before.call(*ask)
        for certificate, reason in cases:
            broker.new_context = broker_contexts(authority, ssl.TLSVersion.TLSv1_3, certificate)
            assert not is_served(proxy)
            assert reason in proxy.wait_for_log(reason)
            assert before.call(*ask)
            broker.new_context = good
            assert is_served(proxy)
        assert_broker_is_blamed(proxy)


def test_a_broker_that_offers_tls_1_1_only(authority: Authority, tmp_path: Path) -> None:
    good = broker_contexts(authority, ssl.TLSVersion.TLSv1_2)

    def old() -> ssl.SSLContext:
        context = good()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the version
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("ALL:@SECLEVEL=0")
        return context

    with TlsBroker(good) as broker, proxy_before(broker, authority, tmp_path, PATIENT_S) as proxy:
        broker.new_context = old
        assert not is_served(proxy)
        proxy.wait_for_log("TLS: the broker does not support the proxy's versions of TLS")
        broker.new_context = good
        assert is_served(proxy)
        assert_broker_is_blamed(proxy)


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("openssl") is None, reason="the command openssl is not installed")
def test_a_broker_that_negotiates_again(authority: Authority) -> None:
    """OpenSSL's server ends a connection on which that is refused. The client is closed, and the broker is blamed."""
    certificate = authority.broker_certificate()
    command = ["openssl", "s_server", "-accept", "127.0.0.1:0", "-tls1_2", "-cert", str(certificate.keystore_file)]
    config = f'[upstream]\nconnect_timeout = "3s"\n[upstream.tls]\nenabled = true\nca_file = "{authority.ca_file}"\n'
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            address = next(line.split()[1] for line in server.stdout if line.startswith(b"ACCEPT 127")).decode()
            with ProxyProcess(address, config=config, arguments=JSON_LOG) as proxy:
                proxy.wait_for_log("the cluster cannot be reached")  # it serves one connection at a time
                with RawClient(proxy.port) as client:
                    client.send(messages.request(messages.API_VERSIONS, 0, 1, client_id="a-client-of-openssl"))
                    printed = b""
                    while b"a-client-of-openssl" not in printed:
                        printed += os.read(server.stdout.fileno(), 65536)
                        assert server.poll() is None
                    server.stdin.write(b"R\n")
                    server.stdin.flush()
                    assert client.rest() == b""
                wait_until(lambda: proxy.metric("headrace_connections") == 0, "no connection is left")
                assert_broker_is_blamed(proxy)
        finally:
            server.kill()
