"""TLS of a real proxy's admin port: who gets in with which certificate, and attacks with handshakes."""

from __future__ import annotations

import contextlib
import shutil
import ssl
import statistics
import subprocess
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from testbed.errors import TestbedError
from testbed.kafka.certificates import EXPIRED, Authority, Certificate, ClientTls
from testbed.preloaded_command import run_headrace
from testbed.proxy_process import ProxyProcess
from tests.faults.fake_broker import FakeBroker
from tests.faults.waiting import wait_until
from tests.security.admin.admin_client import Reply, ask, connected, send, switch_off
from tests.security.admin.admin_flood import probe, seconds, times_beside
from tests.security.tls.handshakes import client_hello, is_closed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNREACHABLE: Final = "127.0.0.1:1"
JSON: Final = {"Content-Type": "application/json"}
OTHERS: Final = ("/metrics", "/decisions", "/enforcement", "/quotas/audit")
EXPIRY: Final = 'headrace_tls_certificate_expiry_timestamp_seconds{table="admin.tls"}'
TIMEOUT_S: Final = 2
PATIENT_S: Final = 20
"""So that a stall of the proxy ends no honest request."""
SILENT: Final = 400
MEMORY: Final = 30 * 2**20
SLOWEST_MEDIAN_S: Final = 0.5
SLOWEST_PROBE_S: Final = 6.0
"""As beside floods without TLS (`test_admin_attacks`)."""


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture(scope="module")
def operator(authority: Authority) -> Certificate:
    return authority.client_certificate("CN=prometheus,O=Example")


def admin_tls(
    authority: Authority, certificate: Certificate, *, shown: str = "requested", timeout_s: int = PATIENT_S
) -> str:
    return (
        f'[admin]\nrequest_timeout = "{timeout_s}s"\n'
        f'[admin.tls]\ncertificate_file = "{certificate.certificate_file}"\nkey_file = "{certificate.key_file}"\n'
        f'client_certificates = "{shown}"\nclient_ca_file = "{authority.ca_file}"\n'
    )


@pytest.fixture(scope="module")
def proxy(authority: Authority) -> Iterator[ProxyProcess]:
    """A proxy with tokens, which asks for certificates without requiring them."""
    config = admin_tls(authority, authority.broker_certificate("requested"))
    with FakeBroker({}) as broker, ProxyProcess(broker.address, config=config, has_token=True) as process:
        yield process
        assert "Traceback" not in process.log
        assert "internal error" not in process.log


@pytest.fixture(scope="module")
def strict(authority: Authority) -> Iterator[ProxyProcess]:
    """A proxy without tokens, which requires certificates and could be reached by others."""
    config = admin_tls(authority, authority.broker_certificate("required"), shown="required")
    with ProxyProcess(UNREACHABLE, config=config, arguments=("--admin", "0.0.0.0:0")) as process:
        yield process
        assert "Traceback" not in process.log
        assert "internal error" not in process.log


def address(proxy: ProxyProcess) -> str:
    return proxy.admin.replace("0.0.0.0", "127.0.0.1")


def context(authority: Authority, certificate: Certificate | None = None) -> ssl.SSLContext:
    return ClientTls(authority=authority, certificate=certificate).ssl_context()


def get(proxy: ProxyProcess, tls: ssl.SSLContext, path: str = "/metrics", **headers: str) -> Reply:
    return ask(address(proxy), path, headers=headers, tls=tls)


