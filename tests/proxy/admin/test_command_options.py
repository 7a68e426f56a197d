"""The options of commands that reach the admin server, with a real proxy whose admin server has TLS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from click.testing import CliRunner

from headrace.proxy.cli import main
from testbed.kafka.certificates import EXPIRED, Authority, Certificate
from testbed.proxy_process import ProxyProcess
from tests.faults.fake_broker import FakeBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ELSEWHERE: Final = "headrace.example.com"


@pytest.fixture(scope="module")
def operator(authority: Authority) -> Certificate:
    return authority.client_certificate("CN=alice,O=Example")


@pytest.fixture(scope="module")
def proxy(authority: Authority) -> Iterator[ProxyProcess]:
    """A proxy that requires certificates, and has one for another name than its address."""
    certificate = authority.broker_certificate(hosts=[ELSEWHERE])
    config = (
        f'[admin.tls]\ncertificate_file = "{certificate.keystore_file}"\nclient_certificates = "required"\n'
        f'client_ca_file = "{authority.ca_file}"\n'
    )
    with FakeBroker({}) as broker, ProxyProcess(broker.address, config=config) as process:
        yield process


def run(*arguments: str | Path, **environment: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(map(str, arguments)), env=environment)
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result.exit_code, result.output


def test_every_command_speaks_https(proxy: ProxyProcess, authority: Authority, operator: Certificate) -> None:
    options = (
        *("--admin", f"https://{proxy.admin}/", "--admin-ca", authority.ca_file, "--admin-server-name", ELSEWHERE),
        *("--admin-cert", operator.certificate_file, "--admin-key", operator.key_file),
    )
    assert run("ready", *options) == (0, "ready\n")
    assert run("enforcement", "off", *options) == (0, "enforcement is off\n")
    assert run("enforcement", "on", *options) == (0, "enforcement is on\n")
    assert run("why", *options) == (0, "no request was throttled or refused\n")
    status, output = run("quotas", "audit", *options)
    assert (status, "this proxy keeps no quotas" in output) == (1, True)


def test_variables_take_the_place_of_options(proxy: ProxyProcess, authority: Authority, operator: Certificate) -> None:
    variables = {
        "HEADRACE_ADMIN__LISTEN": proxy.admin,
        "HEADRACE_ADMIN_CA": str(authority.ca_file),
        "HEADRACE_ADMIN_CERT": str(operator.keystore_file),
        "HEADRACE_ADMIN_SERVER_NAME": ELSEWHERE,
    }
    assert run("ready", **variables) == (0, "ready\n")
    split = variables | {
        "HEADRACE_ADMIN_CERT": str(operator.certificate_file),
        "HEADRACE_ADMIN_KEY": str(operator.key_file),
    }
    assert run("ready", **split) == (0, "ready\n")
    assert "this port requires TLS" in run("ready", "--admin", f"http://{proxy.admin}", **variables)[1]


def test_errors_name_the_option(
    proxy: ProxyProcess, authority: Authority, operator: Certificate, tmp_path: Path
) -> None:
    right = ["--admin-ca", authority.ca_file, "--admin-server-name", ELSEWHERE]
    shown = ["--admin-cert", operator.certificate_file, "--admin-key", operator.key_file]
    expired = authority.client_certificate("CN=alice,O=Example", name="expired", valid_for=EXPIRED)
    strange = Authority(tmp_path, "stranger").client_certificate("CN=alice,O=Example")
    other_key = ["--admin-cert", operator.certificate_file, "--admin-key", expired.key_file]
    empty = tmp_path / "empty"
    empty.touch()
    cases: list[tuple[list[str | Path], str]] = [
        ([], "this port requires TLS: use https instead of http; use https://, and --admin-ca"),
        (["--admin-server-name", ELSEWHERE, *shown], "self-signed certificate in certificate chain; use --admin-ca"),
        (["--admin-ca", authority.ca_file, *shown], "use --admin-server-name NAME for a name in it"),
        (right, "it requires a client certificate; give one with --admin-cert and --admin-key"),
        ([*right, "--admin-cert", expired.keystore_file], "the client certificate has expired"),
        ([*right, "--admin-cert", strange.keystore_file], "admin.tls.client_ca_file names those that it trusts"),
        ([*right, *other_key], "the private key does not belong to the certificate"),
        ([*right, "--admin-cert", operator.certificate_file], "not a certificate with its private key in PEM format"),
        ([*right, *shown[:3], operator.encrypted_key_file], "the private key is encrypted"),
        ([*right, "--admin-key", operator.key_file], "give it with --admin-cert"),
        ([*right, "--admin-cert", tmp_path / "missing"], "missing: no such file or directory"),
        (["--admin-ca", tmp_path / "missing"], "missing: no such file or directory"),
        (["--admin-ca", empty], f"--admin-ca {empty}: not a certificate in PEM format"),
    ]
    for options, reason in cases:
        status, output = run("ready", "--admin", proxy.admin, *options)
        assert (status, reason in output) == (1, True), (options, output)
        assert output.startswith("headrace: "), output
        assert output.count("\n") == 1, output


def test_a_server_without_tls_is_recognized(authority: Authority) -> None:
    with FakeBroker({}) as broker, ProxyProcess(broker.address) as process:
        status, output = run("ready", "--admin", process.admin, "--admin-ca", authority.ca_file)
        assert (status, "it does not speak TLS; leave out https:// and --admin-ca" in output) == (1, True), output
        variables = {"HEADRACE_ADMIN_CA": str(authority.ca_file)}
        assert run("ready", "--admin", f"http://{process.admin}", **variables) == (0, "ready\n")
