"""What a scanner of TLS servers (sslyze) finds at the ports of a proxy: nothing.

sslyze requires an older version of ``cryptography`` than this project has, so it is installed into a virtual
environment of its own in the cache of the testbed, once. Where that is not possible, the tests fail, unless
``AUDIT_OFFLINE=1`` states that the machine has no services of others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest
from trustme import KeyType

from requirements.audit import OFFLINE
from testbed.kafka.artifacts import cache_directory
from testbed.kafka.certificates import Authority
from testbed.processes.locks import exclusive
from testbed.processes.ports import reserve_ports
from testbed.proxy_process import ProxyProcess
from tests.clients.tls.proxies import listen_tls
from tests.faults.fake_broker import FakeBroker

if TYPE_CHECKING:
    from pathlib import Path

    from testbed.kafka.certificates import Certificate

pytestmark = pytest.mark.exhaustive

SCANNER: Final = "sslyze==6.3.1"
INSTALL_TIMEOUT_S: Final = 600
SCAN_TIMEOUT_S: Final = 300
UNLIMITED: Final = "[limits]\nmax_connection_rate_per_ip = 0\nmax_connection_rate = 0\n"
SCANS: Final = (
    *("--sslv2", "--sslv3", "--tlsv1", "--tlsv1_1", "--tlsv1_2", "--tlsv1_3", "--elliptic_curves", "--certinfo"),
    *("--compression", "--reneg", "--fallback", "--heartbleed", "--openssl_ccs", "--robot", "--ems"),
)
STRONG: Final = ("_GCM_SHA256", "_GCM_SHA384", "_CHACHA20_POLY1305_SHA256")


@pytest.fixture(scope="module")
def scanner() -> Path:
    """The Python of the scanner's environment."""
    cache = cache_directory()
    folder = cache / f"scanner-{SCANNER.partition('==')[2]}-python{sys.version_info.major}.{sys.version_info.minor}"
    python, installed = folder / "bin" / "python", folder / "installed"
    cache.mkdir(parents=True, exist_ok=True)
    with exclusive(cache / "scanner.lock", timeout_s=INSTALL_TIMEOUT_S):
        if not installed.exists():
            commands = [
                [sys.executable, "-m", "venv", "--clear", str(folder)],
                [str(python), "-m", "pip", "install", "--quiet", SCANNER],
            ]
            for command in commands:
                done = subprocess.run(
                    command, timeout=INSTALL_TIMEOUT_S, capture_output=True, text=True, env=without_paths(), check=False
                )
                if done.returncode:
                    end = pytest.skip if os.environ.get(OFFLINE) == "1" else pytest.fail
                    end(f"the scanner cannot be installed; {OFFLINE}=1 permits that: {done.stderr[-500:]}")
            installed.touch()
    return python


def without_paths() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def scan(python: Path, address: str, authority: Authority, folder: Path, *options: str) -> dict[str, Any]:
    """Return the results, by the name of the scan; ``options`` are further ones of sslyze."""
    found = folder / "scan.json"
    command = [str(python), "-m", "sslyze", *SCANS, "--certinfo_ca_file", str(authority.ca_file), "--quiet"]
    command += ["--mozilla_config", "disable", "--json_out", str(found), "--sni", "localhost", *options, address]
    subprocess.run(command, timeout=SCAN_TIMEOUT_S, capture_output=True, env=without_paths(), check=True)
    (server,) = json.loads(found.read_text("utf-8"))["server_scan_results"]
    assert server["scan_status"] == "COMPLETED", server
    results = {name: each for name, each in server["scan_result"].items() if each["status"] != "NOT_SCHEDULED"}
    failed = {name: each["error_trace"] for name, each in results.items() if each["status"] != "COMPLETED"}
    assert not failed
    return {name: each["result"] for name, each in results.items()}


def suites(results: dict[str, Any], version: str) -> list[str]:
    accepted = results[f"{version}_cipher_suites"]["accepted_cipher_suites"]
    return [each["cipher_suite"]["name"] for each in accepted]