def metrics(proxy: ProxyProcess, tls: ssl.SSLContext) -> dict[str, float]:
    lines = [line for line in get(proxy, tls).body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def refused(proxy: ProxyProcess, tls: ssl.SSLContext) -> ssl.SSLError:
    """The failure of the handshake, which a client of TLS 1.3 notices when it reads."""
    with pytest.raises(ssl.SSLError) as caught:
        ask(address(proxy), "/livez", tls=tls)
    return caught.value


# --- certificates ---


def test_probes_need_no_certificate_and_all_else_a_certificate_or_a_token(
    proxy: ProxyProcess, authority: Authority, operator: Certificate
) -> None:
    nobody, somebody = context(authority), context(authority, operator)
    for path in ("/livez", "/readyz"):
        assert get(proxy, nobody, path).status == 200, path
    for path in OTHERS:
        reply = get(proxy, nobody, path)
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer"), path
        assert "client certificate" in reply.error
        allowed = 503 if path == "/quotas/audit" else 200  # no quotas are kept
        assert get(proxy, nobody, path, **proxy.authorization).status == allowed, path
        assert get(proxy, somebody, path).status == allowed, path
    assert ask(address(proxy), "/enforcement", method="PUT", headers=JSON, body=b"{}", tls=nobody).status == 401
    on = ask(address(proxy), "/enforcement", method="PUT", headers=JSON, body=b'{"enabled": true}', tls=somebody)
    assert on.json == {"enabled": True}
    foreign = JSON | {"Origin": "https://evil.example"}
    for headers in (foreign, {"Host": "evil.example"}):
        reply = ask(address(proxy), "/enforcement", method="PUT", headers=headers, body=b"{}", tls=somebody)
        assert reply.status == 403, "a browser shows the certificate for every page"


def test_the_metrics_have_the_end_of_the_certificate_and_what_was_refused(
    proxy: ProxyProcess, authority: Authority, stranger: Authority, operator: Certificate
) -> None:
    tls = context(authority, operator)
    before = metrics(proxy, tls)
    refused(proxy, context(stranger))
    send(address(proxy), b"GET / HTTP/1.1\r\n\r\n")
    after = metrics(proxy, tls)
    now_s = datetime.now(UTC).timestamp()
    assert now_s < after[EXPIRY] < now_s + 91 * 86400
    for reason in ("tls", "plaintext"):
        name = f'headrace_admin_refused_total{{reason="{reason}"}}'
        assert after[name] == before.get(name, 0) + 1


def test_a_probe_of_kubernetes_is_answered(proxy: ProxyProcess) -> None:
    """A kubelet verifies no certificate, shows none, and connects to an address, for which it sends no name."""
    kubelet = ssl.create_default_context()
    kubelet.check_hostname, kubelet.verify_mode = False, ssl.CERT_NONE
    assert get(proxy, kubelet, "/livez", Host="192.0.2.7:9190").status == 403, "listens on loopback only"
    assert get(proxy, kubelet, "/livez").json == {"status": "ok"}


def test_required_certificates_are_required_of_probes_too(
    strict: ProxyProcess, authority: Authority, operator: Certificate
) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        nobody, somebody = context(authority), context(authority, operator)
        nobody.maximum_version = somebody.maximum_version = version
        assert "CERTIFICATE_REQUIRED" in str(refused(strict, nobody)) or version is ssl.TLSVersion.TLSv1_2
        assert get(strict, somebody, "/livez").status == 200
        assert get(strict, somebody).status == 200
    strict.wait_for_log("the client showed no certificate, which admin.tls.client_certificates requires")
    assert ask(address(strict), "/livez", headers={"Host": "192.0.2.7"}, tls=context(authority, operator)).status == 200


def test_the_log_names_the_subject_that_switched_enforcement_off(
    strict: ProxyProcess, authority: Authority, operator: Certificate
) -> None:
    for state in ("false", "true"):
        body = b'{"enabled": %s}' % state.encode()
        tls = context(authority, operator)
        assert ask(address(strict), "/enforcement", method="PUT", headers=JSON, body=body, tls=tls).status == 200
    strict.wait_for_log("127.0.0.1, CN=prometheus,O=Example")


@pytest.mark.parametrize("which", ["proxy", "strict"])
def test_certificates_that_are_not_accepted(
    request: pytest.FixtureRequest, which: str, authority: Authority, stranger: Authority
) -> None:
    """A certificate that is not accepted is no less than none: even a probe with it is refused."""
    process: ProxyProcess = request.getfixturevalue(which)
    expired = authority.client_certificate("CN=prometheus,O=Example", name="expired", valid_for=EXPIRED)
    strange = stranger.client_certificate("CN=prometheus,O=Example")
    for certificate, alert in ((expired, "expired"), (strange, "unknown ca")):
        assert alert in str(refused(process, context(authority, certificate))).lower().replace("_", " ")
    process.wait_for_log("the client's certificate is not accepted: certificate has expired")
    process.wait_for_log("add its authority to admin.tls.client_ca_file")


def test_a_client_with_the_wrong_authority_is_named_in_the_log(proxy: ProxyProcess, stranger: Authority) -> None:
    assert "CERTIFICATE_VERIFY_FAILED" in str(refused(proxy, context(stranger)))
    proxy.wait_for_log("the client does not trust the authority of the proxy's certificate")


# --- other protocols and versions ---


def test_http_without_tls_is_answered_with_400(proxy: ProxyProcess, strict: ProxyProcess) -> None:
    for process in (proxy, strict):
        for reply in (
            ask(address(process), "/livez"),
            switch_off(address(process), JSON | proxy.authorization),
            send(address(process), b"POST / HTTP/1.1\r\nContent-Length: 90000\r\n\r\n" + bytes(90_000)),
        ):
            assert (reply.status, reply.headers["content-type"]) == (400, "text/plain")
            assert reply.body == b"this port requires TLS: use https instead of http\n"
            assert reply.headers["x-content-type-options"] == "nosniff"
        process.wait_for_log("the client speaks HTTP without TLS; let it use https")


def test_what_is_neither_tls_nor_http_is_closed(proxy: ProxyProcess) -> None:
    for data in (bytes(5), b"\x00\x00\x00\x10\x00\x12\x00\x00", b"\x16\x16\x16\x16\x16", b"PROXY TCP4 "):
        assert send(address(proxy), data).status == 0
    proxy.wait_for_log("the client speaks neither TLS nor HTTP")


def test_tls_to_a_port_without_it_is_answered_and_logged(authority: Authority) -> None:
    with ProxyProcess(UNREACHABLE, config='[admin]\nrequest_timeout = "1m"\n') as process:
        began_s = time.monotonic()
        assert "WRONG_VERSION_NUMBER" in str(refused(process, context(authority)))
        assert time.monotonic() - began_s < 30, "it is answered at once"
        process.wait_for_log("the client speaks TLS, but the admin server has no certificate: set admin.tls.cert")
        assert send(process.admin, b"\x16\x03\x01\x00\x05").status == 400
        assert process.metric("headrace_admin_refused_total") == 2


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the command openssl is not installed")
def test_old_versions_and_weak_ciphers_are_refused(proxy: ProxyProcess, authority: Authority) -> None:
    def printed(*arguments: str) -> bytes:
        command = ["openssl", "s_client", "-connect", address(proxy), "-CAfile", authority.ca_file, *arguments]
        return subprocess.run(command, input=b"Q\n", capture_output=True, timeout=60, check=False).stdout

    assert b"Cipher is (NONE)" in printed("-tls1", "-cipher", "ALL:@SECLEVEL=0")
    assert b"Cipher is (NONE)" in printed("-tls1_1", "-cipher", "ALL:@SECLEVEL=0")
    assert b"Cipher is (NONE)" in printed("-tls1_2", "-cipher", "AES128-SHA:@SECLEVEL=0")
    assert b"Cipher is ECDHE-" in printed("-tls1_2")
    proxy.wait_for_log("supports no version of TLS that admin.tls.min_version permits")


# --- handshakes ---


@pytest.mark.parametrize(
    "sent",
    [
        *(
            pytest.param(each, marks=pytest.mark.exhaustive)
            for each in ("nothing", "a byte", "a part of the first record")
        ),
        "a whole hello",
    ],
)
def test_half_open_handshakes_take_no_probe_no_thread_and_little_memory(authority: Authority, sent: str) -> None:
    whole = client_hello(context(authority))
    data = {"nothing": b"", "a byte": b"\x16", "a part of the first record": whole[:100], "a whole hello": whole}[sent]
    config = admin_tls(authority, authority.broker_certificate("half-open"), timeout_s=TIMEOUT_S)
    with ProxyProcess(UNREACHABLE, config=config) as proxy, contextlib.ExitStack() as stack:
        process = psutil.Process(proxy.pid)
        before, threads = process.memory_info().rss, process.num_threads()
        socks, probes = [], []
        for number in range(SILENT):
            sock = stack.enter_context(connected(proxy.admin, f"127.0.{number % 7}.{2 + number % 97}"))
            sock.sendall(data)
            socks.append(sock)
        for _ in range(5):
            with contextlib.suppress(OSError, AssertionError):  # a stall may end the handshake of one
                probes.append(seconds(lambda: probe(proxy.admin, "127.0.0.77", context(authority))))
        assert min(probes) < TIMEOUT_S, "each would wait for the handshakes before it"
        assert process.memory_info().rss - before < MEMORY
        assert process.num_threads() <= threads + 2, "of readings of files, at most"
        wait_until(lambda: all(map(is_closed, socks)), "all are closed when the time for a handshake is over")
        proxy.wait_for_log(f"the TLS handshake was not complete within admin.request_timeout = {TIMEOUT_S} s")


@pytest.mark.exhaustive
def test_floods_of_handshakes_delay_no_client_and_no_probe(proxy: ProxyProcess, authority: Authority) -> None:
    tls = context(authority)
    floods = {
        "hellos that are followed by garbage": (client_hello(tls), b"\x17\x03\x03\x00\x05hello"),
        "records that are no hello": (b"", b"\x16\x03\x01\x00\x04\x02\x00\x00\x00"),
        "requests without TLS": (b"", b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 200),
    }
    for name, flood in floods.items():
        latencies_s, probes_s = times_beside(proxy, flood, tls)
        assert statistics.median(latencies_s) < SLOWEST_MEDIAN_S, (name, latencies_s)
        assert max(probes_s) < SLOWEST_PROBE_S, (name, probes_s)


# --- files ---


@pytest.mark.exhaustive
def test_the_certificate_is_renewed_while_the_port_is_scraped(
    strict: ProxyProcess, authority: Authority, operator: Certificate
) -> None:
    """Every scrape has a connection of its own; the metric shows the new certificate's end."""
    tls = context(authority, operator)
    before = metrics(strict, tls)[EXPIRY]
    authority.broker_certificate("required", valid_for=EXPIRED * -200)
    wait_until(lambda: metrics(strict, tls)[EXPIRY] > before, "the new certificate is used; no scrape fails before")
    strict.wait_for_log("TLS files loaded again")
    assert get(strict, tls).status == 200


@pytest.mark.exhaustive
def test_an_authority_that_was_removed_is_not_accepted(
    authority: Authority, stranger: Authority, operator: Certificate, tmp_path: Path
) -> None:
    trusted = tmp_path / "clients.pem"
    trusted.write_bytes(authority.ca_file.read_bytes())
    config = admin_tls(authority, authority.broker_certificate("other")).replace(str(authority.ca_file), str(trusted))
    with ProxyProcess(UNREACHABLE, config=config) as process:
        tls = context(authority, operator)
        assert get(process, tls).status == 200
        new = tmp_path / "new"
        new.write_bytes(stranger.ca_file.read_bytes())
        new.rename(trusted)
        process.wait_for_log("TLS files loaded again")
        assert "unknown ca" in str(refused(process, tls)).lower().replace("_", " ")


def test_a_file_that_cannot_be_used_stops_the_start(authority: Authority, tmp_path: Path) -> None:
    certificate = authority.broker_certificate("unused")
    (tmp_path / "empty.pem").touch()
    config = admin_tls(authority, certificate).replace(str(certificate.certificate_file), str(tmp_path / "empty.pem"))
    with pytest.raises(TestbedError, match=r"admin\.tls\.certificate_file = .*: it has no certificate in PEM"):
        ProxyProcess(UNREACHABLE, config=config)
    file = tmp_path / "headrace.toml"
    file.write_text(
        'upstream.bootstrap_servers = ["127.0.0.1:1"]\nlisten.address = "127.0.0.1:9192"\n'
        f'admin.listen = "127.0.0.1:9190"\n[admin.tls]\n{config.partition("[admin.tls]")[2]}'
    )
    result = run_headrace("check-config", file)
    assert (result.returncode, "admin.tls.certificate_file" in result.stderr) == (1, True), result.stderr
