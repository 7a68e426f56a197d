"""The samples in docs/deploy: each configuration passes `headrace check-config`, with certificates made here."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

import pytest
from click.testing import CliRunner

from headrace.config.loading import loads
from headrace.config.tables.limits import Limits
from headrace.proxy.cli import main
from headrace.quota_callbacks.requests import Address
from tests.deploy.balancer import HAPROXY, SAMPLE, with_replaced
from tests.deploy.chart import ROOT, TOKEN, manifests, with_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from testbed.kafka.certificates import Authority

DEPLOY: Final = ROOT / "docs" / "deploy"
UNIT: Final = (DEPLOY / "headrace.service").read_text(encoding="utf-8")
DROP_IN: Final = (DEPLOY / "headrace-tls.conf").read_text(encoding="utf-8")
TLS_CONFIG: Final = (DEPLOY / "headrace-tls.toml").read_text(encoding="utf-8")
TLS_FILES: Final = "/etc/headrace/tls/"


def checked(text: str, folder: Path) -> str:
    """The output of ``headrace check-config``, which has to succeed."""
    file = folder / "headrace.toml"
    file.write_text(text, encoding="utf-8")
    result = CliRunner().invoke(main, ["check-config", str(file)])
    assert result.exit_code == 0, result.output
    return result.output


def files_of(authority: Authority, folder: Path) -> Mapping[str, str]:
    """Files in place of those that the sample names."""
    own = authority.broker_certificate("proxy", hosts=["*.kafka.example.com"])
    (folder / "token").write_text(TOKEN, encoding="ascii")
    return {
        f"{TLS_FILES}brokers-ca.pem": str(authority.ca_file),
        f"{TLS_FILES}kafka.example.com.pem": str(own.certificate_file),
        f"{TLS_FILES}kafka.example.com.key": str(own.key_file),
        "/etc/headrace/admin-token": str(folder / "token"),
    }


def test_every_configuration_is_checked_here() -> None:
    configurations = {path.name for path in DEPLOY.iterdir() if "bootstrap_servers" in path.read_text(encoding="utf-8")}
    assert configurations == {"headrace-tls.toml", "kubernetes.yaml", "kubernetes-tls.yaml"}


def test_the_configuration_with_tls(authority: Authority, tmp_path: Path) -> None:
    output = checked(with_replaced(TLS_CONFIG, files_of(authority, tmp_path)), tmp_path)
    assert "with TLS" in output
    assert "broker-$(node_id).kafka.example.com" in output


def test_a_certificate_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    """The check reads the files: otherwise the other tests here would prove little."""
    file = tmp_path / "headrace.toml"
    file.write_text(TLS_CONFIG.replace("/etc/headrace", str(tmp_path)), encoding="utf-8")
    result = CliRunner().invoke(main, ["check-config", str(file)])
    assert result.exit_code == 1
    assert "brokers-ca.pem" in result.output


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kubernetes-tls.yaml"])
def test_kubernetes(name: str, authority: Authority, tmp_path: Path) -> None:
    found = manifests((DEPLOY / name).read_text(encoding="utf-8"))
    output = checked(with_secrets(found, authority, tmp_path / "secrets"), tmp_path)
    assert ("with TLS" in output) == (name == "kubernetes-tls.yaml")


# --- HAProxy ---


def test_haproxy_accepts_its_sample() -> None:
    if HAPROXY is None:
        pytest.skip("haproxy is not installed")
    result = subprocess.run([HAPROXY, "-c", "-f", SAMPLE], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "warning" not in (result.stdout + result.stderr).lower()


def test_the_balancer_fits_the_configuration() -> None:
    text = SAMPLE.read_text(encoding="ascii")
    config = loads(TLS_CONFIG)
    assert isinstance(config.admin.listen, Address)
    assert f"bind :{config.listen.advertised.port}\n" in text
    assert f"check port {config.admin.listen.port} " in text
    assert re.findall(r"server proxy-\d 192\.0\.2\.\d+:(\d+)", text) == [str(config.listen.address.port)] * 2
    assert ("send-proxy-v2" in text) == bool(config.listen.proxy_protocol_from)
    for side in ("client", "server"):
        found = re.search(rf"timeout {side} (\d+)h", text)
        assert found is not None
        assert int(found[1]) * 3600 > Limits().idle_timeout_s
    check = re.search(r"timeout check (\d+)s", text)
    assert check is not None
    assert int(check[1]) > 2 * config.upstream.connect_timeout_s


def test_both_samples_of_haproxy_have_the_same_times() -> None:
    def defaults(text: str) -> list[str]:
        return re.findall(r"^    (?:timeout|retries|option redispatch).*", text, re.MULTILINE)

    plain = (DEPLOY / "haproxy.cfg").read_text(encoding="ascii")
    assert defaults(plain) == defaults(SAMPLE.read_text(encoding="ascii"))


# --- systemd ---


def test_systemd_accepts_the_drop_in(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "headrace.service"
    programs = {"/opt/headrace/bin/headrace": shutil.which("true"), "/bin/kill": shutil.which("kill")}
    unit.write_text(with_replaced(UNIT, {old: str(new) for old, new in programs.items()}), encoding="utf-8")
    drop_in = tmp_path / "headrace.service.d" / "tls.conf"
    drop_in.parent.mkdir()
    drop_in.write_text(DROP_IN, encoding="utf-8")
    result = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, timeout=60, check=False)
    assert not [line for line in result.stderr.splitlines() if "headrace" in line]


def test_the_drop_in_adds_nothing_but_the_group() -> None:
    lines = [line for line in DROP_IN.splitlines() if line and not line.startswith("#")]
    assert lines == ["[Service]", "SupplementaryGroups=headrace-files"]
    assert "/etc/systemd/system/headrace.service.d/tls.conf" in DROP_IN