def assert_only_strong_suites(results: dict[str, Any]) -> None:
    for old in ("ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1"):
        assert suites(results, old) == []
    assert suites(results, "tls_1_3")
    assert suites(results, "tls_1_2")
    for name in suites(results, "tls_1_2"):
        assert name.startswith("TLS_ECDHE_"), name
        assert name.endswith(STRONG), name
    curves = {each["name"] for each in results["elliptic_curves"]["supported_curves"]}
    assert curves <= {"X25519", "X448", "secp256r1", "secp384r1", "secp521r1"}


def assert_chain_is_right(results: dict[str, Any], certificate: Certificate, authority: Authority) -> None:
    """The scanner itself accepts no certificate of `testbed`: their alternative names are marked as critical.

    OpenSSL adds the authority if it is that of the clients' certificates, too.
    """
    (deployment,) = results["certificate_info"]["certificate_deployments"]
    assert deployment["received_chain_has_valid_order"] is True
    received, *above = [each["as_pem"].strip() for each in deployment["received_certificate_chain"]]
    assert received == certificate.certificate_file.read_text("ascii").strip()
    assert above in ([], [authority.ca_file.read_text("ascii").strip()])


@pytest.mark.parametrize("key_type", [KeyType.ECDSA, KeyType.RSA], ids=["ECDSA", "RSA"])
def test_a_scanner_finds_nothing(scanner: Path, tmp_path: Path, key_type: KeyType) -> None:
    authority = Authority(tmp_path, key_type=key_type)
    certificate = authority.broker_certificate()
    config = listen_tls(certificate) + UNLIMITED
    with FakeBroker({}) as broker, ProxyProcess(broker.address, config=config) as proxy:
        results = scan(scanner, proxy.bootstrap_servers, authority, tmp_path)
        assert "Traceback" not in proxy.log
    assert_nothing_is_found(results, certificate, authority)


def test_it_finds_nothing_with_client_certificates_or_at_the_admin_port(
    scanner: Path, authority: Authority, tmp_path: Path
) -> None:
    """Where certificates are required, the scanner has one: without, most of its scans would end in the handshake."""
    certificate, own = authority.broker_certificate(), authority.client_certificate("CN=scanner")
    mutual = listen_tls(certificate, clients=authority.ca_file).replace("[listen.", "[listeners.mutual.")
    admin = f'[admin.tls]\ncertificate_file = "{certificate.keystore_file}"\n'
    shown = ("--cert", str(own.certificate_file), "--key", str(own.key_file))
    with reserve_ports(2) as block, FakeBroker({}) as broker:
        address = f"127.0.0.1:{block.first}"
        config = f'[listeners.mutual]\naddress = "{address}"\nnode_ids = "0"\n{mutual}{admin}{UNLIMITED}'
        with ProxyProcess(broker.address, config=config) as proxy:
            assert_nothing_is_found(scan(scanner, address, authority, tmp_path, *shown), certificate, authority)
            # The rate of connections to the admin port cannot be configured.
            results = scan(scanner, proxy.admin, authority, tmp_path, "--slow_connection")
            assert_nothing_is_found(results, certificate, authority)
            assert "Traceback" not in proxy.log


def assert_nothing_is_found(results: dict[str, Any], certificate: Certificate, authority: Authority) -> None:
    assert_only_strong_suites(results)
    assert_chain_is_right(results, certificate, authority)
    assert results["tls_compression"] == {"supports_compression": False}
    assert results["session_renegotiation"]["supports_secure_renegotiation"] is True
    assert results["session_renegotiation"]["is_vulnerable_to_client_renegotiation_dos"] is False
    assert results["tls_fallback_scsv"] == {"supports_fallback_scsv": True}
    assert results["heartbleed"] == {"is_vulnerable_to_heartbleed": False}
    assert results["openssl_ccs_injection"] == {"is_vulnerable_to_ccs_injection": False}
    assert results["robot"]["robot_result"] == "NOT_VULNERABLE_RSA_NOT_SUPPORTED"
    assert results["tls_extended_master_secret"] == {"supports_ems_extension": True}
